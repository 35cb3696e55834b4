// The text: what the selected token attends to, and what attends to it, over the whole document.

import { makeShading } from "../colours.js";
import { arrowKeysFree } from "../commands.js";
import { segmentedControl } from "../controls.js";
import { el, tokenElement } from "../dom.js";
import { weightText } from "../format.js";
import { tr, trParts } from "../languages.js";
import { listsPassages, makeStrongestList } from "../strongest_list.js";
import { sinksOf, WeightsReader } from "../weights.js";
import { TextColumns } from "./panes.js";
import { textScene } from "./scene.js";
import { makeSearchBox } from "./search.js";
import { SpanPanel } from "./spans.js";

/** @typedef {import("../types.js").App} App */
/** @typedef {import("../types.js").Range} Range */

/**
 * @param {App} app
 * @returns {import("../types.js").View}
 */
export function textView(app) {
  const view = new TextView(app);
  return {
    element: view.elements.element,
    show: () => view.show(),
    hide: () => view.hide(),
    dispose: () => view.dispose(),
    scene: async () => textScene(view.elements.element, view.columns.all.map(({ pane }) => pane)),
  };
}

/** The controller of the text tab: selection, direction, loaded weights. */
class TextView {
  /** @param {App} app */
  constructor(app) {
    this.app = app;
    this.shown = false;
    /** @type {Map<import("./panes.js").Axis, number | null>} */
    this.revealed = new Map(); // the selected items that were last scrolled to
    this.wasOne = true; // columns.one of the texts before
    this.text = ""; // the text that the marked spans belong to
    /** @type {Range | null} */
    this.found = null;
    /** @type {{column: import("./panes.js").Column, item: number, event: PointerEvent} | null} */
    this.hovered = null;
    /** @type {(() => void)[]} */
    this.cleanups = [];
    this.elements = makeTextElements({ setDirection: (direction) => this.setDirection(direction), found: (range) => this.find(range),
      go: (axis, item) => this.go(axis, item) });
    this.columns = new TextColumns(app, this.elements.places, {
      select: (axis, item) => this.select(axis, item),
      span: (axis, range, isNew, done) => this.spans.mark(axis, range, isNew, done),
      hover: (column, item, event) => {
        this.hovered = item === null || !event ? null : { column, item, event };
        this.showTooltip();
      },
      enter: ({ items }) => this.elements.searchBox.setItems(items),
    });
    this.spans = new SpanPanel(app, this.elements.spans, this.columns, () => this.paint());
    this.row = new WeightsReader(app, "row", () => this.paint());
    this.column = new WeightsReader(app, "column", () => this.paint());
    this.removeCommands = addTextCommands(app, {
      shown: () => this.shown && this.columns.all.length > 0,
      step: (step, extend) => this.step(step, extend),
      direction: (direction) => this.setDirection(direction),
      find: (by) => this.elements.searchBox.step(by),
      focusFind: () => this.elements.searchBox.focus(),
      other: () => this.columns.enter(this.columns.all[(this.columns.current + 1) % this.columns.all.length], true),
      removeSpan: () => this.spans.removeNewest(),
      clear: () => this.clear(),
    });
  }

  /** @returns {Direction} shared by both halves of a split view */
  get direction() {
    return this.app.store.get().textDirection;
  }

  show() {
    if (this.shown) return;
    this.shown = true;
    const { store } = this.app;
    this.cleanups.push(
      store.subscribe(["side", "kind", "layer", "head", "merge", "specials", "query", "key", "span", "keySpan",
        "textDirection"], () => this.refresh()),
      store.subscribe(["colour", "theme", "dark"], () => this.paint()),
    );
    const sizes = new ResizeObserver(() => this.columns.all.forEach(({ pane }) => pane.resize()));
    sizes.observe(this.elements.places);
    this.cleanups.push(() => sizes.disconnect());
    this.refresh();
  }

  hide() {
    this.shown = false;
    for (const end of this.cleanups.splice(0)) end();
    this.row.cancel();
    this.column.cancel();
    this.spans.stop();
    this.hovered = null;
    this.showTooltip();
  }

  dispose() {
    this.hide();
    this.removeCommands();
    this.columns.dispose();
  }

  /** Updates everything from the store. */
  async refresh() {
    // The client reports errors.
    const loaded = await this.columns.load().catch(() => "failed");
    if (loaded === "failed" || !this.shown) return;
    if (loaded === "other") this.otherTexts();
    const { query, key } = this.selection();
    this.elements.direction.show(this.direction);
    this.spans.adoptStoreSpans();
    this.row.request(query);
    this.column.request(key);
    this.revealSelection();
    this.paint();
    this.spans.requestMasses();
  }

  otherTexts() {
    const { columns, elements } = this;
    const { text_title: title, stacks } = this.app.side();
    const text = JSON.stringify([title, stacks, columns.one]);
    if (text !== this.text) this.spans.clear();
    this.text = text;
    this.revealed.clear();
    this.found = null;
    // Two texts show both directions at once; on one text two shades per token are hard to read.
    if (this.wasOne !== columns.one) this.app.store.set({ textDirection: columns.one ? "row" : "both" });
    this.wasOne = columns.one;
    elements.searchBox.setItems(columns.all[columns.current].items);
  }

  /** The selected query and key as far as the direction shows them. */
  selection() {
    const { query, key } = this.app.store.get();
    const { first, last } = this.columns;
    const existing = (/** @type {number | null} */ item,
      /** @type {import("./panes.js").Column} */ { items }) => (item !== null && item < items.total ? item : null);
    return {
      query: this.direction === "column" ? null : existing(query, first),
      key: this.direction === "row" ? null : existing(key, last),
    };
  }

  /** @param {import("./panes.js").Axis} axis @param {number} item */
  select(axis, item) {
    const unseen = axis === "query" ? this.direction === "column" : axis === "key" && this.direction === "row";
    if (unseen) this.setDirection("both");
    const query = axis === "query" || (axis === "both" && this.direction !== "column");
    const key = axis === "key" || (axis === "both" && this.direction !== "row");
    this.app.store.set({ ...(query && { query: item }), ...(key && { key: item }) });
  }

  /** @param {Direction} direction */
  setDirection(direction) {
    const { query, key } = this.app.store.get();
    // The selected token stays selected, in the other direction.
    const selection = !this.columns.one ? {} : direction === "column" ? { key: query ?? key } : direction === "row" ? { query: key ?? query }
      : { query: query ?? key, key: key ?? query };
    this.app.store.set({ textDirection: direction, ...selection });
  }

  /** @param {Step} step @param {boolean} extend */
  step(step, extend) {
    this.hovered = null; // the text moves under the pointer
    const { pane, items } = this.columns.all[this.columns.current];
    if (!items.total) return;
    const item = pane.step(step);
    if (extend) pane.extend(item);
    else pane.select(item);
  }

  /** @param {"query" | "key"} axis @param {number} item */
  go(axis, item) {
    const column = this.columns.of(axis);
    if (!column) return;
    column.pane.layout.reveal(item, "middle");
    column.pane.moveCaret(item);
    this.columns.enter(column, true);
  }

  /** @param {Range | null} range */
  find(range) {
    this.found = range;
    const column = this.columns.all[this.columns.current];
    if (range && column) {
      column.pane.layout.reveal(range[0], "middle");
      column.pane.caret = range[0];
    }
    this.paint();
  }

  /** Scrolls to items that another view has selected. */
  revealSelection() {
    const { query, key } = this.selection();
    for (const { axis, pane } of this.columns.all) {
      const item = axis === "key" ? key : axis === "query" ? query : query ?? key;
      // Once: the user may extend a span from the selected item afterwards.
      const before = this.revealed.get(axis);
      this.revealed.set(axis, item);
      if (item === null || item === before || item === pane.caret) continue;
      pane.caret = item;
      pane.layout.reveal(item, "middle");
    }
  }

  /** Draws shades, lists and tooltip from the present state. */
  paint() {
    if (!this.shown || !this.columns.all.length) return;
    const { colour } = this.app.store.get();
    const { query, key } = this.selection();
    const sinks = colour.hideSink ? sinksOf(this.columns.last.items, this.app.store.get().kind) : new Set();
    const layer = (/** @type {WeightsReader} */ { weights }, /** @type {ReadonlySet<number>} */ hidden) =>
      weights && { weights: weights.weights, shade: makeShading(weights.weights, colour, hidden) };
    const [row, column] = [layer(this.row, sinks), layer(this.column, new Set())];
    this.columns.all.forEach((one, index) => one.pane.setHighlights({
      row: one.axis === "query" ? null : row,
      column: one.axis === "key" ? null : column,
      query: one.axis === "key" ? null : query,
      key: one.axis === "query" ? null : key,
      spans: this.spans.ranges(one),
      found: index === this.columns.current ? this.found : null,
    }));
    showStrongestLists(this.elements, this.columns, { query, key, row: this.row, column: this.column });
    this.showTooltip();
  }

  showTooltip() {
    if (!this.hovered) return this.elements.tooltip.hide();
    const { column, item, event } = this.hovered;
    if (item >= column.items.total) return this.elements.tooltip.hide();
    this.elements.tooltip.show(event, item, column.items.labels[item], tooltipLines(column.pane.highlights, item));
  }

  clear() {
    this.found = null;
    this.spans.clear();
    this.app.store.set({ query: null, key: null, span: null, keySpan: null });
    if (this.shown) this.refresh();
  }
}

// The elements of the view.

/** @typedef {"row" | "column" | "both"} Direction */

/**
 * @param {object} handlers
 * @param {(direction: Direction) => void} handlers.setDirection
 * @param {(range: import("../types.js").Range | null) => void} handlers.found
 * @param {(axis: "query" | "key", item: number) => void} handlers.go
 */
function makeTextElements({ setDirection, found, go }) {
  /** @type {{name: Direction, title: string, hint: string}[]} */
  const choices = [
    { name: "row", title: tr("attends to"), hint: tr("shade every token by its weight in the picked token's row (a)") },
    { name: "column", title: tr("attended by"), hint: tr("shade every token by its weight in the picked token's column (b)") },
    { name: "both", title: tr("both"), hint: tr("both, in two colours (x)") },
  ];
  const direction = segmentedControl(tr("What is shown of the picked token"), choices, setDirection);
  const searchBox = makeSearchBox(found);
  const hint = el("span", { class: "uwaga-text-hint" });
  const progress = el("progress", { class: "uwaga-text-progress", max: 1, "aria-label": tr("Part of the text that is read"), hidden: true });
  const places = el("div", { class: "uwaga-text-panes" });
  const spans = el("section", { class: "uwaga-text-spans", "aria-label": tr("Spans") });
  const row = makeStrongestList((item) => go("key", item));
  const column = makeStrongestList((item) => go("query", item));
  const side = el("aside", { class: "uwaga-text-side", "aria-label": tr("Strongest tokens and spans") }, row.element, column.element, spans);
  const element = el("div", { class: "uwaga-text" },
    el("div", { class: "uwaga-text-bar" }, direction.element, searchBox.element, hint, progress),
    el("div", { class: "uwaga-text-main" }, places, side));
  return { element, direction, searchBox, hint, progress, places, spans, row, column, tooltip: makeTooltip(element) };
}

// The lists of the strongest tokens, and the progress of reading.

const strongestCount = 20; // items of one list; two lists get half each

/**
 * @param {ReturnType<typeof makeTextElements>} elements
 * @param {TextColumns} columns
 * @param {{query: number | null, key: number | null, row: WeightsReader, column: WeightsReader}} shown  null: not shown
 */
function showStrongestLists(elements, { first, last }, { query, key, row, column }) {
  const count = query !== null && key !== null ? strongestCount / 2 : strongestCount;
  const name = (/** @type {import("../types.js").Items} */ items, /** @type {number} */ item) => tokenElement(items.labels[item]);
  elements.row.show(query === null ? null : { hue: "query", weights: row.weights, items: last.items, note: strongestListNote(row), count, passages: listsPassages(last.items),
    title: trParts("What {token} ({place}) attends to", { token: name(first.items, query), place: query }) });
  elements.column.show(key === null ? null : { hue: "key", weights: column.weights, items: first.items, note: strongestListNote(column), count, passages: listsPassages(first.items),
    title: trParts("What attends to {token} ({place})", { token: name(last.items, key), place: key }) });
  const complete = key === null || column.unavailable ? 1 : column.weights?.complete ?? 0;
  elements.progress.hidden = complete >= 1;
  elements.progress.value = complete;
  elements.hint.textContent = query === null && key === null ? tr("Pick a token: click it, or use the arrow keys. Drag for a span.") : "";
}

/** @param {WeightsReader} reading @returns {string} */
function strongestListNote({ weights, unavailable }) {
  return weights ? "" : unavailable ? tr("This saved page does not contain these weights.") : tr("Loading\u2026");
}

// The tooltip: the token and its exact weights.

/**
 * @param {HTMLElement} inside
 * @returns {{show: (event: PointerEvent, item: number, label: string, lines: string[]) => void, hide: () => void}}
 */
function makeTooltip(inside) {
  const element = el("div", { class: "uwaga-text-tooltip", hidden: true, role: "status", "aria-live": "off" });
  inside.append(element);
  let last = "";
  return {
    show(event, item, label, lines) {
      const content = `${item} ${label} ${lines.join()}`;
      if (content !== last) {
        last = content;
        element.replaceChildren(el("div", {}, `${item} `, tokenElement(label)), ...lines.map((line) => el("div", { text: line })));
      }
      element.hidden = false;
      const box = inside.getBoundingClientRect();
      const { offsetWidth, offsetHeight } = element;
      const below = event.clientY - box.top + 18;
      const top = below + offsetHeight > box.height ? event.clientY - box.top - offsetHeight - 10 : below;
      const left = Math.min(event.clientX - box.left + 10, box.width - offsetWidth - 4);
      element.style.setProperty("transform", `translate(${Math.max(0, left)}px, ${Math.max(0, top)}px)`);
    },
    hide() {
      element.hidden = true;
      last = "";
    },
  };
}

/**
 * @param {import("./panes.js").PaneHighlights} highlights
 * @param {number} item
 * @returns {string[]} the item's weights as text
 */
function tooltipLines({ row, column }, item) {
  return [
    ...(row ? [tr("gets {weights} of the query", { weights: weightText(row.weights[item]) })] : []),
    ...(column ? [tr("gives {weights} to the key", { weights: weightText(column.weights[item]) })] : []),
  ];
}

// Keyboard commands.

/** @typedef {"left" | "right" | "up" | "down" | "home" | "end" | "pageup" | "pagedown" | "first" | "last"} Step */

/** @type {[Step, string, string][]} */
const textSteps = [
  ["left", "ArrowLeft", tr("Previous token")], ["right", "ArrowRight", tr("Next token")], ["up", "ArrowUp", tr("Token above")],
  ["down", "ArrowDown", tr("Token below")], ["home", "Home", tr("First token of the line")], ["end", "End", tr("Last token of the line")],
  ["pageup", "PageUp", tr("A page up")], ["pagedown", "PageDown", tr("A page down")],
];

/**
 * @param {App} app
 * @param {{shown: () => boolean, step: (step: Step, extend: boolean) => void, direction: (direction: Direction) =>
 *   void, find: (by: number) => void,
 *   focusFind: () => void, other: () => void, removeSpan: () => void, clear: () => void}} act
 * @returns {() => void} removes the commands
 */
function addTextCommands(app, act) {
  const moves = () => act.shown() && arrowKeysFree(app.root);
  const group = tr("Text");
  const add = (/** @type {string} */ id, /** @type {string} */ title, /** @type {string[]} */ keys,
    /** @type {() => void} */ run, when = act.shown) =>
    app.commands.add({ id: `text.${id}`, title, keys, group, run, when });
  const removals = textSteps.flatMap(([step, key, title]) => [
    add(step, title, [key], () => act.step(step, false), moves),
    add(`extend-${step}`, tr("{title}, extending the span", { title }), [`Shift+${key}`], () => act.step(step, true), moves),
  ]);
  removals.push(
    add("first", tr("First token of the text"), ["Ctrl+Home"], () => act.step("first", false), moves),
    add("last", tr("Last token of the text"), ["Ctrl+End"], () => act.step("last", false), moves),
    add("row", tr("Show what the token attends to"), ["a"], () => act.direction("row")),
    add("column", tr("Show what attends to the token"), ["b"], () => act.direction("column")),
    add("both", tr("Show both"), ["x"], () => act.direction("both")),
    add("find", tr("Find in the text"), ["/"], act.focusFind),
    add("find-next", tr("Find next"), ["n"], () => act.find(1)),
    add("find-before", tr("Find previous"), ["Shift+N"], () => act.find(-1)),
    add("other", tr("The other text"), ["e"], act.other),
    add("remove-span", tr("Remove the newest span"), ["Delete"], act.removeSpan),
    add("clear", tr("Unpick the token, clear the spans"), ["Escape"], act.clear),
  );
  return () => removals.forEach((remove) => remove());
}
