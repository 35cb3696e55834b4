// The table of spans beside the text: kept, weighed, told to the other views.
import { el, tokenText } from "../dom.js";
import { rangeText } from "./ranges.js";
import { weightText } from "./shade.js";
import { spanMasses } from "./source.js";
import { SpanShelf, spanTable } from "./spans.js";

/** @typedef {import("../types.js").App} App */
/** @typedef {import("./columns.js").TextColumns} TextColumns */
/** @typedef {import("./columns.js").Column} Column */
/** @typedef {import("./spans.js").SpanTable} SpanTable */
/** @typedef {import("./ranges.js").Range} Range */

const spanPanelHint = "Drag over the text, or hold Shift and use the arrow keys, to mark a span; mark a second one to see how much " +
  "each attends to the other.";

/** The spans of the texts on show. */
export class SpanPanel {
  /**
   * @param {App} app
   * @param {HTMLElement} element
   * @param {TextColumns} columns
   * @param {() => void} onChange  which spans there are has changed
   */
  constructor(app, element, columns, onChange) {
    this.app = app;
    this.element = element;
    this.columns = columns;
    this.onChange = onChange;
    this.shelf = new SpanShelf();
    this.name = "";
    this.controller = new AbortController();
  }

  /** @param {Column} column @returns {Range[]} */
  ranges({ axis, items }) {
    return this.shelf.on(axis, items).map(({ range }) => range);
  }

  /** @param {Column["axis"]} axis @param {Range} range @param {boolean} fresh @param {boolean} done */
  mark(axis, range, fresh, done) {
    const column = this.columns.of(axis);
    if (!column) return;
    this.shelf.put(axis, column.items, range, fresh);
    this.onChange();
    if (done) this.tell();
  }

  /** The newest spans are the store's, which the map shows too. */
  tell() {
    const { columns } = this;
    const newest = (/** @type {Column} */ column, /** @type {number} */ back) => this.ranges(column).at(-1 - back) ?? null;
    this.app.store.set({ span: newest(columns.first, 0), keySpan: newest(columns.last, columns.one ? 1 : 0) });
    this.weigh();
  }

  /** What another view has marked is kept here too. */
  take() {
    const { span, keySpan } = this.app.store.get();
    // A view that follows another lets go with it.
    if (this.app.part && !span && !keySpan) this.shelf = new SpanShelf();
    for (const column of this.columns.all) {
      const { axis, items } = column;
      for (const range of axis === "both" ? [keySpan, span] : [axis === "query" ? span : keySpan]) {
        if (!range || range[1] > items.total || range[0] >= range[1]) continue;
        // Items, not tokens: of a word, the other views may know more pieces than were marked here.
        const kept = this.ranges(column).some((other) => other.join() === range.join());
        if (!kept) this.shelf.put(axis, items, range, true);
      }
    }
  }

  removeNewest() {
    const newest = this.shelf.spans.at(-1);
    if (newest) this.remove(newest.id);
  }

  /** @param {number} id */
  remove(id) {
    this.shelf.remove(id);
    this.onChange();
    this.tell();
  }

  clear() {
    this.shelf = new SpanShelf();
    this.weigh();
  }

  stop() {
    this.controller.abort();
    this.name = "";
  }

  /** Asks for the masses among the spans, and shows them. */
  async weigh() {
    const { app, columns } = this;
    if (!columns.all.length) return;
    const side = (/** @type {Column} */ { axis, items }) => this.shelf.on(axis, items).map((entry) => ({ ...entry, items }));
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
      this.show({ ...table, masses, note: masses ? "" : "This saved page holds no weights of these spans." });
      if (masses) this.say(table, masses.masses);
    } catch {
      if (this.name === name) this.name = ""; // the client has told the user; the next change asks again
    }
  }

  /** @param {SpanTable} table */
  show(table) {
    const { rows, columns } = table;
    const focused = this.element.contains(this.element.ownerDocument.activeElement);
    this.element.replaceChildren(el("h3", { text: "Spans" }), rows.length + columns.length === 0
      ? el("p", { class: "uwaga-text-note", text: spanPanelHint })
      : spanTable(table, { remove: (id) => this.remove(id),
        go: (span, range) => this.columns.of(span.axis)?.pane.sheet.reveal(range[0], "middle") }));
    // The pressed button is gone with its row: the keys shall still reach the page.
    if (focused) this.columns.all[this.columns.current]?.pane.scroller.focus({ preventScroll: true });
  }

  /** @param {{rows: SpanTable["rows"], columns: SpanTable["columns"]}} table @param {ArrayLike<number>} masses */
  say({ rows, columns }, masses) {
    const name = (/** @type {SpanTable["rows"][number]} */ { items, range }) => tokenText(rangeText(items, range));
    const said = rows.flatMap((row, i) =>
      columns.map((column, j) => `${name(row)} to ${name(column)}: ${weightText(masses[i * columns.length + j])}`));
    this.app.announce(said.slice(-4).join("; "));
  }
}
