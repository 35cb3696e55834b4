// Boxes of the panels, from the size of the stage and the widths of labels.

import { mapWidest } from "./axis_text.js";
import { mapGutters, mapLayout, mapMinimapBox } from "./layout.js";

/**
 * @param {import("./stage.js").MapScenery} scenery  whose panels are given their boxes
 * @param {CanvasRenderingContext2D} context  measures labels
 * @param {number} width  of the stage; nothing is done before it is known
 * @param {number} height
 */
export function arrangeMapPanels({ panels, sizes, style }, context, width, height) {
  if (!style || !width || !panels.length) return;
  context.font = style.font;
  const digits = String(Math.max(sizes.queries, sizes.keys)).length * style.size * 0.62 + style.size;
  const widest = (/** @type {"queries" | "keys"} */ axis) =>
    Math.max(axis === "queries" ? digits : 0, ...panels.map((panel) => (panel[axis] ? mapWidest(panel[axis], context) : 0)));
  const room = width / Math.min(panels.length, 2);
  const gutters = mapGutters(widest("queries"), widest("keys"), room, height, style.size, panels.length > 1);
  const boxes = mapLayout(width, height, panels.length, gutters);
  panels.forEach((panel, at) => {
    panel.plot = boxes[at];
    panel.gutters = gutters;
    panel.minimap = at === 0 && panel.layer ? mapMinimapBox(panel.plot, panel.sizes) : null;
  });
}
