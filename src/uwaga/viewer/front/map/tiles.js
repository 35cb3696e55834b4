// The tiles of the maps on show: requested, followed while they sharpen, cancelled out of view, evicted over a memory limit.

import { colourScaleMax } from "../colours.js";
import { isAbort, messageOf } from "../hosts.js";
import { tileRequest } from "../requests.js";
import { sinkColumns } from "../weights.js";
/** @import { Client, Reply, Request, Where } from "../types.js" */
/** @import { TileRequest } from "./pyramid.js" */
/** @import { Panel } from "./tile_drawing.js" */

/**
 * @typedef {object} Tile
 * @property {number} level
 * @property {number} row
 * @property {number} column
 * @property {Float32Array} data  rows x columns
 * @property {number} rows  cells
 * @property {number} columns
 * @property {number} complete  share of its queries that were read, 0 to 1
 * @property {number} version  incremented with the data
 * @property {number} scaleMax  upper end of the colour scale of its weights (colourScaleMax)
 * @property {number} scaleMaxNoSink  the same without the cells of sinks
 * @property {number} used  the frame that drew it last, for LRU eviction
 * @property {any} drawn  the renderer's cached texture or colours
 * @property {Layer} layer
 */

/** @typedef {{controller: AbortController, request: TileRequest}} PendingTile */

/**
 * @typedef {object} Layer  the tiles of one map, for one kind of pooling
 * @property {string} name
 * @property {Where} where
 * @property {"sum" | "max"} pooling
 * @property {Map<number, Tile>[]} levels  by level, then by tileKey
 * @property {Map<number, PendingTile>[]} pending
 * @property {Float64Array} scaleMax  by level: the maximum over its complete tiles, evicted ones included
 * @property {Float64Array} scaleMaxNoSink
 * @property {ReadonlySet<number>} sinks  keys; empty until the labels are known
 * @property {string} failed  the host's error message, or ""
 */

/**
 * @typedef {object} Tiles
 * @property {(where: Where, pooling: "sum" | "max") => Layer} layer
 * @property {(layer: Layer, sinks: ReadonlySet<number>) => void} setSinks
 * @property {(layer: Layer, requests: TileRequest[]) => void} request  requests these tiles and cancels all others
 * @property {(layer: Layer) => void} abandon  cancels all requests
 * @property {(frame: number) => void} trim  evicts the least recently drawn tiles while memory is over its limit
 * @property {() => void} dispose
 * @property {() => number} bytes
 */

/** Bits of the column in a tile key. */
const tileKeyBits = 20;
/** How far the priority of refining a tile lies below that of its first reply. */
const sharpenPriorityDrop = 200;
/** The least increase of priority that is passed on to the client. */
const minPriorityRaise = 15;

/**
 * @param {object} options @param {Client} options.client @param {number} [options.maxBytes]
 * @param {(tile: Tile) => void} options.onTile  a tile arrived or changed
 * @param {(tile: Tile) => void} options.onForget @param {(layer: Layer) => void} [options.onFail] @returns {Tiles}
 */
export function makeTiles({ client, maxBytes = 96 * 2 ** 20, onTile, onForget, onFail = () => {} }) {
  /** @type {Map<string, Layer>} */
  const layers = new Map();
  let bytes = 0;

  /** @param {Layer} layer @param {TileRequest} request @param {Reply} reply */
  function receive(layer, request, reply) {
    const array = reply.arrays[0];
    const data = /** @type {Float32Array} */ (array.data);
    const place = tileKey(request.row, request.column);
    let tile = layer.levels[request.level].get(place);
    if (tile && tile.data === data) return;
    if (!tile) {
      tile = {
        level: request.level, row: request.row, column: request.column, data, rows: 0, columns: 0, complete: 0, version: 0,
        scaleMax: 0, scaleMaxNoSink: 0, used: Infinity, drawn: null, layer,
      };
      layer.levels[request.level].set(place, tile);
    } else bytes -= bytesOf(tile);
    tile.data = data;
    [tile.rows, tile.columns] = array.shape;
    tile.complete = reply.meta.complete ?? 1;
    tile.version += 1;
    measureTile(tile);
    if (tile.complete >= 1) {
      layer.scaleMax[request.level] = Math.max(layer.scaleMax[request.level], tile.scaleMax);
      layer.scaleMaxNoSink[request.level] = Math.max(layer.scaleMaxNoSink[request.level], tile.scaleMaxNoSink);
    }
    bytes += bytesOf(tile);
    onTile(tile);
  }

  /** @param {Layer} layer @param {TileRequest} request @param {PendingTile} pendingTile */
  async function fetchTile(layer, request, pendingTile) {
    const wireRequest = tileRequest(layer, request.level, request.row, request.column);
    const signal = pendingTile.controller.signal;
    try {
      // First replies for all tiles in view have precedence over refinements.
      if (!client.peek(wireRequest)) receive(layer, request, await client.ask(wireRequest, { signal, priority: request.priority }));
      if (!signal.aborted) {
        const follow = { signal, priority: request.priority - sharpenPriorityDrop };
        await client.follow(wireRequest, (reply) => receive(layer, request, reply), follow);
      }
      layer.failed = "";
    } catch (error) {
      if (isAbort(error)) return;
      layer.failed = messageOf(error);
      onFail(layer);
    } finally {
      const place = tileKey(request.row, request.column);
      if (layer.pending[request.level].get(place) === pendingTile) layer.pending[request.level].delete(place);
    }
  }

  /** @param {Tile} tile */
  function forget(tile) {
    bytes -= bytesOf(tile);
    tile.layer.levels[tile.level].delete(tileKey(tile.row, tile.column));
    onForget(tile);
  }

  return {
    layer(where, pooling) {
      const name = JSON.stringify([where.side, where.kind, where.layer, where.head, where.merge, where.specials, pooling]);
      let layer = layers.get(name);
      if (!layer) {
        layer = {
          name, where, pooling, sinks: new Set(), failed: "",
          levels: Array.from({ length: maxLevels }, () => new Map()),
          pending: Array.from({ length: maxLevels }, () => new Map()),
          scaleMax: new Float64Array(maxLevels), scaleMaxNoSink: new Float64Array(maxLevels),
        };
        layers.set(name, layer);
      }
      return layer;
    },
    setSinks(layer, sinks) {
      layer.sinks = sinks;
      layer.scaleMaxNoSink.fill(0);
      layer.levels.forEach((level) => level.forEach((tile) => {
        measureTile(tile);
        if (tile.complete >= 1) layer.scaleMaxNoSink[tile.level] = Math.max(layer.scaleMaxNoSink[tile.level], tile.scaleMaxNoSink);
      }));
    },
    request(layer, requests) {
      const requestedKeys = new Set(requests.map((request) => `${request.level}/${tileKey(request.row, request.column)}`));
      layer.pending.forEach((pending, level) => {
        for (const [place, pendingTile] of pending) {
          if (requestedKeys.has(`${level}/${place}`)) continue;
          pending.delete(place);
          pendingTile.controller.abort();
        }
      });
      for (const request of requests) {
        const place = tileKey(request.row, request.column);
        const existing = layer.levels[request.level].get(place);
        if (existing && existing.complete >= 1) continue;
        const pendingNow = layer.pending[request.level].get(place);
        if (pendingNow) raiseTilePriority(pendingNow, request, tileRequest(layer, request.level, request.row, request.column), client);
        if (pendingNow) continue;
        const pendingTile = { controller: new AbortController(), request };
        layer.pending[request.level].set(place, pendingTile);
        void fetchTile(layer, request, pendingTile);
      }
    },
    abandon(layer) {
      for (const pending of layer.pending) {
        for (const pendingTile of pending.values()) pendingTile.controller.abort();
        pending.clear();
      }
    },
    trim(frame) {
      if (bytes <= maxBytes) return;
      const tiles = [...layers.values()].flatMap((layer) => layer.levels.flatMap((level) => [...level.values()]));
      // A tile that arrived since the last frame has not been drawn yet: it counts as used now.
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
 * Raises the priority of a prefetched tile that has come into view.
 * @param {PendingTile} pendingTile @param {TileRequest} request @param {Request} wireRequest @param {Client} client
 */
function raiseTilePriority(pendingTile, request, wireRequest, client) {
  if (request.priority < pendingTile.request.priority + minPriorityRaise || client.peek(wireRequest)) return;
  pendingTile.request = request;
  void client.ask(wireRequest, { signal: pendingTile.controller.signal, priority: request.priority }).catch(() => {});
}

/** @param {number} row @param {number} column */
function tileKey(row, column) {
  return row * 2 ** tileKeyBits + column;
}

/**
 * A tile by level and position. Frames use this: an integer key allocates nothing.
 * @param {Layer} layer @param {number} level @param {number} row @param {number} column
 */
export function tileAt(layer, level, row, column) {
  return level < maxLevels ? layer.levels[level].get(tileKey(row, column)) : undefined;
}

/** @param {Tile} tile */
function bytesOf(tile) {
  // The weights, and as much again for the renderer's texture or colours.
  return tile.rows * tile.columns * 8 + 512;
}

// The upper ends of the colour scale, by level.

/** Maximum number of levels of a map. */
const maxLevels = 40;

/** Cells along a side of a tile. */
const mapTileCells = 256;

/** @param {Tile} tile */
function measureTile(tile) {
  const { data, columns, column, level, layer } = tile;
  const hidden = sinkColumns(layer.sinks, columns, (at) => (column * mapTileCells + at) * 2 ** level);
  tile.scaleMax = colourScaleMax(data);
  tile.scaleMaxNoSink = hidden ? colourScaleMax(data, 0, data.length, hidden) : tile.scaleMax;
}

/**
 * The upper end of the colour scale of a level, from its loaded tiles; if there are none, estimated from the nearest level.
 * @param {Layer} layer @param {number} level
 * @param {boolean} noSink  without the cells of sinks
 */
export function layerScaleMax(layer, level, noSink) {
  const levelMax = knownScaleMax(layer, level, noSink);
  if (levelMax > 0) return levelMax;
  for (let away = 1; away < maxLevels; away++) {
    for (const other of [level + away, level - away]) {
      if (other < 0 || other >= maxLevels) continue;
      const found = knownScaleMax(layer, other, noSink);
      if (found > 0) return found * levelFactor(layer, other, level);
    }
  }
  return 0;
}

/** @param {Layer} layer @param {number} level @param {boolean} noSink */
function knownScaleMax(layer, level, noSink) {
  let scaleMax = noSink ? layer.scaleMaxNoSink[level] : layer.scaleMax[level];
  for (const tile of layer.levels[level].values()) scaleMax = Math.max(scaleMax, noSink ? tile.scaleMaxNoSink : tile.scaleMax);
  return scaleMax;
}

/**
 * The factor from cells of one level to those of another: masses are sums over a cell's keys.
 * @param {{pooling: "sum" | "max"}} layer @param {number} from @param {number} to
 */
export function levelFactor(layer, from, to) {
  return layer.pooling === "sum" ? 2 ** (to - from) : 1;
}

// The finest known cell at a position.

/**
 * The finest loaded cell that contains an entry, from the panel's level upwards, and its level.
 * @param {Panel} panel @param {number} query @param {number} key @returns {{value: number, complete: number, level: number} | null}
 */
export function finestKnownCell(panel, query, key) {
  const { layer } = panel;
  if (!layer) return null;
  for (let level = panel.level; level < layer.levels.length; level++) {
    const row = Math.floor(query / 2 ** level);
    const column = Math.floor(key / 2 ** level);
    const tile = tileAt(layer, level, row >> 8, column >> 8);
    if (!tile) continue;
    const value = tile.data[(row & 255) * tile.columns + (column & 255)];
    if (value === value || level >= layer.levels.length - 1) return { value, complete: tile.complete, level };
  }
  return null;
}
