// A column of tokens, of which only those in the window are in the page.
import { el, tokenText } from "../dom.js";
import { windowClamp, windowItems, windowMiddle, windowReveal } from "./window.js";

/** @typedef {import("../types.js").Items} Items */
/** @typedef {"query" | "key"} LineAxis */

/** Tokens of one side, scrolled by pixels. */
export class LineColumn {
  /**
   * @param {LineAxis} axis
   * @param {string} part  of the page
   * @param {{hover: (item: number | null) => void, pick: (item: number) => void, focus: () => void}} told
   */
  constructor(axis, part, told) {
    this.axis = axis;
    this.prefix = `uwaga-${part}lines-${axis}-`;
    this.list = el("div", { class: "uwaga-lines-column", role: "listbox", tabindex: 0, "data-axis": axis,
      "aria-label": axis === "query" ? "Queries" : "Keys" });
    /** @type {Items} */
    this.items = { labels: [], glued: [], specials: new Set(), spans: new Int32Array(0), total: 0 };
    this.window = { offset: 0, height: 0, row: 22, total: 0 };
    this.caret = -1;
    /** @type {Map<number, HTMLElement>} */
    this.shown = new Map();
    const at = (/** @type {Event} */ event) => columnItem(event.target);
    this.list.addEventListener("pointerover", (event) => told.hover(at(event)));
    this.list.addEventListener("pointerleave", () => told.hover(null));
    this.list.addEventListener("click", (event) => {
      const item = at(event);
      if (item !== null) told.pick(item);
    });
    this.list.addEventListener("focus", told.focus);
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
   * Puts the tokens of the window in their places.
   * @param {(item: number) => {picked: boolean, aside: string}} look  aside: what is written beside the token
   */
  render(look) {
    const [first, last] = this.range();
    for (const [item, token] of this.shown) {
      if (item >= first && item < last) continue;
      token.remove();
      this.shown.delete(item);
    }
    for (let item = first; item < last; item++) {
      const token = this.shown.get(item) ?? this.token(item);
      token.style.setProperty("transform", `translateY(${this.middle(item) - this.window.row / 2}px)`);
      const { picked, aside } = look(item);
      token.setAttribute("aria-selected", String(picked));
      token.classList.toggle("uwaga-lines-caret", item === this.caret);
      const note = /** @type {HTMLElement} */ (token.querySelector(".uwaga-lines-aside"));
      if (note.textContent !== aside) note.textContent = aside;
    }
  }

  /** @param {number} item @returns {HTMLElement} */
  token(item) {
    const special = this.items.specials.has(item) ? " uwaga-lines-special" : "";
    const token = el("div", { class: `uwaga-lines-token${special}`, role: "option", id: `${this.prefix}${item}`, "data-item": item,
      "aria-posinset": item + 1, "aria-setsize": this.items.total, title: `${item} ${tokenText(this.items.labels[item])}` },
    el("span", { class: "uwaga-lines-aside" }), el("bdi", { class: "uwaga-lines-label", text: tokenText(this.items.labels[item]) }));
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
