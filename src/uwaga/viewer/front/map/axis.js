// The labels of one axis: how wide they are, how they are shortened, which of them are drawn.

import { mapCount, mapFree, mapTicks } from "./labels.js";
import { mapAxisText, mapAxisTextStrong } from "./axis_text.js";

/** @typedef {import("../types.js").Items} Items */
/** @typedef {import("./style.js").MapStyle} MapStyle */
/** @typedef {import("./layout.js").MapBox} MapBox */

/**
 * @typedef {object} MapAxis
 * @property {Items} items
 * @property {(string | undefined)[]} texts  as drawn, made when first in view
 * @property {number} room  the width that texts were shortened to
 * @property {string} font  the font they were measured in
 * @property {Map<number, string>} strong  the same in bold, of those picked or pointed at lately
 */

/** Middles and sizes of the labels that come before the others, in turn. Frames must not make garbage. */
const mapKept = [0, 0, 0, 0];

/**
 * @typedef {object} MapAxisDrawing  one axis of one frame; the object is used again in the next
 * @property {MapAxis | null} axis
 * @property {boolean} down  the axis of the queries
 * @property {MapBox} plot
 * @property {number} first  item at the plot's edge
 * @property {number} scale
 * @property {number} total
 * @property {number} room  pixels beside the plot
 * @property {number | null} picked
 * @property {number} hovered  -1: none
 * @property {string} colour  of the picked one
 */

/**
 * @param {CanvasRenderingContext2D} context
 * @param {MapAxisDrawing} drawing
 * @param {MapStyle} style
 * @param {Map<number, string>} counts  numbers as texts, kept from frame to frame
 */
export function drawMapAxis(context, drawing, style, counts) {
  const { axis, scale, total, first, down, plot } = drawing;
  const length = down ? plot.h : plot.w;
  // Along the upper edge tokens stand upright where a cell is wide enough for the widest, and on end elsewhere.
  const upright = !down && axis !== null && scale >= drawing.room - 6 && scale >= style.size * 3;
  const line = upright ? drawing.room : style.size * 1.28;
  const wide = down ? style.size * 2.4 : (String(total).length + 2.5) * style.size * 0.62;
  const ticks = mapTicks(scale, axis ? line : Infinity, wide);
  let kept = 0;
  context.textBaseline = "middle";
  const both = drawing.hovered === drawing.picked;
  if (drawing.hovered >= 0)
    kept = mapAxisKept(context, drawing, style, drawing.hovered, both ? drawing.colour : style.text, kept, upright, counts);
  if (drawing.picked !== null && drawing.picked !== drawing.hovered) {
    kept = mapAxisKept(context, drawing, style, drawing.picked, drawing.colour, kept, upright, counts);
  }
  const step = ticks.step;
  const last = Math.min(total, Math.ceil(first + length / scale));
  for (let item = Math.max(0, Math.floor(first / step) * step); item < last; item += step) {
    const middle = (item + 0.5 - first) * scale;
    if (middle < 0 || middle > length || item === drawing.hovered || item === drawing.picked) continue;
    const tokens = ticks.mode === "tokens";
    if (!mapFree(middle, tokens ? line : wide, mapKept, kept)) continue;
    context.fillStyle = tokens && axis?.items.specials.has(item) ? style.muted : tokens ? style.text : style.muted;
    if (tokens && axis) mapAxisLabel(context, drawing, style, mapAxisText(axis, item, drawing.room - 8, context), middle, upright);
    else mapAxisNumber(context, drawing, mapCountText(counts, item), middle);
  }
}

/**
 * A label that is always drawn, and what it keeps free.
 * @param {CanvasRenderingContext2D} context
 * @param {MapAxisDrawing} drawing
 * @param {MapStyle} style
 * @param {number} item
 * @param {string} colour
 * @param {number} kept
 * @param {boolean} upright
 * @param {Map<number, string>} counts
 * @returns {number} entries of mapKept that count
 */
function mapAxisKept(context, drawing, style, item, colour, kept, upright, counts) {
  const middle = (item + 0.5 - drawing.first) * drawing.scale;
  const length = drawing.down ? drawing.plot.h : drawing.plot.w;
  if (middle < -0.01 || middle > length) return kept;
  const size = upright ? drawing.room : style.size * 1.5;
  if (!mapFree(middle, size, mapKept, kept)) return kept;
  context.fillStyle = colour;
  context.font = style.strong;
  const text = drawing.axis ? mapAxisTextStrong(drawing.axis, item, drawing.room - 8, context) : mapCountText(counts, item);
  mapAxisLabel(context, drawing, style, text, middle, upright);
  context.font = style.font;
  mapKept[kept] = middle;
  mapKept[kept + 1] = size;
  return kept + 2;
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {MapAxisDrawing} drawing
 * @param {MapStyle} style
 * @param {string} text
 * @param {number} middle
 * @param {boolean} upright
 */
function mapAxisLabel(context, drawing, style, text, middle, upright) {
  const { plot, down } = drawing;
  if (down) {
    context.textAlign = "right";
    context.fillText(text, plot.x - 6, plot.y + middle);
  } else if (upright) {
    context.textAlign = "center";
    context.fillText(text, plot.x + middle, plot.y - style.size * 0.9);
  } else {
    context.textAlign = "left";
    const ratio = style.ratio;
    context.setTransform(0, -ratio, ratio, 0, (plot.x + middle) * ratio, (plot.y - 6) * ratio);
    context.fillText(text, 0, 0);
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
  }
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {MapAxisDrawing} drawing
 * @param {string} text
 * @param {number} middle
 */
function mapAxisNumber(context, drawing, text, middle) {
  const { plot, down } = drawing;
  context.textAlign = down ? "right" : "center";
  if (down) {
    context.fillText(text, plot.x - 9, plot.y + middle);
    context.fillRect(plot.x - 6, plot.y + middle - 0.5, 5, 1);
  } else {
    context.fillText(text, plot.x + middle, plot.y - 16);
    context.fillRect(plot.x + middle - 0.5, plot.y - 6, 1, 5);
  }
}

/**
 * @param {Map<number, string>} counts
 * @param {number} count
 */
function mapCountText(counts, count) {
  let text = counts.get(count);
  if (text === undefined) {
    if (counts.size > 4000) counts.clear();
    text = mapCount(count);
    counts.set(count, text);
  }
  return text;
}
