// Colours and fonts of the drawing, read from the page when they may have changed and never while drawing.

import { colourTable, signedColourTable, unknownColour } from "../shell/colours.js";

/**
 * @typedef {object} MapStyle
 * @property {string} text
 * @property {string} muted
 * @property {string} line
 * @property {string} accent
 * @property {string} query
 * @property {string} key
 * @property {string} background
 * @property {string} surface
 * @property {number} backgroundPixel  0xAABBGGRR
 * @property {number} unknown
 * @property {number} aside
 * @property {boolean} asideLight  text on it is dark
 * @property {number} size  CSS pixels of a label's font
 * @property {string} font
 * @property {string} strong
 * @property {string} numbers
 * @property {number} ratio  device pixels per CSS pixel
 * @property {Uint8Array} table
 * @property {Uint8Array} signedTable
 * @property {number[]} dash
 * @property {number[]} solid
 */

/**
 * @param {HTMLElement} element
 * @param {"light" | "dark"} theme
 * @param {string} scheme
 * @param {number} ratio
 * @returns {MapStyle}
 */
export function readMapStyle(element, theme, scheme, ratio) {
  const computed = getComputedStyle(element);
  const property = (/** @type {string} */ name) => computed.getPropertyValue(name).trim();
  const size = Math.max(8, parseFloat(computed.fontSize) * 0.86);
  const family = computed.fontFamily;
  const background = property("--bg");
  const unknown = unknownColour(theme);
  const aside = mapHexParts(property("--surface-2"));
  return {
    text: property("--text"), muted: property("--muted"), line: property("--line"), accent: property("--accent"),
    query: property("--query"), key: property("--key"), background, surface: property("--surface"),
    backgroundPixel: mapPixel(mapHexParts(background)), unknown: mapPixel(unknown), aside: mapPixel(aside),
    asideLight: aside[0] + aside[1] + aside[2] > 382,
    size, font: `${size}px ${family}`, strong: `600 ${size}px ${family}`, numbers: `${Math.min(size, 12.5)}px ${family}`, ratio,
    table: colourTable(scheme, theme), signedTable: signedColourTable(theme), dash: [4, 4], solid: [],
  };
}

/** @param {ArrayLike<number>} parts  red, green, blue */
function mapPixel(parts) {
  return ((255 << 24) | (parts[2] << 16) | (parts[1] << 8) | parts[0]) >>> 0;
}

/**
 * @param {string} text  "#rrggbb"
 * @returns {[number, number, number]}
 */
function mapHexParts(text) {
  const found = /^#([0-9a-f]{2})([0-9a-f]{2})([0-9a-f]{2})$/i.exec(text);
  return found ? [parseInt(found[1], 16), parseInt(found[2], 16), parseInt(found[3], 16)] : [128, 128, 128];
}
