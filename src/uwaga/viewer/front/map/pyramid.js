// Which level and which tiles a viewport needs. A cell of level l covers 2^l x 2^l items; a tile holds 256 x 256 cells.

/** @import { ViewBox } from "../types.js" */
/** @import { Plot, Sizes } from "./viewport.js" */

/** @typedef {{level: number, row: number, column: number, priority: number}} TileRequest */

/** Side of a tile in cells; a power of two, equal to the `tile` of `about`. */
export const tileSide = 256;

/** The number of cells that cover the given items at a level. @param {number} items @param {number} level */
export function cellsOf(items, level) {
  return Math.ceil(items / 2 ** level);
}

/** The finest level that holds the whole map in one tile. @param {Sizes} sizes */
export function topLevel(sizes) {
  let level = 0;
  while (cellsOf(Math.max(sizes.queries, sizes.keys), level) > tileSide) level += 1;
  return level;
}

/**
 * The finest level whose cells are at least a device pixel: smaller ones would be aliased.
 * @param {number} scale  CSS pixels per item
 * @param {number} ratio  device pixels per CSS pixel
 * @param {number} top
 */
export function levelFor(scale, ratio, top) {
  const level = Math.ceil(Math.log2(1 / Math.max(scale * ratio, 1e-12)) - 0.02);
  return Math.min(Math.max(level, 0), top);
}

/**
 * The tiles of a level in view: [first row, one past the last, first column, one past the last].
 * @param {ViewBox} view @param {Plot} plot @param {Sizes} sizes @param {number} level @param {Int32Array | number[]} [into]
 */
export function tileRange(view, plot, sizes, level, into = [0, 0, 0, 0]) {
  const side = tileSide * 2 ** level;
  const rows = Math.ceil(sizes.queries / side);
  const columns = Math.ceil(sizes.keys / side);
  into[0] = Math.min(Math.max(Math.floor(view.y / side), 0), rows);
  into[1] = Math.min(Math.max(Math.ceil((view.y + plot.h / view.scale) / side), into[0]), rows);
  into[2] = Math.min(Math.max(Math.floor(view.x / side), 0), columns);
  into[3] = Math.min(Math.max(Math.ceil((view.x + plot.w / view.scale) / side), into[2]), columns);
  return into;
}

/**
 * Tile requests by descending priority: first the whole map in one tile, so that something is shown at once, then the tiles in view
 * from the middle outwards, then those around them (prefetch).
 * @param {ViewBox} view @param {Plot} plot @param {Sizes} sizes
 * @param {number} ratio  device pixels per CSS pixel
 * @param {(level: number, row: number, column: number) => boolean} offered  whether the host has the tile
 * @returns {TileRequest[]}
 */
export function planTileRequests(view, plot, sizes, ratio, offered) {
  const top = topLevel(sizes);
  const level = levelFor(view.scale, ratio, top);
  /** @type {TileRequest[]} */
  const requests = [];
  const seen = new Set();
  const add = (/** @type {TileRequest} */ request) => {
    const found = offeredTile(request, offered, sizes);
    const name = found && `${found.level}/${found.row}/${found.column}`;
    if (!found || seen.has(name)) return;
    seen.add(name);
    requests.push(found);
  };
  add({ level: top, row: 0, column: 0, priority: 100 });
  const range = tileRange(view, plot, sizes, level);
  const side = tileSide * 2 ** level;
  const middleX = (view.x + plot.w / view.scale / 2) / side - 0.5;
  const middleY = (view.y + plot.h / view.scale / 2) / side - 0.5;
  const distance = (/** @type {number} */ row, /** @type {number} */ column) => Math.hypot(row - middleY, column - middleX);
  const inView = tilesInRange(range[0], range[1], range[2], range[3]);
  inView.sort((left, right) => distance(left[0], left[1]) - distance(right[0], right[1]));
  for (const [row, column] of inView) add({ level, row, column, priority: 90 - Math.min(60, distance(row, column)) });
  // Only exact tiles are prefetched: a coarse one takes most of the map's computation.
  if (level === 0 && sizes.queries * sizes.keys > 0) {
    const rows = Math.ceil(sizes.queries / side);
    const columns = Math.ceil(sizes.keys / side);
    const prefetched = tilesInRange(Math.max(0, range[0] - 1), Math.min(rows, range[1] + 1),
      Math.max(0, range[2] - 1), Math.min(columns, range[3] + 1));
    for (const [row, column] of prefetched) add({ level, row, column, priority: 10 - Math.min(9, distance(row, column)) });
  }
  return requests;
}

/** @param {number} firstRow @param {number} lastRow @param {number} firstColumn @param {number} lastColumn */
function tilesInRange(firstRow, lastRow, firstColumn, lastColumn) {
  /** @type {[number, number][]} */
  const tiles = [];
  for (let row = firstRow; row < lastRow; row++) {
    for (let column = firstColumn; column < lastColumn; column++) tiles.push([row, column]);
  }
  return tiles;
}

/**
 * The tile, or the finest one above it that the host has: a saved page may hold only coarse levels.
 * @param {TileRequest} request @param {(level: number, row: number, column: number) => boolean} offered
 * @param {Sizes} sizes @returns {TileRequest | null}
 */
function offeredTile(request, offered, sizes) {
  let { level, row, column } = request;
  const last = lastLevel(sizes);
  while (!offered(level, row, column)) {
    if (level >= last) return null;
    level += 1;
    row >>= 1;
    column >>= 1;
  }
  return { level, row, column, priority: request.priority };
}

/** The level at which the whole map is one cell. @param {Sizes} sizes */
export function lastLevel(sizes) {
  return Math.ceil(Math.log2(Math.max(sizes.queries, sizes.keys, 1)));
}
