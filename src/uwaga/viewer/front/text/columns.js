// The texts of the current map: one where queries and keys are the same, two where they are not.
import { TextPane } from "./pane.js";

/** @typedef {import("../types.js").App} App */
/** @typedef {import("../types.js").Items} Items */
/** @typedef {import("./ranges.js").Range} Range */
/** @typedef {"query" | "key" | "both"} Axis */
/** @typedef {{axis: Axis, pane: TextPane, items: Items}} Column */

/** @type {Items} */
const columnEmpty = { labels: [], glued: [], specials: new Set(), spans: new Int32Array(0), total: 0 };

/**
 * @typedef {object} ColumnsTold
 * @property {(axis: Axis, item: number) => void} pick
 * @property {(axis: Axis, range: Range, fresh: boolean, done: boolean) => void} span
 * @property {(column: Column, item: number | null, event: PointerEvent | null) => void} hover
 * @property {(column: Column) => void} enter  the keys act on it from now on
 */

/** The panes and their items, exchanged when the map is of other texts. */
export class TextColumns {
  /**
   * @param {App} app
   * @param {HTMLElement} place
   * @param {ColumnsTold} told
   */
  constructor(app, place, told) {
    this.app = app;
    this.place = place;
    this.told = told;
    /** @type {Column[]} */
    this.all = [];
    this.current = 0;
    this.name = "";
    this.turn = 0;
  }

  get first() {
    return this.all[0];
  }

  get last() {
    return this.all[this.all.length - 1];
  }

  /** Queries and keys are the same text. */
  get one() {
    return this.all.length === 1;
  }

  /** @param {Axis} axis @returns {Column | undefined} */
  of(axis) {
    return this.all.find((column) => column.axis === axis) ?? (this.one ? this.first : undefined);
  }

  /**
   * Brings the texts of the current map into place.
   * @returns {Promise<"same" | "other" | "failed">} failed: or another map was wanted meanwhile
   */
  async load() {
    const { app } = this;
    const { merge, specials, kind, side: id } = app.store.get();
    const stacks = app.side().kinds[kind];
    const name = JSON.stringify([id, stacks, merge, specials]);
    const turn = ++this.turn;
    if (name === this.name) return "same";
    const [queries, keys] = await Promise.all([app.items(id, stacks.queries), app.items(id, stacks.keys)]);
    if (turn !== this.turn) return "failed";
    this.name = name;
    this.make(stacks.queries === stacks.keys ? ["both"] : ["query", "key"]);
    for (const column of this.all) {
      column.items = column.axis === "key" ? keys : queries;
      const role = { both: "", query: `queries (${stacks.queries})`, key: `keys (${stacks.keys})` }[column.axis];
      const rest = ["", role, `${column.items.total} ${merge}`].filter((part, at) => part || !at).join(" \u00b7 ");
      column.pane.setItems(app.side().text_title, rest, column.items);
    }
    return "other";
  }

  /** @param {Axis[]} axes */
  make(axes) {
    const { app } = this;
    if (axes.join() === this.all.map(({ axis }) => axis).join()) return;
    this.dispose();
    this.current = 0;
    this.all = axes.map((axis) => {
      const pane = new TextPane(`uwaga-${app.part}text-${axis}-`, {
        pick: (item) => { this.enter(column); this.told.pick(axis, item); },
        span: (range, fresh, done) => { this.enter(column); this.told.span(axis, range, fresh, done); },
        hover: (item, event) => this.told.hover(column, item, event),
      });
      /** @type {Column} */
      const column = { axis, pane, items: columnEmpty };
      pane.scroller.addEventListener("focus", () => this.enter(column));
      return column;
    });
    this.place.replaceChildren(...this.all.map(({ pane }) => pane.element));
    this.place.dataset.panes = String(axes.length);
  }

  /** @param {Column} column @param {boolean} [focus] */
  enter(column, focus = false) {
    const index = this.all.indexOf(column);
    if (index !== this.current) {
      this.current = index;
      this.told.enter(column);
    }
    if (focus) column.pane.scroller.focus({ preventScroll: true });
  }

  dispose() {
    for (const { pane } of this.all) pane.dispose();
  }
}
