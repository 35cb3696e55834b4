// Two columns of tokens and the lines between them, as in the figures of "Attention Is All You Need" (Vaswani et al., 2017).

import { makeShading } from "../colours.js";
import { arrowKeysFree } from "../commands.js";
import { segmentedControl, toggle } from "../controls.js";
import { el, tokenElement } from "../dom.js";
import { percentText, weightText } from "../format.js";
import { tr, trParts } from "../languages.js";
import { sinksOf } from "../weights.js";
import { lineAxisAt, LineColumns } from "./columns.js";
import { drawLinesCanvas, headColour, lineScene } from "./drawing.js";
import { collectLines, isOffscreen, LineWeights, OffscreenMass, strongestLines, wholeMapLimit } from "./weights.js";

/** @typedef {import("../types.js").App} App */
/** @typedef {import("./columns.js").LineAxis} LineAxis */
/** @typedef {import("../types.js").Items} Items */
/** @typedef {import("./weights.js").Line} Line */

/** @typedef {{axis: LineAxis, item: number}} LineToken */

const linesListPause = 90; // milliseconds

/**
 * @param {App} app
 * @returns {import("../types.js").View}
 */
export function linesView(app) {
  const view = new LinesView(app);
  return {
    element: view.elements.element,
    show: () => view.show(),
    hide: () => view.hide(),
    dispose: () => view.dispose(),
    scene: async () => lineScene(makeLinesFigure(view), view.elements),
    block: () => ({ rows: view.columns.query.range(), columns: view.columns.key.range() }),
  };
}

/** The windows over both columns, the heads shown, and the token whose lines are shown alone. */
class LinesView {
  /** @param {App} app */
  constructor(app) {
    this.app = app;
    this.shown = false;
    /** @type {Set<number> | null} */
    this.chosen = null; // heads; null: all
    /** @type {LineToken | null} */
    this.hovered = null;
    /** @type {LineAxis} */
    this.side = "query"; // the active column
    this.itemsName = "";
    this.loadCount = 0;
    this.frameAsked = 0;
    this.listTimer = 0;
    /** @type {(() => void)[]} */
    this.ends = [];
    this.columns = new LineColumns(app.idPrefix, {
      hover: (axis, item) => { this.hovered = item === null ? null : { axis, item }; this.draw(); },
      select: (axis, item) => { this.side = axis; this.select(axis, item); },
      focus: (axis) => { this.side = axis; },
    });
    this.elements = makeLinesElements({
      which: (which) => app.store.set({ linesAll: which === "all" }),
      heads: (heads) => { this.chosen = heads; this.update(); },
      lock: () => { this.columns.locked = !this.columns.locked; this.update(); },
      threshold: () => app.store.set({ linesThreshold: Number(this.elements.slider.value) }),
    }, this.columns.query.list, this.columns.key.list);
    this.weights = new LineWeights(app, () => this.draw());
    this.offscreenMass = new OffscreenMass(app, this.weights, () => this.draw());
    this.elements.stage.addEventListener("wheel", (event) => {
      if (event.ctrlKey || !this.columns.wheel(event)) return; // Ctrl and wheel: the browser's zoom
      event.preventDefault();
      this.update();
    }, { passive: false });
    this.elements.stage.addEventListener("pointermove", (event) => {
      // A finger scrolls the columns as the wheel does.
      if (event.pointerType === "touch" && event.buttons & 1 && this.columns.scroll(lineAxisAt(event), -event.movementY)) this.update();
    });
    this.removeCommands = addLineCommands(app, {
      shown: () => this.shown && this.columns.query.items.total > 0,
      step: (step) => this.step(step),
      side: (axis) => this.enter(axis),
      select: () => this.select(this.side, this.columns.column(this.side).caret),
      which: () => app.store.set({ linesAll: !this.all }),
      lock: () => { this.columns.locked = !this.columns.locked; this.update(); },
      less: (by) => app.store.set({ linesThreshold: Math.min(lineThresholds.length - 1, Math.max(0, app.store.get().linesThreshold + by)) }),
      clear: () => this.clear(),
    });
  }

  /** Lines of every head of the layer, or of the one that the page shows. */
  get all() {
    return this.app.store.get().linesAll;
  }

  show() {
    if (this.shown) return;
    this.shown = true;
    const { store } = this.app;
    this.ends.push(store.subscribe(["side", "kind", "layer", "head", "merge", "specials", "query", "key"], () => this.refresh()),
      store.subscribe(["colour", "theme", "dark", "linesAll", "linesThreshold"], () => this.update()));
    const sizes = new ResizeObserver(() => this.resize());
    sizes.observe(this.elements.stage);
    this.ends.push(() => sizes.disconnect());
    this.refresh();
  }

  hide() {
    this.shown = false;
    cancelAnimationFrame(this.frameAsked);
    this.frameAsked = 0;
    clearTimeout(this.listTimer);
    this.hovered = null;
    for (const end of this.ends.splice(0)) end();
    this.weights.clear();
    this.offscreenMass.clear();
  }

  dispose() {
    this.hide();
    this.removeCommands();
  }

  /** Updates texts and windows from the store. */
  async refresh() {
    const { app } = this;
    const { merge, specials, kind, side } = app.store.get();
    const stacks = app.side().kinds[kind];
    const name = JSON.stringify([side, stacks, merge, specials]);
    const loadCount = ++this.loadCount;
    if (name !== this.itemsName) {
      const loaded = await Promise.all([app.items(side, stacks.queries), app.items(side, stacks.keys)]).catch(() => null);
      if (!loaded || loadCount !== this.loadCount || !this.shown) return; // the client has reported the error
      this.itemsName = name;
      this.columns.query.setItems(loaded[0]);
      this.columns.key.setItems(loaded[1]);
      this.elements.titles.query.textContent = stacks.queries === stacks.keys ? "queries" : tr("queries ({queries})", { queries: stacks.queries });
      this.elements.titles.key.textContent = stacks.queries === stacks.keys ? "keys" : tr("keys ({keys})", { keys: stacks.keys });
      this.resize();
    }
    const { query, key } = app.store.get();
    this.columns.revealSelection({ query, key }, this.side);
    this.update();
  }

  resize() {
    this.columns.resize(this.elements.stage);
    this.update();
  }

  /** @returns {number[]} the heads whose lines are shown */
  heads() {
    const { kind, layer, head } = this.app.store.get();
    const total = this.app.side().maps.find((map) => map.kind === kind && map.layer === layer)?.heads ?? 1;
    const all = Array.from({ length: total }, (_, i) => i);
    return !this.all ? [head] : this.chosen ? all.filter((i) => this.chosen?.has(i)) : all;
  }

  /** Requests the weights in view, and draws. */
  update() {
    if (!this.shown || !this.columns.query.items.total) return;
    const { app, elements } = this;
    const { kind, layer } = app.store.get();
    const total = app.side().maps.find((map) => map.kind === kind && map.layer === layer)?.heads ?? 1;
    const heads = this.heads();
    elements.slider.value = String(app.store.get().linesThreshold);
    elements.switchHeads.show(this.all ? "all" : "one");
    elements.boxes.element.hidden = !this.all;
    elements.boxes.show(total, new Set(heads), (head) => headColour(head, total, app.theme()));
    elements.locked.show(this.columns.locked);
    elements.least.textContent = String(this.threshold());
    const [sizes, rows, columns] = [app.sizes(), this.columns.query.range(), this.columns.key.range()];
    const whole = Math.max(sizes.queries, sizes.keys) <= wholeMapLimit;
    this.weights.request(app.where(), heads, whole ? [0, sizes.queries] : rows, whole ? [0, sizes.keys] : columns);
    this.offscreenMass.request({ where: app.where(), heads, rows, columns, sizes });
    this.draw();
  }

  threshold() {
    return Math.max(lineThresholds[this.app.store.get().linesThreshold] ?? 0, this.app.store.get().colour.threshold);
  }

  /** The token whose lines are shown alone: hovered, else selected. @returns {LineToken | null} */
  only() {
    if (this.hovered) return this.hovered;
    const selection = this.app.store.get();
    const axis = selection[this.side] !== null ? this.side : this.side === "query" ? "key" : "query";
    const item = selection[axis];
    return item === null || item >= this.columns.column(axis).items.total ? null : { axis, item };
  }

  draw() {
    if (!this.shown || this.frameAsked) return;
    this.frameAsked = requestAnimationFrame(() => {
      this.frameAsked = 0;
      const figure = makeLinesFigure(this);
      drawLinesCanvas(figure, this.elements);
      drawLineTokens(this, figure);
      const { cell } = this.weights;
      this.elements.note.textContent = cell === 1 ? "" : cell === 0 ? tr("This saved page does not contain these weights.")
        : tr("Means over {cell} by {cell} items: this saved page contains nothing finer here.", { cell });
      // The list is updated after scrolling: making it anew in each frame is slow.
      clearTimeout(this.listTimer);
      this.listTimer = setTimeout(() => drawLineList(this, figure), linesListPause);
    });
  }

  /** @param {LineAxis} axis */
  enter(axis) {
    const { caret } = this.columns.column(axis);
    const item = caret < 0 ? this.columns.opposite(this.side, axis) : caret;
    this.side = axis;
    this.columns.column(axis).list.focus({ preventScroll: true });
    this.select(axis, item);
  }

  /** @param {LineStep} step */
  step(step) {
    const item = this.columns.step(this.side, step);
    this.columns.reveal(this.side, item);
    this.select(this.side, item);
  }

  /** @param {LineAxis} axis @param {number} item */
  select(axis, item) {
    if (item < 0) return;
    this.columns.column(axis).caret = item;
    this.app.store.set(axis === "query" ? { query: item } : { key: item });
    this.update();
  }

  clear() {
    this.columns.query.caret = this.columns.key.caret = -1;
    this.app.store.set({ query: null, key: null });
    this.update();
  }
}

// The elements of the view.

/** The thresholds of the slider's positions: lines of smaller weights are left out. */
const lineThresholds = [0, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8];

/**
 * @param {object} handlers
 * @param {(which: "one" | "all") => void} handlers.which
 * @param {(heads: Set<number>) => void} handlers.heads
 * @param {() => void} handlers.lock
 * @param {() => void} handlers.threshold
 * @param {HTMLElement} queries
 * @param {HTMLElement} keys
 */
export function makeLinesElements({ which, heads, lock, threshold }, queries, keys) {
  /** @type {{name: "one" | "all", title: string, hint: string}[]} */
  const choices = [
    { name: "one", title: tr("this head"), hint: tr("lines of the head that the page shows (v)") },
    { name: "all", title: tr("all heads"), hint: tr("lines of every head of the layer, a colour for each (v)") },
  ];
  const switchHeads = segmentedControl(tr("Whose lines"), choices, which);
  const boxes = makeHeadButtons(heads);
  const locked = toggle("locked", tr("both columns scroll together (u)"), lock);
  const slider = el("input", { type: "range", min: 0, max: lineThresholds.length - 1, step: 1, value: 2,
    "aria-label": tr("Least weight of a line"), on: { input: threshold } });
  const least = el("output", { class: "uwaga-lines-least" });
  const canvas = el("canvas", { class: "uwaga-lines-canvas", "aria-hidden": "true" });
  const stage = el("div", { class: "uwaga-lines-stage" }, queries, canvas, keys);
  const heading = (/** @type {string} */ name) => el("h3", { class: `uwaga-lines-heading uwaga-lines-${name}` });
  const titles = { query: heading("query"), key: heading("key") };
  const list = el("aside", { class: "uwaga-lines-side", "aria-label": tr("Strongest lines") });
  const note = el("p", { class: "uwaga-lines-note", role: "status" });
  const element = el("div", { class: "uwaga-lines" },
    el("div", { class: "uwaga-lines-bar" }, switchHeads.element, boxes.element, locked.element,
      el("label", { class: "uwaga-lines-slider" }, tr("from weight"), slider, least), note),
    el("div", { class: "uwaga-lines-main" },
      el("div", { class: "uwaga-lines-figure" }, el("div", { class: "uwaga-lines-titles" }, titles.query, titles.key), stage), list));
  return { element, switchHeads, boxes, locked, slider, least, canvas, stage, titles, list, note };
}

// The heads of the layer as coloured toggle buttons.

/**
 * @param {(heads: Set<number>) => void} onChange
 * @returns {{element: HTMLElement, show: (total: number, on: Set<number>, colour: (head: number) => string) => void}}
 */
function makeHeadButtons(onChange) {
  const element = el("div", { class: "uwaga-lines-heads", role: "group", "aria-label": tr("Heads; with Shift, that head alone") });
  /** @type {Set<number>} */
  let shown = new Set();
  const press = (/** @type {number} */ head, /** @type {boolean} */ alone) => {
    const next = new Set(alone ? [head] : shown);
    if (!alone && !next.delete(head)) next.add(head);
    onChange(next);
  };
  return {
    element,
    show(total, on, colour) {
      shown = on;
      if (element.childElementCount !== total) {
        element.replaceChildren(...Array.from({ length: total }, (_, head) => el("button", {
          type: "button", class: "uwaga-lines-head", text: String(head), "aria-label": tr("Head {head}", { head }),
          title: tr("head {head}; Shift or a double click: this head alone", { head }),
          on: { click: (/** @type {MouseEvent} */ event) => press(head, event.shiftKey), dblclick: () => press(head, true) },
        })));
      }
      [...element.children].forEach((button, head) => {
        button.setAttribute("aria-pressed", String(on.has(head)));
        /** @type {HTMLElement} */ (button).style.setProperty("--lines-head", colour(head));
      });
    },
  };
}

// What is shown: the lines, the weights beside tokens, the list of the strongest.

/** @typedef {ReturnType<typeof makeLinesFigure>} LineFigure */

/**
 * The lines figure from the present state.
 * @param {LinesView} view
 */
function makeLinesFigure(view) {
  const { app } = view;
  const { kind, layer, colour } = app.store.get();
  const total = app.side().maps.find((map) => map.kind === kind && map.layer === layer)?.heads ?? 1;
  const heads = view.heads();
  const only = view.only();
  const { lines, high } = collectLines({
    heads, rows: view.columns.query.range(), columns: view.columns.key.range(), threshold: view.threshold(), only,
    sinks: colour.hideSink ? sinksOf(view.columns.key.items, kind) : new Set(),
    weight: (head, query, key) => view.weights.weight(head, query, key), offscreenMass: (...of) => view.offscreenMass.of(...of),
  });
  const shade = makeShading([high], colour);
  const opacity = (/** @type {number} */ weight) =>
    Math.abs(makeShading([weight], { ...colour, high: shade.high, threshold: 0 }).of(0));
  const hue = (/** @type {number} */ head) => (view.all ? headColour(head, total, app.theme()) : "");
  return { lines, high: shade.high, heads, only, opacity, hue, query: view.columns.query, key: view.columns.key, all: view.all };
}

/** @param {LinesView} view @param {LineFigure} figure */
function drawLineTokens(view, { lines, only, heads }) {
  const { query, key } = view.app.store.get();
  const weightLabels = (/** @type {LineAxis} */ axis) => {
    if (!only || only.axis === axis || heads.length !== 1) return () => "";
    const known = new Map(lines.map((line) => [axis === "query" ? line.query : line.key, line.weight]));
    return (/** @type {number} */ item) => (known.has(item) ? percentText(known.get(item) ?? 0) : "");
  };
  for (const column of [view.columns.query, view.columns.key]) {
    const [selected, weightLabel] = [column.axis === "query" ? query : key, weightLabels(column.axis)];
    column.render((item) => ({ selected: item === selected || (only?.axis === column.axis && only.item === item), weightLabel: weightLabel(item) }));
    if (column.caret >= 0) column.list.setAttribute("aria-activedescendant", `${column.prefix}${column.caret}`);
  }
}

/** @param {LinesView} view @param {LineFigure} figure */
function drawLineList(view, { lines, only, hue }) {
  const own = only && view.columns.column(only.axis).items.labels[only.item];
  showLineList(view.elements.list, lines, {
    queries: view.columns.query.items, keys: view.columns.key.items, one: only !== null, colour: (head) => hue(head) || "var(--accent)",
    title: only && own !== null ? (only.axis === "query" ? trParts("From {token} ({place})", { token: tokenElement(own), place: only.item })
      : trParts("To {token} ({place})", { token: tokenElement(own), place: only.item }))
      : [tr("Strongest lines in view")],
  });
}

// The list of the strongest lines in view, or of one token.

const maxListedLines = 24;

/**
 * @param {HTMLElement} element
 * @param {Line[]} lines
 * @param {{queries: Items, keys: Items, colour: (head: number) => string, title: (string | Node)[], one: boolean}} how
 */
function showLineList(element, lines, { queries, keys, colour, title, one }) {
  const inside = strongestLines(lines.filter((line) => !isOffscreen(line)), maxListedLines);
  // Sums over what is out of view are listed only for a single token, whose row they complete.
  const best = one ? [...inside, ...strongestLines(lines.filter(isOffscreen), maxListedLines)] : inside;
  element.replaceChildren(el("h3", {}, ...title), el("table", { class: "uwaga-lines-table" },
    el("thead", {}, el("tr", {}, [tr("head"), tr("query"), tr("key"), tr("weight")].map((name) => el("th", { scope: "col", text: name })))),
    el("tbody", {}, best.map((line) => lineRow(line, queries, keys, colour(line.head))))));
  if (!best.length) element.append(el("p", { class: "uwaga-lines-note", text: tr("No line is above the threshold here.") }));
}

/** @param {Line} line @param {Items} queries @param {Items} keys @param {string} colour @returns {HTMLElement} */
function lineRow({ head, query, key, weight }, queries, keys, colour) {
  const mark = el("span", { class: "uwaga-lines-mark", "aria-hidden": "true" });
  mark.style.setProperty("--lines-head", colour);
  return el("tr", { "data-weight": weight }, el("td", {}, mark, String(head)),
    el("td", {}, lineEnd(query, queries)), el("td", {}, lineEnd(key, keys)),
    el("td", { class: "uwaga-lines-weight", text: percentText(weight), title: weightText(weight) }));
}

/** @param {number} item @param {Items} items @returns {(string | Node)[]} */
function lineEnd(item, items) {
  if (item === -1) return [el("i", { text: tr("all before the window") })];
  if (item === Infinity) return [el("i", { text: tr("all after the window") })];
  return [el("span", { class: "uwaga-lines-place", text: `${item} ` }), tokenElement(items.labels[item])];
}

// Keyboard commands.

/** @typedef {"up" | "down" | "pageup" | "pagedown" | "first" | "last"} LineStep */

/** @type {[LineStep, string, string][]} */
const lineSteps = [
  ["up", "ArrowUp", tr("Token above")], ["down", "ArrowDown", tr("Token below")], ["pageup", "PageUp", tr("A window up")],
  ["pagedown", "PageDown", tr("A window down")], ["first", "Home", tr("First token")], ["last", "End", tr("Last token")],
];

/**
 * @param {import("../types.js").App} app
 * @param {{shown: () => boolean, step: (step: LineStep) => void, side: (axis: "query" | "key") => void, select: () => void,
 *   which: () => void,
 *   lock: () => void, less: (by: number) => void, clear: () => void}} act
 * @returns {() => void} removes the commands
 */
function addLineCommands(app, act) {
  const moves = () => act.shown() && arrowKeysFree(app.root);
  const add = (/** @type {string} */ id, /** @type {string} */ title, /** @type {string[]} */ keys,
    /** @type {() => void} */ run, when = act.shown) =>
    app.commands.add({ id: `lines.${id}`, title, keys, group: tr("Lines"), run, when });
  const removals = [
    ...lineSteps.map(([step, key, title]) => add(step, title, [key], () => act.step(step), moves)),
    add("queries", tr("To the queries"), ["ArrowLeft"], () => act.side("query"), moves),
    add("keys", tr("To the keys"), ["ArrowRight"], () => act.side("key"), moves),
    add("pick", tr("Pick the token"), ["Enter"], act.select),
    add("which", tr("This head, or all heads of the layer"), ["v"], act.which),
    add("lock", tr("Lock or unlock the columns"), ["u"], act.lock),
    add("more", tr("Fainter lines too"), ["<"], () => act.less(-1)),
    add("less", tr("Stronger lines only"), [">"], () => act.less(1)),
    add("clear", tr("Unpick: lines of all tokens"), ["Escape"], act.clear),
  ];
  return () => removals.forEach((remove) => remove());
}
