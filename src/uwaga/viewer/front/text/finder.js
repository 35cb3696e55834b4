// The search box: tokens and words, found across tokens, one after the other.
import { el } from "../dom.js";
import { searchIndex, searchItems } from "./search.js";

/** @typedef {import("../types.js").Items} Items */
/** @typedef {import("./ranges.js").Range} Range */

/**
 * @param {(range: Range | null) => void} onFound
 * @returns {{element: HTMLElement, setItems: (items: Items) => void, step: (by: number) => void, focus: () => void}}
 */
export function makeFinder(onFound) {
  /** @type {Items | null} */
  let items = null;
  /** @type {import("./search.js").SearchIndex | null} */
  let index = null;
  /** @type {Range[]} */
  let found = [];
  let at = -1;
  const count = el("span", { class: "uwaga-text-count", role: "status" });
  const show = () => {
    const wanted = input.value.trim() !== "";
    count.textContent = !wanted ? "" : found.length ? `${at + 1} of ${found.length}` : "not found";
    onFound(found[at] ?? null);
  };
  const search = () => {
    if (!items) return;
    index ??= searchIndex(items.labels, items.glued);
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
    { type: "search", "aria-label": "Find in the text; # and a number goes to a position", placeholder: "Find, or #17",
    on: { input: search, keydown: (/** @type {KeyboardEvent} */ event) => {
      if (event.key !== "Enter") return;
      event.preventDefault();
      event.stopPropagation();
      step(event.shiftKey ? -1 : 1);
    } } });
  const button = (/** @type {string} */ sign, /** @type {string} */ label, /** @type {number} */ by) =>
    el("button", { type: "button", text: sign, "aria-label": label, on: { click: () => step(by) } });
  return {
    element: el("div", { class: "uwaga-text-finder", role: "search" }, input, button("\u2191", "Find the one before", -1),
      button("\u2193", "Find the next one", 1), count),
    setItems(next) {
      items = next;
      index = null;
      if (input.value) search();
    },
    step,
    focus: () => input.focus(),
  };
}
