// What is drawn over the cells: frame, weights, cut links, crosshair, frames of inexact tiles, titles.

import { drawAxis, shortenText } from "./axes.js";
import { cellTextIsBlack } from "./colours.js";
import { tileAt } from "./tiles.js";
/** @import { Edits, Items, Range, ViewBox } from "../types.js" */
/** @import { Style } from "./colours.js" */
/** @import { Display } from "./map_canvas.js" */
/** @import { Panel } from "./tile_drawing.js" */

/** Smallest cell in CSS pixels that shows its weight as text. */
const minNumberScale = 28;

/**
 * What a file of the map shows too: all but what is pointed at and picked.
 * @param {CanvasRenderingContext2D} context @param {Panel} panel @param {Display} display @param {Style} style
 */
export function drawOver(context, panel, display, style) {
  const { view } = display;
  drawTitle(context, panel, style);
  if (!panel.layer) return;
  drawSinks(context, panel, view, style);
  drawHidden(context, panel, view, style);
  drawFrame(context, panel, view, style);
  drawNumbers(context, panel, view, style);
  drawCuts(context, panel, view, style);
  drawAxis(context, panel, true, display, style);
  drawAxis(context, panel, false, display, style);
}

/** @param {CanvasRenderingContext2D} context @param {Panel} panel @param {ViewBox} view @param {Style} style */
function drawFrame(context, panel, view, style) {
  const { plot, sizes } = panel;
  const right = Math.min(plot.w, (sizes.keys - view.x) * view.scale);
  const bottom = Math.min(plot.h, (sizes.queries - view.y) * view.scale);
  context.strokeStyle = style.line;
  context.lineWidth = 1;
  context.strokeRect(plot.x - 0.5, plot.y - 0.5, Math.round(right) + 1, Math.round(bottom) + 1);
}

/**
 * Weights as text, in two passes for light and dark cells, because changing fillStyle per cell is slow.
 * @param {CanvasRenderingContext2D} context @param {Panel} panel @param {ViewBox} view @param {Style} style
 */
function drawNumbers(context, panel, view, style) {
  const { plot, sizes, layer, colouring } = panel;
  if (view.scale < minNumberScale || !layer) return;
  const lastRow = Math.min(sizes.queries, Math.ceil(view.y + plot.h / view.scale));
  const lastColumn = Math.min(sizes.keys, Math.ceil(view.x + plot.w / view.scale));
  context.save();
  context.beginPath();
  context.rect(plot.x, plot.y, plot.w, plot.h);
  context.clip();
  context.font = style.numbers;
  context.textAlign = "center";
  context.textBaseline = "middle";
  for (let dark = 0; dark < 2; dark++) {
    context.fillStyle = dark ? "#000000" : "#ffffff";
    for (let query = Math.max(0, Math.floor(view.y)); query < lastRow; query++) {
      for (let key = Math.max(0, Math.floor(view.x)); key < lastColumn; key++) {
        const tile = tileAt(layer, 0, query >> 8, key >> 8);
        if (!tile) continue;
        const weight = tile.data[(query & 255) * tile.columns + (key & 255)];
        const text = colouring.hideSink && layer.sinks.has(key) ? "" : cellText(weight);
        if (text === "" || cellTextIsBlack(colouring, weight) !== (dark === 1)) continue;
        context.fillText(text, plot.x + (key + 0.5 - view.x) * view.scale,
          plot.y + (query + 0.5 - view.y) * view.scale);
      }
    }
  }
  context.restore();
  context.font = style.font;
}

/**
 * Lines along a query's row and a key's column (a crosshair).
 * @param {CanvasRenderingContext2D} context @param {Panel} panel @param {ViewBox} view
 * @param {number} query  -1: none
 * @param {number} key @param {string} queryColour @param {string} keyColour @param {number} width
 */
export function drawCross(context, panel, view, query, key, queryColour, keyColour, width) {
  const { plot, sizes } = panel;
  const right = Math.min(plot.w, (sizes.keys - view.x) * view.scale);
  const bottom = Math.min(plot.h, (sizes.queries - view.y) * view.scale);
  context.save();
  context.beginPath();
  context.rect(plot.x - 1, plot.y - 1, right + 2, bottom + 2);
  context.clip();
  context.lineWidth = width;
  if (query >= 0) {
    context.strokeStyle = queryColour;
    drawBand(context, plot.x, plot.y + (query - view.y) * view.scale, right, view.scale, false);
  }
  if (key >= 0) {
    context.strokeStyle = keyColour;
    drawBand(context, plot.x + (key - view.x) * view.scale, plot.y, bottom, view.scale, true);
  }
  context.restore();
}

/**
 * Both edges of a row or column of cells, or a single line if cells are thin.
 * @param {CanvasRenderingContext2D} context @param {number} x @param {number} y @param {number} length
 * @param {number} thick @param {boolean} down
 */
function drawBand(context, x, y, length, thick, down) {
  const edges = thick >= 5 ? 2 : 1;
  context.beginPath();
  for (let edge = 0; edge < edges; edge++) {
    const at = edges === 2 ? edge * thick : thick / 2;
    const px = down ? Math.round(x + at) + 0.5 - edge : x;
    const py = down ? y : Math.round(y + at) + 0.5 - edge;
    context.moveTo(px, py);
    context.lineTo(down ? px : px + length, down ? py + length : py);
  }
  context.stroke();
}

/** CSS pixels between the lines over a cut link. */
const hatchStep = 6;

/** @typedef {{queries: Range, keys: Range}} Cut  items: first, one past the last */

/**
 * The links of one head that a change of the model cuts, as blocks of items.
 * @param {Edits | null | undefined} edits @param {{kind: string, layer: number, head: number}} at
 * @param {Items} queries @param {Items} keys @returns {Cut[]}
 */
export function cutsOfHead(edits, { kind, layer, head }, queries, keys) {
  const links = edits?.scores.filter((one) => one.kind === kind && one.layer === layer && one.head === head) ?? [];
  return links.flatMap((link) => itemRanges(queries, link.queries).flatMap((rows) => itemRanges(keys, link.keys).map((columns) => ({ queries: rows, keys: columns }))));
}

/** @param {Items} items @param {number[] | null} tokens  null: all @returns {Range[]} runs of items that hold one of the tokens */
function itemRanges({ spans, total }, tokens) {
  if (tokens === null) return total ? [[0, total]] : [];
  const tokenSet = new Set(tokens);
  /** @type {Range[]} */
  const ranges = [];
  for (let item = 0; item < total; item++) {
    let has = false;
    for (let token = spans[2 * item]; token < spans[2 * item + 1] && !has; token++) has = tokenSet.has(token);
    const last = ranges[ranges.length - 1];
    if (has && last?.[1] === item) last[1] = item + 1;
    else if (has) ranges.push([item, item + 1]);
  }
  return ranges;
}

/**
 * Lines at 45 degrees over the cut cells in view, in CSS pixels of the canvas.
 * @param {Panel} panel @param {ViewBox} view
 * @returns {[number, number, number, number][]} x1, y1, x2, y2
 */
export function hatchLines({ plot, sizes, cuts }, view) {
  const right = Math.min(plot.w, (sizes.keys - view.x) * view.scale), bottom = Math.min(plot.h, (sizes.queries - view.y) * view.scale);
  /** @type {[number, number, number, number][]} */
  const lines = [];
  for (const { queries, keys } of cuts) {
    const x1 = Math.max(0, (keys[0] - view.x) * view.scale), x2 = Math.min(right, (keys[1] - view.x) * view.scale);
    const y1 = Math.max(0, (queries[0] - view.y) * view.scale), y2 = Math.min(bottom, (queries[1] - view.y) * view.scale);
    if (x2 <= x1 || y2 <= y1) continue;
    // All lines x + y = c of the canvas, so that neighbouring cells join.
    for (let c = Math.ceil((x1 + y1) / hatchStep) * hatchStep; c < x2 + y2; c += hatchStep) {
      const from = Math.max(x1, c - y2), to = Math.min(x2, c - y1);
      if (to > from) lines.push([plot.x + from, plot.y + c - from, plot.x + to, plot.y + c - to]);
    }
  }
  return lines;
}

/** Rows that are hatched at once where cells are small. */
const leastHatch = 4;

/**
 * The cells in view that a mask hides, as blocks: of rows that are less than a few pixels high several together.
 * @param {Panel} panel @param {ViewBox} view @returns {Cut[]}
 */
function hiddenBlocks({ plot, sizes, seen }, view) {
  const step = Math.max(1, Math.ceil(leastHatch / view.scale)), last = Math.min(sizes.queries, Math.ceil(view.y + plot.h / view.scale));
  /** @type {Cut[]} */
  const blocks = [];
  for (let query = Math.max(0, Math.floor(view.y)); query < last; query += step) {
    const rows = /** @type {Range} */ ([query, Math.min(last, query + step)]), [first, stop] = seen(query);
    if (first > 0) blocks.push({ queries: rows, keys: [0, first] });
    if (stop < sizes.keys) blocks.push({ queries: rows, keys: [stop, sizes.keys] });
  }
  return blocks;
}

/**
 * What a mask hides has no colour of a weight: it is hatched in grey.
 * @param {CanvasRenderingContext2D} context @param {Panel} panel @param {ViewBox} view @param {Style} style
 */
function drawHidden(context, panel, view, style) {
  const cuts = hiddenBlocks(panel, view);
  if (!cuts.length) return;
  context.strokeStyle = style.edge;
  context.lineWidth = 0.5;
  context.beginPath();
  for (const [x1, y1, x2, y2] of hatchLines({ ...panel, cuts }, view)) {
    context.moveTo(x1, y1);
    context.lineTo(x2, y2);
  }
  context.stroke();
}

/**
 * Hatches the cut links: a change is ink, not a colour of weights.
 * @param {CanvasRenderingContext2D} context @param {Panel} panel @param {ViewBox} view @param {Style} style
 */
function drawCuts(context, panel, view, style) {
  if (!panel.cuts.length) return;
  context.strokeStyle = style.text;
  context.lineWidth = 1.5;
  context.beginPath();
  for (const [x1, y1, x2, y2] of hatchLines(panel, view)) {
    context.moveTo(x1, y1);
    context.lineTo(x2, y2);
  }
  context.stroke();
}

/**
 * Dashed frames around tiles that are not exact.
 * @param {CanvasRenderingContext2D} context @param {Panel} panel @param {ViewBox} view @param {Style} style
 * @param {boolean} live  missing tiles will arrive; false in a saved page
 */
export function drawSampledFrames(context, panel, view, style, live) {
  const { plot, range, layer, level } = panel;
  if (!layer) return;
  const side = 256 * 2 ** level * view.scale;
  context.strokeStyle = style.text;
  context.lineWidth = 1;
  context.setLineDash(style.dash);
  for (let row = range[0]; row < range[1]; row++) {
    for (let column = range[2]; column < range[3]; column++) {
      const tile = tileAt(layer, level, row, column);
      if (tile ? tile.complete >= 1 : !live) continue;
      const left = Math.max(plot.x, plot.x + column * side - view.x * view.scale);
      const top = Math.max(plot.y, plot.y + row * side - view.y * view.scale);
      const right = Math.min(plot.x + plot.w, plot.x + Math.min((column + 1) * side, panel.sizes.keys * view.scale) - view.x * view.scale);
      const bottom = Math.min(plot.y + plot.h, plot.y + Math.min((row + 1) * side, panel.sizes.queries * view.scale) - view.y * view.scale);
      context.strokeRect(left + 1.5, top + 1.5, right - left - 3, bottom - top - 3);
    }
  }
  context.setLineDash(style.solid);
}

/** @param {CanvasRenderingContext2D} context @param {Panel} panel @param {Style} style */
function drawTitle(context, panel, style) {
  const { plot, gutters } = panel;
  if (!gutters.title) return;
  const room = plot.w + gutters.left - 4;
  if (panel.titleRoom !== room) {
    context.font = style.strong;
    panel.titleShown = shortenText(panel.title, room, (text) => context.measureText(text).width);
    panel.titleRoom = room;
  }
  context.font = style.strong;
  context.textAlign = "left";
  context.textBaseline = "middle";
  context.fillStyle = style.text;
  context.fillText(panel.titleShown, plot.x - gutters.left + 2, plot.y - gutters.top - gutters.title / 2);
  context.font = style.font;
}

// Sinks: a grey bar in their own column, and no colour.

/** Smallest cell in CSS pixels in which a bar can be read. */
const minBarScale = 10;

/**
 * The cells that hide a sink's column: of the level shown, so that no colour of pooled weight is left beside it.
 * @param {number} sink @param {number} level @param {number} keys
 * @returns {[number, number]} first key, one past the last
 */
function sinkCell(sink, level, keys) {
  const first = (sink >> level) << level;
  return [first, Math.min(keys, first + 2 ** level)];
}

/** @param {CanvasRenderingContext2D} context @param {Panel} panel @param {ViewBox} view @param {Style} style */
function drawSinks(context, panel, view, style) {
  const { plot, sizes, layer, level, colouring } = panel;
  if (!layer || !colouring.hideSink || colouring.signed) return;
  const bottom = Math.min(plot.h, (sizes.queries - view.y) * view.scale);
  context.save();
  context.beginPath();
  context.rect(plot.x, plot.y, plot.w, bottom);
  context.clip();
  for (const sink of layer.sinks) {
    const [first, end] = sinkCell(sink, level, sizes.keys);
    const left = plot.x + (first - view.x) * view.scale, right = plot.x + (end - view.x) * view.scale;
    if (right < plot.x || left > plot.x + plot.w) continue;
    context.fillStyle = style.background;
    context.fillRect(left, plot.y, right - left, bottom);
    if (view.scale < minBarScale) continue;
    context.fillStyle = style.edge;
    for (let query = Math.max(0, Math.floor(view.y)); (query - view.y) * view.scale < bottom; query++) {
      const tile = tileAt(layer, 0, query >> 8, sink >> 8);
      if (!tile) continue;
      const weight = tile.data[(query & 255) * tile.columns + (sink & 255)];
      if (weight > 0) context.fillRect(left + 1, plot.y + (query + 0.32 - view.y) * view.scale, weight * (view.scale - 3), view.scale * 0.36);
    }
  }
  context.restore();
}

// A weight as the text in its cell: percent in two digits, and nothing below 1 %.

/** Percents as text, from 0 to 100. */
const cellTexts = Array.from({ length: 101 }, (_, i) => String(i));

const negativeCellTexts = cellTexts.map((text) => `\u2212${text}`);

/** @param {number} weight @returns {string} */
export function cellText(weight) {
  const percent = Math.round(Math.abs(weight) * 100);
  if (!(percent >= 1)) return "";
  return (weight < 0 ? negativeCellTexts : cellTexts)[percent] ?? String(Math.sign(weight) * percent);
}
