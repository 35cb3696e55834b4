// Both columns, and how they move: together where they are locked, each on its own where not.
import { LineColumn } from "./column.js";

/** @typedef {import("../types.js").Items} Items */
/** @typedef {"query" | "key"} LineAxis */

/**
 * @typedef {object} PairTold
 * @property {(axis: LineAxis, item: number | null) => void} hover
 * @property {(axis: LineAxis, item: number) => void} pick
 * @property {(axis: LineAxis) => void} focus
 */

/** The columns of queries and of keys. */
export class LinePair {
  /**
   * @param {string} part  of the page
   * @param {PairTold} told
   */
  constructor(part, told) {
    this.locked = true;
    const make = (/** @type {LineAxis} */ axis) => new LineColumn(axis, part, {
      hover: (item) => told.hover(axis, item), pick: (item) => told.pick(axis, item), focus: () => told.focus(axis),
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
   * Brings an item into its window; a locked column moves as far.
   * @param {LineAxis} axis
   * @param {number} item
   * @param {boolean} [middle]  to the middle of the window, unless it is there already
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
   * Brings what is picked into its windows. Locked columns may not show both picks: that of the side where the keys act counts.
   * @param {{query: number | null, key: number | null}} picks
   * @param {LineAxis} side
   */
  revealPicks(picks, side) {
    const far = side === "query" ? "key" : "query";
    const other = picks[far];
    const own = picks[side];
    if (other !== null && other !== this.column(far).caret) this.reveal(far, other, true);
    if (own !== null && (own !== this.column(side).caret || !this.column(side).holds(own))) this.reveal(side, own, true);
  }

  /**
   * Where a step of the keys leads.
   * @param {LineAxis} axis
   * @param {import("./keys.js").LineStep} step
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

  /** @param {LineAxis} from @param {LineAxis} axis @returns {number} the item beside the one that the keys were on */
  beside(from, axis) {
    const column = this.column(axis);
    if (column.caret >= 0) return column.caret;
    return Math.min(column.items.total - 1, Math.max(column.range()[0], this.column(from).caret));
  }
}

/** @param {Event} event @returns {LineAxis | null} the column it is over; null: between them */
export function lineAxisAt({ target }) {
  const over = target instanceof Element ? target.closest("[data-axis]")?.getAttribute("data-axis") : null;
  return over === "query" || over === "key" ? over : null;
}
