// Which lines there are: the weights of several heads between two windows, and the sums that leave the windows.

import { tileRequest } from "../requests.js";
import { savedCells } from "../weights.js";

/** @typedef {import("../types.js").App} App */
/** @typedef {import("../types.js").Range} Range */
/** @typedef {import("../types.js").Where} Where */


const lineTile = 256;

/** Tiles of level 0 by head and position: requested while in view, cancelled when not. */
export class LineWeights {
  /**
   * @param {App} app
   * @param {() => void} onChange
   */
  constructor(app, onChange) {
    this.app = app;
    this.onChange = onChange;
    /** @type {Map<string, {data: ArrayLike<number>, columns: number}>} */
    this.tiles = new Map();
    /** @type {Map<string, AbortController>} */
    this.pending = new Map();
    this.cell = 1; // side of a cell in items; more than 1: means; 0: not in this saved page
    /** @type {Map<string, import("../weights.js").SavedCells | null>} */
    this.coarse = new Map();
    this.map = "";
  }

  /** @param {Where} where @param {number[]} heads @param {Range} rows @param {Range} columns */
  request(where, heads, rows, columns) {
    const map = JSON.stringify({ ...where, head: 0 });
    if (map !== this.map) this.clear();
    this.map = map;
    this.cell = 1;
    /** @type {Set<string>} */
    const requested = new Set();
    for (const head of heads) {
      for (let row = Math.floor(rows[0] / lineTile); row * lineTile < rows[1]; row++) {
        for (let column = Math.floor(columns[0] / lineTile); column * lineTile < columns[1]; column++) {
          const name = `${head} ${row} ${column}`;
          requested.add(name);
          const request = tileRequest({ where: { ...where, head }, pooling: "sum" }, 0, row, column);
          if (!this.app.host.has(request)) this.requestCoarse({ ...where, head });
          else if (!this.pending.has(name)) this.ask(name, request);
        }
      }
    }
    for (const [name, controller] of this.pending) {
      if (requested.has(name)) continue;
      controller.abort();
      this.pending.delete(name);
      this.tiles.delete(name);
    }
  }

  /** @param {string} name @param {import("../types.js").Request} request */
  ask(name, request) {
    const controller = new AbortController();
    this.pending.set(name, controller);
    this.app.client.follow(request, ({ arrays }) => {
      if (controller.signal.aborted) return;
      this.tiles.set(name, { data: arrays[0].data, columns: arrays[0].shape[1] });
      this.onChange();
    }, { signal: controller.signal, priority: 4 }).catch(() => {
      // The client has reported the error; the next request asks again.
      if (this.pending.get(name) === controller) this.pending.delete(name);
    });
  }

  /** @param {Where} where */
  async requestCoarse(where) {
    const map = this.map;
    const name = String(where.head);
    const known = this.coarse.get(name);
    if (known !== undefined) {
      this.cell = known ? known.side : 0;
      return;
    }
    this.coarse.set(name, null);
    const sizes = this.app.sizes();
    const cells = await savedCells(this.app, where, sizes, [0, sizes.queries], [0, sizes.keys]);
    if (map !== this.map) return;
    this.coarse.set(name, cells);
    this.cell = cells ? cells.side : 0;
    this.onChange();
  }

  /** @param {number} head @param {number} query @param {number} key @returns {number} NaN: not known yet */
  weight(head, query, key) {
    const tile = this.tiles.get(`${head} ${Math.floor(query / lineTile)} ${Math.floor(key / lineTile)}`);
    if (tile) return tile.data[(query % lineTile) * tile.columns + (key % lineTile)];
    return this.coarse.get(String(head))?.weight(query, key) ?? NaN;
  }

  /**
   * The summed weight of a query on a range of keys, or of a range of queries on a key.
   * @param {number} head
   * @param {Range} queries
   * @param {Range} keys
   * @returns {number} NaN: not all of it is known
   */
  sum(head, queries, keys) {
    let sum = 0;
    for (let query = queries[0]; query < queries[1]; query++) {
      for (let key = keys[0]; key < keys[1]; key++) sum += this.weight(head, query, key);
    }
    return sum;
  }

  clear() {
    for (const controller of this.pending.values()) controller.abort();
    this.pending.clear();
    this.tiles.clear();
    this.coarse.clear();
    this.map = "";
  }
}

// Summed weights of tokens outside of the windows, so that the lines at the edge show how much is not in view.


/**
 * @typedef {object} OffscreenRequest
 * @property {Where} where
 * @property {number[]} heads
 * @property {Range} rows  queries in the window
 * @property {Range} columns  keys in the window
 * @property {{queries: number, keys: number}} sizes
 */

/** Maps up to this size are loaded as a whole, and the sums are computed here. */
export const wholeMapLimit = 512;
const spansPerRequest = 64; // spans of one request
const offscreenPause = 180; // milliseconds without scrolling before the host is asked

/** Sums over the items before and after the windows, by head and token. */
export class OffscreenMass {
  /**
   * @param {App} app
   * @param {LineWeights} weights
   * @param {() => void} onChange
   */
  constructor(app, weights, onChange) {
    this.app = app;
    this.weights = weights;
    this.onChange = onChange;
    /** @type {Map<string, number>} */
    this.sums = new Map();
    this.name = "";
    this.timer = 0;
    this.controller = new AbortController();
    /** @type {OffscreenRequest | null} */
    this.requested = null;
  }

  /** @param {OffscreenRequest} requested */
  request(requested) {
    const name = JSON.stringify(requested);
    if (name === this.name) return;
    this.clear();
    this.name = name;
    this.requested = requested;
    if (Math.max(requested.sizes.queries, requested.sizes.keys) <= wholeMapLimit) return;
    this.timer = setTimeout(() => this.ask(requested, this.controller.signal), offscreenPause);
  }

  clear() {
    clearTimeout(this.timer);
    this.controller.abort();
    this.controller = new AbortController();
    this.sums.clear();
    this.name = "";
    this.requested = null;
  }

  /**
   * The summed weight of a token in view on the items before or after the other column's window.
   * @param {"query" | "key"} axis  the token's own
   * @param {number} head
   * @param {number} item
   * @param {"before" | "after"} end
   * @returns {number} NaN: not known
   */
  of(axis, head, item, end) {
    const { requested } = this;
    if (!requested) return NaN;
    const total = axis === "query" ? requested.sizes.keys : requested.sizes.queries;
    const [first, last] = axis === "query" ? requested.columns : requested.rows;
    /** @type {Range} */
    const range = end === "before" ? [0, first] : [last, total];
    if (range[0] >= range[1]) return 0;
    const key = `${axis} ${head} ${item} ${end}`;
    const known = this.sums.get(key);
    if (known !== undefined || Math.max(requested.sizes.queries, requested.sizes.keys) > wholeMapLimit) return known ?? NaN;
    const sum = axis === "query" ? this.weights.sum(head, [item, item + 1], range) : this.weights.sum(head, range, [item, item + 1]);
    if (!Number.isNaN(sum)) this.sums.set(key, sum);
    return sum;
  }

  /** @param {OffscreenRequest} requested @param {AbortSignal} signal */
  ask({ where, heads, rows, columns, sizes }, signal) {
    /** @type {{axis: "query" | "key", own: Range, other: Range, total: number}[]} */
    const sides = [{ axis: "query", own: rows, other: columns, total: sizes.keys },
      { axis: "key", own: columns, other: rows, total: sizes.queries }];
    for (const { axis, own, other, total } of sides) {
      const ends = /** @type {{name: string, range: Range}[]} */ ([{ name: "before", range: [0, other[0]] },
        { name: "after", range: [other[1], total] }])
        .filter(({ range }) => range[0] < range[1]);
      if (!ends.length) continue;
      for (const head of heads) {
        for (let first = own[0]; first < own[1]; first += spansPerRequest) {
          const items = Array.from({ length: Math.min(spansPerRequest, own[1] - first) }, (_, i) => first + i);
          this.askOne({ ...where, head }, axis, items, ends, signal);
        }
      }
    }
  }

  /**
   * @param {Where} where
   * @param {"query" | "key"} axis
   * @param {number[]} items
   * @param {{name: string, range: Range}[]} ends
   * @param {AbortSignal} signal
   */
  async askOne(where, axis, items, ends, signal) {
    const [own, others] = [items.map((item) => [item, item + 1]), ends.map(({ range }) => range)];
    const request = { request: "between", ...where, spans: axis === "query" ? own : others, key_spans: axis === "query" ? others : own };
    if (!this.app.host.has(request)) return;
    const reply = await this.app.client.ask(request, { signal, priority: 1 }).catch(() => null); // the client reports errors
    if (!reply || signal.aborted) return;
    const masses = reply.arrays[0].data;
    items.forEach((item, i) => ends.forEach(({ name, range }, j) => {
      // A mass is a mean over the queries of a span; for a key the sum over them is needed.
      const sum = axis === "query" ? masses[i * ends.length + j] : masses[j * items.length + i] * (range[1] - range[0]);
      this.sums.set(`${axis} ${where.head} ${item} ${name}`, sum);
    }));
    this.onChange();
  }
}

// The lines between two windows, and their weights.

/** In place of a head's number: the mean over all that are shown. */
export const manyHeads = -1;

/**
 * @typedef {object} Line
 * @property {number} head  or manyHeads
 * @property {number} query  -1: from before the window, Infinity: from after it
 * @property {number} key  the same
 * @property {number} weight
 */

/**
 * @typedef {object} CollectInput
 * @property {number[]} heads
 * @property {Range} rows
 * @property {Range} columns
 * @property {(head: number, query: number, key: number) => number} weight
 * @property {(axis: "query" | "key", head: number, item: number, end: "before" | "after") => number} offscreenMass
 * @property {number} threshold
 * @property {{axis: "query" | "key", item: number} | null} only  only the lines of this token; null: of all
 * @property {ReadonlySet<number>} sinks  keys whose lines are left out
 */

/**
 * The lines of weights that are known, not zero and not below the threshold. Weight that leaves the windows is one line per head of
 * a single token; of many tokens it is one line for the mean over the heads, because more lines would hide the others.
 * @param {CollectInput} input
 * @returns {{lines: Line[], high: number}} high: the largest weight between two tokens in view
 */
export function collectLines({ heads, rows, columns, weight, offscreenMass, threshold, only, sinks }) {
  /** @type {Line[]} */
  const lines = [];
  let high = 0;
  const put = (/** @type {number} */ head, /** @type {number} */ query, /** @type {number} */ key, /** @type {number} */ amount) => {
    if (Math.abs(amount) >= threshold && amount !== 0) lines.push({ head, query, key, weight: amount });
  };
  const queries = only?.axis === "query" ? singleItemRange(only.item, rows) : rows;
  const keys = only?.axis === "key" ? singleItemRange(only.item, columns) : columns;
  for (const head of heads) {
    for (let query = queries[0]; query < queries[1]; query++) {
      for (let key = keys[0]; key < keys[1]; key++) {
        if (sinks.has(key)) continue;
        const amount = weight(head, query, key);
        high = Math.max(high, Math.abs(amount) || 0);
        put(head, query, key, amount);
      }
    }
  }
  const offscreen = (/** @type {"query" | "key"} */ axis, /** @type {number} */ item) => {
    for (const [end, place] of /** @type {const} */ ([["before", -1], ["after", Infinity]])) {
      const sums = heads.map((head) => offscreenMass(axis, head, item, end));
      const each = only ? heads : sums.length ? [manyHeads] : [];
      each.forEach((head, i) =>
        put(head, axis === "query" ? item : place, axis === "query" ? place : item, only ? sums[i] : meanOf(sums)));
    }
  };
  if (only?.axis !== "key") for (let query = queries[0]; query < queries[1]; query++) offscreen("query", query);
  if (only?.axis !== "query") for (let key = keys[0]; key < keys[1]; key++) if (!sinks.has(key)) offscreen("key", key);
  return { lines, high };
}

/**
 * The lines that make up a share of each row, strongest first; lines that leave the window stay.
 * @param {Line[]} lines
 * @param {number} share
 * @returns {Line[]}
 */
export function strongestShare(lines, share) {
  /** @type {Map<string, Line[]>} */
  const rows = new Map();
  for (const line of lines) {
    const name = `${line.head} ${line.query}`;
    rows.set(name, [...(rows.get(name) ?? []), line]);
  }
  return [...rows.values()].flatMap((row) => {
    const inside = row.filter((line) => !isOffscreen(line)).sort((one, other) => Math.abs(other.weight) - Math.abs(one.weight));
    const total = inside.reduce((sum, { weight }) => sum + Math.abs(weight), 0);
    let sum = 0;
    const kept = inside.filter(({ weight }) => {
      const before = sum;
      sum += Math.abs(weight);
      return before < share * total;
    });
    return [...kept, ...row.filter(isOffscreen)];
  });
}

/** @param {number[]} numbers @returns {number} */
function meanOf(numbers) {
  return numbers.reduce((sum, number) => sum + number, 0) / numbers.length;
}

/** @param {number} item @param {Range} range @returns {Range} */
function singleItemRange(item, range) {
  return item >= range[0] && item < range[1] ? [item, item + 1] : [0, 0];
}

/** @param {{query: number, key: number}} line @returns {boolean} whether one end is not in view */
export function isOffscreen({ query, key }) {
  return query === -1 || key === -1 || query === Infinity || key === Infinity;
}

/**
 * The strongest lines in descending order.
 * @param {Line[]} lines
 * @param {number} count
 * @returns {Line[]}
 */
export function strongestLines(lines, count) {
  return [...lines].sort((left, right) => Math.abs(right.weight) - Math.abs(left.weight)).slice(0, count);
}
