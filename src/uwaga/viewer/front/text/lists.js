// The strongest tokens beside the text, and how much of the text is read.
import { tokenElement } from "../dom.js";

/** @typedef {import("./columns.js").TextColumns} TextColumns */
/** @typedef {import("./readings.js").TextReading} TextReading */

const listCount = 20; // tokens of one list; two lists share the room

/**
 * @param {ReturnType<typeof import("./frame.js").textFrame>} frame
 * @param {TextColumns} columns
 * @param {{query: number | null, key: number | null, row: TextReading, column: TextReading}} shown  null: not shown now
 */
export function paintLists(frame, { first, last }, { query, key, row, column }) {
  const count = query !== null && key !== null ? listCount / 2 : listCount;
  const name = (/** @type {import("../types.js").Items} */ items, /** @type {number} */ item) => tokenElement(items.labels[item]);
  frame.row.show(query === null ? null : { hue: "query", weights: row.weights, items: last.items, note: listNote(row), count,
    title: ["What ", name(first.items, query), ` (${query}) attends to`] });
  frame.column.show(key === null ? null : { hue: "key", weights: column.weights, items: first.items, note: listNote(column), count,
    title: ["What attends to ", name(last.items, key), ` (${key})`] });
  const complete = key === null || column.absent ? 1 : column.weights?.complete ?? 0;
  frame.progress.hidden = complete >= 1;
  frame.progress.value = complete;
  frame.hint.textContent = query === null && key === null ? "Pick a token: click it, or use the arrow keys. Drag for a span." : "";
}

/** @param {TextReading} reading @returns {string} */
function listNote({ weights, absent }) {
  return weights ? "" : absent ? "This saved page holds no weights of it." : "Reading\u2026";
}
