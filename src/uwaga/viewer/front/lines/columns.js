// Both columns of tokens: virtual scrolling of each, scrolled together while locked.

import { el, tokenText } from "../dom.js";
import { tr } from "../languages.js";

/** @typedef {import("../types.js").Items} Items */

/** @typedef {"query" | "key"} LineAxis */

/**
 * @typedef {object} LineColumnsHandlers
 * @property {(axis: LineAxis, item: number | null) => void} hover
 * @property {(axis: LineAxis, item: number) => void} select
 * @property {(axis: LineAxis) => void} focus
 */

/** The columns of queries and of keys; while locked, both scroll together. */
export class LineColumns {
  /**
   * @param {string} idPrefix
   * @param {LineColumnsHandlers} handlers
   */
  constructor(idPrefix, handlers) {
    this.locked = true;
    const make = (/** @type {LineAxis} */ axis) => new LineColumn(axis, idPrefix, {
      hover: (item) => handlers.hover(axis, item), select: (item) => handlers.select(axis, item), focus: () => handlers.focus(axis),
    });
    this.query = make("query");
    this.key = make("key");
  }

  /** @param {LineAxis} axis */
  column(axis) {
    return axis === "query" ? this.query : this.key;
  }

  /** @param {HTMLElement} stage */
  resize(stage) {
    const row = Math.max(16, Math.round(parseFloat(getComputedStyle(stage).fontSize) * 1.55));
    this.query.resize(stage.clientHeight, row);
    this.key.resize(stage.clientHeight, row);
  }

  /** @param {LineAxis | null} axis null: both @param {number} by pixels @returns {boolean} whether anything moved */
  scroll(axis, by) {
    const moved = [this.query, this.key].map((column) =>
      (this.locked || axis === null || axis === column.axis) && column.scrollTo(column.window.offset + by));
    return moved.includes(true);
  }

  /** @param {WheelEvent} event @returns {boolean} whether anything moved */
  wheel(event) {
    const { row, height } = this.query.window;
    const scale = event.deltaMode === 1 ? row : event.deltaMode === 2 ? height : 1;
    return this.scroll(lineAxisAt(event), event.deltaY * scale);
  }

  /**
   * Scrolls an item into its window; a locked column scrolls by the same distance.
   * @param {LineAxis} axis
   * @param {number} item
   * @param {boolean} [middle]  to the middle of the window, unless it is in view
   */
  reveal(axis, item, middle = false) {
    const column = this.column(axis);
    if (item >= column.items.total) return;
    column.caret = item;
    const before = column.window.offset;
    if (middle && !column.holds(item)) column.scrollTo((item + 0.5) * column.window.row - column.window.height / 2);
    else column.reveal(item);
    const other = this.column(axis === "query" ? "key" : "query");
    if (this.locked) other.scrollTo(other.window.offset + column.window.offset - before);
  }

  /**
   * Scrolls the selection into view. Locked columns may not show both items: that of the active column has precedence.
   * @param {{query: number | null, key: number | null}} selection
   * @param {LineAxis} side
   */
  revealSelection(selection, side) {
    const far = side === "query" ? "key" : "query";
    const other = selection[far];
    const own = selection[side];
    if (other !== null && other !== this.column(far).caret) this.reveal(far, other, true);
    if (own !== null && (own !== this.column(side).caret || !this.column(side).holds(own))) this.reveal(side, own, true);
  }

  /**
   * The item that a key moves to.
   * @param {LineAxis} axis
   * @param {import("./view.js").LineStep} step
   * @returns {number}
   */
  step(axis, step) {
    const column = this.column(axis);
    const last = column.items.total - 1;
    const page = Math.max(1, Math.floor(column.window.height / column.window.row) - 1);
    const from = column.caret < 0 ? column.range()[0] - (step === "down" ? 1 : 0) : column.caret;
    const to = { up: from - 1, down: from + 1, pageup: from - page, pagedown: from + page, first: 0, last }[step];
    return Math.min(last, Math.max(0, to));
  }

  /** @param {LineAxis} from @param {LineAxis} axis @returns {number} the item beside the caret of the other column */
  opposite(from, axis) {
    const column = this.column(axis);
    if (column.caret >= 0) return column.caret;
    return Math.min(column.items.total - 1, Math.max(column.range()[0], this.column(from).caret));
  }
}

/** @param {Event} event @returns {LineAxis | null} the column under the pointer; null: between them */
export function lineAxisAt({ target }) {
  const over = target instanceof Element ? target.closest("[data-axis]")?.getAttribute("data-axis") : null;
  return over === "query" || over === "key" ? over : null;
}

// A column of tokens; only those in the window are in the DOM.

/** A virtually scrolled column of tokens. */
export class LineColumn {
  /**
   * @param {LineAxis} axis
   * @param {string} idPrefix
   * @param {{hover: (item: number | null) => void, select: (item: number) => void, focus: () => void}} handlers
   */
  constructor(axis, idPrefix, handlers) {
    this.axis = axis;
    this.prefix = `uwaga-${idPrefix}lines-${axis}-`;
    this.list = el("div", { class: "uwaga-lines-column", role: "listbox", tabindex: 0, "data-axis": axis,
      "aria-label": axis === "query" ? tr("Queries") : tr("Keys") });
    /** @type {Items} */
    this.items = { labels: [], noSpaceBefore: [], specials: new Set(), spans: new Int32Array(0), total: 0 };
    this.window = { offset: 0, height: 0, row: 22, total: 0 };
    this.caret = -1;
    /** @type {Map<number, HTMLElement>} */
    this.shown = new Map();
    const at = (/** @type {Event} */ event) => columnItem(event.target);
    this.list.addEventListener("pointerover", (event) => handlers.hover(at(event)));
    this.list.addEventListener("pointerleave", () => handlers.hover(null));
    this.list.addEventListener("click", (event) => {
      const item = at(event);
      if (item !== null) handlers.select(item);
    });
    this.list.addEventListener("focus", handlers.focus);
  }

  /** @param {Items} items */
  setItems(items) {
    this.items = items;
    this.window = { ...this.window, total: items.total, offset: 0 };
    this.caret = -1;
    for (const token of this.shown.values()) token.remove();
    this.shown.clear();
  }

  /** @param {number} height @param {number} row */
  resize(height, row) {
    this.window = { ...this.window, height, row };
    this.scrollTo(this.window.offset);
  }

  /** @param {number} offset @returns {boolean} whether it moved */
  scrollTo(offset) {
    const before = this.window.offset;
    this.window = { ...this.window, offset: windowClamp({ ...this.window, offset }) };
    return this.window.offset !== before;
  }

  /** @param {number} item @returns {boolean} */
  reveal(item) {
    return this.scrollTo(windowReveal(this.window, item));
  }

  /** @param {number} item */
  holds(item) {
    const [first, last] = this.range();
    return item >= first && item < last;
  }

  range() {
    return windowItems(this.window);
  }

  /** @param {number} item */
  middle(item) {
    return windowMiddle(this.window, item);
  }

  /**
   * Places the tokens of the window.
   * @param {(item: number) => {selected: boolean, weightLabel: string}} stateOf  weightLabel: text beside the token
   */
  render(stateOf) {
    const [first, last] = this.range();
    for (const [item, token] of this.shown) {
      if (item >= first && item < last) continue;
      token.remove();
      this.shown.delete(item);
    }
    for (let item = first; item < last; item++) {
      const token = this.shown.get(item) ?? this.token(item);
      token.style.setProperty("transform", `translateY(${this.middle(item) - this.window.row / 2}px)`);
      const { selected, weightLabel } = stateOf(item);
      token.setAttribute("aria-selected", String(selected));
      token.classList.toggle("uwaga-lines-caret", item === this.caret);
      const note = /** @type {HTMLElement} */ (token.querySelector(".uwaga-lines-token-weight"));
      if (note.textContent !== weightLabel) note.textContent = weightLabel;
    }
  }

  /** @param {number} item @returns {HTMLElement} */
  token(item) {
    const special = this.items.specials.has(item) ? " uwaga-lines-special" : "";
    const token = el("div", { class: `uwaga-lines-token${special}`, role: "option", id: `${this.prefix}${item}`, "data-item": item,
      "aria-posinset": item + 1, "aria-setsize": this.items.total, title: `${item} ${tokenText(this.items.labels[item])}` },
    el("span", { class: "uwaga-lines-token-weight" }), el("bdi", { class: "uwaga-lines-label", text: tokenText(this.items.labels[item]) }));
    this.shown.set(item, token);
    this.list.append(token);
    return token;
  }
}

/** @param {EventTarget | null} target @returns {number | null} */
function columnItem(target) {
  const token = target instanceof Element ? target.closest("[data-item]") : null;
  return token instanceof HTMLElement ? Number(token.dataset.item) : null;
}

// The window of a virtually scrolled column: which items are in it, and where.

/**
 * @typedef {object} LineWindow
 * @property {number} offset  pixels scrolled
 * @property {number} height  pixels of the window
 * @property {number} row  pixels of an item
 * @property {number} total  items
 */

/** @param {LineWindow} window @returns {number} the nearest offset without empty space at the ends */
export function windowClamp({ offset, height, row, total }) {
  return Math.max(0, Math.min(offset, total * row - height));
}

/** @param {LineWindow} window @returns {[number, number]} the items whose middle is in the window: first, one past the last */
export function windowItems({ offset, height, row, total }) {
  const first = Math.max(0, Math.ceil(offset / row - 0.5));
  const last = Math.min(total, Math.floor((offset + height) / row - 0.5) + 1);
  return [Math.min(first, total), Math.max(last, Math.min(first, total))];
}

/** @param {LineWindow} window @param {number} item @returns {number} pixels from the window's top to the item's middle */
export function windowMiddle({ offset, row }, item) {
  return (item + 0.5) * row - offset;
}

/** @param {LineWindow} window @param {number} item @returns {number} the offset that scrolls the item into view */
export function windowReveal(window, item) {
  const { offset, height, row } = window;
  const [top, bottom] = [item * row, (item + 1) * row];
  if (top >= offset && bottom <= offset + height) return offset;
  const near = Math.abs(top - offset) < 2 * height;
  const wanted = !near ? top - height / 2 : top < offset ? top : bottom - height;
  return windowClamp({ ...window, offset: wanted });
}
