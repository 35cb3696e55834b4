// Small maps as pictures: one canvas per layer, its heads beside each other, made when first drawn and kept while few.

import { scaleTop } from "../shell/scale.js";
import { colourPosition, colourTable, signedColourPosition, signedColourTable, unknownColour } from "../shell/colours.js";

/** @typedef {import("../types.js").Colour} Colour */
/** @typedef {{data: Float32Array, heads: number, rows: number, columns: number}} OverviewCells */
/** @typedef {{colour: Colour, signed: boolean, theme: "light" | "dark", hideKeys: number}} OverviewLook  hideKeys: columns drawn as zero */

/**
 * Where the colours of some heads end, by their weights; what is hidden does not count.
 * @param {OverviewCells} cells
 * @param {number} hideKeys
 * @param {number} [first]
 * @param {number} [end]
 * @returns {number}
 */
export function overviewMost({ data, heads, rows, columns }, hideKeys, first = 0, end = heads) {
  return scaleTop(data, first * rows * columns, end * rows * columns, columns, hideKeys);
}

/**
 * The pixels of all heads of a layer, beside each other: heads * columns wide, rows high.
 * @param {OverviewCells} cells
 * @param {OverviewLook} look
 * @param {(head: number) => number} highOf  the weight that gets the last colour
 * @returns {Uint8ClampedArray<ArrayBuffer>}
 */
export function overviewPixels({ data, heads, rows, columns }, look, highOf) {
  const table = new Uint32Array((look.signed ? signedColourTable(look.theme) : colourTable(look.colour.scheme, look.theme)).buffer);
  const unknown = new Uint32Array(new Uint8Array(unknownColour(look.theme)).buffer)[0];
  const pixels = new Uint8ClampedArray(heads * rows * columns * 4), words = new Uint32Array(pixels.buffer);
  const place = look.signed ? signedColourPosition : colourPosition;
  for (let head = 0; head < heads; head++) {
    const high = highOf(head);
    for (let i = 0; i < rows; i++) {
      for (let j = 0; j < columns; j++) {
        const weight = j < look.hideKeys ? 0 : data[(head * rows + i) * columns + j];
        const position = place(weight, look.colour, high);
        words[i * heads * columns + head * columns + j] = Number.isNaN(position) ? unknown : table[Math.round(position * 255)];
      }
    }
  }
  return pixels;
}

/**
 * Pictures by layer; the longest unused ones are forgotten.
 * @param {number} most
 */
export function makePictures(most) {
  /** @type {Map<string, {key: unknown, canvas: HTMLCanvasElement}>} */
  const kept = new Map();
  return {
    /**
     * @param {string} name
     * @param {unknown[]} key  another key: it is drawn anew
     * @param {OverviewCells} cells
     * @param {() => Uint8ClampedArray<ArrayBuffer>} pixels
     * @param {boolean} mayDraw  false: what there is, as it is
     * @returns {{canvas: HTMLCanvasElement | null, drawn: boolean, late: boolean}}  late: another picture is due
     */
    of(name, key, cells, pixels, mayDraw) {
      const text = key.join(" "), there = kept.get(name), late = there?.key !== text && !mayDraw;
      if (late) return { canvas: there?.canvas ?? null, drawn: false, late };
      kept.delete(name);
      const canvas = there?.canvas ?? document.createElement("canvas");
      if (there?.key !== text) {
        canvas.width = cells.heads * cells.columns;
        canvas.height = cells.rows;
        canvas.getContext("2d")?.putImageData(new ImageData(pixels(), canvas.width, canvas.height), 0, 0);
      }
      kept.set(name, { key: text, canvas });
      if (kept.size > most) kept.delete([...kept.keys()][0]);
      return { canvas, drawn: there?.key !== text, late };
    },
    clear: () => kept.clear(),
  };
}
