// Spans that are kept, and how much each attends to each.
import { el } from "../dom.js";
import { tokenText } from "../dom.js";
import { itemsOf, rangeText, tokensOf } from "./ranges.js";
import { weightText } from "./shade.js";

/** @typedef {import("../types.js").Items} Items */
/** @typedef {import("./ranges.js").Range} Range */
/** @typedef {{id: number, axis: "query" | "key" | "both", tokens: Range}} KeptSpan */

const spansMost = 16; // a table of more can no longer be read, and a question takes 64

/** The spans of a text, as ranges of tokens, so that they outlast merging and hiding. */
export class SpanShelf {
  constructor() {
    /** @type {KeptSpan[]} */
    this.spans = [];
    this.next = 1;
  }

  /**
   * @param {KeptSpan["axis"]} axis
   * @param {Items} items
   * @param {Range} range of items
   * @param {boolean} fresh false: in place of the newest of this axis
   */
  put(axis, items, range, fresh) {
    const tokens = tokensOf(items, range);
    const newest = this.newest(axis);
    if (!fresh && newest) newest.tokens = tokens;
    else if (!this.spans.some((span) => span.axis === axis && span.tokens[0] === tokens[0] && span.tokens[1] === tokens[1])) {
      this.spans.push({ id: this.next++, axis, tokens });
    }
    if (this.spans.length > spansMost) this.spans.shift();
  }

  /** @param {number} id */
  remove(id) {
    this.spans = this.spans.filter((span) => span.id !== id);
  }

  /** @param {KeptSpan["axis"]} axis @returns {KeptSpan | undefined} */
  newest(axis) {
    return this.spans.filter((span) => span.axis === axis).at(-1);
  }

  /**
   * @param {KeptSpan["axis"]} axis
   * @param {Items} items
   * @returns {{span: KeptSpan, range: Range}[]} those that are not hidden altogether, as ranges of items
   */
  on(axis, items) {
    return this.spans.filter((span) => span.axis === axis).flatMap((span) => {
      const range = itemsOf(items, span.tokens);
      return range ? [{ span, range }] : [];
    });
  }
}

/**
 * @typedef {object} SpanTable
 * @property {{span: KeptSpan, range: Range, items: Items}[]} rows  queries
 * @property {{span: KeptSpan, range: Range, items: Items}[]} columns  keys
 * @property {{masses: ArrayLike<number>, cell: number} | null} masses  null: not known yet
 * @property {string} note
 */

/**
 * @param {SpanTable} table
 * @param {{remove: (id: number) => void, go: (span: KeptSpan, range: Range) => void}} told
 * @returns {HTMLElement}
 */
export function spanTable({ rows, columns, masses, note }, told) {
  const own = rows.length > 0 && rows[0].span.axis === "both";
  const name = (/** @type {SpanTable["rows"][number]} */ row, /** @type {boolean} */ removable) => [
    el("button", { type: "button", class: "uwaga-text-span-name", title: `items ${row.range[0]} to ${row.range[1] - 1}`,
      on: { click: () => told.go(row.span, row.range) } }, el("bdi", { text: tokenText(rangeText(row.items, row.range)) })),
    removable && el("button", { type: "button", class: "uwaga-text-span-remove", text: "\u00d7",
      "aria-label": `Remove the span ${tokenText(rangeText(row.items, row.range))}`, on: { click: () => told.remove(row.span.id) } }),
  ];
  const head = el("tr", {}, el("th", { scope: "col", text: "from \\ to" }),
    columns.map((column) => el("th", { scope: "col" }, name(column, !own))));
  const body = rows.map((row, i) => el("tr", {}, el("th", { scope: "row" }, name(row, true)), columns.map((_, j) => {
    const mass = masses ? masses.masses[i * columns.length + j] : NaN;
    return el("td", { "data-mass": masses ? mass : null, text: masses ? weightText(mass) : "\u2026" });
  })));
  const coarse = masses && masses.cell > 1 ? ` From means over ${masses.cell} by ${masses.cell} items.` : "";
  const caption = "How much of its weight each span (rows) puts on each span (columns): the mean over its tokens.";
  return el("div", {}, el("p", { class: "uwaga-text-note", text: caption + coarse }),
    // A table that is scrolled sideways shall be so with the keys too.
    el("div", { class: "uwaga-text-span-scroll", tabindex: 0, role: "region", "aria-label": "Masses among the spans" },
      el("table", { class: "uwaga-text-span-table", "aria-label": caption }, el("thead", {}, head), el("tbody", {}, body))),
    note && el("p", { class: "uwaga-text-note", text: note }));
}
