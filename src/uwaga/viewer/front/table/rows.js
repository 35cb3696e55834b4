// The table's rows, their order and their text. No DOM.

/** @import { Kind, SideId } from "../types.js" */

/**
 * @typedef {{side: SideId, kind: Kind, layer: number, head: number, values: {[name: string]: number | null}, sampled: number | null,
 *   isLoaded: boolean}} Row
 */
/** @typedef {{name: string, falling: boolean}} Order */
/** @typedef {{name: string, title: string, meaning: string, statistic: boolean}} Column */

const kinds = ["encoder", "decoder", "cross"];

/**
 * A row per head.
 * @param {{side: SideId, kind: Kind, layer: number, heads: number}[]} maps
 * @param {(side: SideId, kind: Kind, layer: number) => {columns: {[name: string]: (number | null)[]}, complete?: number,
 *   sampled: number | null} | undefined} statistics
 * @returns {Row[]}
 */
export function rowsOf(maps, statistics) {
  return maps.flatMap(({ side, kind, layer, heads }) => {
    const found = statistics(side, kind, layer);
    return Array.from({ length: heads }, (_, head) => {
      const values = Object.fromEntries(Object.entries(found?.columns ?? {}).map(([name, column]) => [name, column[head] ?? null]));
      const isLoaded = found !== undefined && ((found.complete ?? 1) >= 1 || Object.values(values).some((value) => value !== null));
      return { side, kind, layer, head, sampled: found?.sampled ?? null, isLoaded, values };
    });
  });
}

/**
 * Sorted by a column, ties by kind, layer, head and side; rows without a number come last in both directions.
 * @param {Row[]} rows @param {Order} order @returns {Row[]}
 */
export function sortedRows(rows, { name, falling }) {
  const sign = falling ? -1 : 1;
  return [...rows].sort((left, right) => {
    const a = sortKey(left, name), b = sortKey(right, name);
    if (a === null || b === null) return a === b ? compareHeads(left, right) : a === null ? 1 : -1;
    return a === b ? compareHeads(left, right) : (a < b ? -1 : 1) * sign;
  });
}

/** @param {Row} row @param {string} name @returns {number | null} */
function sortKey(row, name) {
  if (name === "side") return row.side === "difference" ? 2 : Number(row.side);
  if (name === "kind") return kinds.indexOf(row.kind);
  if (name === "layer" || name === "head") return row[name];
  const value = row.values[name];
  return value === undefined || value === null || Number.isNaN(value) ? null : value;
}

/** @param {Row} left @param {Row} right @returns {number} */
function compareHeads(left, right) {
  for (const name of ["kind", "layer", "head", "side"]) {
    const by = /** @type {number} */ (sortKey(left, name)) - /** @type {number} */ (sortKey(right, name));
    if (by) return by;
  }
  return 0;
}

/**
 * The order after a click on a heading: names ascending first, statistics descending first, a second click reverses.
 * @param {Order} order @param {Column} column @returns {Order}
 */
export function nextOrder(order, column) {
  return { name: column.name, falling: order.name === column.name ? !order.falling : column.statistic };
}

/** Statistics that are not proportions. */
const unbounded = new Set(["entropy", "distance", "effective_count"]);

/**
 * The range of each statistic, zero included: the scale of its bars. That of a proportion is fixed, so that a small one has a small
 * bar: 0 to 1, or -1 to 1 if there are negative ones.
 * @param {Row[]} rows @param {string[]} names @returns {{[name: string]: [number, number]}}
 */
export function rangesOf(rows, names) {
  return Object.fromEntries(names.map((name) => {
    const isProportion = !unbounded.has(name), isNegative = rows.some(({ values }) => Number(values[name]) < 0);
    /** @type {[number, number]} */
    const range = isProportion ? [isNegative ? -1 : 0, 1] : [0, 0];
    for (const { values } of rows) {
      const value = values[name];
      if (value === undefined || value === null || !Number.isFinite(value)) continue;
      range[0] = Math.min(range[0], value);
      range[1] = Math.max(range[1], value);
    }
    return [name, range];
  }));
}

/**
 * Rows as delimited text with a header line, numbers in full precision.
 * @param {Row[]} rows
 * @param {string[]} names  of statistics
 * @param {boolean} sides  with a column for the side
 * @param {string} separator  "," or a tab
 * @returns {string}
 */
export function textOf(rows, names, sides, separator) {
  const sampled = rows.some((row) => row.sampled !== null);
  const heading = [...(sides ? ["side"] : []), "kind", "layer", "head", ...names, ...(sampled ? ["sampled_queries"] : [])];
  const lines = rows.map((row) => [
    ...(sides ? [row.side] : []), row.kind, row.layer, row.head, ...names.map((name) => row.values[name] ?? ""),
    ...(sampled ? [row.sampled ?? ""] : []),
  ]);
  return [heading, ...lines].map((cells) => cells.join(separator)).join("\n") + "\n";
}

/**
 * The rows in view with overscan: first, one past the last.
 * @param {number} top  scrolled pixels
 * @param {number} height  in view
 * @param {number} rowHeight @param {number} count @returns {[number, number]}
 */
export function rowsInView(top, height, rowHeight, count) {
  const overscan = 12, first = Math.max(0, Math.floor(top / rowHeight) - overscan);
  return [Math.min(first, count), Math.min(count, Math.ceil((top + height) / rowHeight) + overscan)];
}
