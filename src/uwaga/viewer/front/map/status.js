// What the page says of how fine and how exact the picture is.

import { mapCount } from "./labels.js";
import { mapCellUnder } from "./cell_under.js";

/** @typedef {import("./panel.js").MapPanel} MapPanel */

/** @param {"mass" | "max"} how @param {number} level */
export function mapBarTitle(how, level) {
  return level === 0 ? "weight" : how === "mass" ? "mass of a cell" : "largest of a cell";
}

/**
 * @param {object} shown
 * @param {number} shown.level  of the cells on show
 * @param {number} shown.percent  of their queries that were read
 * @param {string} shown.merge
 * @param {"mass" | "max"} shown.how
 * @param {boolean} shown.live  finer cells can come
 */
export function mapStatus({ level, percent, merge, how, live }) {
  const side = mapCount(2 ** level);
  const pooled = how === "mass" ? "summed over keys, mean over queries" : "the largest weight";
  const cells = level === 0 ? "Exact weights" : `A cell is ${side} \u00d7 ${side} ${merge}: ${pooled}`;
  if (percent >= 100) return cells;
  return live ? `${cells}. From a sample, ${percent} % read` : `${cells}. The saved page holds nothing finer here`;
}

/**
 * The level of what is seen in the middle of the window; that which it should be where nothing is there.
 * @param {MapPanel} panel
 * @param {import("../types.js").ViewBox} view
 */
export function mapLevelSeen(panel, view) {
  const { plot, sizes, level } = panel;
  const middle = (/** @type {number} */ first, /** @type {number} */ pixels, /** @type {number} */ total) =>
    Math.max(0, Math.floor((first + Math.min(total, first + pixels / view.scale)) / 2));
  return mapCellUnder(panel, middle(view.y, plot.h, sizes.queries), middle(view.x, plot.w, sizes.keys))?.level ?? level;
}
