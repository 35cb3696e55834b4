// The items of the largest weights, or in a long text its passages, as a list of buttons.

import { el, tokenElement } from "./dom.js";
import { percentText, weightText } from "./format.js";
import { tr } from "./languages.js";

/** @typedef {import("./types.js").Items} Items */

/**
 * @typedef {object} StrongestContent
 * @property {string} hue  "query" or "key"
 * @property {(string | Node)[]} title
 * @property {import("./weights.js").Weights | null} weights
 * @property {Items} items
 * @property {string} note  shown instead of the list or after its sum
 * @property {number} count
 * @property {boolean} [passages]  of a long text: list passages by what they get together, not single items
 */

/** Items of a passage. */
const passageLength = 17;
/** Texts of so many items are listed by passages, unless their items are passages themselves: longer than any word, on average. */
const passagesFrom = 256, passageLetters = 24;

/**
 * @param {Items} items
 * @returns {boolean} whether passages are listed, not single items
 */
export function listsPassages({ total, labels }) {
  return total >= passagesFrom && labels.reduce((sum, label) => sum + label.length, 0) < passageLetters * total;
}

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
  const parts = [complete < 1 ? tr("Total {known} so far, {value}% of the text read.", { known: percentText(known), value: Math.floor(100 * complete) })
    : tr("Total {known}.", { known: percentText(known) })];
  if (cell > 1) parts.push(tr("Means over {cell} by {cell} items: this saved page contains nothing finer here.", { cell }));
  return [...parts, note].filter((part) => part !== "").join(" ");
}

/** @param {Float32Array} weights @param {StrongestContent} shown @param {(item: number) => void} onOpen @returns {HTMLElement} */
function strongestItemsList(weights, { items, count, passages }, onOpen) {
  const rows = passages ? strongestPassages(weights, count).map(({ first, stop, peak, mass }) => ({ opens: peak, place: first, weight: mass, name: passageElement(items, first, stop, peak) }))
    : strongestItems(weights, count).map((item) => ({ opens: item, place: item, weight: weights[item], name: tokenElement(items.labels[item]) }));
  return el("ol", { class: "uwaga-text-list" }, rows.map(({ opens, place, weight, name }) => {
    const button = el("button",
      { type: "button", class: "uwaga-text-go", "data-weight": weight, "data-goes": opens, on: { click: () => onOpen(opens) } },
      el("span", { class: "uwaga-text-place", text: String(place) }), name,
      el("span", { class: "uwaga-text-weight", text: percentText(weight), title: weightText(weight) }));
    button.style.setProperty("--text-part", `${Math.min(100, 100 * Math.abs(weight))}%`);
    return el("li", {}, button);
  }));
}

/** @param {Items} items @param {number} first @param {number} stop @param {number} peak  its largest weight, set off @returns {HTMLElement} */
function passageElement({ labels, noSpaceBefore }, first, stop, peak) {
  const text = (/** @type {number} */ from, /** @type {number} */ to) => {
    let shown = "";
    for (let item = from; item < to; item++) shown += (item > first && !noSpaceBefore[item] ? " " : "") + labels[item].replace(/\s+/gu, " ");
    return shown;
  };
  return el("bdi", { class: "uwaga-passage" }, text(first, peak), el("b", { text: text(peak, peak + 1) }), text(peak + 1, stop));
}

/**
 * The passages of 17 items that get most together, largest first; none overlaps another one.
 * @param {ArrayLike<number>} weights  NaN: not known, left out
 * @param {number} count
 * @param {number} [length]
 * @returns {{first: number, stop: number, peak: number, mass: number}[]} peak: the item of the largest weight
 */
export function strongestPassages(weights, count, length = passageLength) {
  const total = weights.length, half = length >> 1, sums = new Float64Array(total + 1);
  const size = (/** @type {number} */ item) => Math.abs(weights[item]) || 0;
  for (let item = 0; item < total; item++) sums[item + 1] = sums[item] + size(item);
  const taken = new Uint8Array(total);
  /** @type {{first: number, stop: number, peak: number, mass: number}[]} */
  const found = [];
  while (found.length < count) {
    // A passage has its largest weight in the middle, so that ties of overlapping passages are settled.
    let best = -1, most = 0;
    for (let item = 0; item < total; item++) {
      if (taken[item] || !(size(item) > 0)) continue;
      const mass = sums[Math.min(total, item + half + 1)] - sums[Math.max(0, item - half)];
      if (mass > most * (1 + 1e-9) || (mass >= most * (1 - 1e-9) && best >= 0 && size(item) > size(best))) [best, most] = [item, mass];
    }
    if (best < 0) return found;
    const first = Math.max(0, best - half), stop = Math.min(total, best + half + 1);
    let peak = best;
    let mass = 0;
    for (let item = first; item < stop; item++) {
      if (size(item) > size(peak)) peak = item;
      mass += weights[item] || 0;
    }
    found.push({ first, stop, peak, mass });
    for (let item = Math.max(0, first - half); item < Math.min(total, stop + half); item++) taken[item] = 1;
  }
  return found;
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
