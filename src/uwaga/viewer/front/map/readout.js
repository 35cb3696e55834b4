// The numbers of the hovered cell and of the selected one, and how exact the picture is, in words.

import { el, tokenElement } from "../dom.js";
import { countText, numberText, ordinalText, percentText } from "../format.js";
import { isAbort } from "../hosts.js";
import { tr, trParts } from "../languages.js";
import { hiddenOutside } from "../weights.js";
import { finestKnownCell, tileAt } from "./tiles.js";
/** @import { App, ViewBox } from "../types.js" */
/** @import { Axis } from "./axes.js" */
/** @import { Panel } from "./tile_drawing.js" */

/** @typedef {{weight: number | null, score: number | null, rank: number | null, visible: boolean}} Entry */

/** Milliseconds that the pointer must rest before its entry is requested. */
const hoverPause = 120;

/**
 * @param {object} options @param {App} options.app @param {string} options.title
 * @param {string} options.name  of the line
 * @param {string} options.empty  the text while there is no cell
 * @param {(text: string, query: number, key: number) => void} options.onText  called with the cell's description once it is complete
 */
export function makeReadout({ app, title, name, empty, onText }) {
  const body = el("span", { class: "uwaga-map-read" });
  const element = el("div", { class: "uwaga-map-line", "data-map-line": name }, el("span", { class: "uwaga-label", text: title }), body);
  /** @type {AbortController | null} */
  let pendingRequest = null;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let timer;
  let shown = "";
  /** @type {Panel[]} */
  let shownPanels = [];
  let shownQuery = -1, shownKey = -1;
  body.textContent = empty;

  /**
   * @param {Panel[]} panels
   * @param {number} query  -1: none
   * @param {number} key
   * @param {number} wait  milliseconds before the entry is requested
   */
  function show(panels, query, key, wait = hoverPause) {
    if (panels === shownPanels && query === shownQuery && key === shownKey) return;
    shownPanels = panels;
    shownQuery = query;
    shownKey = key;
    const now = query < 0 && key < 0 ? "" : `${panels.map((panel) => panel.layer?.name ?? "").join()} ${query} ${key}`;
    if (now === shown) return;
    shown = now;
    clearTimeout(timer);
    pendingRequest?.abort();
    pendingRequest = null;
    if (!now) return void (body.textContent = empty);
    if (query < 0 || key < 0) return showAxisItem(panels, query, key);
    /** @type {(Entry | null)[]} */
    const entries = panels.map((panel) => knownEntry(app, panel, query, key));
    fill(panels, query, key, entries);
    if (!panels.some((panel) => isEntryUnknown(app, panel, query, key))) return announceEntry(panels, query, key, entries);
    timer = setTimeout(() => void askEntries(panels, query, key, entries), wait);
  }

  /** A hovered label, or a query selected without a key. @param {Panel[]} panels @param {number} query @param {number} key */
  function showAxisItem(panels, query, key) {
    const item = Math.max(query, key);
    const axes = panels.map((panel) => (key < 0 ? panel.queries : panel.keys));
    const axis = axes.find((one) => one !== null && item < one.items.total) ?? null;
    body.replaceChildren(el("span", { text: key < 0 ? tr("query") : tr("key") }), axisTokenElement(axis, item, key < 0 ? "query" : "key"));
  }

  /** @param {Panel[]} panels @param {number} query @param {number} key @param {(Entry | null)[]} entries */
  async function askEntries(panels, query, key, entries) {
    const controller = pendingRequest = new AbortController();
    await Promise.all(panels.map(async (panel, at) => {
      const request = entryRequest(panel, query, key);
      if (!request || !app.host.has(request)) return;
      try {
        const { meta } = await app.client.ask(request, { signal: controller.signal, priority: 300 });
        entries[at] = /** @type {Entry} */ (meta);
      } catch (error) {
        // The client reports the error; the weight from the tile stays.
        if (isAbort(error)) return;
      }
    }));
    if (controller.signal.aborted) return;
    fill(panels, query, key, entries);
    announceEntry(panels, query, key, entries);
  }

  /** @param {Panel[]} panels @param {number} query @param {number} key @param {(Entry | null)[]} entries */
  function fill(panels, query, key, entries) {
    const many = panels.length > 1;
    const first = panels.find((panel) => panelContains(panel, query, key)) ?? panels[0];
    body.replaceChildren(
      el("span", { class: "uwaga-map-pair", "data-query": query, "data-key": key },
        axisTokenElement(first.queries, query, "query"), " \u2192 ", axisTokenElement(first.keys, key, "key")),
      el("span", { class: "uwaga-map-sides" },
        panels.map((panel, at) => el("span", { class: "uwaga-map-values", "data-side": panel.side.id },
        many && el("span", { class: "uwaga-label uwaga-map-whose", text: panel.side.title, title: panel.side.title }),
        ...entryValueElements(panel, query, key, entries[at])))));
  }

  /** @param {Panel[]} panels @param {number} query @param {number} key @param {(Entry | null)[]} entries */
  function announceEntry(panels, query, key, entries) {
    const words = panels.map((panel, at) => entryText(panel, entries[at], panels.length > 1)).filter(Boolean).join("; ");
    const first = panels.find((panel) => panelContains(panel, query, key)) ?? panels[0];
    const token = (/** @type {Axis | null} */ axis, /** @type {number} */ item) => axis?.items.labels[item] ?? "";
    onText(`${token(first.queries, query)} to ${token(first.keys, key)}, ${words || tr("not there")}`, query, key);
  }

  return {
    element,
    show,
    /** Updates the text after tiles have arrived. @param {Panel[]} panels @param {number} query @param {number} key */
    renew(panels, query, key) {
      if (query >= 0 && key >= 0 && panels.length) fill(panels, query, key, panels.map((panel) => knownEntry(app, panel, query, key)));
    },
    /** @param {Panel[]} panels @param {number} query @param {number} key */
    refresh(panels, query, key) {
      shown = "";
      shownPanels = [];
      show(panels, query, key, 0);
    },
    dispose() {
      clearTimeout(timer);
      pendingRequest?.abort();
    },
  };
}

// One entry of a map: its request, its known values, its text.

/** @param {Panel} panel @param {number} query @param {number} key */
function panelContains(panel, query, key) {
  return Boolean(panel.layer) && query < panel.sizes.queries && key < panel.sizes.keys;
}

/** @param {Panel} panel @param {number} query @param {number} key */
function entryRequest(panel, query, key) {
  return panelContains(panel, query, key) && panel.layer ? { request: "entry", ...panel.layer.where, query, key } : null;
}

/**
 * Whether the host has an entry that has not been requested yet.
 * @param {App} app @param {Panel} panel @param {number} query @param {number} key
 */
function isEntryUnknown(app, panel, query, key) {
  const request = entryRequest(panel, query, key);
  return request !== null && app.host.has(request) && !app.client.peek(request);
}

/**
 * What is known of an entry without a request: from the cache, or its weight from a tile.
 * @param {App} app @param {Panel} panel @param {number} query @param {number} key @returns {Entry | null}
 */
function knownEntry(app, panel, query, key) {
  const request = entryRequest(panel, query, key);
  if (!request || !panel.layer) return null;
  const cached = app.client.peek(request);
  if (cached) return /** @type {any} */ (cached.meta);
  const tile = tileAt(panel.layer, 0, query >> 8, key >> 8);
  if (!tile) return null;
  return { weight: tile.data[(query & 255) * tile.columns + (key & 255)], score: null, rank: null, visible: !hiddenOutside(panel.seen(query))(key) };
}

/** @param {Axis | null} axis @param {number} item @param {"query" | "key"} role */
function axisTokenElement(axis, item, role) {
  return el("span", { class: `uwaga-map-token uwaga-map-${role}` },
    axis && item < axis.items.total ? tokenElement(axis.items.labels[item]) : null,
    el("span", { class: "uwaga-map-at", text: countText(item) }));
}

/** @param {Panel} panel @param {number} query @param {number} key @param {Entry | null} entry @returns {HTMLElement[]} */
function entryValueElements(panel, query, key, entry) {
  if (panel.missing) return [el("span", { text: tr("no such head") })];
  if (!panelContains(panel, query, key)) return [el("span", { text: tr("beyond the end of its text") })];
  const parts = [];
  if (entry && !entry.visible) parts.push(el("span", { text: tr("masked") }));
  else if (entry) {
    parts.push(el("span", { class: "uwaga-map-weight", "data-weight": entry.weight },
      `${panel.side.signed ? tr("difference") : tr("weight")} `, el("b", { text: numberText(entry.weight) })));
    if (entry.score !== null) parts.push(el("span", { "data-score": entry.score }, `${tr("score")} `, el("b", { text: numberText(entry.score) })));
    if (entry.rank !== null)
      parts.push(el("span", { "data-rank": entry.rank }, trParts("{rank} of {count}", { rank: el("b", { text: ordinalText(entry.rank) }), count: countText(panel.sizes.keys) })));
  }
  const cell = panel.level > 0 || !entry ? finestKnownCell(panel, query, key) : null;
  if (cell && cell.level > 0) parts.push(coarseCellElement(panel, query, key, cell));
  return parts;
}

/** @param {Panel} panel @param {number} query @param {number} key @param {{value: number, complete: number, level: number}} cell */
function coarseCellElement(panel, query, key, cell) {
  const side = 2 ** cell.level;
  const range = (/** @type {number} */ item, /** @type {number} */ total) => {
    const first = Math.floor(item / side) * side;
    return `${countText(first)}\u2013${countText(Math.min(total, first + side) - 1)}`;
  };
  const ranges = { query: range(query, panel.sizes.queries), key: range(key, panel.sizes.keys) };
  const sampled = cell.complete < 1 ? `, ${tr("sampled")}` : "";
  return el("span", { class: "uwaga-map-cell", "data-cell": cell.value },
    `${panel.layer?.pooling === "max" ? tr("cell {query} × {key}: largest", ranges) : tr("cell {query} × {key}: mass", ranges)} `,
    el("b", { text: numberText(cell.value) }), sampled);
}

/** @param {Panel} panel @param {Entry | null} entry @param {boolean} many */
function entryText(panel, entry, many) {
  if (!entry) return "";
  if (!entry.visible) return `${many ? `${panel.side.title} ` : ""}${tr("masked")}`;
  const parts = [panel.side.signed ? tr("difference {weight}", { weight: percentText(entry.weight) }) : percentText(entry.weight)];
  if (entry.rank !== null) parts.push(tr("{rank} of {count}", { rank: ordinalText(entry.rank), count: countText(panel.sizes.keys) }));
  return `${many ? `${panel.side.title} ` : ""}${parts.join(", ")}`;
}

// The status line: the level and the completeness of the picture.

/** @param {"sum" | "max"} pooling @param {number} level */
export function colourBarTitle(pooling, level) {
  return level === 0 ? tr("weight") : pooling === "sum" ? tr("mass of a cell") : tr("largest of a cell");
}

/**
 * @param {object} shown
 * @param {number} shown.level  of the cells shown
 * @param {number} shown.percent  of their queries read
 * @param {string} shown.merge @param {"sum" | "max"} shown.pooling
 * @param {boolean} shown.live  finer cells can be loaded
 */
export function statusText({ level, percent, merge, pooling, live }) {
  const side = countText(2 ** level);
  const pooled = pooling === "sum" ? tr("summed over keys, mean over queries") : tr("the largest weight");
  const cells = level === 0 ? tr("Exact weights") : tr("A cell is {side} × {side} {merge}: {pooled}", { side, merge, pooled });
  if (percent >= 100) return cells;
  return live ? tr("{cells}. From a sample, {percent}% read", { cells, percent }) : tr("{cells}. The saved page contains nothing finer here", { cells });
}

/**
 * The level shown in the middle of the view; the panel's level if nothing is loaded there.
 * @param {Panel} panel @param {ViewBox} view
 */
export function levelInMiddle(panel, view) {
  const { plot, sizes, level } = panel;
  const middle = (/** @type {number} */ first, /** @type {number} */ pixels, /** @type {number} */ total) =>
    Math.max(0, Math.floor((first + Math.min(total, first + pixels / view.scale)) / 2));
  return finestKnownCell(panel, middle(view.y, plot.h, sizes.queries), middle(view.x, plot.w, sizes.keys))?.level ?? level;
}
