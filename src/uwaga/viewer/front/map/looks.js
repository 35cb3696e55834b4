// What colours depend on, for the panels on show: one scale for both sides, one of its own for their difference.

import { mapMost } from "./most.js";

/** @typedef {import("./panel.js").MapPanel} MapPanel */
/** @typedef {import("./shade.js").MapShade} MapShade */
/** @typedef {import("./style.js").MapStyle} MapStyle */
/** @typedef {import("../types.js").Colour} Colour */

/** Two looks of one number are one look. Numbers go on over all maps of a page. */
const mapLooks = { last: 0 };

/**
 * Gives every panel the shade that its colours follow from; one that stays as it was stays the same object.
 * @param {MapPanel[]} panels
 * @param {Colour} colour
 * @param {MapStyle} style
 * @param {number} level  by whose measure
 */
export function shadeMapPanels(panels, colour, style, level) {
  for (const signed of [false, true]) {
    const alike = panels.filter((panel) => panel.side.signed === signed);
    if (!alike.length) continue;
    const high = colour.high ?? Math.max(0, ...alike.map((panel) => (panel.layer ? mapMost(panel.layer, level, colour.hideSink) : 0)));
    /** @type {MapShade} */
    const shade = {
      log: colour.log, low: colour.low, high: high > 0 ? high : 1, threshold: colour.threshold, hideSink: colour.hideSink, signed,
      table: signed ? style.signedTable : style.table, unknown: style.unknown, aside: style.aside, version: 0,
    };
    const before = alike.map((panel) => panel.shade).find((one) => mapSameLook(one, shade));
    if (!before) shade.version = ++mapLooks.last;
    for (const panel of alike) panel.shade = before ?? shade;
  }
}

/** @param {MapShade} left @param {MapShade} right */
function mapSameLook(left, right) {
  return left.version > 0 && left.table === right.table && left.log === right.log && left.low === right.low && left.high === right.high
    && left.threshold === right.threshold && left.hideSink === right.hideSink && left.signed === right.signed
    && left.unknown === right.unknown && left.aside === right.aside;
}
