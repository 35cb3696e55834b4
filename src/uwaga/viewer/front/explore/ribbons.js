// Cross-attention as ribbons: the words of one text below, each of which sends out a ribbon of the same width, and above what they look at.

import { el, isModified, isRightToLeft, itemOf, linkGradient, svgEl, uniqueName } from "../dom.js";
import { percentText } from "../format.js";
import { tr } from "../languages.js";
import { stageWord } from "./stage.js";

/** @typedef {import("../types.js").Items} Items */
/** @typedef {{start: number, width: number}} Bar  pixels along a row */

/** Items of a row up to which ribbons are drawn. */
export const mostRibbons = 30;
/** Pixels of a bar that is 100 %, at most; and as a share of what a column has. */
const widestBar = 86, barShare = 0.62;
const ribbonHeight = 230, ribbonLeast = 0.004, statedShare = 0.05, letterSize = 52;

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
    const room = (one + gap) * shrunk, own = received[key] * full * shrunk, start = at + (room - own) / 2;
    at += room;
    return { start, width: own };
  });
  return { queries: Array.from({ length: rows }, (_, query) => ({ start: step * (query + 0.5) - full / 2, width: full })), keys, received, full, letters: Math.min(step, width / columns) };
}

/** @param {{pick: (item: number) => void, point: (item: number) => void, pickKey: (key: number) => void}} act */
export function makeRibbons({ pick, point, pickKey }) {
  const prefix = uniqueName();
  const keysRow = el("div", { class: "uwaga-ribbon-row", "data-axis": "key" }), queriesRow = el("div", { class: "uwaga-ribbon-row", "data-axis": "query", role: "group",
    "aria-label": tr("The text: each word shows what it looks at"), on: { keydown, pointerleave: () => point(-1),
      pointerover: (/** @type {PointerEvent} */ event) => { if (event.pointerType === "mouse") point(itemOf(event)); } } });
  const picture = svgEl("svg", { class: "uwaga-ribbons", "aria-hidden": "true", height: ribbonHeight });
  const element = el("div", { class: "uwaga-ribbon-stage", hidden: true }, keysRow, picture, queriesRow);
  let drawnOf = "";

  /** @param {KeyboardEvent} event */
  function keydown(event) {
    const turn = queriesRow.dir === "rtl" ? -1 : 1, by = { ArrowRight: turn, ArrowLeft: -turn, ArrowDown: 1, ArrowUp: -1 }[event.key], at = itemOf(event);
    if (by === undefined || at < 0 || isModified(event, true)) return;
    event.preventDefault();
    event.stopPropagation();
    const count = queriesRow.childElementCount, to = (at + by + count) % count;
    /** @type {HTMLElement} */ (queriesRow.children[to]).focus();
    pick(to);
  }

  /** @param {HTMLElement} row @param {Items} items @param {(item: number) => void} act */
  function setWords(row, items, act) {
    row.dir = isRightToLeft(items.labels) ? "rtl" : "ltr";
    row.replaceChildren(...items.labels.map((_, item) => stageWord(items, item, { click: () => act(item) })));
  }

  return {
    element,
    hide: () => { element.hidden = true; },
    /**
     * @param {{queries: Items, keys: Items, name: string, cells: Float32Array, rows: number, columns: number, query: number | null, key: number | null,
     *   sinks: ReadonlySet<number>, last: number}} content  cells: the exact weights of the head; last: the last query that is there
     */
    show({ queries, keys, name, cells, rows, columns, query, key, sinks, last }) {
      element.hidden = false;
      const width = element.clientWidth, bars = ribbonBars(cells, rows, columns, width);
      if (drawnOf !== name) { setWords(keysRow, keys, pickKey); setWords(queriesRow, queries, pick); drawnOf = name; }
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
      for (let from = 0; from < rows; from++) for (let to = 0; to < columns; to++) {
        const weight = cells[from * columns + to], wide = weight * scale, high = wide * fit(to);
        const [x, y] = [sent[from], taken[to]];
        sent[from] += wide;
        taken[to] += high;
        if (weight < ribbonLeast || from > last) continue;
        const middle = ribbonHeight / 2, ends = [x + wide, y + high].map((one, i) => Math.max(one, [x, y][i] + 0.8));
        drawn.push(svgEl("path", { "data-role": from === query ? "asks" : query === null ? null : "faint", "data-query": from, "data-key": to, class: sinks.has(to) ? "uwaga-ribbon-sink" : null,
          fill: sinks.has(to) ? null : `url(#${prefix})`, on: { click: () => { pick(from); pickKey(to); } },
          d: `M${x.toFixed(1)} ${ribbonHeight}C${x.toFixed(1)} ${middle} ${y.toFixed(1)} ${middle} ${y.toFixed(1)} 0L${ends[1].toFixed(1)} 0C${ends[1].toFixed(1)} ${middle} ${ends[0].toFixed(1)} ${middle} ${ends[0].toFixed(1)} ${ribbonHeight}z` }));
      }
      const bar = (/** @type {Bar} */ { start, width: wide }, /** @type {number} */ y, /** @type {string} */ role) => svgEl("path", { class: "uwaga-ribbon-bar", "data-role": role, d: `M${start} ${y}h${wide}` });
      picture.setAttribute("width", String(width));
      picture.replaceChildren(svgEl("defs", {}, linkGradient(prefix, { x1: 0, x2: 0, y1: ribbonHeight, y2: 0 })),
      ...drawn, ...above.map((one) => bar(one, 1, "asked")), ...below.map((one) => bar(one, ribbonHeight - 1, "asks")));
      const weightOf = (/** @type {number} */ item) => (query === null ? NaN : cells[query * columns + item]);
      const most = query === null ? -1 : Array.from({ length: columns }, (_, item) => item).reduce((best, item) => (sinks.has(item) || (best >= 0 && weightOf(item) <= weightOf(best)) ? best : item), -1);
      [...keysRow.children].forEach((button, item) => {
        const share = Number.isNaN(weightOf(item)) ? "" : percentText(weightOf(item));
        /** @type {HTMLElement} */ (button).dataset.role = item === (key ?? most) ? "asked" : "dim";
        /** @type {Element} */ (button.children[1]).textContent = share ? ", " : "";
        /** @type {Element} */ (button.lastElementChild).textContent = weightOf(item) >= statedShare ? share : "";
      });
      [...queriesRow.children].forEach((button, item) => {
        /** @type {HTMLElement} */ (button).dataset.role = item === query ? "asks" : "dim";
        /** @type {HTMLElement} */ (button).tabIndex = item === (query ?? 0) ? 0 : -1;
        button.setAttribute("aria-pressed", String(item === query));
        button.toggleAttribute("data-unwritten", item > last);
      });
    },
  };
}
