// The texts in view as a scene, for files.

import { themeColour } from "../colours.js";
import { tokenText } from "../dom.js";
import { tokenSpacing } from "./layout.js";

/** @typedef {import("../types.js").Scene} Scene */
/** @typedef {import("../types.js").SceneItem} SceneItem */
/** @typedef {import("./panes.js").TextPane} TextPane */

const textSceneMargin = 16;

/**
 * @param {Element} element
 * @param {TextPane[]} panes
 * @returns {Scene}
 */
export function textScene(element, panes) {
  const colours = Object.fromEntries(["bg", "text", "muted", "query", "key", "on-band",
    "line"].map((name) => [name, themeColour(element, `--${name}`)]));
  /** @type {SceneItem[]} */
  const items = [];
  let [x, height] = [textSceneMargin, 0];
  for (const pane of panes) {
    const size = paneFontSize(pane);
    items.push({ kind: "text", x, y: textSceneMargin + size, text: pane.heading.textContent ?? "",
      size: size * 0.85, anchor: "start", fill: colours.muted });
    const top = textSceneMargin + size * 2;
    height = Math.max(height, top + pane.scroller.clientHeight);
    addPaneItems(pane, x, top, size, colours, items);
    x += pane.layout.body.clientWidth + 2 * textSceneMargin;
  }
  return { width: x - textSceneMargin, height: height + textSceneMargin, background: colours.bg, items };
}

/** @param {TextPane} pane @returns {number} */
function paneFontSize(pane) {
  return parseFloat(getComputedStyle(pane.scroller).fontSize) || 16;
}

/**
 * @param {TextPane} pane
 * @param {number} left
 * @param {number} top
 * @param {number} size
 * @param {{[name: string]: string}} colours
 * @param {SceneItem[]} items
 */
function addPaneItems(pane, left, top, size, colours, items) {
  const { layout, highlights } = pane;
  const { flow, lineHeight, widths, body } = layout;
  const [first, last] = layout.visible();
  let line = 0;
  while (flow.starts[line + 1] <= first) line++;
  const top0 = line;
  for (let item = first; item < last; item++) {
    while (flow.starts[line + 1] <= item) line++;
    const width = Math.min(widths[item], body.clientWidth);
    const x = body.dir === "rtl" ? left + body.clientWidth - flow.lefts[item] - width : left + flow.lefts[item];
    const box = { x, y: top + (line - top0) * lineHeight, w: width, h: lineHeight * 0.84 };
    const halves = highlights.row && highlights.column ? 2 : 1;
    const byRow = highlights.row ? Math.abs(highlights.row.shade.band(item)) : 0;
    const byColumn = highlights.column ? Math.abs(highlights.column.shade.band(item)) : 0;
    if (byRow) items.push({ kind: "rect", ...box, h: box.h / halves, fill: themeColour(pane.element, `--query-${byRow}`) });
    if (byColumn) items.push({ kind: "rect", ...box, y: box.y + (halves - 1) * (box.h / 2),
      h: box.h / halves, fill: themeColour(pane.element, `--key-${byColumn}`) });
    const underline = Math.max(byRow, byColumn) - 1;
    if (underline > 0) items.push({ kind: "rect", ...box, y: box.y + box.h - underline, h: underline, fill: byRow ? colours.query : colours.key });
    const stroke = item === highlights.query || item === highlights.key ? colours.text : layout.items.specials.has(item) ? colours.line : "";
    if (stroke) items.push({ kind: "rect", ...box, fill: "none", stroke });
    const special = layout.items.specials.has(item);
    items.push({ kind: "text", x: x + width / 2, y: box.y + lineHeight * 0.62, text: tokenText(layout.items.labels[item]),
      size: special ? size * tokenSpacing.specialSize : size, anchor: "middle",
      fill: byRow || byColumn ? colours["on-band"] : special ? colours.muted : colours.text });
  }
}
