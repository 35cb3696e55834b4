// Colours of the map: the theme's colours and fonts, the mapping from weight to colour of each panel, the colour bar.

import { colourPosition, colourTable, signedColourPosition, signedColourTable, takesBlackText, unknownColour } from "../colours.js";
import { el } from "../dom.js";
import { percentText } from "../format.js";
import { tr } from "../languages.js";
import { layerScaleMax } from "./tiles.js";
/** @import { Colour } from "../types.js" */
/** @import { Panel } from "./tile_drawing.js" */

/**
 * @typedef {object} Colouring  the mapping from weight to colour of a panel, all settings resolved
 * @property {boolean} log
 * @property {number} low
 * @property {number} high
 * @property {number} threshold
 * @property {boolean} hideSink
 * @property {boolean} signed
 * @property {Uint8Array | Uint8ClampedArray} table  256 colours, RGBA
 * @property {number} unknown  the colour of NaN, 0xAABBGGRR
 * @property {number} version  changes with any of these
 */

/** The weight of the first colour on a logarithmic scale, as in colourPosition. @param {{low: number, high: number}} colouring */
export function logFloor(colouring) {
  return colouring.low > 0 ? colouring.low : colouring.high / 1e4;
}

/**
 * The position of a weight on the colour scale, in [0, 1]; NaN for NaN. renderer.js has the same in GLSL.
 * @param {Colouring} colouring @param {number} value
 */
export function positionOf(colouring, value) {
  return colouring.signed ? signedColourPosition(value, colouring, colouring.high) : colourPosition(value, colouring, colouring.high);
}

/** The weight at a position of the colour bar: the inverse of positionOf. @param {Colouring} colouring @param {number} place */
export function valueAt(colouring, place) {
  const along = colouring.signed ? Math.abs(place - 0.5) * 2 : place;
  const size = colouring.log
    ? along === 0 && colouring.low === 0 ? 0 : logFloor(colouring) * (colouring.high / logFloor(colouring)) ** along
    : colouring.low + (colouring.high - colouring.low) * along;
  return colouring.signed && place < 0.5 ? -size : size;
}

/**
 * The colours of a tile's cells, 0xAABBGGRR each.
 * @param {Colouring} colouring @param {Float32Array} data
 * @param {number} factor  factor on a cell's value
 * @param {Uint32Array} into
 * @param {boolean} transparent  NaN is drawn transparent
 */
export function colourCells(colouring, data, factor, into, transparent) {
  const table = new Uint32Array(colouring.table.buffer, colouring.table.byteOffset, 256);
  for (let i = 0; i < data.length; i++) {
    const value = data[i] * factor;
    if (value !== value) into[i] = transparent ? 0 : colouring.unknown;
    else into[i] = table[Math.floor(positionOf(colouring, value) * 255 + 0.5)];
  }
}

/** Whether the number in a cell is black, and not white. @param {Colouring} colouring @param {number} weight */
export function cellTextIsBlack(colouring, weight) {
  return takesBlackText(colouring.table, 4 * Math.floor(positionOf(colouring, weight) * 255 + 0.5));
}

// The colouring of the panels: one scale for both sides, another for their difference.

/** The last version of a colouring, over all maps of a page. */
const colouringVersions = { last: 0 };

/**
 * Sets the colouring of every panel; an unchanged one stays the same object.
 * @param {Panel[]} panels @param {Colour} colour @param {Style} style
 * @param {number} level  whose scale is used
 */
export function colourPanels(panels, colour, style, level) {
  for (const signed of [false, true]) {
    const alike = panels.filter((panel) => panel.side.signed === signed);
    if (!alike.length) continue;
    const high = colour.high ?? Math.max(0, ...alike.map((panel) => (panel.layer ? layerScaleMax(panel.layer, level, colour.hideSink) : 0)));
    /** @type {Colouring} */
    const colouring = {
      log: colour.log, low: colour.low, high: high > 0 ? high : 1, threshold: colour.threshold, hideSink: colour.hideSink, signed,
      table: signed ? style.signedTable : style.table, unknown: style.unknown, version: 0,
    };
    const before = alike.map((panel) => panel.colouring).find((one) => sameColouring(one, colouring));
    if (!before) colouring.version = ++colouringVersions.last;
    for (const panel of alike) panel.colouring = before ?? colouring;
  }
}

/** @param {Colouring} left @param {Colouring} right */
function sameColouring(left, right) {
  return left.version > 0 && left.table === right.table && left.log === right.log && left.low === right.low && left.high === right.high
    && left.threshold === right.threshold && left.hideSink === right.hideSink && left.signed === right.signed
    && left.unknown === right.unknown;
}

// Theme colours and fonts, read from the page when they may have changed and never while drawing.

/**
 * @typedef {object} Style
 * @property {string} text
 * @property {string} muted
 * @property {string} line
 * @property {string} edge  of sink bars
 * @property {string} query
 * @property {string} key
 * @property {string} background
 * @property {string} surface
 * @property {number} backgroundPixel  0xAABBGGRR
 * @property {number} unknown
 * @property {number} size  font size of labels in CSS pixels
 * @property {string} font
 * @property {string} strong
 * @property {string} numbers
 * @property {number} ratio  device pixels per CSS pixel
 * @property {Uint8Array} table
 * @property {Uint8Array} signedTable
 * @property {number[]} dash
 * @property {number[]} solid
 */

/** @param {HTMLElement} element @param {"light" | "dark"} theme @param {string} scheme @param {number} ratio @returns {Style} */
export function readStyle(element, theme, scheme, ratio) {
  const computed = getComputedStyle(element);
  const property = (/** @type {string} */ name) => computed.getPropertyValue(name).trim();
  const size = Math.max(8, parseFloat(computed.fontSize) * 0.857);
  const family = computed.fontFamily;
  const background = property("--bg");
  const unknown = unknownColour(theme);
  return {
    text: property("--text"), muted: property("--muted"), line: property("--line"), edge: property("--edge"),
    query: property("--query"), key: property("--key"), background, surface: property("--surface"),
    backgroundPixel: pixelOf(hexParts(background)), unknown: pixelOf(unknown),
    size, font: `${size}px ${family}`, strong: `600 ${size}px ${family}`, numbers: `${Math.min(size, 12.5)}px ${family}`, ratio,
    table: colourTable(scheme, theme), signedTable: signedColourTable(theme), dash: [4, 4], solid: [],
  };
}

/** @param {ArrayLike<number>} parts  red, green, blue */
function pixelOf(parts) {
  return ((255 << 24) | (parts[2] << 16) | (parts[1] << 8) | parts[0]) >>> 0;
}

/** @param {string} text  "#rrggbb" @returns {[number, number, number]} */
function hexParts(text) {
  const found = /^#([0-9a-f]{2})([0-9a-f]{2})([0-9a-f]{2})$/i.exec(text);
  return found ? [parseInt(found[1], 16), parseInt(found[2], 16), parseInt(found[3], 16)] : [128, 128, 128];
}

// The colour bar.

/** The ticks of the colour bar. @param {Colouring} colouring @returns {{place: number, value: number}[]} */
export function colourBarTicks(colouring) {
  const places = [0, 0.5, 1];
  return places.map((place) => {
    if (colouring.log && !colouring.signed && place === 0) return { place, value: logFloor(colouring) };
    return { place, value: valueAt(colouring, place) };
  });
}

/** A tick's text; the last colour also stands for larger weights. @param {number} place @param {number} value */
export function colourBarTickText(place, value) {
  return place === 1 ? `\u2265 ${percentText(value)}` : percentText(value);
}

/** The accessible name of the colour bar. @param {Colouring} colouring */
export function colourBarLabel(colouring) {
  const from = percentText(colouring.signed ? -colouring.high : colouring.log ? logFloor(colouring) : colouring.low);
  const scale = colouring.log ? tr("logarithmic") : tr("linear");
  const hidden = colouring.threshold > 0 ? tr("nothing below {threshold}", { threshold: percentText(colouring.threshold) }) : "";
  const sink = colouring.hideSink ? tr("without sinks") : "";
  return [tr("Colours from {from} to {high} and more", { from, high: percentText(colouring.high) }), scale, hidden, sink].filter(Boolean).join(", ");
}

/** @returns {{element: HTMLElement, show: (colouring: Colouring, title: string) => void}} */
export function makeColourBar() {
  const ramp = el("canvas", { class: "uwaga-map-ramp", width: 256, height: 1, "aria-hidden": "true" });
  const title = el("span", { class: "uwaga-map-bar-title" });
  const numbers = [0, 1, 2].map(() => el("span"));
  const element = el("div", { class: "uwaga-map-scale", role: "img" },
    title, el("div", { class: "uwaga-map-scale-body" }, ramp,
      el("div", { class: "uwaga-map-scale-numbers", "aria-hidden": "true" }, numbers)));
  let shown = -1;
  return {
    element,
    show(colouring, name) {
      if (colouring.version === shown && title.textContent === name) return;
      shown = colouring.version;
      title.textContent = name;
      element.setAttribute("aria-label", `${name ? `${name}: ` : ""}${colourBarLabel(colouring)}`);
      colourBarTicks(colouring).forEach(({ place, value }, at) => { numbers[at].textContent = colourBarTickText(place, value); });
      ramp.getContext("2d")?.putImageData(new ImageData(new Uint8ClampedArray(colouring.table), 256, 1), 0, 0);
    },
  };
}
