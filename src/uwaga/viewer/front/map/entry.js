// What is known of one entry of a map, and how it is said.

import { el, tokenElement } from "../dom.js";
import { numberText } from "../shell/pieces.js";
import { mapCount, mapOrdinal } from "./labels.js";
import { mapCellUnder } from "./cell_under.js";
import { mapTileAt } from "./tiles.js";

/** @typedef {import("./panel.js").MapPanel} MapPanel */
/** @typedef {{weight: number | null, score: number | null, rank: number | null, visible: boolean}} MapEntry */

/** @param {MapPanel} panel @param {number} query @param {number} key */
export function mapHolds(panel, query, key) {
  return Boolean(panel.layer) && query < panel.sizes.queries && key < panel.sizes.keys;
}

/** @param {MapPanel} panel @param {number} query @param {number} key */
export function mapEntryQuestion(panel, query, key) {
  return mapHolds(panel, query, key) && panel.layer ? { ask: "entry", ...panel.layer.where, query, key } : null;
}

/**
 * Whether an entry is there to be asked for and has not been.
 * @param {import("../types.js").App} app
 * @param {MapPanel} panel
 * @param {number} query
 * @param {number} key
 */
export function mapUnasked(app, panel, query, key) {
  const question = mapEntryQuestion(panel, query, key);
  return question !== null && app.host.has(question) && !app.client.peek(question);
}

/**
 * What is known of an entry without asking.
 * @param {import("../types.js").App} app
 * @param {MapPanel} panel
 * @param {number} query
 * @param {number} key
 * @returns {MapEntry | null}
 */
export function mapKnownEntry(app, panel, query, key) {
  const question = mapEntryQuestion(panel, query, key);
  if (!question || !panel.layer) return null;
  const kept = app.client.peek(question);
  if (kept) return /** @type {any} */ (kept.meta);
  const tile = mapTileAt(panel.layer, 0, query >> 8, key >> 8);
  if (!tile) return null;
  return { weight: tile.data[(query & 255) * tile.columns + (key & 255)], score: null, rank: null, visible: true };
}

/** @param {import("./axis.js").MapAxis | null} axis @param {number} item @param {"query" | "key"} role */
export function mapTokenAt(axis, item, role) {
  return el("span", { class: `uwaga-map-token uwaga-map-${role}` },
    axis && item < axis.items.total ? tokenElement(axis.items.labels[item]) : null,
    el("span", { class: "uwaga-map-at", text: mapCount(item) }));
}

/** @param {MapPanel} panel @param {number} query @param {number} key @param {MapEntry | null} entry @returns {HTMLElement[]} */
export function mapValues(panel, query, key, entry) {
  if (panel.missing) return [el("span", { text: "no such head" })];
  if (!mapHolds(panel, query, key)) return [el("span", { text: "beyond its text" })];
  const parts = [];
  if (entry) {
    parts.push(el("span", { class: "uwaga-map-weight", "data-weight": entry.weight },
      `${panel.side.signed ? "difference" : "weight"} `, el("b", { text: numberText(entry.weight) })));
    if (!entry.visible) parts.push(el("span", { text: "masked" }));
    if (entry.score !== null) parts.push(el("span", { "data-score": entry.score }, "score ", el("b", { text: numberText(entry.score) })));
    if (entry.rank !== null)
      parts.push(el("span", { "data-rank": entry.rank }, el("b", { text: mapOrdinal(entry.rank) }), ` of ${mapCount(panel.sizes.keys)}`));
  }
  const cell = panel.level > 0 || !entry ? mapCellUnder(panel, query, key) : null;
  if (cell && cell.level > 0) parts.push(mapCellWords(panel, query, key, cell));
  return parts;
}

/**
 * @param {MapPanel} panel
 * @param {number} query
 * @param {number} key
 * @param {{value: number, complete: number, level: number}} cell
 */
function mapCellWords(panel, query, key, cell) {
  const side = 2 ** cell.level;
  const range = (/** @type {number} */ item, /** @type {number} */ total) => {
    const first = Math.floor(item / side) * side;
    return `${mapCount(first)}\u2013${mapCount(Math.min(total, first + side) - 1)}`;
  };
  const what = panel.layer?.how === "max" ? "largest" : "mass";
  const sampled = cell.complete < 1 ? ", sampled" : "";
  return el("span", { class: "uwaga-map-cell", "data-cell": cell.value },
    `cell ${range(query, panel.sizes.queries)} \u00d7 ${range(key, panel.sizes.keys)}: ${what} `,
    el("b", { text: numberText(cell.value) }), sampled);
}

/** @param {MapPanel} panel @param {MapEntry | null} entry @param {boolean} many */
export function mapWords(panel, entry, many) {
  if (!entry) return "";
  const parts = [`${panel.side.signed ? "difference" : "weight"} ${numberText(entry.weight)}`];
  if (!entry.visible) parts.push("masked");
  if (entry.rank !== null) parts.push(`${mapOrdinal(entry.rank)} of ${mapCount(panel.sizes.keys)}`);
  return `${many ? `${panel.side.title} ` : ""}${parts.join(", ")}`;
}
