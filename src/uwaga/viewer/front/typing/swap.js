// One word in place of another, and back: what the model makes of the difference.

import { briefText, el } from "../dom.js";
import { tr } from "../languages.js";
import { completeRequest } from "./session.js";
/** @import { App, Items } from "../types.js" */

/**
 * Where the item stands in the text, if the items before it are found there one after the other.
 * @param {string} text @param {Items} items @param {number} item
 * @returns {number} the place of its first letter; -1: it is not in the text as it is named
 */
export function placeOfItem(text, { labels, specials }, item) {
  let at = 0;
  for (let i = 0; i <= item; i++) {
    if (specials.has(i)) { if (i === item) return -1; continue; }
    const found = text.indexOf(labels[i], at);
    if (found < 0) return -1;
    if (i === item) return found;
    at = found + labels[i].length;
  }
  return -1;
}

/**
 * @param {App} app
 * @returns {{element: HTMLElement | null, show: (items: Items | null, query: number | null) => void, edit: () => void}}
 */
export function makeSwap(app) {
  const { typing, typed } = app.about;
  if (!typing || !typed || typed.second !== null || typed.edits || app.host.mode === "saved") return { element: null, show() {}, edit() {} };
  const text = typed.text, run = (/** @type {string} */ next) => void app.session.run(completeRequest({ ...typed, text: next }), { keep: true });
  /** @type {{items: Items, query: number} | null} */
  let picked = null;
  const found = (typing.pairs ?? []).flatMap(([example, one, other]) => {
    const at = example.lastIndexOf(one), swapped = example.slice(0, at) + other + example.slice(at + one.length);
    return text === example ? [{ one, other, to: swapped, isOther: false }] : text === swapped ? [{ one, other, to: example, isOther: true }] : [];
  });
  const pair = found.slice(0, 1).map(({ one, other, to, isOther }) => el("button", { type: "button", class: "uwaga-pill uwaga-swap", on: { click: () => run(to) },
    // The name begins with what is written on the button, for those who say it.
    "aria-label": [`${one} \u21c4 ${other}`, tr("Change “{one}” into “{other}”", isOther ? { one: other, other: one } : { one, other })].join(": ") },
  el(isOther ? "span" : "b", { text: one }), " \u21c4 ", el(isOther ? "b" : "span", { text: other }))).at(0);
  const input = el("input", { type: "text", class: "uwaga-swap-word", "aria-label": tr("Another word instead of the picked one"), dir: "auto", on: {
    keydown(/** @type {KeyboardEvent} */ event) {
      if (event.isComposing || (event.key !== "Enter" && event.key !== "Escape")) return;
      event.preventDefault();
      event.stopPropagation();
      back?.focus({ preventScroll: true });
      const word = input.value.trim(), place = picked && placeOfItem(text, picked.items, picked.query);
      if (event.key === "Enter" && picked && place !== null && place >= 0 && word)
        run(text.slice(0, place) + word + text.slice(place + picked.items.labels[picked.query].length));
      else close();
    }, blur: () => close() } });
  const word = el("button", { type: "button", class: "uwaga-pill uwaga-swap-into", on: { click: edit } });
  const element = el("div", { class: "uwaga-swap-row" }, el("span", { class: "uwaga-sub", text: tr("Change one word and watch") }), pair, word, input);
  input.hidden = true;
  /** What had the focus before the box. @type {HTMLElement | null} */
  let back = null;

  function edit() {
    if (!picked || word.hidden) return;
    back = /** @type {HTMLElement | null} */ (/** @type {Document | ShadowRoot} */ (element.getRootNode()).activeElement);
    input.hidden = false;
    input.value = "";
    input.placeholder = briefText(picked.items.labels[picked.query]);
    input.focus();
  }
  function close() {
    input.hidden = true;
  }
  return {
    element, edit,
    show(items, query) {
      picked = items && query !== null && placeOfItem(text, items, query) >= 0 ? { items, query } : null;
      word.hidden = !picked;
      if (picked) word.textContent = tr("{word} into …", { word: briefText(picked.items.labels[picked.query]) });
      element.hidden = !picked && !pair;
    },
  };
}
