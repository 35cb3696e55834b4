// From a weight to a colour. gl.js says the same in GLSL; here it is for the canvas, for exports and for text on cells.

import { colourPosition, signedColourPosition } from "../shell/colours.js";

/**
 * @typedef {object} MapShade  all that colours depend on, with every choice made
 * @property {boolean} log
 * @property {number} low
 * @property {number} high
 * @property {number} threshold
 * @property {boolean} hideSink
 * @property {boolean} signed
 * @property {Uint8Array | Uint8ClampedArray} table  256 colours, RGBA
 * @property {number} unknown  the colour of nan, 0xAABBGGRR
 * @property {number} aside  the colour of a sink that is set aside
 * @property {number} version  another number for another look
 */

/**
 * The end of the logarithmic scale at which the first colour stands, as colourPosition has it.
 * @param {{low: number, high: number}} shade
 */
export function mapLogLow(shade) {
  return shade.low > 0 ? shade.low : shade.high / 1e4;
}

/**
 * Where a weight stands between the first and the last colour, in [0, 1]; nan of nan.
 * @param {MapShade} shade
 * @param {number} value
 */
export function mapPlace(shade, value) {
  return shade.signed ? signedColourPosition(value, shade, shade.high) : colourPosition(value, shade, shade.high);
}

/**
 * The weight at a place of the colour bar: mapPlace backwards.
 * @param {MapShade} shade
 * @param {number} place
 */
export function mapValueAt(shade, place) {
  const along = shade.signed ? Math.abs(place - 0.5) * 2 : place;
  const size = shade.log
    ? along === 0 && shade.low === 0 ? 0 : mapLogLow(shade) * (shade.high / mapLogLow(shade)) ** along
    : shade.low + (shade.high - shade.low) * along;
  return shade.signed && place < 0.5 ? -size : size;
}

/**
 * The colours of a tile's cells, 0xAABBGGRR each.
 * @param {MapShade} shade
 * @param {Float32Array} data
 * @param {number} columns
 * @param {boolean} first  whether the tile begins with the first key
 * @param {number} factor  what a cell's number is multiplied by
 * @param {Uint32Array} into
 * @param {boolean} through  nan is left transparent
 */
export function mapShadeCells(shade, data, columns, first, factor, into, through) {
  const table = new Uint32Array(shade.table.buffer, shade.table.byteOffset, 256);
  for (let i = 0; i < data.length; i++) {
    const value = data[i] * factor;
    if (value !== value) into[i] = through ? 0 : shade.unknown;
    else into[i] = table[Math.floor(mapPlace(shade, value) * 255 + 0.5)];
  }
  if (!first || !shade.hideSink) return;
  for (let i = 0; i < data.length; i += columns) into[i] = shade.aside;
}

/**
 * How light a colour looks, 0 to 1: text on it is dark above a half.
 * @param {Uint8Array | Uint8ClampedArray} table
 * @param {number} index
 */
export function mapLightness(table, index) {
  const at = index * 4;
  return (0.2126 * table[at] + 0.7152 * table[at + 1] + 0.0722 * table[at + 2]) / 255;
}
