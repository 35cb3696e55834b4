// Questions that several views ask, and a set of questions that is followed while it is in view.

/** @typedef {import("./types.js").Where} Where */
/** @typedef {import("./types.js").Question} Question */

/** @param {{side: string, kind: string, layer: number}} row @returns {import("./types.js").Question} */
export function statisticsQuestion({ side, kind, layer }) {
  return { ask: "statistics", side, kind, layer };
}

/**
 * @param {{where: Where, how: "mass" | "max"}} layer
 * @param {number} level
 * @param {number} row
 * @param {number} column
 * @returns {Question}
 */
export function tileQuestion(layer, level, row, column) {
  // Exact weights are not pooled: one name for them serves both ways of pooling.
  return { ask: "tile", ...layer.where, how: level === 0 ? "mass" : layer.how, level, row, column };
}
