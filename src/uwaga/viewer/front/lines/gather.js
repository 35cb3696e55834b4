// Which lines there are between two windows, and how strong each is.

/** @typedef {[number, number]} Range */

/**
 * @typedef {object} Line
 * @property {number} head
 * @property {number} query  -1: from before the window, Infinity: from behind it
 * @property {number} key  the same
 * @property {number} weight
 */

/**
 * @typedef {object} GatherInput
 * @property {number[]} heads
 * @property {Range} rows
 * @property {Range} columns
 * @property {(head: number, query: number, key: number) => number} weight
 * @property {(axis: "query" | "key", head: number, item: number, end: "before" | "behind") => number} outside
 * @property {number} threshold
 * @property {{axis: "query" | "key", item: number} | null} only  lines of this token alone
 * @property {boolean} hideSink
 */

/**
 * The lines of weights that are known, not zero and not below the threshold; nan is left out.
 * @param {GatherInput} input
 * @returns {{lines: Line[], high: number}} high: the largest weight between two tokens in view
 */
export function gatherLines({ heads, rows, columns, weight, outside, threshold, only, hideSink }) {
  /** @type {Line[]} */
  const lines = [];
  let high = 0;
  const put = (/** @type {number} */ head, /** @type {number} */ query, /** @type {number} */ key, /** @type {number} */ amount) => {
    if (Math.abs(amount) >= threshold && amount !== 0) lines.push({ head, query, key, weight: amount });
  };
  const queries = only?.axis === "query" ? gatherOne(only.item, rows) : rows;
  const keys = only?.axis === "key" ? gatherOne(only.item, columns) : columns;
  for (const head of heads) {
    for (let query = queries[0]; query < queries[1]; query++) {
      for (let key = keys[0]; key < keys[1]; key++) {
        if (hideSink && key === 0) continue;
        const amount = weight(head, query, key);
        high = Math.max(high, Math.abs(amount) || 0);
        put(head, query, key, amount);
      }
      if (only?.axis === "key") continue;
      put(head, query, -1, outside("query", head, query, "before"));
      put(head, query, Infinity, outside("query", head, query, "behind"));
    }
    if (only?.axis === "query") continue;
    for (let key = keys[0]; key < keys[1]; key++) {
      if (hideSink && key === 0) continue;
      put(head, -1, key, outside("key", head, key, "before"));
      put(head, Infinity, key, outside("key", head, key, "behind"));
    }
  }
  return { lines, high };
}

/** @param {number} item @param {Range} range @returns {Range} */
function gatherOne(item, range) {
  return item >= range[0] && item < range[1] ? [item, item + 1] : [0, 0];
}

/** @param {{query: number, key: number}} line @returns {boolean} whether its other end is not in view */
export function lineAway({ query, key }) {
  return query === -1 || key === -1 || query === Infinity || key === Infinity;
}

/**
 * The strongest, the strongest first.
 * @param {Line[]} lines
 * @param {number} count
 * @returns {Line[]}
 */
export function gatherStrongest(lines, count) {
  return [...lines].sort((left, right) => Math.abs(right.weight) - Math.abs(left.weight)).slice(0, count);
}
