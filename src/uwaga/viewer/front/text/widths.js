// How wide tokens are in the page's own letters.
import { tokenText } from "../dom.js";

/**
 * @typedef {object} TextFont
 * @property {string} font  as a canvas takes it
 * @property {number} size  pixels
 */

/** Room beside a token's letters, in parts of the font's size; text.css says the same. */
export const tokenRoom = { plain: 0.16, special: 0.9, specialSize: 0.82, gap: 0.12, lineHeight: 1.9 };

/**
 * @param {TextFont} font
 * @returns {(label: string, special: boolean) => number} pixels of a token with its room
 */
export function makeWidths({ font, size }) {
  const context = document.createElement("canvas").getContext("2d");
  /** @type {Map<string, number>} */
  const known = new Map();
  const letters = (/** @type {string} */ label) => {
    const text = tokenText(label);
    if (!context) return text.length * size * 0.6;
    return context.measureText(text).width;
  };
  if (context) context.font = font;
  return (label, special) => {
    let width = known.get(label);
    if (width === undefined) {
      width = letters(label);
      known.set(label, width);
    }
    // Browsers set text on whole or half pixels: rounding up keeps a full line within its width.
    const room = special ? width * tokenRoom.specialSize + tokenRoom.special * size + 2 : width + tokenRoom.plain * size;
    return Math.ceil(room * 4) / 4;
  };
}

/**
 * @param {Element} element
 * @returns {TextFont}
 */
export function fontOf(element) {
  const { fontStyle, fontWeight, fontSize, fontFamily } = getComputedStyle(element);
  return { font: `${fontStyle} ${fontWeight} ${fontSize} ${fontFamily}`, size: parseFloat(fontSize) || 16 };
}
