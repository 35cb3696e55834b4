// What the user changes: from the question that the numbers answer to the next one.

import { storeEqual } from "../store.js";

/** @typedef {import("../types.js").Question} Question */

/** Settings that speak of each token, and make no sense for another number of them. */
const lessonPerToken = ["order", "payload", "length"];

/**
 * @param {Question} question
 * @param {string} field  "x" or the name of a setting
 * @param {number} row
 * @param {number} column
 * @param {number} value
 * @returns {Question}
 */
export function lessonWithNumber(question, field, row, column, value) {
  const next = structuredClone(question);
  const matrix = field === "x" ? next.x : next.settings[field];
  matrix[row][column] = value;
  return next;
}

/** @param {Question} question @param {string} name @param {unknown} value @returns {Question} */
export function lessonWithSetting(question, name, value) {
  const next = structuredClone(question);
  next.settings[name] = value;
  return next;
}

/**
 * Another sentence: words that stay keep their vectors, new ones get their own.
 * @param {Question} question
 * @param {string[]} tokens
 * @returns {Question}
 */
export function lessonWithTokens(question, tokens) {
  const next = structuredClone(question);
  const rows = /** @type {Map<string, number[][]>} */ (new Map());
  question.tokens.forEach((/** @type {string} */ token, /** @type {number} */ at) => {
    rows.set(token, [...(rows.get(token) ?? []), question.x[at]]);
  });
  next.tokens = tokens;
  next.x = tokens.map((token) => {
    const kept = rows.get(token) ?? [];
    return (kept.length > 1 ? kept.shift() : kept[0]) ?? null;
  });
  if (tokens.length !== question.tokens.length || !storeEqual(tokens, question.tokens)) {
    for (const name of lessonPerToken) if (name !== "payload" || tokens.length !== question.tokens.length) delete next.settings[name];
  }
  return next;
}

/**
 * The words of a sentence, or what is wrong with it.
 * @param {string} text
 * @param {number} most
 * @returns {{words: string[]} | {wrong: string}}
 */
export function lessonWords(text, most) {
  const words = text.split(/\s+/u).filter(Boolean);
  if (!words.length) return { wrong: "A sentence needs at least one word." };
  if (words.length > most) return { wrong: `The lesson takes at most ${most} words; these are ${words.length}.` };
  const long = words.find((word) => [...word].length > 64);
  if (long) return { wrong: `\u201c${[...long].slice(0, 20).join("")}\u2026\u201d is longer than 64 characters.` };
  return { words };
}
