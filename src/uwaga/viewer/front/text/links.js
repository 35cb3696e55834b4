// The words that get most of a word's weight, or that give most to it, as bars.

import { barFill, briefText, el, unknownClass } from "../dom.js";
import { countText, percentText } from "../format.js";
import { tr, trN } from "../languages.js";
import { strongestItems } from "../weights.js";
/** @import { Items } from "../types.js" */

const linkBars = 8;

/** @param {string} label */
export function quoted(label) {
  return el("bdi", { text: tr("\u201c{token}\u201d", { token: briefText(label) }) });
}

/**
 * The largest weights of a row, or of a column, as bars of which the largest is full; and the rest.
 * @param {(item: number) => void} pick
 */
export function makeLinks(pick) {
  const title = el("h2"), list = el("ul", { class: "uwaga-bars" });
  const element = el("section", { class: "uwaga-links", hidden: true }, title, list);
  return {
    element,
    /** @param {{title: (string | Node)[], hue: "query" | "key", weights: Float32Array, items: Items, sinks: ReadonlySet<number>, picked: number | null, isHidden?: (key: number) => boolean} | null} content */
    show(content) {
      element.hidden = content === null;
      if (!content) return;
      const { weights, items, sinks, picked, hue, isHidden = () => false } = content;
      title.replaceChildren(...content.title);
      const best = strongestItems(weights, linkBars), others = weights.reduce((sum, weight, item) => (best.includes(item) || Number.isNaN(weight) ? sum : sum + weight), 0);
      const widest = Math.max(...[...best.map((item) => weights[item]), others].map(Math.abs), Number.MIN_VALUE), words = best.map((item) => briefText(items.labels[item]));
      const bar = (/** @type {number} */ weight, /** @type {string} */ name) => el("span", { class: "uwaga-bar" }, barFill(name, (100 * Math.abs(weight)) / widest));
      const count = items.labels.filter((_, item) => !isHidden(item)).length - best.length, masked = items.total - best.length - count;
      const rest = hue === "key" ? [count > 0 && el("li", { class: "uwaga-bar-others" }, el("span", { text: trN("{count} other", "{count} others", count, { count: countText(count) }) }), bar(others, "others"), el("span", { class: "uwaga-bar-number", text: percentText(others) })),
      masked > 0 && el("li", { class: "uwaga-bar-others" }, el("span", { text: trN("{count} other", "{count} others", masked, { count: countText(masked) }) }), el("span"), el("span", { class: "uwaga-bar-number", text: tr("masked") }))].filter((one) => one !== false) : [];
      list.replaceChildren(...best.map((item, at) => el("li", {}, el("button", { type: "button", "data-key": item, "data-weight": weights[item], "aria-pressed": String(item === picked), on: { click: () => pick(item) } },
        // Where a word stands is said of those that are not alone.
        el("bdi", { class: `uwaga-token ${unknownClass(items, item)}` }, words[at], words.indexOf(words[at]) !== words.lastIndexOf(words[at]) && el("small", { text: ` ${countText(item)}` })),
        bar(weights[item], sinks.has(item) ? "sink" : hue), el("span", { class: "uwaga-bar-number", text: percentText(weights[item]) })))), ...rest);
    },
  };
}
