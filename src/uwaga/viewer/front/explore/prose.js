// The text as running prose, with the picked query's weights in bands of colour and underline.

import { bandOf, bandScale } from "../colours.js";
import { el, tokenText } from "../dom.js";
import { percentText } from "../format.js";
import { tr } from "../languages.js";
import { isRightToLeft } from "../text/layout.js";

/** @typedef {import("../types.js").Items} Items */

/** Items of a longer text that are shown around the picked one. */
const proseWindow = 600;

/**
 * @typedef {object} ProseContent
 * @property {Items} items
 * @property {"both" | "query" | "key"} axis
 * @property {number | null} picked  the query, if it is in this text
 * @property {number | null} marked  the key
 * @property {ArrayLike<number> | null} weights  of the query on these items; null: none, or not known yet
 * @property {ReadonlySet<number>} sinks
 */

/**
 * @param {{pick: (axis: "both" | "query" | "key", item: number) => void, point: (axis: "both" | "query" | "key", item: number) => void,
 *   whole: () => void}} act  point: -1 when nothing is pointed at
 */
export function makeProse({ pick, point, whole }) {
  const element = el("div", { class: "uwaga-prose-texts" });

  /** @param {ProseContent} content */
  function paragraph({ items, axis, picked, marked, weights, sinks }) {
    const [first, end] = proseRange(items.total, picked ?? marked ?? 0);
    const scale = weights ? bandScale(weights, sinks) : 1;
    const itemOf = (/** @type {Event} */ event) => {
      const token = event.target instanceof Element ? event.target.closest("[data-item]") : null;
      return token instanceof HTMLElement ? Number(token.dataset.item) : -1;
    };
    const text = el("p", { class: "uwaga-prose", dir: isRightToLeft(items.labels.slice(first, end)) ? "rtl" : "ltr", "data-axis": axis, on: {
      click: (/** @type {Event} */ event) => { const item = itemOf(event); if (item >= 0) pick(axis, item); },
      pointerover: (/** @type {Event} */ event) => point(axis, itemOf(event)), pointerleave: () => point(axis, -1) } });
    if (first > 0) text.append(el("button", { type: "button", class: "uwaga-link", text: "\u2026", "aria-label": tr("The whole text"), on: { click: whole } }), " ");
    for (let item = first; item < end; item++) {
      const label = items.labels[item], special = items.specials.has(item), weight = weights ? weights[item] : NaN;
      const lines = item > first ? items.breaks?.get(item) ?? 0 : 0;
      for (let line = 0; line < Math.min(lines, 2); line++) text.append(el("br")); // a blank line stays, of several one
      if (item > first && !lines && !items.noSpaceBefore[item]) text.append(el("span", { class: "uwaga-space", "data-band": spaceBand(weights, sinks, item, scale), text: " " }));
      const parts = label.split("\n");
      parts.forEach((part, at) => {
        if (at) text.append(el("br"));
        if (part === "" && parts.length > 1) return;
        text.append(el("span", {
          class: `uwaga-word${special ? " uwaga-word-special" : ""}${item === picked ? " uwaga-word-picked" : ""}${item === marked ? " uwaga-word-marked" : ""}`,
          "data-item": item, "data-band": weights && !sinks.has(item) ? bandOf(weight, scale) || null : null,
          text: special && weight >= 0.005 ? `${tokenText(part).replace(/^\[|\]$/gu, "")} ${percentText(weight)}` : special ? tokenText(part).replace(/^\[|\]$/gu, "") : proseText(part) }));
      });
    }
    if (end < items.total) text.append(" ", el("button", { type: "button", class: "uwaga-link", text: tr("… whole text"), on: { click: whole } }));
    return text;
  }

  return {
    element,
    /** @param {ProseContent[]} contents  one text, or two */
    show(contents) {
      element.replaceChildren(...contents.map(paragraph));
      const picked = element.querySelector(".uwaga-word-picked"), box = element.getBoundingClientRect(), place = picked?.getBoundingClientRect();
      if (place && (place.top < box.top || place.bottom > box.bottom)) element.scrollTop += place.top - box.top - box.height / 2;
    },
  };
}

/**
 * The band of a space: that of both its neighbours, so that neighbours of one band merge.
 * @param {ArrayLike<number> | null} weights @param {ReadonlySet<number>} sinks @param {number} item @param {number} scale
 * @returns {number | null}
 */
function spaceBand(weights, sinks, item, scale) {
  if (!weights || sinks.has(item) || sinks.has(item - 1)) return null;
  const [before, after] = [bandOf(weights[item - 1], scale), bandOf(weights[item], scale)];
  return before === after ? after || null : null;
}

/** @param {string} label @returns {string} spaces as they are, other invisible characters made visible */
function proseText(label) {
  return label.trim() === "" ? label : label.split(" ").map((part) => (part === "" ? "" : tokenText(part))).join(" ");
}

/**
 * @param {number} total
 * @param {number} around
 * @returns {[number, number]} the items that are shown: first, one past the last
 */
export function proseRange(total, around) {
  if (total <= proseWindow) return [0, total];
  const first = Math.max(0, Math.min(total - proseWindow, around - proseWindow / 2));
  return [first, first + proseWindow];
}
