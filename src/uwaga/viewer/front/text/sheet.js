// The lines of running text that are in the page: those in view and a few around them.
import { el, tokenText } from "../dom.js";
import { flowLine, flowLines, flowRightToLeft, flowWindow } from "./flow.js";
import { fontOf, makeWidths, tokenRoom } from "./widths.js";

/** @typedef {import("../types.js").Items} Items */
/** @typedef {import("./flow.js").Flow} Flow */

const sheetExtra = 12; // lines in the page above and below the view

/** Text of any length in a scrolled element. */
export class TextSheet {
  /**
   * @param {HTMLElement} scroller
   * @param {string} prefix  of the ids of tokens
   * @param {(element: HTMLElement, item: number) => void} paint  how a token looks now
   */
  constructor(scroller, prefix, paint) {
    this.scroller = scroller;
    this.prefix = prefix;
    this.paint = paint;
    this.body = el("div", { class: "uwaga-text-body" });
    scroller.append(this.body);
    /** @type {Items} */
    this.items = { labels: [], glued: [], specials: new Set(), spans: new Int32Array(0), total: 0 };
    /** @type {Flow} */
    this.flow = { starts: new Int32Array(1), lefts: new Float32Array(0), lines: 0 };
    this.widths = new Float32Array(0);
    this.lineHeight = 1;
    this.height = 0; // of the view, in pixels
    /** @type {Map<number, HTMLElement>} */
    this.shown = new Map();
    this.set = { width: 0, font: "" };
  }

  /** @param {Items} items */
  setItems(items) {
    this.items = items;
    this.body.dir = flowRightToLeft(items.labels) ? "rtl" : "ltr";
    this.scroller.scrollTop = 0;
    this.set = { width: 0, font: "" };
    this.layout();
  }

  /** Sets the text again where the width or the letters have changed; what was on top stays there. */
  layout() {
    const font = fontOf(this.scroller);
    const width = this.body.clientWidth;
    this.height = this.scroller.clientHeight;
    if (width < 1 || (width === this.set.width && font.font === this.set.font)) return;
    const top = this.itemAtTop();
    if (font.font !== this.set.font || this.widths.length !== this.items.total) this.measure(font);
    this.set = { width, font: font.font };
    this.lineHeight = Math.round(font.size * tokenRoom.lineHeight);
    const { labels, glued } = this.items;
    const ends = Uint8Array.from(labels, (label) => (label.includes("\n") ? 1 : 0));
    this.flow = flowLines({ widths: this.widths, glued, ends, width, gap: font.size * tokenRoom.gap });
    this.body.style.setProperty("height", `${this.flow.lines * this.lineHeight}px`);
    this.body.style.setProperty("--text-line", `${this.lineHeight}px`);
    this.clear();
    if (top > 0) this.scroller.scrollTop = flowLine(this.flow.starts, top) * this.lineHeight;
    this.render();
  }

  /** @param {import("./widths.js").TextFont} font */
  measure(font) {
    const { labels, specials } = this.items;
    const width = makeWidths(font);
    this.widths = Float32Array.from(labels, (label, item) => width(label, specials.has(item)));
  }

  clear() {
    for (const line of this.shown.values()) line.remove();
    this.shown.clear();
  }

  /**
   * Brings the lines in view into the page, and takes the others out.
   * @param {number} [top] where the text is scrolled to: read by the caller before it changes the page, which costs less
   */
  render(top = this.scroller.scrollTop) {
    const { height } = this;
    const [first, last] = flowWindow({ top, height, lineHeight: this.lineHeight, lines: this.flow.lines, extra: sheetExtra });
    for (const [line, element] of this.shown) {
      if (line >= first && line < last) continue;
      element.remove();
      this.shown.delete(line);
    }
    for (let line = first; line < last; line++) {
      if (this.shown.has(line)) continue;
      const element = this.line(line);
      this.shown.set(line, element);
      this.body.append(element);
    }
  }

  /** @param {number} line @returns {HTMLElement} */
  line(line) {
    const { starts } = this.flow;
    const element = el("div", { class: "uwaga-text-line", role: "presentation" });
    element.style.setProperty("transform", `translateY(${line * this.lineHeight}px)`);
    for (let item = starts[line]; item < starts[line + 1]; item++) element.append(this.token(item, item === starts[line]));
    return element;
  }

  /** @param {number} item @param {boolean} first of its line @returns {HTMLElement} */
  token(item, first) {
    const { labels, glued, specials, total } = this.items;
    const special = specials.has(item) ? " uwaga-text-special" : "";
    const space = first || glued[item] ? "" : " uwaga-text-apart";
    const token = el("bdi", {
      class: `uwaga-text-token${special}${space}`, id: `${this.prefix}${item}`, "data-item": item, role: "option",
      "aria-posinset": item + 1, "aria-setsize": total, text: tokenText(labels[item]),
    });
    this.paint(token, item);
    return token;
  }

  /** Paints every token in the page again. */
  repaint() {
    for (const line of this.shown.values()) {
      for (const token of line.children) this.paint(/** @type {HTMLElement} */ (token),
        Number(/** @type {HTMLElement} */ (token).dataset.item));
    }
  }

  /** @returns {number} */
  itemAtTop() {
    const line = Math.min(this.flow.lines - 1, Math.floor(this.scroller.scrollTop / this.lineHeight));
    return line > 0 ? this.flow.starts[line] : 0;
  }

  /** @returns {[number, number]} the items in view: first, one past the last */
  visible() {
    const { scrollTop: top, clientHeight: height } = this.scroller;
    const [first, last] = flowWindow({ top, height, lineHeight: this.lineHeight, lines: this.flow.lines, extra: 0 });
    return [this.flow.starts[first], this.flow.starts[last]];
  }

  /**
   * Scrolls as little as it takes, or to the middle.
   * @param {number} item
   * @param {"nearest" | "middle"} [how]
   */
  reveal(item, how = "nearest") {
    const { scroller, lineHeight } = this;
    const top = flowLine(this.flow.starts, item) * lineHeight;
    const { scrollTop, clientHeight } = scroller;
    const inside = top >= scrollTop && top + lineHeight <= scrollTop + clientHeight;
    if (inside) return;
    if (how === "middle" || Math.abs(top - scrollTop) > 2 * clientHeight) scroller.scrollTop = top - clientHeight / 2;
    else scroller.scrollTop = top < scrollTop ? top : top + lineHeight - clientHeight;
    this.render();
  }
}
