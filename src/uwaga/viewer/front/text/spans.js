// Marked spans: token ranges that outlast merging and hiding, and the table of their masses.

import { el, tokenText } from "../dom.js";
import { weightText } from "../format.js";
import { tr } from "../languages.js";
import { spanMasses } from "../weights.js";

/** @typedef {import("../types.js").App} App */
/** @typedef {import("../types.js").Range} Range */
/** @typedef {import("./panes.js").TextColumns} TextColumns */
/** @typedef {import("./panes.js").Column} Column */
/** @typedef {import("../types.js").Items} Items */

const spanPanelHint = tr("Drag over the text, or hold Shift and use the arrow keys, to mark a span; mark a second one to see how much each attends to the other.");

/** The panel of marked spans and the table of their masses. */
export class SpanPanel {
  /**
   * @param {App} app
   * @param {HTMLElement} element
   * @param {TextColumns} columns
   * @param {() => void} onChange  called when the spans have changed
   */
  constructor(app, element, columns, onChange) {
    this.app = app;
    this.element = element;
    this.columns = columns;
    this.onChange = onChange;
    this.spanList = new SpanList();
    this.name = "";
    this.controller = new AbortController();
  }

  /** @param {Column} column @returns {Range[]} */
  ranges({ axis, items }) {
    return this.spanList.on(axis, items).map(({ range }) => range);
  }

  /** @param {Column["axis"]} axis @param {Range} range @param {boolean} isNew @param {boolean} done */
  mark(axis, range, isNew, done) {
    const column = this.columns.of(axis);
    if (!column) return;
    this.spanList.put(axis, column.items, range, isNew);
    this.onChange();
    if (done) this.publish();
  }

  /** Writes the newest spans to the store, which other views show too. */
  publish() {
    const { columns } = this;
    const newest = (/** @type {Column} */ column, /** @type {number} */ back) => this.ranges(column).at(-1 - back) ?? null;
    this.app.store.set({ span: newest(columns.first, 0), keySpan: newest(columns.last, columns.one ? 1 : 0) });
    this.requestMasses();
  }

  /** Adds the spans that another view has marked. */
  adoptStoreSpans() {
    const { span, keySpan } = this.app.store.get();
    // The second half of a split view also follows when spans are cleared.
    if (this.app.idPrefix && !span && !keySpan) this.spanList = new SpanList();
    for (const column of this.columns.all) {
      const { axis, items } = column;
      for (const range of axis === "both" ? [keySpan, span] : [axis === "query" ? span : keySpan]) {
        if (!range || range[1] > items.total || range[0] >= range[1]) continue;
        // Compared by items, not tokens: a word merged in other views may contain more tokens than were marked here.
        const kept = this.ranges(column).some((other) => other.join() === range.join());
        if (!kept) this.spanList.put(axis, items, range, true);
      }
    }
  }

  removeNewest() {
    const newest = this.spanList.spans.at(-1);
    if (newest) this.remove(newest.id);
  }

  /** @param {number} id */
  remove(id) {
    this.spanList.remove(id);
    this.onChange();
    this.publish();
  }

  clear() {
    this.spanList = new SpanList();
    this.requestMasses();
  }

  stop() {
    this.controller.abort();
    this.name = "";
  }

  /** Requests the masses between the spans, and shows them. */
  async requestMasses() {
    const { app, columns } = this;
    if (!columns.all.length) return;
    const side = (/** @type {Column} */ { axis, items }) => this.spanList.on(axis, items).map((entry) => ({ ...entry, items }));
    const table = { rows: side(columns.first), columns: side(columns.last) };
    const [where, spans, keySpans] = [app.where(), table.rows.map(({ range }) => range), table.columns.map(({ range }) => range)];
    const name = JSON.stringify([where, spans, keySpans]);
    if (name === this.name) return;
    this.stop();
    this.name = name;
    const { signal } = this.controller = new AbortController();
    this.show({ ...table, masses: null, note: "" });
    if (!spans.length || !keySpans.length) return;
    try {
      const masses = await spanMasses(app, where, app.sizes(), spans, keySpans, signal);
      if (signal.aborted) return;
      this.show({ ...table, masses, note: masses ? "" : tr("This saved page does not contain the weights of these spans.") });
      if (masses) this.announceMasses(table, masses.masses);
    } catch {
      if (this.name === name) this.name = ""; // the client has reported the error; the next change asks again
    }
  }

  /** @param {SpanTable} table */
  show(table) {
    const { rows, columns } = table;
    const focused = this.element.contains(this.element.ownerDocument.activeElement);
    this.element.replaceChildren(el("h3", { text: tr("Spans") }), rows.length + columns.length === 0
      ? el("p", { class: "uwaga-text-note", text: spanPanelHint })
      : spanTable(table, { remove: (id) => this.remove(id),
        go: (span, range) => this.columns.of(span.axis)?.pane.layout.reveal(range[0], "middle") }));
    // The pressed button is removed with its row: the pane takes the focus.
    if (focused) this.columns.all[this.columns.current]?.pane.scroller.focus({ preventScroll: true });
  }

  /** @param {{rows: SpanTable["rows"], columns: SpanTable["columns"]}} table @param {ArrayLike<number>} masses */
  announceMasses({ rows, columns }, masses) {
    const name = (/** @type {SpanTable["rows"][number]} */ { items, range }) => tokenText(rangeText(items, range));
    const messages = rows.flatMap((row, i) =>
      columns.map((column, j) => tr("{row} to {column}: {mass}", { row: name(row), column: name(column), mass: weightText(masses[i * columns.length + j]) })));
    this.app.announce(messages.slice(-4).join("; "));
  }
}

// The list of marked spans.

/** @typedef {{id: number, axis: "query" | "key" | "both", tokens: Range}} MarkedSpan */

const maxSpans = 16; // a larger table is not readable; a request takes at most 64

/** Marked spans as ranges of tokens, so that they outlast merging and hiding of items. */
export class SpanList {
  constructor() {
    /** @type {MarkedSpan[]} */
    this.spans = [];
    this.next = 1;
  }

  /**
   * @param {MarkedSpan["axis"]} axis
   * @param {Items} items
   * @param {Range} range of items
   * @param {boolean} isNew false: in place of the newest of this axis
   */
  put(axis, items, range, isNew) {
    const tokens = tokensOfItems(items, range);
    const newest = this.newest(axis);
    if (!isNew && newest) newest.tokens = tokens;
    else if (!this.spans.some((span) => span.axis === axis && span.tokens[0] === tokens[0] && span.tokens[1] === tokens[1])) {
      this.spans.push({ id: this.next++, axis, tokens });
    }
    if (this.spans.length > maxSpans) this.spans.shift();
  }

  /** @param {number} id */
  remove(id) {
    this.spans = this.spans.filter((span) => span.id !== id);
  }

  /** @param {MarkedSpan["axis"]} axis @returns {MarkedSpan | undefined} */
  newest(axis) {
    return this.spans.filter((span) => span.axis === axis).at(-1);
  }

  /**
   * @param {MarkedSpan["axis"]} axis
   * @param {Items} items
   * @returns {{span: MarkedSpan, range: Range}[]} those that are at least partly visible, as ranges of items
   */
  on(axis, items) {
    return this.spans.filter((span) => span.axis === axis).flatMap((span) => {
      const range = itemsOfTokens(items, span.tokens);
      return range ? [{ span, range }] : [];
    });
  }
}

/**
 * @typedef {object} SpanTable
 * @property {{span: MarkedSpan, range: Range, items: Items}[]} rows  queries
 * @property {{span: MarkedSpan, range: Range, items: Items}[]} columns  keys
 * @property {{masses: ArrayLike<number>, cell: number} | null} masses  null: not known yet
 * @property {string} note
 */

/**
 * @param {SpanTable} table
 * @param {{remove: (id: number) => void, go: (span: MarkedSpan, range: Range) => void}} handlers
 * @returns {HTMLElement}
 */
function spanTable({ rows, columns, masses, note }, handlers) {
  const own = rows.length > 0 && rows[0].span.axis === "both";
  const name = (/** @type {SpanTable["rows"][number]} */ row, /** @type {boolean} */ removable) => [
    el("button", { type: "button", class: "uwaga-text-span-name", title: tr("items {range} to {range2}", { range: row.range[0], range2: row.range[1] - 1 }),
      on: { click: () => handlers.go(row.span, row.range) } }, el("bdi", { text: tokenText(rangeText(row.items, row.range)) })),
    removable && el("button", { type: "button", class: "uwaga-text-span-remove", text: "\u00d7",
      "aria-label": tr("Remove the span {items}", { items: tokenText(rangeText(row.items, row.range)) }), on: { click: () => handlers.remove(row.span.id) } }),
  ];
  const head = el("tr", {}, el("th", { scope: "col", text: tr("from \\ to") }),
    columns.map((column) => el("th", { scope: "col" }, name(column, !own))));
  const body = rows.map((row, i) => el("tr", {}, el("th", { scope: "row" }, name(row, true)), columns.map((_, j) => {
    const mass = masses ? masses.masses[i * columns.length + j] : NaN;
    return el("td", { "data-mass": masses ? mass : null, text: masses ? weightText(mass) : "\u2026" });
  })));
  const coarse = masses && masses.cell > 1 ? tr("From means over {cell} by {cell} items.", { cell: masses.cell }) : "";
  const caption = tr("How much of its weight each span (rows) puts on each span (columns): the mean over its tokens.");
  return el("div", {}, el("p", { class: "uwaga-text-note", text: coarse ? `${caption} ${coarse}` : caption }),
    // Focusable, so that the table can be scrolled with the keys.
    el("div", { class: "uwaga-text-span-scroll", tabindex: 0, role: "region", "aria-label": tr("Masses among the spans") },
      el("table", { class: "uwaga-text-span-table", "aria-label": caption }, el("thead", {}, head), el("tbody", {}, body))),
    note && el("p", { class: "uwaga-text-note", text: note }));
}

// Conversion between ranges of items and ranges of tokens.

/** @typedef {{spans: Int32Array, total: number}} RangeItems */

/**
 * @param {RangeItems} items
 * @param {Range} range of items
 * @returns {Range} of tokens
 */
export function tokensOfItems({ spans }, [first, last]) {
  return [spans[2 * first], spans[2 * (last - 1) + 1]];
}

/**
 * @param {RangeItems} items
 * @param {Range} range of tokens
 * @returns {Range | null} the items that contain any of the tokens; null: all are hidden
 */
export function itemsOfTokens({ spans, total }, [first, last]) {
  const from = firstItemWhere(total, (item) => spans[2 * item + 1] > first);
  const to = firstItemWhere(total, (item) => spans[2 * item] >= last);
  return from < to ? [from, to] : null;
}

/**
 * @param {number} total
 * @param {(item: number) => boolean} holds  monotonic
 * @returns {number} the first item where it holds, by binary search
 */
function firstItemWhere(total, holds) {
  let [low, high] = [0, total];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (holds(middle)) high = middle;
    else low = middle + 1;
  }
  return low;
}

/**
 * @param {{labels: string[], noSpaceBefore: ArrayLike<number>}} items
 * @param {Range} range
 * @param {number} [most] letters
 * @returns {string} the text of the items, shortened in the middle
 */
export function rangeText({ labels, noSpaceBefore }, [first, last], most = 40) {
  const piece = (/** @type {number} */ item, /** @type {boolean} */ begins) => (begins || noSpaceBefore[item] ? "" : " ") + labels[item];
  let head = "";
  let item = first;
  for (; item < last && head.length <= most; item++) head += piece(item, item === first);
  if (item === last && head.length <= most) return head;
  let tail = "";
  for (let back = last - 1; back > first && tail.length < most / 2; back--) tail = piece(back, false) + tail;
  return `${head.slice(0, most / 2).trimEnd()} \u2026 ${tail.slice(-most / 2).trimStart()}`;
}
