// Two columns of tokens and the lines between them, as in the figures of "Attention Is All You Need" (Vaswani et al., 2017).
import { linesFrame, lineThresholds } from "./frame.js";
import { drawLineList, drawLineTokens, linePicture } from "./figure.js";
import { headColour } from "./hues.js";
import { addLineCommands } from "./keys.js";
import { LineOutside, outsideWhole } from "./outside.js";
import { LinePair, lineAxisAt } from "./pair.js";
import { drawLineStage, lineScene } from "./stage.js";
import { LineWeights } from "./weights.js";

/** @typedef {import("../types.js").App} App */
/** @typedef {import("./pair.js").LineAxis} LineAxis */
/** @typedef {{axis: LineAxis, item: number}} LineToken */

const lineListPause = 90; // milliseconds

/**
 * @param {App} app
 * @returns {import("../types.js").View}
 */
export function linesView(app) {
  const view = new LinesView(app);
  return {
    element: view.frame.element,
    show: () => view.show(),
    hide: () => view.hide(),
    dispose: () => view.dispose(),
    scene: async () => lineScene(linePicture(view), view.frame),
    block: () => ({ rows: view.pair.query.range(), columns: view.pair.key.range() }),
  };
}

/** The windows over both columns, the heads that are on, and the token whose lines are shown alone. */
export class LinesView {
  /** @param {App} app */
  constructor(app) {
    this.app = app;
    this.shown = false;
    /** @type {Set<number> | null} */
    this.chosen = null; // of all heads; null: all
    /** @type {LineToken | null} */
    this.hovered = null;
    /** @type {LineAxis} */
    this.side = "query"; // where the keys act
    this.itemsName = "";
    this.turn = 0;
    this.frameAsked = 0;
    this.listTimer = 0;
    /** @type {(() => void)[]} */
    this.ends = [];
    this.pair = new LinePair(app.part, {
      hover: (axis, item) => { this.hovered = item === null ? null : { axis, item }; this.draw(); },
      pick: (axis, item) => { this.side = axis; this.pick(axis, item); },
      focus: (axis) => { this.side = axis; },
    });
    this.frame = linesFrame({
      which: (which) => app.store.set({ linesAll: which === "all" }),
      heads: (heads) => { this.chosen = heads; this.update(); },
      lock: () => { this.pair.locked = !this.pair.locked; this.update(); },
      threshold: () => app.store.set({ linesLeast: Number(this.frame.slider.value) }),
    }, this.pair.query.list, this.pair.key.list);
    this.weights = new LineWeights(app, () => this.draw());
    this.outside = new LineOutside(app, this.weights, () => this.draw());
    this.frame.stage.addEventListener("wheel", (event) => {
      if (event.ctrlKey || !this.pair.wheel(event)) return; // with Ctrl it is the browser's zoom
      event.preventDefault();
      this.update();
    }, { passive: false });
    this.frame.stage.addEventListener("pointermove", (event) => {
      // A finger scrolls the columns as the wheel does.
      if (event.pointerType === "touch" && event.buttons & 1 && this.pair.scroll(lineAxisAt(event), -event.movementY)) this.update();
    });
    this.removeCommands = addLineCommands(app, {
      shown: () => this.shown && this.pair.query.items.total > 0,
      step: (step) => this.step(step),
      side: (axis) => this.enter(axis),
      pick: () => this.pick(this.side, this.pair.column(this.side).caret),
      which: () => app.store.set({ linesAll: !this.all }),
      lock: () => { this.pair.locked = !this.pair.locked; this.update(); },
      less: (by) => app.store.set({ linesLeast: Math.min(lineThresholds.length - 1, Math.max(0, app.store.get().linesLeast + by)) }),
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
      store.subscribe(["colour", "theme", "dark", "linesAll", "linesLeast"], () => this.update()));
    const sizes = new ResizeObserver(() => this.resize());
    sizes.observe(this.frame.stage);
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
    this.weights.drop();
    this.outside.drop();
  }

  dispose() {
    this.hide();
    this.removeCommands();
  }

  /** Brings texts and windows to what the store says. */
  async refresh() {
    const { app } = this;
    const { merge, specials, kind, side } = app.store.get();
    const stacks = app.side().kinds[kind];
    const name = JSON.stringify([side, stacks, merge, specials]);
    const turn = ++this.turn;
    if (name !== this.itemsName) {
      const loaded = await Promise.all([app.items(side, stacks.queries), app.items(side, stacks.keys)]).catch(() => null);
      if (!loaded || turn !== this.turn || !this.shown) return; // the client has told the user
      this.itemsName = name;
      this.pair.query.setItems(loaded[0]);
      this.pair.key.setItems(loaded[1]);
      this.frame.titles.query.textContent = stacks.queries === stacks.keys ? "queries" : `queries (${stacks.queries})`;
      this.frame.titles.key.textContent = stacks.queries === stacks.keys ? "keys" : `keys (${stacks.keys})`;
      this.resize();
    }
    const { query, key } = app.store.get();
    this.pair.revealPicks({ query, key }, this.side);
    this.update();
  }

  resize() {
    this.pair.resize(this.frame.stage);
    this.update();
  }

  /** @returns {number[]} the heads whose lines are shown */
  heads() {
    const { kind, layer, head } = this.app.store.get();
    const total = this.app.side().maps.find((map) => map.kind === kind && map.layer === layer)?.heads ?? 1;
    const all = Array.from({ length: total }, (_, i) => i);
    return !this.all ? [head] : this.chosen ? all.filter((i) => this.chosen?.has(i)) : all;
  }

  /** Asks for what the windows show, and draws. */
  update() {
    if (!this.shown || !this.pair.query.items.total) return;
    const { app, frame } = this;
    const { kind, layer } = app.store.get();
    const total = app.side().maps.find((map) => map.kind === kind && map.layer === layer)?.heads ?? 1;
    const heads = this.heads();
    frame.slider.value = String(app.store.get().linesLeast);
    frame.switchHeads.show(this.all ? "all" : "one");
    frame.boxes.element.hidden = !this.all;
    frame.boxes.show(total, new Set(heads), (head) => headColour(head, total, app.theme()));
    frame.locked.show(this.pair.locked);
    frame.least.textContent = String(this.threshold());
    const [sizes, rows, columns] = [app.sizes(), this.pair.query.range(), this.pair.key.range()];
    const whole = Math.max(sizes.queries, sizes.keys) <= outsideWhole;
    this.weights.want(app.where(), heads, whole ? [0, sizes.queries] : rows, whole ? [0, sizes.keys] : columns);
    this.outside.want({ where: app.where(), heads, rows, columns, sizes });
    this.draw();
  }

  threshold() {
    return Math.max(lineThresholds[this.app.store.get().linesLeast] ?? 0, this.app.store.get().colour.threshold);
  }

  /** The token whose lines are shown alone: under the pointer, else picked. @returns {LineToken | null} */
  only() {
    if (this.hovered) return this.hovered;
    const picks = this.app.store.get();
    const axis = picks[this.side] !== null ? this.side : this.side === "query" ? "key" : "query";
    const item = picks[axis];
    return item === null || item >= this.pair.column(axis).items.total ? null : { axis, item };
  }

  draw() {
    if (!this.shown || this.frameAsked) return;
    this.frameAsked = requestAnimationFrame(() => {
      this.frameAsked = 0;
      const picture = linePicture(this);
      drawLineStage(picture, this.frame);
      drawLineTokens(this, picture);
      const { cell } = this.weights;
      this.frame.note.textContent = cell === 1 ? "" : cell === 0 ? "This saved page holds no weights of this place."
        : `Means over ${cell} by ${cell} items: this saved page holds nothing finer here.`;
      // The list is read, not watched: while the columns move it waits.
      clearTimeout(this.listTimer);
      this.listTimer = setTimeout(() => drawLineList(this, picture), lineListPause);
    });
  }

  /** @param {LineAxis} axis */
  enter(axis) {
    const { caret } = this.pair.column(axis);
    const item = caret < 0 ? this.pair.beside(this.side, axis) : caret;
    this.side = axis;
    this.pair.column(axis).list.focus({ preventScroll: true });
    this.pick(axis, item);
  }

  /** @param {import("./keys.js").LineStep} step */
  step(step) {
    const item = this.pair.step(this.side, step);
    this.pair.reveal(this.side, item);
    this.pick(this.side, item);
  }

  /** @param {LineAxis} axis @param {number} item */
  pick(axis, item) {
    if (item < 0) return;
    this.pair.column(axis).caret = item;
    this.app.store.set(axis === "query" ? { query: item } : { key: item });
    this.update();
  }

  clear() {
    this.pair.query.caret = this.pair.key.caret = -1;
    this.app.store.set({ query: null, key: null });
    this.update();
  }
}
