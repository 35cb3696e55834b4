// Which lines there are between two windows, and how strong each is.

/** @typedef {[number, number]} Range */

/** In place of a head's number. */
export const manyHeads = -1;

/**
 * @typedef {object} Line
 * @property {number} head  manyHeads: the mean over those that are shown
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
 * The lines of weights that are known, not zero and not below the threshold; nan is left out. What leaves the windows has a
 * line for each head of a single token, and one for all heads together of many tokens: these lines would hide the others.
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
    }
  }
  const away = (/** @type {"query" | "key"} */ axis, /** @type {number} */ item) => {
    for (const [end, place] of /** @type {const} */ ([["before", -1], ["behind", Infinity]])) {
      const sums = heads.map((head) => outside(axis, head, item, end));
      const each = only ? heads : sums.length ? [manyHeads] : [];
      each.forEach((head, i) =>
        put(head, axis === "query" ? item : place, axis === "query" ? place : item, only ? sums[i] : gatherMean(sums)));
    }
  };
  if (only?.axis !== "key") for (let query = queries[0]; query < queries[1]; query++) away("query", query);
  if (only?.axis !== "query") for (let key = keys[0]; key < keys[1]; key++) if (!(hideSink && key === 0)) away("key", key);
  return { lines, high };
}

/** @param {number[]} numbers @returns {number} */
function gatherMean(numbers) {
  return numbers.reduce((sum, number) => sum + number, 0) / numbers.length;
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
