// Text layout: line breaking by measured token widths, and virtual scrolling of the lines.

import { el, tokenText } from "../dom.js";

/** @typedef {import("../types.js").Items} Items */

const overscanLines = 12; // lines kept in the DOM above and below the view

/** Text of any length in a scrolled element: only lines in view and some around them are in the DOM. */
export class TextLayout {
  /**
   * @param {HTMLElement} scroller
   * @param {string} prefix  of the ids of tokens
   * @param {(element: HTMLElement, item: number) => void} paint  styles a token
   */
  constructor(scroller, prefix, paint) {
    this.scroller = scroller;
    this.prefix = prefix;
    this.paint = paint;
    this.body = el("div", { class: "uwaga-text-body" });
    scroller.append(this.body);
    /** @type {Items} */
    this.items = { labels: [], noSpaceBefore: [], specials: new Set(), spans: new Int32Array(0), total: 0 };
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
    this.body.dir = isRightToLeft(items.labels) ? "rtl" : "ltr";
    this.scroller.scrollTop = 0;
    this.set = { width: 0, font: "" };
    this.relayout();
  }

  /** Breaks the lines again if the width or the font has changed; the first item in view stays on top. */
  relayout() {
    const font = fontOf(this.scroller);
    const width = this.body.clientWidth;
    this.height = this.scroller.clientHeight;
    if (width < 1 || (width === this.set.width && font.font === this.set.font)) return;
    const top = this.itemAtTop();
    if (font.font !== this.set.font || this.widths.length !== this.items.total) this.measure(font);
    this.set = { width, font: font.font };
    this.lineHeight = Math.round(font.size * tokenSpacing.lineHeight);
    const { labels, noSpaceBefore, breaks } = this.items;
    const ends = Uint8Array.from(labels, (label, item) => (label.includes("\n") || breaks?.has(item + 1) ? 1 : 0));
    this.flow = breakLines({ widths: this.widths, noSpaceBefore, ends, width, gap: font.size * tokenSpacing.gap });
    this.body.style.setProperty("height", `${this.flow.lines * this.lineHeight}px`);
    this.body.style.setProperty("--text-line", `${this.lineHeight}px`);
    this.clear();
    if (top > 0) this.scroller.scrollTop = lineOfItem(this.flow.starts, top) * this.lineHeight;
    this.render();
  }

  /** @param {TextFont} font */
  measure(font) {
    const { labels, specials } = this.items;
    const width = makeTokenMeasure(font);
    this.widths = Float32Array.from(labels, (label, item) => width(label, specials.has(item)));
  }

  clear() {
    for (const line of this.shown.values()) line.remove();
    this.shown.clear();
  }

  /**
   * Adds the lines in view to the DOM, and removes the others.
   * @param {number} [top] scroll position, if the caller has read it already: reading it after a change of the DOM forces a layout
   */
  render(top = this.scroller.scrollTop) {
    const { height } = this;
    const [first, last] = linesInView({ top, height, lineHeight: this.lineHeight, lines: this.flow.lines, extra: overscanLines });
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
    const { labels, noSpaceBefore, specials, total } = this.items;
    const special = specials.has(item) ? " uwaga-text-special" : "";
    const space = first || noSpaceBefore[item] ? "" : " uwaga-text-spaced";
    const token = el("bdi", {
      class: `uwaga-text-token${special}${space}`, id: `${this.prefix}${item}`, "data-item": item, role: "option",
      "aria-posinset": item + 1, "aria-setsize": total, text: tokenText(labels[item]),
    });
    this.paint(token, item);
    return token;
  }

  /** Styles every token in the DOM again. */
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
    const [first, last] = linesInView({ top, height, lineHeight: this.lineHeight, lines: this.flow.lines, extra: 0 });
    return [this.flow.starts[first], this.flow.starts[last]];
  }

  /**
   * Scrolls an item into view: as little as needed, or to the middle.
   * @param {number} item
   * @param {"nearest" | "middle"} [how]
   */
  reveal(item, how = "nearest") {
    const { scroller, lineHeight } = this;
    const top = lineOfItem(this.flow.starts, item) * lineHeight;
    const { scrollTop, clientHeight } = scroller;
    const inside = top >= scrollTop && top + lineHeight <= scrollTop + clientHeight;
    if (inside) return;
    if (how === "middle" || Math.abs(top - scrollTop) > 2 * clientHeight) scroller.scrollTop = top - clientHeight / 2;
    else scroller.scrollTop = top < scrollTop ? top : top + lineHeight - clientHeight;
    this.render();
  }
}

// Line breaking: the position of every item is known without its being in the DOM.

/**
 * @typedef {object} FlowInput
 * @property {ArrayLike<number>} widths  pixels of each item
 * @property {ArrayLike<number>} noSpaceBefore  1: no space before it, and preferably no line break
 * @property {ArrayLike<number>} ends  1: a line break after it
 * @property {number} width  pixels of a line
 * @property {number} gap  pixels of a space
 */

/**
 * @typedef {object} Flow
 * @property {Int32Array} starts  (lines + 1,): the first item of each line, then the number of items
 * @property {Float32Array} lefts  pixels from the line's beginning to each item
 * @property {number} lines
 */

/**
 * Greedy line breaking. Glued items stay together unless they are wider than a line.
 * @param {FlowInput} input
 * @returns {Flow}
 */
export function breakLines({ widths, noSpaceBefore, ends, width, gap }) {
  const total = widths.length;
  const starts = new Int32Array(total + 1);
  const lefts = new Float32Array(total);
  let [lines, x, item] = [0, 0, 0];
  const newLine = (/** @type {number} */ first) => {
    starts[lines++] = first;
    x = 0;
  };
  if (total) newLine(0);
  while (item < total) {
    let [end, group] = [item + 1, widths[item]];
    while (end < total && noSpaceBefore[end] && !ends[end - 1]) group += widths[end++];
    const space = x > 0 && !noSpaceBefore[item] ? gap : 0;
    if (x > 0 && x + space + group > width) newLine(item);
    else x += space;
    for (; item < end; item++) {
      if (x > 0 && x + widths[item] > width && group > width) newLine(item);
      lefts[item] = x;
      x += Math.min(widths[item], width);
    }
    if (ends[item - 1] && item < total) newLine(item);
  }
  starts[lines] = total;
  return { starts: starts.slice(0, lines + 1), lefts, lines };
}

/**
 * @param {Int32Array} starts ascending
 * @param {number} item
 * @returns {number} the line that contains the item
 */
export function lineOfItem(starts, item) {
  let [low, high] = [0, Math.max(0, starts.length - 2)];
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (starts[middle] <= item) low = middle;
    else high = middle - 1;
  }
  return low;
}

/**
 * The lines in view, with overscan.
 * @param {{top: number, height: number, lineHeight: number, lines: number, extra: number}} view  pixels; extra in lines
 * @returns {[number, number]} first, one past the last
 */
export function linesInView({ top, height, lineHeight, lines, extra }) {
  const first = Math.max(0, Math.floor(top / lineHeight) - extra);
  const last = Math.min(lines, Math.ceil((top + height) / lineHeight) + extra);
  return [Math.min(first, lines), Math.max(last, Math.min(first, lines))];
}

/**
 * The item of a line that is nearest to x.
 * @param {Flow} flow
 * @param {ArrayLike<number>} widths
 * @param {number} line
 * @param {number} x  pixels
 * @returns {number}
 */
export function nearestItem(flow, widths, line, x) {
  const [first, last] = [flow.starts[line], flow.starts[line + 1]];
  let best = first;
  const distance = (/** @type {number} */ item) => Math.abs(flow.lefts[item] + widths[item] / 2 - x);
  for (let item = first; item < last; item++) if (distance(item) < distance(best)) best = item;
  return best;
}

/**
 * @param {string[]} labels
 * @returns {boolean} whether most letters are of a right-to-left script
 */
export function isRightToLeft(labels) {
  let [right, left] = [0, 0];
  for (let i = 0; i < labels.length && right + left < 2000; i++) {
    right += (labels[i].match(/[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]/g) ?? []).length;
    left += (labels[i].match(/[A-Za-z\u00c0-\u058f\u0900-\u1fff\u3040-\u9fff\uac00-\ud7a3]/g) ?? []).length;
  }
  return right > left;
}

// Token widths in the page's font.

/**
 * @typedef {object} TextFont
 * @property {string} font  for a canvas
 * @property {number} size  pixels
 */

/** Spacing of tokens relative to the font size; text.css has the same values. */
export const tokenSpacing = { special: 0.9, specialSize: 0.72, gap: 0.25, lineHeight: 32 / 18 };

/**
 * @param {TextFont} font
 * @returns {(label: string, special: boolean) => number} width of a token with its padding in pixels
 */
function makeTokenMeasure({ font, size }) {
  const context = document.createElement("canvas").getContext("2d");
  /** @type {Map<string, number>} */
  const known = new Map();
  const letters = (/** @type {string} */ label) => {
    const text = tokenText(label);
    if (!context) return text.length * size * 0.6;
    return context.measureText(text).width;
  };
  if (context) context.font = font;
  return (label, special) => {
    let width = known.get(label);
    if (width === undefined) {
      width = letters(label);
      known.set(label, width);
    }
    // Browsers position text on whole or half pixels: rounding up keeps a line within its width.
    const room = special ? width * tokenSpacing.specialSize + tokenSpacing.special * size + 2 : width;
    return Math.ceil(room * 4) / 4;
  };
}

/**
 * @param {Element} element
 * @returns {TextFont}
 */
function fontOf(element) {
  const { fontStyle, fontWeight, fontSize, fontFamily } = getComputedStyle(element);
  return { font: `${fontStyle} ${fontWeight} ${fontSize} ${fontFamily}`, size: parseFloat(fontSize) || 16 };
}
