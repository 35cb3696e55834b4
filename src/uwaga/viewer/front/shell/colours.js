// The colours of weights: lightness carries the number, in equal steps of CIE L* (as src/uwaga/plots/colors.py, whose stops
// these are). On paper zero is white; on a dark screen zero is the background and much is light.

/** @typedef {"light" | "dark"} Theme */

const colourWhite = "#ffffff";
const colourNight = "#10141b"; // --bg of the dark theme
/** @type {{[scheme: string]: {title: string, stops: string[]}}} from light to dark, without white */
const colourSchemeTable = {
  blue: { title: "blue", stops: ["#c1e6f9", "#84ccf3", "#53afe5", "#4590c7", "#3873a9", "#2b578b", "#1e3c6d", "#122350"] },
  orange: { title: "orange", stops: ["#fce2c9", "#f9c392", "#f7a259", "#ed8229", "#d36921", "#b85219", "#9e3c11", "#82280b"] },
  grey: { title: "grey", stops: ["#e0e0e0", "#c2c2c2", "#a4a4a4", "#888888", "#6c6c6c", "#525252", "#393939", "#222222"] },
};
const colourPaleBlue = ["#ccebfa", "#9cd5f5", "#6bbef0", "#4fa5df", "#448cc8", "#3a74b0", "#2f5c98", "#254581"];

/** Between a dark background and stops that end at a lightness of 30. @type {{[stop: string]: string}} */
const colourDusk = { "#82280b": "#4a1706", "#254581": "#162a52" };

/** @returns {{name: string, title: string}[]} what can be chosen */
export function colourSchemes() {
  return Object.entries(colourSchemeTable).map(([name, { title }]) => ({ name, title }));
}

/**
 * 256 colours from zero to the most, four bytes each: red, green, blue, opacity.
 * @param {string} scheme  another name than colourSchemes() has is blue
 * @param {Theme} theme
 * @returns {Uint8Array}
 */
export function colourTable(scheme, theme) {
  const { stops } = Object.hasOwn(colourSchemeTable, scheme) ? colourSchemeTable[scheme] : colourSchemeTable.blue;
  return colourBlend(colourFromZero(stops, theme));
}

/**
 * 256 colours of differences: entry 0 the most below zero (orange), 255 the most above (blue); zero lies between 127 and 128.
 * @param {Theme} theme
 * @returns {Uint8Array}
 */
export function signedColourTable(theme) {
  // On a dark screen the lightest stops are left out: both ends would be white.
  const pick = (/** @type {string[]} */ stops) => (theme === "dark" ? colourFromNight(stops.slice(1)) : [colourWhite, ...stops]);
  const below = pick(colourSchemeTable.orange.stops);
  return colourBlend([...below.slice(1).reverse(), ...pick(colourPaleBlue)]);
}

/**
 * What is drawn where no weight is known.
 * @param {Theme} theme
 * @returns {[number, number, number, number]}
 */
export function unknownColour(theme) {
  return theme === "dark" ? [58, 63, 72, 255] : [214, 214, 214, 255];
}

/**
 * Where a weight lies among the colours, from 0 to 1. Linear, or by the logarithm: from `low`, or a ten-thousandth of `high`
 * where low is 0.
 * @param {number} weight
 * @param {{log: boolean, low: number, threshold: number}} colour
 * @param {number} high  the weight of the last colour
 * @returns {number}  nan stays nan
 */
export function colourPosition(weight, { log, low, threshold }, high) {
  if (weight < threshold || !(high > 0)) return Number.isNaN(weight) ? NaN : 0;
  const floor = log && low <= 0 ? high / 1e4 : low;
  if (high <= floor) return weight >= high ? 1 : 0;
  const position = log ? Math.log(weight / floor) / Math.log(high / floor) : (weight - floor) / (high - floor);
  return Math.min(1, Math.max(0, position));
}

/**
 * The same of a difference: 0 the most below zero, 0.5 zero, 1 the most above.
 * @param {number} weight
 * @param {{log: boolean, low: number, threshold: number}} colour
 * @param {number} high  the largest size of a difference
 * @returns {number}
 */
export function signedColourPosition(weight, colour, high) {
  return 0.5 + 0.5 * Math.sign(weight) * colourPosition(Math.abs(weight), colour, high);
}

/** @param {string[]} stops @param {Theme} theme @returns {string[]} from zero on */
function colourFromZero(stops, theme) {
  return theme === "dark" ? [...colourFromNight(stops), colourWhite] : [colourWhite, ...stops];
}

/** @param {string[]} stops @returns {string[]} from the dark background to the lightest */
function colourFromNight(stops) {
  const darkest = stops[stops.length - 1];
  return [colourNight, ...(Object.hasOwn(colourDusk, darkest) ? [colourDusk[darkest]] : []), ...[...stops].reverse()];
}

/** @param {string[]} stops @returns {Uint8Array} */
function colourBlend(stops) {
  const parts = stops.map((stop) => [1, 3, 5].map((at) => parseInt(stop.slice(at, at + 2), 16)));
  const table = new Uint8Array(256 * 4);
  for (let i = 0; i < 256; i++) {
    const place = (i / 255) * (parts.length - 1), at = Math.min(parts.length - 2, Math.floor(place));
    for (let part = 0; part < 3; part++) {
      table[4 * i + part] = Math.round(parts[at][part] + (parts[at + 1][part] - parts[at][part]) * (place - at));
    }
    table[4 * i + 3] = 255;
  }
  return table;
}
