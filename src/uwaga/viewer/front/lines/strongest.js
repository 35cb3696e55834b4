// The strongest lines in view, or of one token, in numbers.
import { el, tokenElement } from "../dom.js";
import { weightText } from "../text/shade.js";
import { gatherStrongest, lineAway } from "./gather.js";

/** @typedef {import("../types.js").Items} Items */
/** @typedef {import("./gather.js").Line} Line */

const lineListCount = 24;

/**
 * @param {HTMLElement} element
 * @param {Line[]} lines
 * @param {{queries: Items, keys: Items, colour: (head: number) => string, title: (string | Node)[], one: boolean}} how
 */
export function showLineList(element, lines, { queries, keys, colour, title, one }) {
  const inside = gatherStrongest(lines.filter((line) => !lineAway(line)), lineListCount);
  // Sums over all that is out of view, of many tokens, say little: of one, they complete its row.
  const best = one ? [...inside, ...gatherStrongest(lines.filter(lineAway), lineListCount)] : inside;
  element.replaceChildren(el("h3", {}, ...title), el("table", { class: "uwaga-lines-table" },
    el("thead", {}, el("tr", {}, ["head", "query", "key", "weight"].map((name) => el("th", { scope: "col", text: name })))),
    el("tbody", {}, best.map((line) => lineRow(line, queries, keys, colour(line.head))))));
  if (!best.length) element.append(el("p", { class: "uwaga-lines-note", text: "No line is above the threshold here." }));
}

/** @param {Line} line @param {Items} queries @param {Items} keys @param {string} colour @returns {HTMLElement} */
function lineRow({ head, query, key, weight }, queries, keys, colour) {
  const mark = el("span", { class: "uwaga-lines-mark", "aria-hidden": "true" });
  mark.style.setProperty("--lines-head", colour);
  return el("tr", { "data-weight": weight }, el("td", {}, mark, String(head)),
    el("td", {}, lineEnd(query, queries)), el("td", {}, lineEnd(key, keys)),
    el("td", { class: "uwaga-lines-weight", text: weightText(weight) }));
}

/** @param {number} item @param {Items} items @returns {(string | Node)[]} */
function lineEnd(item, items) {
  if (item === -1) return [el("i", { text: "all before the window" })];
  if (item === Infinity) return [el("i", { text: "all behind the window" })];
  return [el("span", { class: "uwaga-lines-place", text: `${item} ` }), tokenElement(items.labels[item])];
}
