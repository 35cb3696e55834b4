// The visible map as a scene for files: an image of its cells, axis labels, titles and colour bars.

import { countText } from "../format.js";
import { tr } from "../languages.js";
import { labelText, ticksFor } from "./axes.js";
import { cellTextIsBlack, colourBarTicks, colourBarTickText, colourCells } from "./colours.js";
import { cellText, hatchLines, hiddenBlocks, minBarScale, minNumberScale, sinkCell } from "./overlay.js";
import { blitCells } from "./renderer.js";
import { drawTiles } from "./tile_drawing.js";
import { tileAt } from "./tiles.js";
/** @import { Scene, SceneItem, ViewBox } from "../types.js" */
/** @import { Style } from "./colours.js" */
/** @import { Cut } from "./overlay.js" */
/** @import { Renderer } from "./renderer.js" */
/** @import { Display } from "./stage.js" */
/** @import { Panel } from "./tile_drawing.js" */

const legendHeight = 54;
/** Image pixels per CSS pixel. */
const pixelRatio = 2;

/**
 * @param {Display} display
 * @param {CanvasRenderingContext2D} context  measures labels
 * @returns {Scene}
 */
export function mapScene(display, context) {
  const { style, panels } = display;
  if (!style || !panels.length) throw new Error(tr("The map has not been drawn yet."));
  /** @type {SceneItem[]} */
  const items = [];
  for (const panel of panels) items.push(...panelItems(panel, display, context));
  // The picture ends where the maps end.
  const extent = (/** @type {Panel} */ { plot, sizes }) => [plot.x + Math.min(plot.w, (sizes.keys - display.view.x) * display.view.scale),
    plot.y + Math.min(plot.h, (sizes.queries - display.view.y) * display.view.scale)];
  const right = Math.max(...panels.map((panel) => extent(panel)[0])) + 16, bottom = Math.max(...panels.map((panel) => extent(panel)[1]));
  let x = panels[0].plot.x;
  for (const signed of [false, true]) {
    const panel = panels.find((one) => one.side.signed === signed);
    if (!panel) continue;
    items.push(...barItems(panel, x, bottom + 18, style));
    x += 260;
  }
  return { width: Math.max(right, x), height: bottom + legendHeight, background: style.background, items };
}

/**
 * @param {Panel} panel
 * @param {Display} display
 * @param {CanvasRenderingContext2D} context
 * @returns {SceneItem[]}
 */
function panelItems(panel, display, context) {
  const { plot, gutters, sizes } = panel;
  const style = /** @type {Style} */ (display.style);
  const { view } = display;
  const top = plot.y;
  /** @type {SceneItem[]} */
  const items = [];
  if (gutters.title) {
    items.push({ kind: "text", x: plot.x - gutters.left + 2, y: top - gutters.top - gutters.title / 3,
      text: panel.title, size: style.size, anchor: "start", fill: style.text });
  }
  if (!panel.layer) return items;
  const w = Math.min(plot.w, (sizes.keys - view.x) * view.scale);
  const h = Math.min(plot.h, (sizes.queries - view.y) * view.scale);
  items.push({ kind: "image", x: plot.x, y: top, w, h, ...cellPixels(panel, view, w, h) });
  const hatch = (/** @type {Cut[]} */ cuts, /** @type {string} */ stroke, /** @type {number} */ width) =>
    hatchLines({ ...panel, cuts }, view).map(([x1, y1, x2, y2]) => /** @type {SceneItem} */ ({ kind: "line", x1, y1, x2, y2, stroke, width, opacity: 1 }));
  items.push(...sinkItems(panel, view, w, h, style), ...hatch(hiddenBlocks(panel, view), style.edge, 0.5), ...frameItems(plot.x, top, w, h, style.line), ...numberItems(panel, view, top, style),
    ...hatch(panel.cuts, style.text, 1.5));
  context.font = style.font;
  items.push(...axisItems(panel, display, context, true, h), ...axisItems(panel, display, context, false, w));
  return items;
}

/**
 * As drawSinks.
 * @param {Panel} panel
 * @param {ViewBox} view
 * @param {number} w
 * @param {number} h
 * @param {Style} style
 * @returns {SceneItem[]}
 */
function sinkItems({ plot, sizes, layer, level, colouring }, view, w, h, style) {
  /** @type {SceneItem[]} */
  const items = [];
  if (!layer || !colouring.hideSink || colouring.signed) return items;
  for (const sink of layer.sinks) {
    const [first, end] = sinkCell(sink, level, sizes.keys);
    const left = Math.max(plot.x, plot.x + (first - view.x) * view.scale), right = Math.min(plot.x + w, plot.x + (end - view.x) * view.scale);
    if (right <= left) continue;
    items.push({ kind: "rect", x: left, y: plot.y, w: right - left, h, fill: style.background });
    if (view.scale < minBarScale) continue;
    for (let query = Math.max(0, Math.ceil(view.y)); (query + 0.68 - view.y) * view.scale < h; query++) {
      const tile = tileAt(layer, 0, query >> 8, sink >> 8);
      const weight = tile ? tile.data[(query & 255) * tile.columns + (sink & 255)] : 0;
      if (weight > 0) items.push({ kind: "rect", x: left + 1, y: plot.y + (query + 0.32 - view.y) * view.scale, w: weight * (right - left - 3), h: view.scale * 0.36, fill: style.edge });
    }
  }
  return items;
}

/**
 * @param {number} x
 * @param {number} y
 * @param {number} w
 * @param {number} h
 * @param {string} stroke
 * @returns {SceneItem[]}
 */
function frameItems(x, y, w, h, stroke) {
  const corners = [[x, y], [x + w, y], [x + w, y + h], [x, y + h], [x, y]];
  return corners.slice(1).map(([x2, y2],
    at) => ({ kind: "line", x1: corners[at][0], y1: corners[at][1], x2, y2, stroke, width: 1, opacity: 1 }));
}

/**
 * The cells as pixels.
 * @param {Panel} panel
 * @param {ViewBox} view
 * @param {number} w
 * @param {number} h
 */
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

/**
 * @param {Panel} panel
 * @param {ViewBox} view
 * @param {number} top
 * @param {Style} style
 * @returns {SceneItem[]}
 */
function numberItems(panel, view, top, style) {
  const { plot, sizes, layer, colouring } = panel;
  /** @type {SceneItem[]} */
  const items = [];
  if (!layer || view.scale < minNumberScale) return items;
  const size = Math.min(style.size, 12.5);
  for (let query = Math.ceil(view.y - 0.5); query < Math.min(sizes.queries, view.y + plot.h / view.scale - 0.5); query++) {
    for (let key = Math.ceil(view.x - 0.5); key < Math.min(sizes.keys, view.x + plot.w / view.scale - 0.5); key++) {
      const tile = tileAt(layer, 0, query >> 8, key >> 8);
      if (!tile) continue;
      const weight = tile.data[(query & 255) * tile.columns + (key & 255)];
      const text = colouring.hideSink && layer.sinks.has(key) ? "" : cellText(weight);
      if (text === "") continue;
      items.push({
        kind: "text", x: plot.x + (key + 0.5 - view.x) * view.scale, y: top + (query + 0.5 - view.y) * view.scale + size * 0.35,
        text, size, anchor: "middle", fill: cellTextIsBlack(colouring, weight) ? "#000000" : "#ffffff",
      });
    }
  }
  return items;
}

// Axis labels and colour bar.

/**
 * @param {Panel} panel
 * @param {Display} display
 * @param {CanvasRenderingContext2D} context
 * @param {boolean} down
 * @param {number} length
 * @returns {SceneItem[]}
 */
function axisItems(panel, display, context, down, length) {
  const { view } = display;
  const style = /** @type {Style} */ (display.style);
  const axis = down ? panel.queries : panel.keys;
  const total = down ? panel.sizes.queries : panel.sizes.keys;
  const first = down ? view.y : view.x;
  const room = down ? panel.gutters.left : panel.gutters.top;
  const upright = !down && axis !== null && view.scale >= room - 6 && view.scale >= style.size * 3;
  const wide = down ? style.size * 2.4 : (String(total).length + 2.5) * style.size * 0.62;
  const ticks = ticksFor(view.scale, axis ? (upright ? room : style.size * 1.28) : Infinity, wide);
  const top = panel.plot.y;
  /** @type {SceneItem[]} */
  const items = [];
  for (let item = Math.max(0, Math.ceil(first / ticks.step - 1e-9) * ticks.step); item < total; item += ticks.step) {
    const middle = (item + 0.5 - first) * view.scale;
    if (middle > length) break;
    const named = ticks.mode === "tokens" && axis;
    const text = named ? labelText(axis, item, room - 8, context) : countText(item);
    const fill = named && !axis.items.specials.has(item) ? style.text : style.muted;
    if (down) items.push({ kind: "text", x: panel.plot.x - 6, y: top + middle + style.size * 0.35,
      text, size: style.size, anchor: "end", fill });
    else if (upright || !named)
      items.push({ kind: "text", x: panel.plot.x + middle, y: top - 6, text, size: style.size, anchor: "middle", fill });
    else items.push({ kind: "text", x: panel.plot.x + middle + style.size * 0.35, y: top - 6,
      text, size: style.size, anchor: "start", fill, rotate: -90 });
  }
  return items;
}

/**
 * @param {Panel} panel
 * @param {number} x
 * @param {number} y
 * @param {Style} style
 * @returns {SceneItem[]}
 */
function barItems(panel, x, y, style) {
  const width = 200;
  const name = panel.side.signed ? tr("difference") : panel.level === 0 ? tr("weight") : panel.layer?.pooling === "max"
    ? tr("largest weight of a cell") : tr("mass of a cell");
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
