// The visible map as a scene for files: an image of its cells, axis labels, titles and colour bars.

import { recordingContext } from "../export/record.js";
import { tr } from "../languages.js";
import { colourBarTicks, colourBarTickText, colourCells } from "./colours.js";
import { drawOver } from "./overlay.js";
import { colourBarTitle } from "./readout.js";
import { blitCells } from "./renderer.js";
import { drawTiles } from "./tile_drawing.js";
/** @import { Scene, SceneItem, ViewBox } from "../types.js" */
/** @import { Style } from "./colours.js" */
/** @import { Renderer } from "./renderer.js" */
/** @import { Display } from "./map_canvas.js" */
/** @import { Panel } from "./tile_drawing.js" */

const legendHeight = 54;
/** Image pixels per CSS pixel. */
const pixelRatio = 2;

/** @param {Display} display @param {CanvasRenderingContext2D} measuring  measures labels @returns {Scene} */
export function mapScene(display, measuring) {
  const { style, panels, view } = display, context = recordingContext(measuring), { items } = context;
  if (!style || !panels.length) throw new Error(tr("The map has not been drawn yet."));
  // The picture ends where the maps end.
  let right = 0, bottom = 0;
  for (const panel of panels) {
    const { plot, sizes } = panel, w = Math.min(plot.w, (sizes.keys - view.x) * view.scale), h = Math.min(plot.h, (sizes.queries - view.y) * view.scale);
    if (panel.layer) items.push({ kind: "image", x: plot.x, y: plot.y, w, h, ...cellPixels(panel, view, w, h) });
    context.font = style.font;
    drawOver(context, panel, { ...display, query: -1, key: -1, selectedQuery: null, selectedKey: null }, { ...style, ratio: 1 });
    [right, bottom] = [Math.max(right, plot.x + w), Math.max(bottom, plot.y + h)];
  }
  let x = panels[0].plot.x;
  for (const signed of [false, true]) {
    const panel = panels.find((one) => one.side.signed === signed);
    if (!panel) continue;
    items.push(...barItems(panel, x, bottom + 18, style));
    x += 260;
  }
  return { width: Math.max(right + 16, x), height: bottom + legendHeight, background: style.background, items };
}

/** The cells as pixels. @param {Panel} panel @param {ViewBox} view @param {number} w @param {number} h */
function cellPixels(panel, view, w, h) {
  const columns = Math.max(1, Math.round(w * pixelRatio));
  const rows = Math.max(1, Math.round(h * pixelRatio));
  const pixels = new Uint32Array(columns * rows);
  const columnOf = new Int32Array(columns);
  /** @type {any} the methods of a renderer that drawTiles uses */
  const renderer = {
    fill(/** @type {number} */ left, /** @type {number} */ top, /** @type {number} */ right,
      /** @type {number} */ bottom, /** @type {number} */ colour) {
      for (let y = top; y < Math.min(bottom, rows); y++) pixels.fill(colour, y * columns + left, y * columns + Math.min(right, columns));
    },
    /** @type {Renderer["paint"]} */
    paint(tile, x, y, cell, left, top, right, bottom, colouring, factor, transparent) {
      const colours = new Uint32Array(tile.data.length);
      colourCells(colouring, tile.data, factor, colours, transparent);
      blitCells(pixels, columns, columnOf, colours, tile.columns, tile.rows, x, y, cell, left,
        top, Math.min(right, columns), Math.min(bottom, rows), transparent);
    },
  };
  const at = { ...panel, plot: { x: 0, y: 0, w: panel.plot.w, h: panel.plot.h } };
  drawTiles(renderer, at, view, pixelRatio, 0);
  return { pixels: new Uint8ClampedArray(pixels.buffer), columns, rows };
}

/** @param {Panel} panel @param {number} x @param {number} y @param {Style} style @returns {SceneItem[]} */
function barItems(panel, x, y, style) {
  const width = 200;
  const name = panel.side.signed ? tr("difference") : colourBarTitle(panel.layer?.pooling ?? "sum", panel.level);
  /** @type {SceneItem[]} */
  const items = [
    { kind: "image", x, y, w: width, h: 10, pixels: new Uint8ClampedArray(panel.colouring.table), columns: 256, rows: 1 },
    { kind: "text", x, y: y - 3, text: name, size: style.size * 0.9, anchor: "start", fill: style.muted },
  ];
  colourBarTicks(panel.colouring).forEach(({ place, value }, at) => items.push({
    kind: "text", x: x + place * width, y: y + 12 + style.size, text: colourBarTickText(place, value), size: style.size * 0.9,
    anchor: at === 0 ? "start" : at === 1 ? "middle" : "end", fill: style.text,
  }));
  return items;
}
