// Colours of weights: colour tables, from a weight to a position in them, the end of the scale; CSS colours as numbers.
// The stops are those of src/uwaga/plots/colors.py, in equal steps of CIE L*: zero is white on a light page and the
// background on a dark one.

/** @typedef {import("./types.js").Colour} Colour */

/** @typedef {"light" | "dark"} Theme */

const white = "#ffffff";
const darkBackground = "#10141b"; // --bg of the dark theme
/** @type {{[scheme: string]: {title: string, stops: string[]}}} from light to dark, without white */
const colourSchemeTable = {
  blue: { title: "blue", stops: ["#c1e6f9", "#84ccf3", "#53afe5", "#4590c7", "#3873a9", "#2b578b", "#1e3c6d", "#122350"] },
  orange: { title: "orange", stops: ["#fce2c9", "#f9c392", "#f7a259", "#ed8229", "#d36921", "#b85219", "#9e3c11", "#82280b"] },
  grey: { title: "grey", stops: ["#e0e0e0", "#c2c2c2", "#a4a4a4", "#888888", "#6c6c6c", "#525252", "#393939", "#222222"] },
};
const paleBlueStops = ["#ccebfa", "#9cd5f5", "#6bbef0", "#4fa5df", "#448cc8", "#3a74b0", "#2f5c98", "#254581"];

/** Between a dark background and stops that end at a lightness of 30. @type {{[stop: string]: string}} */
const darkestStops = { "#82280b": "#4a1706", "#254581": "#162a52" };

/** @returns {{name: string, title: string}[]} the colour schemes that the user can choose */
export function colourSchemes() {
  return Object.entries(colourSchemeTable).map(([name, { title }]) => ({ name, title }));
}

/**
 * 256 colours from zero to the largest weight, RGBA.
 * @param {string} scheme  an unknown name means blue
 * @param {Theme} theme
 * @returns {Uint8Array}
 */
export function colourTable(scheme, theme) {
  const { stops } = Object.hasOwn(colourSchemeTable, scheme) ? colourSchemeTable[scheme] : colourSchemeTable.blue;
  return interpolateStops(stopsFromZero(stops, theme));
}

/**
 * 256 colours of differences: entry 0 the most negative (orange), 255 the most positive (blue); zero lies between 127 and 128.
 * @param {Theme} theme
 * @returns {Uint8Array}
 */
export function signedColourTable(theme) {
  // On a dark background the lightest stops are left out: both ends would be white.
  const pick = (/** @type {string[]} */ stops) => (theme === "dark" ? stopsOnDark(stops.slice(1)) : [white, ...stops]);
  const below = pick(colourSchemeTable.orange.stops);
  return interpolateStops([...below.slice(1).reverse(), ...pick(paleBlueStops)]);
}

/**
 * The colour of cells whose weight is not known.
 * @param {Theme} theme
 * @returns {[number, number, number, number]}
 */
export function unknownColour(theme) {
  return theme === "dark" ? [58, 63, 72, 255] : [214, 214, 214, 255];
}

/**
 * The position of a weight on the colour scale, from 0 to 1. Linear, or logarithmic from `low`, or from high / 10^4 if low is 0.
 * @param {number} weight
 * @param {{log: boolean, low: number, threshold: number}} colour
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
 * @param {number} weight
 * @param {{log: boolean, low: number, threshold: number}} colour
 * @param {number} high  the largest size of a difference
 * @returns {number}
 */
export function signedColourPosition(weight, colour, high) {
  return 0.5 + 0.5 * Math.sign(weight) * colourPosition(Math.abs(weight), colour, high);
}

/** @param {string[]} stops @param {Theme} theme @returns {string[]} from zero on */
function stopsFromZero(stops, theme) {
  return theme === "dark" ? [...stopsOnDark(stops), white] : [white, ...stops];
}

/** @param {string[]} stops @returns {string[]} from the dark background to the lightest */
function stopsOnDark(stops) {
  const darkest = stops[stops.length - 1];
  return [darkBackground, ...(Object.hasOwn(darkestStops, darkest) ? [darkestStops[darkest]] : []), ...[...stops].reverse()];
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
 * @param {number} [columns]  per row; 0: no columns are skipped
 * @param {number} [skip]  this many first columns are skipped
 * @returns {number}
 */
export function colourScaleMax(data, start = 0, end = data.length, columns = 0, skip = 0) {
  const bits = new Uint32Array(data.buffer, data.byteOffset, data.length);
  const sums = new Float64Array(1 << 11);
  let most = 0, total = 0;
  for (let at = start; at < end; at++) {
    if (skip && (at - start) % columns < skip) continue;
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

// Shading of tokens: from a weight to an opacity.

/**
 * @typedef {object} Shading
 * @property {(item: number) => number} of  opacity in [-1, 1]; 0: not shaded
 * @property {number} high  the weight of full opacity
 */

const logRange = 1e-4; // lower end of a logarithmic scale relative to its upper end, as in colourPosition

/**
 * @param {ArrayLike<number>} weights  NaN: not known
 * @param {Pick<Colour, "log" | "low" | "high" | "threshold" | "hideSink">} colour
 * @param {boolean} [keys]  the items are keys: the sink is the first of them
 * @returns {Shading}
 */
export function makeShading(weights, colour, keys = true) {
  const hidden = colour.hideSink && keys ? 0 : -1;
  const high = colour.high ?? largestWeight(weights, hidden);
  const floor = Math.max(colour.low, colour.log ? high * logRange : 0);
  const of = (/** @type {number} */ item) => {
    const weight = weights[item];
    const size = Math.abs(weight);
    if (!(size > 0) || item === hidden || size < colour.threshold || !(high > 0)) return 0;
    if (size >= high) return Math.sign(weight);
    if (size <= floor) return 0;
    const part = colour.log ? Math.log(size / floor) / Math.log(high / floor) : (size - floor) / (high - floor);
    return Math.sign(weight) * Math.min(1, part);
  };
  return { of, high };
}

/** @param {ArrayLike<number>} weights @param {number} hidden @returns {number} */
function largestWeight(weights, hidden) {
  let largest = 0;
  for (let i = 0; i < weights.length; i++) {
    const size = Math.abs(weights[i]);
    if (size > largest && i !== hidden) largest = size;
  }
  return largest;
}

// CSS colours as canvases, PDF and SVG take them.

/**
 * A colour of the theme.
 * @param {Element} element
 * @param {string} name  a custom property
 * @returns {string}
 */
export function themeColour(element, name) {
  return getComputedStyle(element).getPropertyValue(name).trim() || "#888";
}

/** @typedef {{r: number, g: number, b: number, a: number}} RgbaColour  every part in [0, 1] */

const hexColourPattern = /^#([0-9a-f]{3,4}|[0-9a-f]{6}|[0-9a-f]{8})$/i;
const colourFunctionPattern = /^(rgba?|color)\(\s*(srgb\s+)?([^)]*)\)$/i;

/**
 * The parts of a CSS colour: hexadecimal, rgb(), rgba() or color(srgb ...), which is what computed styles give.
 * @param {string | undefined} text undefined, "", "none" and "transparent" give null
 * @returns {RgbaColour | null}
 * @throws {Error} for any other syntax
 */
export function parseColour(text) {
  const name = (text ?? "").trim().toLowerCase();
  if (name === "" || name === "none" || name === "transparent") return null;
  const hex = hexColourPattern.exec(name);
  if (hex) return parseHexColour(hex[1] ?? "");
  const call = colourFunctionPattern.exec(name);
  if (!call) throw new Error(`cannot read the colour ${JSON.stringify(text)}`);
  const parts = (call[3] ?? "").split(/[\s,/]+/).filter((part) => part !== "").map(colourPartReader(call[2] ? 1 : 255));
  const [r = 0, g = 0, b = 0] = parts;
  const written = (call[3] ?? "").split(/[\s,/]+/).filter((part) => part !== "")[3];
  return { r, g, b, a: written === undefined ? 1 : colourPartReader(1)(written) };
}

/** @param {string} digits @returns {RgbaColour} */
function parseHexColour(digits) {
  const pairs = digits.length < 6 ? [...digits].map((digit) => digit + digit) : digits.match(/../g) ?? [];
  const [r = 0, g = 0, b = 0, a = 1] = pairs.map((pair) => parseInt(pair, 16) / 255);
  return { r, g, b, a };
}

/** @param {number} full the value of full intensity @returns {(part: string) => number} */
function colourPartReader(full) {
  return (part) => {
    const number = part.endsWith("%") ? parseFloat(part) / 100 : parseFloat(part) / full;
    return Math.min(1, Math.max(0, Number.isFinite(number) ? number : 0));
  };
}
