// The tiles of the maps on show: requested, followed while they sharpen, cancelled out of view, evicted over a memory limit.

import { scaleTop } from "../colours.js";
import { isAbort } from "../hosts.js";
import { mapTileQuestion } from "../questions.js";

/** @typedef {import("./pyramid.js").MapWish} MapWish */
/** @typedef {import("../types.js").Where} Where */
/** @typedef {import("../types.js").Question} Question */
/** @typedef {import("../types.js").Reply} Reply */
/** @typedef {import("./tile_drawing.js").MapPanel} MapPanel */

/**
 * @typedef {object} MapTile
 * @property {number} level
 * @property {number} row
 * @property {number} column
 * @property {Float32Array} data  rows x columns
 * @property {number} rows  cells
 * @property {number} columns
 * @property {number} complete  part of its queries that were read, 0 to 1
 * @property {number} version  another number for other data
 * @property {number} most  largest size of a weight in it
 * @property {number} mostRest  the same without the first key's column
 * @property {number} used  the frame that drew it last
 * @property {any} drawn  what a renderer keeps of it
 * @property {MapLayer} layer
 */

/** @typedef {{controller: AbortController, wish: MapWish}} MapFlight */

/**
 * @typedef {object} MapLayer  the tiles of one map, pooled in one way
 * @property {string} name
 * @property {Where} where
 * @property {"mass" | "max"} how
 * @property {Map<number, MapTile>[]} levels  by level, then by place
 * @property {Map<number, MapFlight>[]} flights
 * @property {Float64Array} most  by level: the largest weight of its complete tiles, also of those forgotten
 * @property {Float64Array} mostRest
 * @property {string} failed  why the host refused, or ""
 */

/**
 * @typedef {object} MapTiles
 * @property {(where: Where, how: "mass" | "max") => MapLayer} layer
 * @property {(layer: MapLayer, wishes: MapWish[]) => void} want  these and no others
 * @property {(layer: MapLayer) => void} abandon  nothing more is wanted
 * @property {(frame: number) => void} trim  forgets what the last drawn frame did not need, where memory is over its bound
 * @property {() => void} dispose
 * @property {() => number} bytes
 */

/** Cells of an axis are told apart by this many bits of a place. */
const mapPlaceBits = 20;
/** What has been seen once goes on to sharpen behind everything that has not. */
const mapSharpenBehind = 200;
/** A wish that is so much more urgent than before is told to the client. */
const mapHasteLeast = 15;

/**
 * @param {object} options
 * @param {import("../types.js").Client} options.client
 * @param {number} [options.maxBytes]
 * @param {(tile: MapTile) => void} options.onTile  one came or changed
 * @param {(tile: MapTile) => void} options.onForget
 * @param {(layer: MapLayer) => void} [options.onFail]
 * @returns {MapTiles}
 */
export function makeMapTiles({ client, maxBytes = 96 * 2 ** 20, onTile, onForget, onFail = () => {} }) {
  /** @type {Map<string, MapLayer>} */
  const layers = new Map();
  let bytes = 0;

  /** @param {MapLayer} layer @param {MapWish} wish @param {Reply} reply */
  function receive(layer, wish, reply) {
    const array = reply.arrays[0];
    const data = /** @type {Float32Array} */ (array.data);
    const place = mapPlaceOf(wish.row, wish.column);
    let tile = layer.levels[wish.level].get(place);
    if (tile && tile.data === data) return;
    if (!tile) {
      tile = {
        level: wish.level, row: wish.row, column: wish.column, data, rows: 0, columns: 0, complete: 0, version: 0,
        most: 0, mostRest: 0, used: Infinity, drawn: null, layer,
      };
      layer.levels[wish.level].set(place, tile);
    } else bytes -= mapTileBytes(tile);
    tile.data = data;
    [tile.rows, tile.columns] = array.shape;
    tile.complete = reply.meta.complete ?? 1;
    tile.version += 1;
    mapMeasure(tile);
    if (tile.complete >= 1) {
      layer.most[wish.level] = Math.max(layer.most[wish.level], tile.most);
      layer.mostRest[wish.level] = Math.max(layer.mostRest[wish.level], tile.mostRest);
    }
    bytes += mapTileBytes(tile);
    onTile(tile);
  }

  /** @param {MapLayer} layer @param {MapWish} wish @param {MapFlight} flight */
  async function fetchTile(layer, wish, flight) {
    const question = mapTileQuestion(layer, wish.level, wish.row, wish.column);
    const signal = flight.controller.signal;
    try {
      // A first answer for everything in view comes before a second one for anything.
      if (!client.peek(question)) receive(layer, wish, await client.ask(question, { signal, priority: wish.priority }));
      if (!signal.aborted) {
        const follow = { signal, priority: wish.priority - mapSharpenBehind };
        await client.follow(question, (reply) => receive(layer, wish, reply), follow);
      }
      layer.failed = "";
    } catch (error) {
      if (isAbort(error)) return;
      layer.failed = error instanceof Error ? error.message : String(error);
      onFail(layer);
    } finally {
      const place = mapPlaceOf(wish.row, wish.column);
      if (layer.flights[wish.level].get(place) === flight) layer.flights[wish.level].delete(place);
    }
  }

  /** @param {MapTile} tile */
  function forget(tile) {
    bytes -= mapTileBytes(tile);
    tile.layer.levels[tile.level].delete(mapPlaceOf(tile.row, tile.column));
    onForget(tile);
  }

  return {
    layer(where, how) {
      const name = JSON.stringify([where.side, where.kind, where.layer, where.head, where.merge, where.specials, how]);
      let layer = layers.get(name);
      if (!layer) {
        layer = {
          name, where, how, failed: "",
          levels: Array.from({ length: mapLevelsMost }, () => new Map()),
          flights: Array.from({ length: mapLevelsMost }, () => new Map()),
          most: new Float64Array(mapLevelsMost), mostRest: new Float64Array(mapLevelsMost),
        };
        layers.set(name, layer);
      }
      return layer;
    },
    want(layer, wishes) {
      const wanted = new Set(wishes.map((wish) => `${wish.level}/${mapPlaceOf(wish.row, wish.column)}`));
      layer.flights.forEach((flights, level) => {
        for (const [place, flight] of flights) {
          if (wanted.has(`${level}/${place}`)) continue;
          flights.delete(place);
          flight.controller.abort();
        }
      });
      for (const wish of wishes) {
        const place = mapPlaceOf(wish.row, wish.column);
        const there = layer.levels[wish.level].get(place);
        if (there && there.complete >= 1) continue;
        const flying = layer.flights[wish.level].get(place);
        if (flying) mapHasten(flying, wish, mapTileQuestion(layer, wish.level, wish.row, wish.column), client);
        if (flying) continue;
        const flight = { controller: new AbortController(), wish };
        layer.flights[wish.level].set(place, flight);
        void fetchTile(layer, wish, flight);
      }
    },
    abandon(layer) {
      for (const flights of layer.flights) {
        for (const flight of flights.values()) flight.controller.abort();
        flights.clear();
      }
    },
    trim(frame) {
      if (bytes <= maxBytes) return;
      const tiles = [...layers.values()].flatMap((layer) => layer.levels.flatMap((level) => [...level.values()]));
      // One that came since the last frame has not been drawn yet: its turn is now.
      for (const tile of tiles) if (tile.used === Infinity) tile.used = frame;
      tiles.sort((left, right) => left.used - right.used);
      for (const tile of tiles) {
        if (bytes <= maxBytes * 0.9 || tile.used >= frame) break;
        forget(tile);
      }
    },
    bytes: () => bytes,
    dispose() {
      for (const layer of layers.values()) {
        this.abandon(layer);
        for (const level of layer.levels) level.forEach(onForget);
      }
      layers.clear();
      bytes = 0;
    },
  };
}

/**
 * A tile that was wanted in case, and has come into view.
 * @param {MapFlight} flight
 * @param {MapWish} wish
 * @param {Question} question
 * @param {import("../types.js").Client} client
 */
function mapHasten(flight, wish, question, client) {
  if (wish.priority < flight.wish.priority + mapHasteLeast || client.peek(question)) return;
  flight.wish = wish;
  void client.ask(question, { signal: flight.controller.signal, priority: wish.priority }).catch(() => {});
}

/**
 * @param {number} row
 * @param {number} column
 */
function mapPlaceOf(row, column) {
  return row * 2 ** mapPlaceBits + column;
}

/**
 * A small integer's name costs nothing: this is what frames use.
 * @param {MapLayer} layer
 * @param {number} level
 * @param {number} row
 * @param {number} column
 */
export function mapTileAt(layer, level, row, column) {
  return level < mapLevelsMost ? layer.levels[level].get(mapPlaceOf(row, column)) : undefined;
}

/** @param {MapTile} tile */
function mapTileBytes(tile) {
  // The numbers, and as much again for what is drawn from them.
  return tile.rows * tile.columns * 8 + 512;
}

// The largest weights of what is loaded, by level.

/** Levels of a map at most. */
export const mapLevelsMost = 40;

/** @param {MapTile} tile */
export function mapMeasure(tile) {
  const { data, columns } = tile;
  tile.most = scaleTop(data);
  tile.mostRest = tile.column === 0 ? scaleTop(data, 0, data.length, columns, 1) : tile.most;
}

/**
 * Where the colours of a level end, by the weights seen there; estimated from another level where none of this one is there.
 * @param {MapLayer} layer
 * @param {number} level
 * @param {boolean} rest  without the first key's column
 */
export function mapMost(layer, level, rest) {
  const own = mapMostOf(layer, level, rest);
  if (own > 0) return own;
  for (let away = 1; away < mapLevelsMost; away++) {
    for (const other of [level + away, level - away]) {
      if (other < 0 || other >= mapLevelsMost) continue;
      const found = mapMostOf(layer, other, rest);
      if (found > 0) return found * mapFactor(layer, other, level);
    }
  }
  return 0;
}

/**
 * @param {MapLayer} layer
 * @param {number} level
 * @param {boolean} rest
 */
function mapMostOf(layer, level, rest) {
  let most = rest ? layer.mostRest[level] : layer.most[level];
  for (const tile of layer.levels[level].values()) most = Math.max(most, rest ? tile.mostRest : tile.most);
  return most;
}

/**
 * What makes a cell of one level comparable with the cells of another: masses are sums over a cell's keys.
 * @param {{how: "mass" | "max"}} layer
 * @param {number} from
 * @param {number} to
 */
export function mapFactor(layer, from, to) {
  return layer.how === "mass" ? 2 ** (to - from) : 1;
}

// The finest cell that is known of a place.

/**
 * What one cell of a coarser level holds: its number at that level.
 * @param {MapPanel} panel
 * @param {number} query
 * @param {number} key
 * @returns {{value: number, complete: number, level: number} | null}
 */
export function mapCellUnder(panel, query, key) {
  const { layer } = panel;
  if (!layer) return null;
  for (let level = panel.level; level < layer.levels.length; level++) {
    const row = Math.floor(query / 2 ** level);
    const column = Math.floor(key / 2 ** level);
    const tile = mapTileAt(layer, level, row >> 8, column >> 8);
    if (!tile) continue;
    const value = tile.data[(row & 255) * tile.columns + (column & 255)];
    if (value === value || level >= layer.levels.length - 1) return { value, complete: tile.complete, level };
  }
  return null;
}
