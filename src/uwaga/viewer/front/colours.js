// Colours of weights: colour tables, from a weight to a position in them, the end of the scale; CSS colours as numbers.
// Zero is white on a light page and near the background on a dark one; lightness is monotonic, for colour-blind readers too. The
// light stops are those of src/uwaga/plots/figures.py.

import { tr } from "./languages.js";


/** @typedef {"light" | "dark"} Theme */

/** From zero to the largest weight, on a light and on a dark page. @type {{[scheme: string]: {[theme in Theme]: string[]}}} */
const sequentialStops = {
  blue: {
    light: ["#ffffff", "#c1e6f9", "#84ccf3", "#53afe5", "#4590c7", "#3873a9", "#2b578b", "#1e3c6d", "#122350"],
    dark: ["#10141b", "#14243f", "#1c3a66", "#28558a", "#3873a9", "#4590c7", "#53afe5", "#84ccf3", "#c1e6f9"],
  },
  orange: {
    light: ["#ffffff", "#fce2c9", "#f9c392", "#f7a259", "#ed8229", "#d36921", "#b85219", "#9e3c11", "#82280b"],
    dark: ["#10141b", "#4a1706", "#82280b", "#9e3c11", "#b85219", "#d36921", "#ed8229", "#f7a259", "#f9c392"],
  },
  grey: {
    light: ["#ffffff", "#e0e0e0", "#c2c2c2", "#a4a4a4", "#888888", "#6c6c6c", "#525252", "#393939", "#222222"],
    dark: ["#10141b", "#222222", "#393939", "#525252", "#6c6c6c", "#888888", "#a4a4a4", "#c2c2c2", "#e0e0e0"],
  },
};
/** From the most negative over zero to the most positive. @type {{[theme in Theme]: string[]}} */
const divergingStops = {
  light: ["#82280b", "#b85219", "#ed8229", "#f9c392", "#ffffff", "#9cd5f5", "#4fa5df", "#3a74b0", "#254581"],
  dark: ["#f9c392", "#ed8229", "#b85219", "#6a2c10", "#1d222b", "#1c3a66", "#3a74b0", "#53afe5", "#9cd5f5"],
};

/** @returns {{name: string, title: string}[]} the colour schemes that the user can choose */
export function colourSchemes() {
  const titles = /** @type {{[name: string]: string}} */ ({ blue: tr("blue"), orange: tr("orange"), grey: tr("grey") });
  return Object.keys(sequentialStops).map((name) => ({ name, title: titles[name] }));
}

/**
 * 256 colours from zero to the largest weight, RGBA.
 * @param {string} scheme  an unknown name means blue
 * @param {Theme} theme @returns {Uint8Array}
 */
export function colourTable(scheme, theme) {
  return interpolateStops(sequentialStops[Object.hasOwn(sequentialStops, scheme) ? scheme : "blue"][theme]);
}

/**
 * 256 colours of differences: entry 0 the most negative (orange), 255 the most positive (blue); zero lies between 127 and 128.
 * @param {Theme} theme @returns {Uint8Array}
 */
export function signedColourTable(theme) {
  return interpolateStops(divergingStops[theme]);
}

/** The colour of cells whose weight is not known. @param {Theme} theme @returns {[number, number, number, number]} */
export function unknownColour(theme) {
  return theme === "dark" ? [58, 63, 72, 255] : [214, 214, 214, 255];
}

/**
 * The position of a weight on the colour scale, from 0 to 1. Linear, or logarithmic from `low`, or from high / 10^4 if low is 0.
 * @param {number} weight @param {{log: boolean, low: number, threshold: number}} colour
 * @param {number} high  the weight of the last colour
 * @returns {number}  NaN stays NaN
 */
export function colourPosition(weight, { log, low, threshold }, high) {
  if (weight < threshold || !(high > 0)) return Number.isNaN(weight) ? NaN : 0;
  const floor = log && low <= 0 ? high / 1e4 : low;
  if (high <= floor) return weight >= high ? 1 : 0;
  const position = log ? Math.log(weight / floor) / Math.log(high / floor) : (weight - floor) / (high - floor);
  return Math.min(1, Math.max(0, position));
}

/**
 * The same for a difference: 0 the most negative, 0.5 zero, 1 the most positive.
 * @param {number} weight @param {{log: boolean, low: number, threshold: number}} colour
 * @param {number} high  the largest size of a difference
 * @returns {number}
 */
export function signedColourPosition(weight, colour, high) {
  return 0.5 + 0.5 * Math.sign(weight) * colourPosition(Math.abs(weight), colour, high);
}

/** @param {string[]} stops @returns {Uint8Array} */
function interpolateStops(stops) {
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

// The upper end of a colour scale that the user has not set.

/**
 * The weight-weighted 90th percentile, to one eighth of its value, and at most the largest weight.
 *
 * The largest weight would leave most maps white: under a causal mask the first queries see few keys, and a corner cell has
 * mass 1. Weighted by weight and not by cells, so that a line of ones in a large map keeps its colour.
 * @param {Float32Array} data  NaN and infinite values are ignored
 * @param {number} [start]
 * @param {number} [end]
 * @param {Uint8Array | null} [hidden]  for each column of a row whether it is left out
 * @returns {number}
 */
export function colourScaleMax(data, start = 0, end = data.length, hidden = null) {
  const bits = new Uint32Array(data.buffer, data.byteOffset, data.length);
  const sums = new Float64Array(1 << 11);
  let most = 0, total = 0;
  for (let at = start; at < end; at++) {
    if (hidden && hidden[(at - start) % hidden.length]) continue;
    const size = Math.abs(data[at]);
    if (!(size > 0 && size < Infinity)) continue;
    // Histogram bins by exponent and the first three fraction bits of the float32: at most an eighth wide, in order of size.
    sums[(bits[at] & 0x7fffffff) >>> 20] += size;
    total += size;
    if (size > most) most = size;
  }
  let above = 0, bin = sums.length - 1;
  while (bin > 0 && above + sums[bin] < 0.1 * total) above += sums[bin--];
  const edge = new Float32Array(new Uint32Array([(bin + 1) << 20]).buffer)[0];
  return edge < most ? edge : most;
}

// The colour of text on a colour, after WCAG 2.2.

/**
 * The relative luminance of a colour (WCAG 2.2), 0 to 1.
 * @param {ArrayLike<number>} parts  red, green, blue, 0 to 255
 * @param {number} [at]  index of the first part
 * @returns {number}
 */
export function luminance(parts, at = 0) {
  const linear = (/** @type {number} */ part) => (part <= 10.31475 ? part / 3294.6 : ((part / 255 + 0.055) / 1.055) ** 2.4);
  return 0.2126 * linear(parts[at]) + 0.7152 * linear(parts[at + 1]) + 0.0722 * linear(parts[at + 2]);
}

/**
 * Whether black stands out more than white on a colour. One of both has a contrast of at least 4.58.
 * @param {ArrayLike<number>} parts  red, green, blue, 0 to 255
 * @param {number} [at]
 */
export function takesBlackText(parts, at = 0) {
  // The contrasts (l + 0.05) / 0.05 and 1.05 / (l + 0.05) are equal at this luminance.
  return luminance(parts, at) > Math.sqrt(1.05 * 0.05) - 0.05;
}

// Shading of tokens: from a weight to a band of colour.

/** The least weight of each of the five bands. */
const bandLimits = [0.01, 0.03, 0.08, 0.2, 0.5];

/** Below this largest weight the bands are fractions of the largest weight. */
export const bandFloor = 0.08;

/**
 * What 1 stands for in the bands: 1, or the largest weight if that is below `bandFloor`.
 * @param {ArrayLike<number>} weights  NaN: not known
 * @param {ReadonlySet<number>} sinks  items that are left out
 */
export function bandScale(weights, sinks) {
  const largest = largestWeight(weights, sinks);
  return largest > 0 && largest < bandFloor ? largest : 1;
}

/** @param {number} weight @param {number} scale @returns {number} 0 to 5; 0: below all bands, or not known */
export function bandOf(weight, scale) {
  const part = Math.abs(weight) / scale;
  return bandLimits.filter((least) => part >= least).length;
}

/** @param {ArrayLike<number>} weights @param {ReadonlySet<number>} sinks @returns {number} */
function largestWeight(weights, sinks) {
  let largest = 0;
  for (let i = 0; i < weights.length; i++) {
    const size = Math.abs(weights[i]);
    if (size > largest && !sinks.has(i)) largest = size;
  }
  return largest;
}
