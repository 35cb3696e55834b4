// The weights in view as a table of text, for those who cannot see the picture or want to copy its numbers.

import { el, tokenElement } from "../dom.js";
import { countText, percentText, weightText } from "../format.js";
import { tr } from "../languages.js";
import { hiddenOutside } from "../weights.js";
import { tileAt } from "./tiles.js";
/** @import { Panel } from "./tile_drawing.js" */

/** @typedef {{rows: [number, number], columns: [number, number]}} Block */

/** Rows and columns of the largest table: more could not be read, and would make the page slow. */
const maxTableSide = 40;

/**
 * @param {() => void} onOpen  the table's button was pressed
 * @returns {{button: HTMLElement, element: HTMLElement, show: (panels: Panel[], block: Block | null) => void}}
 */
export function makeTable(onOpen) {
  const element = el("div", { class: "uwaga-map-as-table", role: "region", "aria-label": tr("The weights in view as a table"), tabindex: 0, hidden: true });
  const button = el("button", { type: "button", text: tr("As table"), "aria-expanded": "false", on: { click() {
    element.hidden = !element.hidden;
    button.setAttribute("aria-expanded", String(!element.hidden));
    shown = "";
    onOpen();
  } } });
  let shown = "";
  return {
    button,
    element,
    show(panels, block) {
      if (element.hidden || !block) return;
      const name = JSON.stringify([block, panels.map(({ layer, queries, keys }) => [layer?.name, queries !== null, keys !== null])]);
      if (name === shown) return;
      const tables = panels.filter(({ layer }) => layer).map((panel) => tableOf(panel, block));
      element.replaceChildren(...tables.map(({ table }) => table));
      if (tables.every(({ complete }) => complete)) shown = name; // else once more when the rest has come
    },
  };
}

/** @param {Panel} panel @param {Block} block  items in view @returns {{table: HTMLElement, complete: boolean}} */
function tableOf(panel, block) {
  const [top, bottom] = [block.rows[0], Math.min(block.rows[1], panel.sizes.queries)];
  const [left, right] = [block.columns[0], Math.min(block.columns[1], panel.sizes.keys)];
  if (bottom - top > maxTableSide || right - left > maxTableSide)
    return { complete: true, table: el("p", { text: tr("{title}: {bottom} by {right} cells are in view. Zoom in until there are at most {maxTableSide} by {maxTableSide}.", { title: panel.title, bottom: countText(bottom - top), right: countText(right - left), maxTableSide }) }) };
  const name = (/** @type {Panel["queries"]} */ axis, /** @type {number} */ item) => (axis ? tokenElement(axis.items.labels[item]) : String(item));
  let complete = panel.queries !== null && panel.keys !== null;
  const cell = (/** @type {number} */ query, /** @type {number} */ key) => {
    if (hiddenOutside(panel.seen(query))(key)) return el("td", { title: tr("masked"), "aria-label": tr("masked"), text: "\u2013" });
    const weight = cellWeight(panel, query, key);
    if (weight === null) complete = false;
    return el("td", weight === null ? { text: "\u2026" } : { text: percentText(weight), title: weightText(weight) });
  };
  const range = (/** @type {number} */ first, /** @type {number} */ stop) => Array.from({ length: stop - first }, (_, i) => first + i);
  const table = el("table", {}, el("caption", { text: tr("{title}: rows ask, columns are looked at", { title: panel.title }) }),
    el("thead", {}, el("tr", {}, el("td"), range(left, right).map((key) => el("th", { scope: "col" }, name(panel.keys, key))))),
    el("tbody", {}, range(top, bottom).map((query) => el("tr", {}, el("th", { scope: "row" }, name(panel.queries, query)), range(left, right).map((key) => cell(query, key))))));
  return { table, complete };
}

/** @param {Panel} panel @param {number} query @param {number} key @returns {number | null} null: not read yet */
function cellWeight({ layer }, query, key) {
  const tile = layer && tileAt(layer, 0, query >> 8, key >> 8);
  const weight = tile ? tile.data[(query & 255) * tile.columns + (key & 255)] : NaN;
  return Number.isNaN(weight) ? null : weight;
}
