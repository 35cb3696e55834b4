// Rows and columns of a map, and their largest weights: from the host or, in a saved page, from the tiles that it holds.

import { tileRequest } from "./requests.js";
/** @import { App, Items, Range, Side, Where, WireArray } from "./types.js" */

/** @typedef {{weights: Float32Array, cell: number}} Weights  NaN: not known; cell: 1: exact; n: each is the mean over n x n queries and keys */

/**
 * The weights of one query, a row of the map, or of one key, a column; once more with each more complete reply.
 * @param {App} app @param {"row" | "column"} which @param {number} item
 * @param {{where: Where, sizes: {queries: number, keys: number}, signal: AbortSignal, onWeights: (weights: Weights | null) => void}} options
 *   onWeights: null: the saved page holds none of it
 */
export async function lineWeights(app, which, item, { where, sizes, signal, onWeights }) {
  const isRow = which === "row", request = { request: which, ...where, [isRow ? "query" : "key"]: item };
  if (app.host.has(request)) {
    return app.client.follow(request, ({ arrays }) => onWeights({ weights: /** @type {Float32Array} */ (arrays[0].data), cell: 1 }), { signal, priority: 5 });
  }
  const itemRange = /** @type {Range} */ ([item, item + 1]), all = /** @type {Range} */ ([0, isRow ? sizes.keys : sizes.queries]);
  const cells = await savedCells(app, where, sizes, isRow ? itemRange : all, isRow ? all : itemRange);
  onWeights(cells && { cell: cells.side, weights: Float32Array.from({ length: all[1] }, (_, other) => (isRow ? cells.weight(item, other) : cells.weight(other, item))) });
}

/** Loads the row or the column of the item requested last; an earlier request is cancelled. */
export class WeightsReader {
  /** @param {App} app @param {"row" | "column"} which @param {() => void} onChange */
  constructor(app, which, onChange) {
    this.app = app;
    this.which = which;
    this.onChange = onChange;
    /** @type {Weights | null} */
    this.weights = null;
    this.name = "";
    this.controller = new AbortController();
  }

  /** @param {number | null} item */
  request(item) {
    const { app } = this;
    const [where, sizes] = [app.where(), app.sizes()];
    const outside = item === null || item >= (this.which === "row" ? sizes.queries : sizes.keys);
    const name = outside ? "" : JSON.stringify([where, item]);
    if (name === this.name) return;
    this.cancel();
    this.name = name;
    if (outside) return;
    const { signal } = this.controller;
    lineWeights(app, this.which, item, { where, sizes, signal, onWeights: (weights) => {
      if (signal.aborted) return;
      this.weights = weights;
      this.onChange();
    } }).catch(() => {
      // The client has reported the error; a new request may follow.
      if (this.name === name) this.name = "";
    });
  }

  cancel() {
    this.controller.abort();
    this.controller = new AbortController();
    this.weights = null;
    this.name = "";
  }
}

// Weights from tiles: the exact ones of a served page, the finest that a saved one has.

/**
 * @typedef {object} SavedCells
 * @property {number} side  side of a cell in items; 1: exact
 * @property {(query: number, key: number) => number} weight  the mean over its cell
 */

const savedTileSide = 256; // side of a tile in cells

/**
 * Reads the finest level of which all tiles that are needed can be had.
 * @param {App} app @param {Where} where @param {{queries: number, keys: number}} sizes
 * @param {Range} rows  queries that are needed
 * @param {Range} columns  keys that are needed
 * @returns {Promise<SavedCells | null>} null: no level holds them all
 */
export async function savedCells(app, where, sizes, rows, columns) {
  for (let level = 0; 2 ** level < 2 * Math.max(sizes.queries, sizes.keys); level++) {
    const places = tilesCovering(level, rows, columns);
    const requests = places.map(([row, column]) => tileRequest({ where, pooling: "sum" }, level, row, column));
    if (!requests.every((request) => app.host.has(request))) continue;
    const replies = await Promise.all(requests.map((request) => app.client.ask(request, { priority: 5 })));
    /** @type {Map<string, WireArray>} */
    const tiles = new Map(places.map(([row, column], index) => [`${row} ${column}`, replies[index].arrays[0]]));
    return { side: 2 ** level, weight: (query, key) => savedWeight(tiles, level, sizes.keys, query, key) };
  }
  return null;
}

/** @param {number} level @param {Range} rows @param {Range} columns @returns {Range[]} row and column of each tile */
function tilesCovering(level, rows, columns) {
  const span = savedTileSide * 2 ** level;
  /** @type {Range[]} */
  const places = [];
  for (let row = Math.floor(rows[0] / span); row * span < rows[1]; row++) {
    for (let column = Math.floor(columns[0] / span); column * span < columns[1]; column++) places.push([row, column]);
  }
  return places;
}

/**
 * @param {Map<string, WireArray>} tiles @param {number} level
 * @param {number} keys  of the whole axis: the last cell may cover fewer
 * @param {number} query @param {number} key @returns {number}
 */
function savedWeight(tiles, level, keys, query, key) {
  const [row, column] = [query, key].map((item) => Math.floor(item / 2 ** level));
  const tile = tiles.get(`${Math.floor(row / savedTileSide)} ${Math.floor(column / savedTileSide)}`);
  if (!tile) return NaN;
  const mass = tile.data[(row % savedTileSide) * tile.shape[1] + (column % savedTileSide)];
  return mass / (Math.min(keys, (column + 1) * 2 ** level) - column * 2 ** level);
}

// Sinks: keys that take weight which no other key gets (Xiao et al., "Efficient Streaming Language Models with Attention Sinks", 2023).

/**
 * The keys that the colours leave out: special tokens, and under a causal mask the first token, if it is shown.
 * @param {Items} items  of the keys
 * @param {string} kind @returns {Set<number>}
 */
export function sinksOf(items, kind) {
  return new Set([...items.specials, ...(kind === "decoder" && items.total > 1 && items.spans[0] === 0 ? [0] : [])]);
}

// Masks: a causal model hides the words that come later, a window those that are too far.

/**
 * The keys that a word may look at.
 * @param {App} app @param {Items} queries @param {Items} keys @param {number} query @param {Side} [side]
 * @returns {Range} first, one past the last
 */
export function seenKeys(app, queries, keys, query, side = app.side()) {
  const { kind, layer } = app.store.get(), sees = side.maps.find((one) => one.kind === kind && one.layer === layer)?.sees;
  const [before, after] = sees ?? [null, null], [start, stop] = [queries.spans[2 * query], queries.spans[2 * query + 1]];
  const firstWhere = (/** @type {(key: number) => boolean} */ holds) => {
    let [low, high] = [0, keys.total];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (holds(middle)) high = middle;
      else low = middle + 1;
    }
    return low;
  };
  return [before === null ? 0 : firstWhere((key) => keys.spans[2 * key + 1] - 1 >= start - before),
    after === null ? keys.total : firstWhere((key) => keys.spans[2 * key] > stop - 1 + after)];
}

/** @param {Range} seen @returns {(key: number) => boolean} whether a key is hidden */
export const hiddenOutside = ([first, stop]) => (key) => key < first || key >= stop;

/**
 * For each cell of a row whether it contains a sink; null: none does.
 * @param {ReadonlySet<number>} sinks
 * @param {number} columns  cells
 * @param {(column: number) => number} firstItem  of a cell; that of `columns` is one past the last item
 * @returns {Uint8Array | null}
 */
export function sinkColumns(sinks, columns, firstItem) {
  const hidden = new Uint8Array(columns);
  let any = false;
  for (const sink of sinks) {
    if (sink < firstItem(0) || sink >= firstItem(columns)) continue;
    let [low, high] = [0, columns - 1];
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (firstItem(middle) <= sink) low = middle;
      else high = middle - 1;
    }
    hidden[low] = 1;
    any = true;
  }
  return any ? hidden : null;
}

/**
 * The items of the largest weights in magnitude, largest first, ties by position.
 * @param {ArrayLike<number>} weights  NaN: not known, left out
 * @param {number} count @returns {number[]}
 */
export function strongestItems(weights, count) {
  /** @type {number[]} */
  const best = [];
  const size = (/** @type {number} */ item) => Math.abs(weights[item]);
  for (let item = 0; item < weights.length; item++) {
    const mine = size(item);
    if (!(mine > 0) || (best.length === count && mine <= size(best[count - 1]))) continue;
    let at = best.length;
    while (at > 0 && size(best[at - 1]) < mine) at--;
    best.splice(at, 0, item);
    if (best.length > count) best.pop();
  }
  return best;
}
