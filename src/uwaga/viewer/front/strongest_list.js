// The items of the largest weights, as a list of buttons.

import { el, tokenElement } from "./dom.js";
import { percentText, weightText } from "./format.js";

/** @typedef {import("./types.js").Items} Items */

/**
 * @typedef {object} StrongestContent
 * @property {string} hue  "query" or "key"
 * @property {(string | Node)[]} title
 * @property {import("./weights.js").Weights | null} weights
 * @property {Items} items
 * @property {string} note  shown instead of the list or after its sum
 * @property {number} count
 */

/**
 * @param {(item: number) => void} onOpen
 * @returns {{element: HTMLElement, show: (shown: StrongestContent | null) => void}}
 */
export function makeStrongestList(onOpen) {
  const element = el("section", { class: "uwaga-text-strongest" });
  return {
    element,
    show(shown) {
      element.replaceChildren();
      element.hidden = shown === null;
      if (!shown) return;
      element.dataset.hue = shown.hue;
      element.append(el("h3", {}, ...shown.title), el("p", { class: "uwaga-text-note", text: strongestNote(shown) }));
      if (shown.weights) element.append(strongestItemsList(shown.weights.weights, shown, onOpen));
    },
  };
}

/** @param {StrongestContent} shown @returns {string} */
function strongestNote({ weights, note }) {
  if (!weights) return note;
  const { complete, cell } = weights;
  const known = weights.weights.reduce((sum, weight) => (Number.isNaN(weight) ? sum : sum + weight), 0);
  const parts = [complete < 1 ? `Total ${percentText(known)} so far, ${Math.floor(100 * complete)} % of the text read.`
    : `Total ${percentText(known)}.`];
  if (cell > 1) parts.push(`Means over ${cell} by ${cell} items: this saved page contains nothing finer here.`);
  return [...parts, note].filter((part) => part !== "").join(" ");
}

/** @param {Float32Array} weights @param {StrongestContent} shown @param {(item: number) => void} onOpen @returns {HTMLElement} */
function strongestItemsList(weights, { items, count }, onOpen) {
  const best = strongestItems(weights, count);
  return el("ol", { class: "uwaga-text-list" }, best.map((item) => {
    const button = el("button",
      { type: "button", class: "uwaga-text-go", "data-weight": weights[item], "data-goes": item, on: { click: () => onOpen(item) } },
      el("span", { class: "uwaga-text-place", text: String(item) }), tokenElement(items.labels[item]),
      el("span", { class: "uwaga-text-weight", text: percentText(weights[item]), title: weightText(weights[item]) }));
    button.style.setProperty("--text-part", `${Math.min(100, 100 * Math.abs(weights[item]))}%`);
    return el("li", {}, button);
  }));
}

/**
 * The items of the largest weights in magnitude, largest first, ties by position.
 * @param {ArrayLike<number>} weights  NaN: not known, left out
 * @param {number} count
 * @returns {number[]}
 */
export function strongestItems(weights, count) {
  /** @type {number[]} */
  const best = [];
  const size = (/** @type {number} */ item) => Math.abs(weights[item]);
  for (let item = 0; item < weights.length; item++) {
    const mine = size(item);
    if (!(mine > 0) || (best.length === count && mine <= size(best[count - 1]))) continue;
    let at = best.length;
    while (at > 0 && size(best[at - 1]) < mine) at--;
    best.splice(at, 0, item);
    if (best.length > count) best.pop();
  }
  return best;
}
