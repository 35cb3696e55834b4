// The texts of the current map, a pane each: tokens, shading, selection, pointer input.

import { themeColour } from "../colours.js";
import { el, tokenText } from "../dom.js";
import { lineOfItem, nearestItem, TextLayout } from "./layout.js";
import { percentText } from "../format.js";
import { tr } from "../languages.js";
import { listsPassages, strongestPassages } from "../strongest_list.js";
import { makeMinimap } from "./minimap.js";

/** @typedef {import("../types.js").App} App */
/** @typedef {import("../types.js").Items} Items */
/** @typedef {import("../types.js").Range} Range */
/** @typedef {import("../colours.js").Shading} Shading */

/** @typedef {"query" | "key" | "both"} Axis */
/** @typedef {{axis: Axis, pane: TextPane, items: Items}} Column */

/** @type {Items} */
const emptyItems = { labels: [], noSpaceBefore: [], specials: new Set(), spans: new Int32Array(0), total: 0 };

/**
 * @typedef {object} TextColumnsHandlers
 * @property {(axis: Axis, item: number) => void} select
 * @property {(axis: Axis, range: Range, isNew: boolean, done: boolean) => void} span
 * @property {(column: Column, item: number | null, event: PointerEvent | null) => void} hover
 * @property {(column: Column) => void} enter  it becomes the active pane
 */

/** The panes of the current map: one if queries and keys are the same text, else two. */
export class TextColumns {
  /**
   * @param {App} app
   * @param {HTMLElement} place
   * @param {TextColumnsHandlers} handlers
   */
  constructor(app, place, handlers) {
    this.app = app;
    this.place = place;
    this.handlers = handlers;
    /** @type {Column[]} */
    this.all = [];
    this.current = 0;
    this.name = "";
    this.loadCount = 0;
  }

  get first() {
    return this.all[0];
  }

  get last() {
    return this.all[this.all.length - 1];
  }

  /** Whether queries and keys are the same text. */
  get one() {
    return this.all.length === 1;
  }

  /** @param {Axis} axis @returns {Column | undefined} */
  of(axis) {
    return this.all.find((column) => column.axis === axis) ?? (this.one ? this.first : undefined);
  }

  /**
   * Loads the texts of the current map.
   * @returns {Promise<"same" | "other" | "failed">} "failed" also if another load has started meanwhile
   */
  async load() {
    const { app } = this;
    const { merge, specials, kind, side: id } = app.store.get();
    const stacks = app.side().kinds[kind];
    const name = JSON.stringify([id, stacks, merge, specials]);
    const loadCount = ++this.loadCount;
    if (name === this.name) return "same";
    const [queries, keys] = await Promise.all([app.items(id, stacks.queries), app.items(id, stacks.keys)]);
    if (loadCount !== this.loadCount) return "failed";
    this.name = name;
    this.make(stacks.queries === stacks.keys ? ["both"] : ["query", "key"]);
    for (const column of this.all) {
      column.items = column.axis === "key" ? keys : queries;
      const role = app.about.answer ? { both: "", query: tr("question"), key: tr("passages") }[column.axis] : { both: "", query: tr("queries ({queries})", { queries: stacks.queries }), key: tr("keys ({keys})", { keys: stacks.keys }) }[column.axis];
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
      const pane = new TextPane(`uwaga-${app.idPrefix}text-${axis}-`, {
        select: (item) => { this.enter(column); this.handlers.select(axis, item); },
        span: (range, isNew, done) => { this.enter(column); this.handlers.span(axis, range, isNew, done); },
        hover: (item, event) => this.handlers.hover(column, item, event),
      });
      /** @type {Column} */
      const column = { axis, pane, items: emptyItems };
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
      this.handlers.enter(column);
    }
    if (focus) column.pane.scroller.focus({ preventScroll: true });
  }

  dispose() {
    for (const { pane } of this.all) pane.dispose();
  }
}

// One pane: heading, scrolled text, minimap.

/** @typedef {{weights: ArrayLike<number>, shade: Shading}} PaneLayer */

/**
 * @typedef {object} PaneHighlights
 * @property {PaneLayer | null} row  the row of the selected query
 * @property {PaneLayer | null} column  the column of the selected key
 * @property {number | null} query
 * @property {number | null} key
 * @property {Range[]} spans
 * @property {Range | null} found
 */

/**
 * @typedef {object} PaneHandlers
 * @property {(item: number) => void} select
 * @property {(range: Range, isNew: boolean, done: boolean) => void} span  isNew: a new span; false: the last one was extended
 * @property {(item: number | null, event: PointerEvent | null) => void} hover
 */

const peakCount = 5; // buttons beside the minimap

/** A scrolled text with a minimap. */
export class TextPane {
  /**
   * @param {string} prefix  of ids
   * @param {PaneHandlers} handlers
   */
  constructor(prefix, handlers) {
    this.handlers = handlers;
    this.heading = el("h3", { class: "uwaga-text-heading", id: `${prefix}heading` });
    this.scroller = el("div", { class: "uwaga-text-scroll", tabindex: 0, role: "listbox", "aria-multiselectable": "true",
      "aria-labelledby": `${prefix}heading` });
    this.minimap = makeMinimap(tr("Where in the document the weight is"), (part) => this.jump(part));
    this.peaks = el("div", { class: "uwaga-text-peaks", role: "group", "aria-label": tr("Highest peaks") });
    this.element = el("section", { class: "uwaga-text-pane" }, this.heading,
      el("div", { class: "uwaga-text-with-minimap" }, this.scroller, el("div", { class: "uwaga-text-minimap-place" }, this.minimap.element, this.peaks)));
    this.prefix = prefix;
    this.layout = new TextLayout(this.scroller, prefix, (element, item) => this.paint(element, item));
    /** @type {PaneHighlights} */
    this.highlights = { row: null, column: null, query: null, key: null, spans: [], found: null };
    this.caret = -1; // the item that keys move from
    this.anchor = -1; // where the span begins that Shift and arrow keys extend
    this.extending = false;
    this.stop = watchPointer(this.scroller, {
      select: (item) => this.select(item),
      span: (anchor, item, done) => this.mark(anchor, item, done),
      extend: (item) => this.extend(item),
      hover: handlers.hover,
    });
    this.scroller.addEventListener("scroll", () => this.scrolled(), { passive: true });
  }

  /** @param {string} title @param {string} rest  such as its length @param {Items} items */
  setItems(title, rest, items) {
    // <bdi>: a right-to-left title must not reorder the rest.
    this.heading.replaceChildren(el("bdi", { text: title }), rest);
    this.caret = this.anchor = -1;
    this.layout.setItems(items);
    this.resize();
    this.setHighlights({ ...this.highlights, row: null, column: null, spans: [], found: null });
  }

  /** @param {PaneHighlights} highlights */
  setHighlights(highlights) {
    this.highlights = highlights;
    this.scroller.classList.toggle("uwaga-text-both", Boolean(highlights.row && highlights.column));
    this.layout.repaint();
    this.drawMinimapOfPane();
  }

  /** After a change of the page's size or font. */
  resize() {
    this.layout.relayout();
    this.minimap.element.hidden = this.layout.flow.lines * this.layout.lineHeight <= this.layout.height;
    this.scrolled();
    this.drawMinimapOfPane();
  }

  scrolled() {
    this.handlers.hover(null, null);
    const { layout } = this;
    const top = this.scroller.scrollTop;
    layout.render(top);
    const height = Math.max(1, layout.flow.lines * layout.lineHeight);
    this.minimap.view(top / height, layout.height / height);
  }

  drawMinimapOfPane() {
    const { row, column, query, key } = this.highlights;
    const colour = (/** @type {string} */ name) => themeColour(this.element, name);
    const layers = [row && { ...row, colour: colour("--query"), negative: colour("--danger") },
      column && { ...column, colour: colour("--key"), negative: colour("--danger") }].filter((layer) => layer !== null);
    const { starts } = this.layout.flow;
    const mark = (/** @type {number | null} */ item, /** @type {string} */ name) =>
      item === null || item >= this.layout.items.total ? [] : [{ line: lineOfItem(starts, item), colour: colour(name) }];
    this.minimap.draw(layers, starts, [...mark(query, "--text"), ...mark(key, "--text")]);
    this.showPeaks();
  }

  /** Buttons beside the highest peaks of the weights that are shown; they scroll there. */
  showPeaks() {
    const shown = this.highlights.row ?? this.highlights.column;
    const { flow: { starts, lines }, items } = this.layout;
    const coloured = shown && !this.minimap.element.hidden ? Float32Array.from(shown.weights, (weight, item) => (shown.shade.of(item) ? weight : 0)) : [];
    const peaks = strongestPassages(coloured, peakCount, listsPassages(items) ? undefined : 1);
    this.peaks.replaceChildren(...peaks.map(({ first, stop, peak, mass }) => {
      const part = lineOfItem(starts, peak) / Math.max(1, lines);
      const name = tr("“{labels}” at {peak}: {mass} from {first} to {stop}", { labels: tokenText(items.labels[peak]), peak, mass: percentText(mass), first, stop: stop - 1 });
      const button = el("button", { type: "button", class: "uwaga-text-peak", "aria-label": name, title: name, on: { click: () => this.jump(part) } });
      button.style.setProperty("top", `${100 * part}%`);
      return button;
    }));
  }

  /** @param {HTMLElement} element @param {number} item */
  paint(element, item) {
    const { row, column, query, key, spans, found } = this.highlights;
    const { classList, dataset } = element;
    dataset.row = String(row ? row.shade.band(item) : 0);
    dataset.column = String(column ? column.shade.band(item) : 0);
    classList.toggle("uwaga-text-query", item === query);
    classList.toggle("uwaga-text-key", item === key);
    classList.toggle("uwaga-text-caret", item === this.caret);
    classList.toggle("uwaga-text-found", isInRange(found, item));
    const inSpan = spans.some((span) => isInRange(span, item));
    classList.toggle("uwaga-text-span", inSpan);
    element.setAttribute("aria-selected", String(item === query || item === key || inSpan));
  }

  /** @param {number} item */
  select(item) {
    this.anchor = item;
    this.extending = false;
    this.moveCaret(item);
    this.handlers.select(item);
  }

  /** @param {number} anchor @param {number} item @param {boolean} done */
  mark(anchor, item, done) {
    const isNew = !this.extending;
    this.anchor = anchor;
    this.extending = !done;
    this.moveCaret(item);
    this.handlers.span([Math.min(anchor, item), Math.max(anchor, item) + 1], isNew, done);
  }

  /** Extends the selection from its anchor to the item. @param {number} item */
  extend(item) {
    if (this.anchor < 0) this.anchor = this.caret < 0 ? item : this.caret;
    const isNew = !this.extending;
    this.extending = true;
    this.moveCaret(item);
    this.handlers.span([Math.min(this.anchor, item), Math.max(this.anchor, item) + 1], isNew, true);
  }

  /** @param {number} item */
  moveCaret(item) {
    this.caret = item;
    this.layout.reveal(item);
    this.layout.repaint();
    this.scroller.setAttribute("aria-activedescendant", `${this.prefix}${item}`);
  }

  /**
   * The item that a key moves to.
   * @param {"left" | "right" | "up" | "down" | "home" | "end" | "pageup" | "pagedown" | "first" | "last"} step
   * @returns {number}
   */
  step(step) {
    const { flow, items, widths, lineHeight, body } = this.layout;
    const last = items.total - 1;
    const from = this.caret < 0 || this.caret > last ? this.layout.visible()[0] : this.caret;
    if (this.caret < 0) return Math.min(last, from);
    const line = lineOfItem(flow.starts, from);
    const x = flow.lefts[from] + widths[from] / 2;
    const page = Math.max(1, Math.floor(this.scroller.clientHeight / lineHeight) - 1);
    const toLine = (/** @type {number} */ other) => nearestItem(flow, widths, Math.min(flow.lines - 1, Math.max(0, other)), x);
    const forward = body.dir === "rtl" ? -1 : 1;
    const clamp = (/** @type {number} */ item) => Math.min(last, Math.max(0, item));
    if (step === "left") return clamp(from - forward);
    if (step === "right") return clamp(from + forward);
    if (step === "up") return toLine(line - 1);
    if (step === "down") return toLine(line + 1);
    if (step === "pageup") return toLine(line - page);
    if (step === "pagedown") return toLine(line + page);
    if (step === "home") return flow.starts[line];
    if (step === "end") return flow.starts[line + 1] - 1;
    return step === "first" ? 0 : last;
  }

  /** @param {number} part of the document to scroll to the middle */
  jump(part) {
    const height = this.layout.flow.lines * this.layout.lineHeight;
    this.scroller.scrollTop = part * height - this.scroller.clientHeight / 2;
  }

  dispose() {
    this.stop();
  }
}

/** @param {Range | null} range @param {number} item @returns {boolean} */
function isInRange(range, item) {
  return range !== null && item >= range[0] && item < range[1];
}

// Pointer input: click selects, drag marks a span, Shift and click extend it.

/**
 * @typedef {object} PointerHandlers
 * @property {(item: number) => void} select
 * @property {(anchor: number, item: number, done: boolean) => void} span
 * @property {(item: number) => void} extend  from the anchor of the last selection or span
 * @property {(item: number | null, event: PointerEvent | null) => void} hover
 */

const autoScrollEdge = 24; // pixels from the edge within which a drag scrolls
const autoScrollSpeed = 14; // pixels per frame

/**
 * @param {HTMLElement} scroller
 * @param {PointerHandlers} handlers
 * @returns {() => void} removes the listeners on the document
 */
function watchPointer(scroller, handlers) {
  /** @type {{anchor: number, item: number, moved: boolean, y: number, x: number, frame: number} | null} */
  let drag = null;

  const at = (/** @type {number} */ x, /** @type {number} */ y) => {
    const root = /** @type {Document | ShadowRoot} */ (scroller.getRootNode());
    return pointerItem(root.elementFromPoint(x, y), scroller);
  };
  const stop = () => {
    if (drag) cancelAnimationFrame(drag.frame);
    drag = null;
  };
  const follow = () => {
    if (!drag) return;
    const box = scroller.getBoundingClientRect();
    if (drag.y < box.top + autoScrollEdge) scroller.scrollTop -= autoScrollSpeed;
    else if (drag.y > box.bottom - autoScrollEdge) scroller.scrollTop += autoScrollSpeed;
    const item = at(drag.x, Math.min(box.bottom - 4, Math.max(box.top + 4, drag.y)));
    if (item !== null && item !== drag.item) {
      drag.item = item;
      drag.moved = true;
      handlers.span(drag.anchor, item, false);
    }
    drag.frame = requestAnimationFrame(follow);
  };

  scroller.addEventListener("pointerdown", (event) => {
    const item = pointerItem(event.target, scroller);
    if (event.button !== 0 || item === null) return;
    if (event.shiftKey) {
      event.preventDefault();
      handlers.extend(item);
      return;
    }
    drag = { anchor: item, item, moved: false, x: event.clientX, y: event.clientY, frame: 0 };
    // Touch scrolls the text: only mouse and pen mark spans.
    if (event.pointerType !== "touch") drag.frame = requestAnimationFrame(follow);
  });
  scroller.addEventListener("pointermove", (event) => {
    if (drag) [drag.x, drag.y] = [event.clientX, event.clientY];
    handlers.hover(pointerItem(event.target, scroller), event);
  });
  const end = () => {
    const ended = drag;
    stop();
    if (!ended) return;
    if (ended.moved) handlers.span(ended.anchor, ended.item, true);
    else handlers.select(ended.item);
  };
  scroller.addEventListener("pointerup", (event) => {
    if (drag) [drag.x, drag.y] = [event.clientX, event.clientY];
    end();
  });
  scroller.addEventListener("pointercancel", stop);
  scroller.addEventListener("pointerleave", (event) => {
    handlers.hover(null, null);
    if (event.buttons === 0) stop();
  });
  const root = scroller.ownerDocument;
  const released = (/** @type {PointerEvent} */ event) => {
    if (drag && !scroller.contains(/** @type {Node} */ (event.target))) end();
  };
  const moved = (/** @type {PointerEvent} */ event) => {
    if (drag) [drag.x, drag.y] = [event.clientX, event.clientY];
  };
  root.addEventListener("pointerup", released);
  root.addEventListener("pointermove", moved);
  return () => {
    stop();
    root.removeEventListener("pointerup", released);
    root.removeEventListener("pointermove", moved);
  };
}

/** @param {EventTarget | null} target @param {HTMLElement} inside @returns {number | null} */
function pointerItem(target, inside) {
  const token = target instanceof Element ? target.closest("[data-item]") : null;
  return token instanceof HTMLElement && inside.contains(token) ? Number(token.dataset.item) : null;
}
