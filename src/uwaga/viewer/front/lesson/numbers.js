// Numbers and formulas of the lesson as text, and parsing of typed numbers.

import { el } from "../dom.js";
import { decimalText, powerText, tr } from "../languages.js";

/**
 * A text with its letters that have an index, such as W_Q, d_k and X^V, written as books do.
 * @param {string} text
 * @returns {(string | HTMLElement)[]}
 */
export function formulaText(text) {
  return text.split(/(?<![\w.])([A-Za-z][_^][A-Za-z0-9]{1,2})(?![\w])/).map((part, at) => {
    if (at % 2 === 0) return part;
    return el("span", { class: "lesson-symbol" }, part[0], el(part[1] === "_" ? "sub" : "sup", { text: part.slice(2) }));
  });
}

/**
 * @param {number} value  NaN: masked
 * @param {number} [digits]  decimals
 * @returns {string}
 */
export function lessonNumber(value, digits = 2) {
  if (Number.isNaN(value)) return "\u2013";
  const size = Math.abs(value);
  if (size !== 0 && (size < 0.5 * 10 ** -digits || size >= 1e7)) return powerText(value, size >= 1e7 ? 2 : 0);
  return decimalText(value, size >= 1e4 ? 0 : digits);
}

/**
 * The shortest decimal that gives the same float32 again, for inputs.
 * @param {number} value
 * @returns {string}
 */
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
 * @param {string} text
 * @param {{least: number, most: number, whole?: boolean}} rule
 * @returns {{value: number} | {error: string}}
 */
export function parseNumber(text, { least, most, whole = false }) {
  const plain = text.trim().replaceAll("\u2212", "-").replace(/^(-?\d*),(\d+)$/, "$1.$2");
  if (plain === "") return { error: whole ? tr("This field is empty; it needs a whole number.") : tr("This field is empty; it needs a number.") };
  if (!/^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i.test(plain)) return { error: whole ? tr("“{text}” is not a whole number.", { text: text.trim() }) : tr("“{text}” is not a number.", { text: text.trim() }) };
  const value = Number(plain);
  if (whole && !Number.isInteger(value)) return { error: tr("{trim} is not a whole number.", { trim: text.trim() }) };
  if (!(value >= least && value <= most)) return { error: tr("{trim} is not between {least} and {most}.", { trim: text.trim(), least, most }).replaceAll("-", "\u2212") };
  return { value };
}
