// What goes to, or comes from, tokens outside of the windows: so that lines at the edge say how much is not in view.

/** @typedef {import("../types.js").App} App */
/** @typedef {import("../types.js").Where} Where */
/** @typedef {import("./weights.js").LineWeights} LineWeights */
/** @typedef {[number, number]} Range */

/**
 * @typedef {object} OutsideWanted
 * @property {Where} where
 * @property {number[]} heads
 * @property {Range} rows  queries in the window
 * @property {Range} columns  keys in the window
 * @property {{queries: number, keys: number}} sizes
 */

/** Maps up to this size are held in tiles altogether, and their sums need no question. */
export const outsideWhole = 512;
const outsideSpans = 64; // spans of one question
const outsidePause = 180; // milliseconds that scrolling rests before the host is asked

/** Sums over what lies before and behind the windows, by head and token. */
export class LineOutside {
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
    /** @type {OutsideWanted | null} */
    this.wanted = null;
  }

  /** @param {OutsideWanted} wanted */
  want(wanted) {
    const name = JSON.stringify(wanted);
    if (name === this.name) return;
    this.drop();
    this.name = name;
    this.wanted = wanted;
    if (Math.max(wanted.sizes.queries, wanted.sizes.keys) <= outsideWhole) return;
    this.timer = setTimeout(() => this.ask(wanted, this.controller.signal), outsidePause);
  }

  drop() {
    clearTimeout(this.timer);
    this.controller.abort();
    this.controller = new AbortController();
    this.sums.clear();
    this.name = "";
    this.wanted = null;
  }

  /**
   * What one token of the window has beyond the other column's window.
   * @param {"query" | "key"} axis  the token's own
   * @param {number} head
   * @param {number} item
   * @param {"before" | "behind"} end
   * @returns {number} nan: not known
   */
  of(axis, head, item, end) {
    const { wanted } = this;
    if (!wanted) return NaN;
    const total = axis === "query" ? wanted.sizes.keys : wanted.sizes.queries;
    const [first, last] = axis === "query" ? wanted.columns : wanted.rows;
    /** @type {Range} */
    const range = end === "before" ? [0, first] : [last, total];
    if (range[0] >= range[1]) return 0;
    const key = `${axis} ${head} ${item} ${end}`;
    const known = this.sums.get(key);
    if (known !== undefined || Math.max(wanted.sizes.queries, wanted.sizes.keys) > outsideWhole) return known ?? NaN;
    const sum = axis === "query" ? this.weights.sum(head, [item, item + 1], range) : this.weights.sum(head, range, [item, item + 1]);
    if (!Number.isNaN(sum)) this.sums.set(key, sum);
    return sum;
  }

  /** @param {OutsideWanted} wanted @param {AbortSignal} signal */
  ask({ where, heads, rows, columns, sizes }, signal) {
    /** @type {{axis: "query" | "key", own: Range, other: Range, total: number}[]} */
    const sides = [{ axis: "query", own: rows, other: columns, total: sizes.keys },
      { axis: "key", own: columns, other: rows, total: sizes.queries }];
    for (const { axis, own, other, total } of sides) {
      const ends = /** @type {{name: string, range: Range}[]} */ ([{ name: "before", range: [0, other[0]] },
        { name: "behind", range: [other[1], total] }])
        .filter(({ range }) => range[0] < range[1]);
      if (!ends.length) continue;
      for (const head of heads) {
        for (let first = own[0]; first < own[1]; first += outsideSpans) {
          const items = Array.from({ length: Math.min(outsideSpans, own[1] - first) }, (_, i) => first + i);
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
    const question = { ask: "between", ...where, spans: axis === "query" ? own : others, key_spans: axis === "query" ? others : own };
    if (!this.app.host.has(question)) return;
    const reply = await this.app.client.ask(question, { signal, priority: 1 }).catch(() => null); // the client tells the user
    if (!reply || signal.aborted) return;
    const masses = reply.arrays[0].data;
    items.forEach((item, i) => ends.forEach(({ name, range }, j) => {
      // A mass is the mean over the queries of a span: of keys, the sum over them is wanted.
      const sum = axis === "query" ? masses[i * ends.length + j] : masses[j * items.length + i] * (range[1] - range[0]);
      this.sums.set(`${axis} ${where.head} ${item} ${name}`, sum);
    }));
    this.onChange();
  }
}
