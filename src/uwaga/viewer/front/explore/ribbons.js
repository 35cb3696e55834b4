// Cross-attention as ribbons: the words of one text below, each of which sends out a ribbon of the same width, and above what they look at.
// Of a longer text what is around the picked word is shown; the rest is a fold on each side, with its share.

import { el, isModified, isRightToLeft, itemOf, linkGradient, movingMouse, svgEl, uniqueName } from "../dom.js";
import { percentText } from "../format.js";
import { decimalText, tr, trN } from "../languages.js";
import { strongestItems } from "../weights.js";
import { wordButton } from "./arc_view.js";
/** @import { Items } from "../types.js" */

/** @typedef {{start: number, width: number}} Bar  pixels along a row */
/** @typedef {{first: number, stop: number, isFold: boolean}} Column  an item, or a fold of several */

/** Items of a row that are all shown; of more, so many on each side of the picked one; pixels of a column at least; and items up to which ribbons are drawn. */
const mostColumns = 30, foldedSide = 12, leastColumn = 26;
export const mostRibbons = 400;
/** Pixels of a bar that is 100 %, at most; and as a share of what a column has. */
const widestBar = 86, barShare = 0.62;
const ribbonHeight = 230, ribbonLeast = 0.004, statedShare = 0.05, letterSize = 52, tightColumn = 44;

/**
 * Where the bars are: below one for each query, all of the same width; above one for each key, as wide as what it receives.
 * @param {ArrayLike<number>} cells  (rows, columns)
 * @param {number} rows @param {number} columns
 * @param {number} width  pixels
 * @returns {{queries: Bar[], keys: Bar[], received: number[], full: number, letters: number}} received: the weight of each key; full: the width of 100 %;
 *   letters: pixels of a column
 */
export function ribbonBars(cells, rows, columns, width) {
  const step = width / rows, full = Math.min(widestBar, step * barShare);
  const received = Array.from({ length: columns }, (_, key) => {
    let sum = 0;
    for (let query = 0; query < rows; query++) sum += cells[query * columns + key];
    return sum;
  });
  // What is not looked at keeps room for its letter.
  const least = Math.min(full * 0.55, (width - full * rows) / columns + full * 0.2), wide = received.map((sum) => Math.max(least, sum * full));
  const gap = Math.max(0, Math.min(32, (width - wide.reduce((sum, one) => sum + one, 0)) / columns));
  const shrunk = Math.min(1, width / (wide.reduce((sum, one) => sum + one, 0) + gap * columns));
  let at = (width - (wide.reduce((sum, one) => sum + one, 0) + gap * columns) * shrunk) / 2;
  const keys = wide.map((one, key) => {
    const room = (one + gap) * shrunk, barWidth = received[key] * full * shrunk, start = at + (room - barWidth) / 2;
    at += room;
    return { start, width: barWidth };
  });
  return { queries: Array.from({ length: rows }, (_, query) => ({ start: step * (query + 0.5) - full / 2, width: full })), keys, received, full, letters: Math.min(step, width / columns) };
}

/**
 * The columns of a row: its items, of more than 30 or than fit those around one of them, with a fold on each side.
 * @param {number} total @param {number} middle @param {number} width  pixels @returns {Column[]}
 */
export function ribbonColumns(total, middle, width) {
  const items = (/** @type {number} */ from, /** @type {number} */ to) => Array.from({ length: to - from }, (_, i) => ({ first: from + i, stop: from + i + 1, isFold: false }));
  const fit = Math.floor(width / leastColumn), side = Math.max(1, Math.min(foldedSide, Math.floor((fit - 3) / 2)));
  if (total <= Math.min(mostColumns, Math.max(fit, 2 * side + 1))) return items(0, total);
  const first = Math.max(0, Math.min(middle - side, total - 2 * side - 1)), stop = first + 2 * side + 1;
  return [...(first ? [{ first: 0, stop: first, isFold: true }] : []), ...items(first, stop), ...(stop < total ? [{ first: stop, stop: total, isFold: true }] : [])];
}

/**
 * The weights of the columns: of a fold of keys the exact sum; a fold of queries sends out nothing here.
 * @param {ArrayLike<number>} cells  (rows, of) @param {number} of  keys of a row @param {Column[]} rows @param {Column[]} columns
 * @returns {Float64Array} (rows, columns)
 */
export function ribbonCells(cells, of, rows, columns) {
  return Float64Array.from({ length: rows.length * columns.length }, (_, at) => {
    const { first: query, isFold } = rows[Math.floor(at / columns.length)], { first, stop } = columns[at % columns.length];
    let sum = 0;
    if (!isFold) for (let key = first; key < stop; key++) sum += cells[query * of + key];
    return sum;
  });
}

/** @param {number} count */
const foldText = (count) => trN("{count} folded", "{count} folded", count);

/** @param {{pick: (item: number) => void, point: (item: number) => void, pickKey: (key: number) => void}} act */
export function makeRibbons({ pick, point, pickKey }) {
  const prefix = uniqueName();
  const keysRow = el("div", { class: "uwaga-ribbon-row", "data-axis": "key" }), queriesRow = el("div", { class: "uwaga-ribbon-row", "data-axis": "query", role: "group",
    "aria-label": tr("The text: each word shows what it looks at"), on: { keydown, pointerleave: () => point(-1),
      pointermove: movingMouse(point) } });
  const picture = svgEl("svg", { class: "uwaga-ribbons", "aria-hidden": "true", height: ribbonHeight });
  const element = el("div", { class: "uwaga-ribbon-stage", hidden: true }, keysRow, picture, queriesRow);
  let total = 0;
  let drawnOf = "", focused = -1;

  /** @param {KeyboardEvent} event */
  function keydown(event) {
    const turn = queriesRow.dir === "rtl" ? -1 : 1, by = { ArrowRight: turn, ArrowLeft: -turn, ArrowDown: 1, ArrowUp: -1 }[event.key], at = itemOf(event);
    if (by === undefined || at < 0 || isModified(event, true)) return;
    event.preventDefault();
    event.stopPropagation();
    const to = (at + by + total) % total;
    // Its button may come with the columns around it.
    focused = to;
    pick(to);
  }

  /** @param {HTMLElement} row @param {Items} items @param {Column[]} columns @param {(item: number) => void} act @param {(fold: Column) => number} opens  the item that a click on a fold picks */
  function setWords(row, items, columns, act, opens) {
    row.dir = isRightToLeft(items.labels) ? "rtl" : "ltr";
    row.replaceChildren(...columns.map((column) => (column.isFold ? foldButton(column, () => act(opens(column))) : wordButton(items, column.first, { click: () => act(column.first) }))));
  }

  /** @param {Column} fold @param {() => void} open */
  function foldButton({ first, stop }, open) {
    return el("button", { type: "button", class: "uwaga-stage-word uwaga-ribbon-fold", on: { click: open } },
      el("bdi", { text: `+${stop - first}` }), el("span", { class: "uwaga-visually-hidden" }), el("small"));
  }

  return {
    element,
    hide: () => { element.hidden = true; },
    /**
     * @param {{queries: Items, keys: Items, name: string, cells: ArrayLike<number>, query: number | null, key: number | null,
     *   sinks: ReadonlySet<number>, isKnown: boolean, last: number, middle: {query: number, key: number}}} content  cells: the exact weights of the head;
     *   isKnown: whether those of the query are among them yet; last: the last query that is there; middle: what is in the middle of rows that do not fit
     */
    show({ queries, keys, name, cells: all, query, key, sinks: atRest, isKnown, last, middle }) {
      element.hidden = false;
      total = queries.total;
      const width = element.clientWidth, shownRows = ribbonColumns(queries.total, middle.query, width), shownColumns = ribbonColumns(keys.total, middle.key, width), rows = shownRows.length, columns = shownColumns.length;
      const cells = ribbonCells(all, keys.total, shownRows, shownColumns), bars = ribbonBars(cells, rows, columns, width);
      const isRest = (/** @type {number} */ to) => shownColumns[to].isFold || atRest.has(shownColumns[to].first);
      const shown = [name, ...[shownRows, shownColumns].flatMap(([{ stop, isFold }, ...others]) => [stop, isFold, others.length])].join(" ");
      if (drawnOf !== shown) {
        const hadFocus = queriesRow.contains(/** @type {Document | ShadowRoot} */ (element.getRootNode()).activeElement);
        // A fold of keys opens at what is looked at most in it, one of queries at its next word.
        setWords(keysRow, keys, shownColumns, pickKey, ({ first, stop }) => strongestItems(Array.from({ length: stop - first }, (_, i) => all[middle.query * keys.total + first + i]), 1)[0] + first || first);
        setWords(queriesRow, queries, shownRows, pick, ({ first, stop }) => (first ? first : stop - 1));
        drawnOf = shown;
        if (hadFocus && focused < 0) focused = query ?? 0;
      }
      const mirrored = (/** @type {HTMLElement} */ row, /** @type {Bar} */ bar) => (row.dir === "rtl" ? { ...bar, start: width - bar.start - bar.width } : bar);
      const above = bars.keys.map((bar) => mirrored(keysRow, bar)), below = bars.queries.map((bar) => mirrored(queriesRow, bar));
      const size = `${Math.max(14, Math.min(letterSize, bars.letters * 0.8))}px`;
      const longest = Math.max(...queries.labels.map((label) => label.length)), small = `${Math.max(11, Math.min(letterSize, (bars.full * 1.5) / Math.max(1.5, longest * 0.8)))}px`;
      [[keysRow, above, size], [queriesRow, below, small]].forEach(([row, places, letters]) => [.../** @type {HTMLElement} */ (row).children].forEach((button, item) => {
        const { start, width: wide } = /** @type {Bar[]} */ (places)[item];
        /** @type {HTMLElement} */ (button).style.setProperty("left", `${start + wide / 2}px`);
        /** @type {HTMLElement} */ (row).style.setProperty("font-size", String(letters));
      }));
      const sent = below.map(({ start }) => start), taken = above.map(({ start }) => start), scale = bars.full;
      const fit = (/** @type {number} */ at) => (above[at].width ? above[at].width / Math.max(1e-9, bars.received[at] * scale) : 0);
      /** @type {SVGElement[]} */
      const drawn = [];
      for (let row = 0; row < rows; row++) for (let to = 0; to < columns; to++) {
        const weight = cells[row * columns + to], from = shownRows[row].first, { first, isFold } = shownColumns[to], wide = weight * scale, high = wide * fit(to);
        const [x, y] = [sent[row], taken[to]];
        sent[row] += wide;
        taken[to] += high;
        if (weight < ribbonLeast || from > last) continue;
        const middle = ribbonHeight / 2, ends = [x + wide, y + high].map((one, i) => Math.max(one, [x, y][i] + 0.8));
        drawn.push(svgEl("path", { "data-role": from === query ? "asks" : query === null ? null : "faint", "data-query": from, "data-key": isFold ? null : first, class: isRest(to) ? "uwaga-ribbon-sink" : null,
          fill: isRest(to) ? null : `url(#${prefix})`, on: { click: () => { pick(from); if (!isFold) pickKey(first); } },
          d: `M${x.toFixed(1)} ${ribbonHeight}C${x.toFixed(1)} ${middle} ${y.toFixed(1)} ${middle} ${y.toFixed(1)} 0L${ends[1].toFixed(1)} 0C${ends[1].toFixed(1)} ${middle} ${ends[0].toFixed(1)} ${middle} ${ends[0].toFixed(1)} ${ribbonHeight}z` }));
      }
      const bar = (/** @type {Bar} */ { start, width: wide }, /** @type {number} */ y, /** @type {string} */ role) => svgEl("path", { class: "uwaga-ribbon-bar", "data-role": role, d: `M${start} ${y}h${wide}` });
      picture.setAttribute("width", String(width));
      picture.replaceChildren(svgEl("defs", {}, linkGradient(prefix, { x1: 0, x2: 0, y1: ribbonHeight, y2: 0 })),
      ...drawn, ...above.map((one) => bar(one, 1, "asked")), ...below.flatMap((one, row) => (shownRows[row].isFold ? [] : [bar(one, ribbonHeight - 1, "asks")])));
      const asking = shownRows.findIndex(({ first, isFold }) => !isFold && first === query);
      const weightOf = (/** @type {number} */ to) => (asking < 0 || !isKnown ? NaN : cells[asking * columns + to]);
      const most = asking < 0 || !isKnown ? -1 : Array.from({ length: columns }, (_, to) => to).reduce((best, to) => (isRest(to) || (best >= 0 && weightOf(to) <= weightOf(best)) ? best : to), -1);
      [...keysRow.children].forEach((button, to) => {
        const share = Number.isNaN(weightOf(to)) ? "" : percentText(weightOf(to)), { first, stop, isFold } = shownColumns[to];
        /** @type {HTMLElement} */ (button).dataset.role = !isFold && (key === null ? to === most : first === key) ? "asked" : "dim";
        /** @type {Element} */ (button.children[1]).textContent = [isFold ? ` ${foldText(stop - first)}` : "", share ? ", " : ""].join("");
        // What is folded is stated whatever it is. Beside another number there is no room for a tenth of a per cent on a phone.
        const isTight = !isFold && bars.letters < tightColumn && [to - 1, to + 1].some((other) => weightOf(other) >= statedShare);
        /** @type {Element} */ (button.lastElementChild).textContent = !isFold && !(weightOf(to) >= statedShare) ? "" : isTight ? `${decimalText(100 * weightOf(to), 0)}%` : share;
      });
      [...queriesRow.children].forEach((button, row) => {
        const { first: item, stop, isFold } = shownRows[row];
        if (isFold) {
          /** @type {Element} */ (button.children[1]).textContent = ` ${foldText(stop - item)}`;
          return;
        }
        /** @type {HTMLElement} */ (button).dataset.role = item === query ? "asks" : "dim";
        /** @type {HTMLElement} */ (button).tabIndex = item === (query ?? 0) ? 0 : -1;
        button.setAttribute("aria-pressed", String(item === query));
        button.toggleAttribute("data-unwritten", item > last);
        if (item === focused) /** @type {HTMLElement} */ (button).focus();
      });
      focused = -1;
    },
  };
}
