// Search in running text, across tokens and without regard to case, and the search box.

import { el } from "../dom.js";
import { countText } from "../format.js";
import { tr } from "../languages.js";
/** @import { Items, Range } from "../types.js" */

/** @typedef {{text: string, starts: Int32Array}} SearchIndex  the text in lower case; the offset of each item in it */

/** @param {string[]} labels @param {ArrayLike<number>} noSpaceBefore @returns {SearchIndex} */
export function searchIndex(labels, noSpaceBefore) {
  const starts = new Int32Array(labels.length);
  /** @type {string[]} */
  const parts = [];
  let at = 0;
  labels.forEach((label, i) => {
    // Lower case label by label: it may change the length, and offsets must agree.
    const part = label.toLowerCase();
    if (i && !noSpaceBefore[i]) {
      parts.push(" ");
      at += 1;
    }
    starts[i] = at;
    parts.push(part);
    at += part.length;
  });
  return { text: parts.join(""), starts };
}

/**
 * @param {SearchIndex} index
 * @param {string} pattern  "#17" is the item at position 17
 * @param {number} [limit]
 * @returns {[number, number][]} range of items of each match
 */
export function searchItems({ text, starts }, pattern, limit = 10_000) {
  const position = /^#(\d+)$/.exec(pattern.trim());
  if (position) {
    const item = Number(position[1]);
    return item < starts.length ? [[item, item + 1]] : [];
  }
  const sought = pattern.toLowerCase();
  /** @type {[number, number][]} */
  const found = [];
  if (sought.trim() === "") return found;
  for (let at = text.indexOf(sought); at >= 0 && found.length < limit; at = text.indexOf(sought, at + sought.length)) {
    found.push([itemAtCharacter(starts, at), itemAtCharacter(starts, at + sought.length - 1) + 1]);
  }
  return found;
}

/** @param {Int32Array} starts @param {number} place @returns {number} the item that contains the character */
function itemAtCharacter(starts, place) {
  let [low, high] = [0, starts.length - 1];
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (starts[middle] <= place) low = middle;
    else high = middle - 1;
  }
  return low;
}

// The search box.

/**
 * @param {(range: Range | null) => void} onFound
 * @returns {{element: HTMLElement, setItems: (items: Items) => void, step: (by: number) => void, focus: () => void}}
 */
export function makeSearchBox(onFound) {
  /** @type {Items | null} */
  let items = null;
  /** @type {SearchIndex | null} */
  let index = null;
  /** @type {Range[]} */
  let found = [];
  let at = -1;
  const count = el("span", { role: "status" });
  const show = () => {
    const hasInput = input.value.trim() !== "";
    count.textContent = !hasInput ? "" : found.length ? tr("{at} of {count}", { at: countText(at + 1), count: countText(found.length) }) : tr("not found");
    onFound(found[at] ?? null);
  };
  const search = () => {
    if (!items) return;
    index ??= searchIndex(items.labels, items.noSpaceBefore);
    found = searchItems(index, input.value);
    at = found.length ? 0 : -1;
    show();
  };
  const step = (/** @type {number} */ by) => {
    if (!found.length) return;
    at = (at + by + found.length) % found.length;
    show();
  };
  const input = el("input",
    { type: "search", "aria-label": tr("Find in the text; # and a number goes to a position"), placeholder: tr("Find, or #17"),
    on: { input: search, keydown: (/** @type {KeyboardEvent} */ event) => {
      if (event.key !== "Enter") return;
      event.preventDefault();
      event.stopPropagation();
      step(event.shiftKey ? -1 : 1);
    } } });
  const button = (/** @type {string} */ sign, /** @type {string} */ label, /** @type {number} */ by) =>
    el("button", { type: "button", text: sign, "aria-label": label, on: { click: () => step(by) } });
  return {
    element: el("div", { class: "uwaga-find", role: "search" }, input, button("\u2191", tr("Find previous"), -1),
      button("\u2193", tr("Find next"), 1), count),
    setItems(next) {
      if (items === next) return;
      items = next;
      index = null;
      if (input.value) search();
    },
    step,
    focus: () => input.focus(),
  };
}
