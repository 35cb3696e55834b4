// The text: what every token attends to, and what attends to it, over the whole document.
import { TextColumns } from "./columns.js";
import { textFrame } from "./frame.js";
import { addTextCommands } from "./keys.js";
import { paintLists } from "./lists.js";
import { textScene } from "./picture.js";
import { TextReading } from "./readings.js";
import { makeShade } from "./shade.js";
import { SpanPanel } from "./span_panel.js";
import { tipLines } from "./tip.js";

/** @typedef {import("../types.js").App} App */
/** @typedef {import("./frame.js").Direction} Direction */
/** @typedef {import("./ranges.js").Range} Range */

/**
 * @param {App} app
 * @returns {import("../types.js").View}
 */
export function textView(app) {
  const view = new TextView(app);
  return {
    element: view.frame.element,
    show: () => view.show(),
    hide: () => view.hide(),
    dispose: () => view.dispose(),
    scene: async () => textScene(view.frame.element, view.columns.all.map(({ pane }) => pane)),
  };
}

/** What is picked, which way it is asked about, and what is known of it. */
class TextView {
  /** @param {App} app */
  constructor(app) {
    this.app = app;
    this.shown = false;
    /** @type {Map<import("./columns.js").Axis, number | null>} */
    this.revealed = new Map(); // the picks that were last scrolled to
    this.wasOne = true; // of the texts before
    this.text = ""; // which text the kept spans are of
    /** @type {Range | null} */
    this.found = null;
    /** @type {{column: import("./columns.js").Column, item: number, event: PointerEvent} | null} */
    this.hovered = null;
    /** @type {(() => void)[]} */
    this.ends = [];
    this.frame = textFrame({ turn: (direction) => this.turn(direction), found: (range) => this.find(range),
      go: (axis, item) => this.go(axis, item) });
    this.columns = new TextColumns(app, this.frame.places, {
      pick: (axis, item) => this.pick(axis, item),
      span: (axis, range, fresh, done) => this.spans.mark(axis, range, fresh, done),
      hover: (column, item, event) => {
        this.hovered = item === null || !event ? null : { column, item, event };
        this.showTip();
      },
      enter: ({ items }) => this.frame.finder.setItems(items),
    });
    this.spans = new SpanPanel(app, this.frame.spans, this.columns, () => this.paint());
    this.row = new TextReading(app, "row", () => this.paint());
    this.column = new TextReading(app, "column", () => this.paint());
    this.removeCommands = addTextCommands(app, {
      shown: () => this.shown && this.columns.all.length > 0,
      step: (step, stretch) => this.step(step, stretch),
      direction: (direction) => this.turn(direction),
      find: (by) => this.frame.finder.step(by),
      focusFind: () => this.frame.finder.focus(),
      other: () => this.columns.enter(this.columns.all[(this.columns.current + 1) % this.columns.all.length], true),
      removeSpan: () => this.spans.removeNewest(),
      clear: () => this.clear(),
    });
  }

  /** @returns {Direction} the same in every view of the text */
  get direction() {
    return this.app.store.get().textDirection;
  }

  show() {
    if (this.shown) return;
    this.shown = true;
    const { store } = this.app;
    this.ends.push(
      store.subscribe(["side", "kind", "layer", "head", "merge", "specials", "query", "key", "span", "keySpan",
        "textDirection"], () => this.refresh()),
      store.subscribe(["colour", "theme", "dark"], () => this.paint()),
    );
    const sizes = new ResizeObserver(() => this.columns.all.forEach(({ pane }) => pane.resize()));
    sizes.observe(this.frame.places);
    this.ends.push(() => sizes.disconnect());
    this.refresh();
  }

  hide() {
    this.shown = false;
    for (const end of this.ends.splice(0)) end();
    this.row.drop();
    this.column.drop();
    this.spans.stop();
    this.hovered = null;
    this.showTip();
  }

  dispose() {
    this.hide();
    this.removeCommands();
    this.columns.dispose();
  }

  /** Brings everything to what the store says. */
  async refresh() {
    // What fails is told to the user by the client.
    const loaded = await this.columns.load().catch(() => "failed");
    if (loaded === "failed" || !this.shown) return;
    if (loaded === "other") this.otherTexts();
    const { query, key } = this.picks();
    this.frame.direction.show(this.direction);
    this.spans.take();
    this.row.want(query);
    this.column.want(key);
    this.revealPicks();
    this.paint();
    this.spans.weigh();
  }

  otherTexts() {
    const { columns, frame } = this;
    const { text_title: title, stacks } = this.app.side();
    const text = JSON.stringify([title, stacks, columns.one]);
    if (text !== this.text) this.spans.clear();
    this.text = text;
    this.revealed.clear();
    this.found = null;
    // Of two texts both ways can be seen at once; of one, two shades on each token are harder to read.
    if (this.wasOne !== columns.one) this.app.store.set({ textDirection: columns.one ? "row" : "both" });
    this.wasOne = columns.one;
    frame.finder.setItems(columns.all[columns.current].items);
  }

  /** The picked items that are asked about now. */
  picks() {
    const { query, key } = this.app.store.get();
    const { first, last } = this.columns;
    const there = (/** @type {number | null} */ item,
      /** @type {import("./columns.js").Column} */ { items }) => (item !== null && item < items.total ? item : null);
    return {
      query: this.direction === "column" ? null : there(query, first),
      key: this.direction === "row" ? null : there(key, last),
    };
  }

  /** @param {import("./columns.js").Axis} axis @param {number} item */
  pick(axis, item) {
    const unseen = axis === "query" ? this.direction === "column" : axis === "key" && this.direction === "row";
    if (unseen) this.turn("both");
    const query = axis === "query" || (axis === "both" && this.direction !== "column");
    const key = axis === "key" || (axis === "both" && this.direction !== "row");
    this.app.store.set({ ...(query && { query: item }), ...(key && { key: item }) });
  }

  /** @param {Direction} direction */
  turn(direction) {
    const { query, key } = this.app.store.get();
    // The token that was asked about one way is now asked about the other way.
    const picks = !this.columns.one ? {} : direction === "column" ? { key: query ?? key } : direction === "row" ? { query: key ?? query }
      : { query: query ?? key, key: key ?? query };
    this.app.store.set({ textDirection: direction, ...picks });
  }

  /** @param {import("./keys.js").Step} step @param {boolean} stretch */
  step(step, stretch) {
    this.hovered = null; // the text moves under the pointer
    const { pane, items } = this.columns.all[this.columns.current];
    if (!items.total) return;
    const item = pane.step(step);
    if (stretch) pane.stretch(item);
    else pane.pick(item);
  }

  /** @param {"query" | "key"} axis @param {number} item */
  go(axis, item) {
    const column = this.columns.of(axis);
    if (!column) return;
    column.pane.sheet.reveal(item, "middle");
    column.pane.moveCaret(item);
    this.columns.enter(column, true);
  }

  /** @param {Range | null} range */
  find(range) {
    this.found = range;
    const column = this.columns.all[this.columns.current];
    if (range && column) {
      column.pane.sheet.reveal(range[0], "middle");
      column.pane.caret = range[0];
    }
    this.paint();
  }

  /** Scrolls to what another view has picked. */
  revealPicks() {
    const { query, key } = this.picks();
    for (const { axis, pane } of this.columns.all) {
      const item = axis === "key" ? key : axis === "query" ? query : query ?? key;
      // Once: a span may be stretched from the pick afterwards.
      const before = this.revealed.get(axis);
      this.revealed.set(axis, item);
      if (item === null || item === before || item === pane.caret) continue;
      pane.caret = item;
      pane.sheet.reveal(item, "middle");
    }
  }

  /** Shades, lists and words for what is known now. */
  paint() {
    if (!this.shown || !this.columns.all.length) return;
    const { colour } = this.app.store.get();
    const { query, key } = this.picks();
    const layer = (/** @type {TextReading} */ { weights }, /** @type {boolean} */ keys) =>
      weights && { weights: weights.weights, shade: makeShade(weights.weights, colour, keys) };
    const [row, column] = [layer(this.row, true), layer(this.column, false)];
    this.columns.all.forEach((one, index) => one.pane.setLook({
      row: one.axis === "query" ? null : row,
      column: one.axis === "key" ? null : column,
      query: one.axis === "key" ? null : query,
      key: one.axis === "query" ? null : key,
      spans: this.spans.ranges(one),
      found: index === this.columns.current ? this.found : null,
    }));
    paintLists(this.frame, this.columns, { query, key, row: this.row, column: this.column });
    this.showTip();
  }

  showTip() {
    if (!this.hovered) return this.frame.tip.hide();
    const { column, item, event } = this.hovered;
    if (item >= column.items.total) return this.frame.tip.hide();
    this.frame.tip.show(event, item, column.items.labels[item], tipLines(column.pane.look, item));
  }

  clear() {
    this.found = null;
    this.spans.clear();
    this.app.store.set({ query: null, key: null, span: null, keySpan: null });
    if (this.shown) this.refresh();
  }
}
