// Numbers and names as text.

import { currentLanguage, decimalText, powerText, tr } from "./languages.js";

/**
 * A weight or statistic in four significant digits, with a minus sign (U+2212).
 * @param {number | null | undefined} value @returns {string}
 */
export function numberText(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "\u2013";
  const size = Math.abs(value);
  if (size === Infinity) return value > 0 ? "\u221e" : "\u2212\u221e";
  if (size === 0) return "0";
  if (size < 1e-4 || size >= 1e6) return powerText(value, 2);
  return decimalText(value, size >= 100 ? 1 : size >= 10 ? 2 : 4);
}

/**
 * A weight as percent to a tenth: "67.7%", "<0.1%", and ">99.9%" for what is less than 1; "\u2212" before a negative one.
 * @param {number | null | undefined} weight @returns {string}
 */
export function percentText(weight) {
  if (weight === null || weight === undefined || Number.isNaN(weight)) return "\u2013";
  const percent = Math.abs(weight) * 100, sign = weight < 0 ? "\u2212" : "";
  if (percent === 0) return "0%";
  if (percent < 0.05) return `${sign}<${decimalText(0.1, 1)}%`;
  if (percent >= 99.95 && percent < 100) return `${sign}>${decimalText(99.9, 1)}%`;
  return `${sign}${decimalText(percent, percent.toFixed(1).at(-1) === "0" ? 0 : 1)}%`;
}

/** A weight in six significant digits, the decimal precision of float32. @param {number} weight @returns {string} */
export function weightText(weight) {
  if (Number.isNaN(weight)) return tr("not known yet");
  if (weight === 0) return "0";
  if (Math.abs(weight) < 1e-4) return powerText(weight, 5);
  return decimalText(weight, weight.toPrecision(6).split(".")[1]?.length ?? 0);
}

/** An ordinal number: 1st, 2nd, 3rd, 11th. @param {number} rank */
export function ordinalText(rank) {
  const tens = rank % 100;
  const ones = rank % 10;
  const end = tens >= 11 && tens <= 13 ? "th" : ones === 1 ? "st" : ones === 2 ? "nd" : ones === 3 ? "rd" : "th";
  return currentLanguage().language === "en" ? `${countText(rank)}${end}` : tr("{number}th", { number: countText(rank) });
}

/** A count: 100,000. @param {number} count */
export function countText(count) {
  return decimalText(Math.round(count), 0);
}

/** @param {string} kind @param {number} layer @param {number} head @returns {string} which head; of encoders without the kind */
export function headText(kind, layer, head) {
  return kind === "encoder" ? tr("layer {layer}, head {head}", { layer, head }) : tr("{kind} layer {layer}, head {head}", { kind: kindTitle(kind), layer, head });
}

/** @param {string} kind @returns {string} */
export function kindTitle(kind) {
  return { encoder: tr("encoder"), decoder: tr("decoder"), cross: tr("cross-attention") }[kind] ?? kind;
}
