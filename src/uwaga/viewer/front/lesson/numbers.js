// Numbers and formulas of the lesson as text, and parsing of typed numbers.

import { el, svgEl, tokenText } from "../dom.js";
import { decimalText, powerText, tr } from "../languages.js";

/**
 * A text with its letters that have an index, such as W_Q, d_k and X^V, written as books do.
 * @param {string} text @returns {(string | HTMLElement)[]}
 */
export function formulaText(text) {
  return text.split(productOfMatrices).flatMap((part, at) => (at % 2 ? [el("span", { class: "lesson-product-text", text: part })] : indexedText(part)));
}

/** Matrices beside each other, such as (Q K\u1d40) V, which stand in one line. */
const productOfMatrices = /(?<![\w)])(\(?[A-Z]\u1d40?\)?(?: \(?[A-Z]\u1d40?\)?)* ?\(?[A-Z]\u1d40\)?(?: [A-Z](?!\w)\)?)?)/;

/** @param {string} text @returns {(string | HTMLElement)[]} */
function indexedText(text) {
  return formulaParts(text).map((part, at) => {
    if (at % 2 === 0) return part;
    return el("span", { class: "lesson-symbol" }, part[0], el(part[1] === "_" ? "sub" : "sup", { text: part.slice(2) }));
  });
}

/** Letters with an index stand at odd places. @param {string} text @returns {string[]} */
const formulaParts = (text) => text.split(/(?<![\w.])([A-Za-z][_^][A-Za-z0-9]{1,2})(?![\w])/);

/** The same in a drawing. @param {string} text @returns {Element[]} */
export function formulaSpans(text) {
  return formulaParts(text).flatMap((part, at, all) => {
    if (at % 2) return [svgEl("tspan", { class: "lesson-symbol", text: part[0] }), svgEl("tspan", { class: "lesson-index", dy: part[1] === "_" ? "0.3em" : "-0.6em", text: part.slice(2) })];
    // Back to the line that the index has left; an index is 0.7 of its letter.
    const back = at && all[at - 1][1] === "_" ? "-0.21em" : "0.42em";
    return part ? [svgEl("tspan", at ? { dy: back, text: part } : { text: part })] : [];
  });
}

/** A sentence that has tokens in it; the spaces in its numbers stay spaces. @param {string} text @returns {(string | HTMLElement)[]} */
export const sentenceText = (text) => formulaText(text.split("\u00a0").map((part) => part && tokenText(part)).join("\u00a0"));

/** @param {number} value  NaN: masked @param {number} [digits]  decimals @returns {string} */
export function lessonNumber(value, digits = 2) {
  if (Number.isNaN(value)) return "\u2013";
  const size = Math.abs(value);
  if (size !== 0 && (size < 0.5 * 10 ** -digits || size >= 1e7)) return powerText(value, size >= 1e7 ? 2 : 0);
  return decimalText(value, size >= 1e4 ? 0 : digits);
}

/** The shortest decimal that gives the same float32 again, for inputs. @param {number} value @returns {string} */
export function inputText(value) {
  for (let digits = 1; digits < 9; digits++) {
    const text = Number(value.toPrecision(digits));
    if (Math.fround(text) === Math.fround(value)) return typedText(text);
  }
  return typedText(value);
}

/** @param {number} value @returns {string} as it is typed in the page's language: without groups */
function typedText(value) {
  return String(value).replace(".", decimalText(0.5, 1)[1]);
}

/**
 * The number that the user has typed, or an error message.
 * @param {string} text @param {{least: number, most: number, whole?: boolean}} rule @returns {{value: number} | {error: string}}
 */
export function parseNumber(text, { least, most, whole = false }) {
  const plain = text.trim().replaceAll("\u2212", "-").replace(/^(-?\d*),(\d+)$/, "$1.$2");
  if (plain === "") return { error: whole ? tr("This field is empty; it needs a whole number.") : tr("This field is empty; it needs a number.") };
  if (!/^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i.test(plain)) return { error: whole ? tr("“{text}” is not a whole number.", { text: text.trim() }) : tr("“{text}” is not a number.", { text: text.trim() }) };
  const value = Number(plain);
  if (whole && !Number.isInteger(value)) return { error: tr("“{text}” is not a whole number.", { text: text.trim() }) };
  if (!(value >= least && value <= most)) return { error: tr("{trim} is not between {least} and {most}.", { trim: text.trim(), least, most }).replaceAll("-", "\u2212") };
  return { value };
}
