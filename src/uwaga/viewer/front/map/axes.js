// The labels of an axis: measured, shortened, cached, and which of them are drawn.

import { tokenText } from "../dom.js";
import { countText } from "../format.js";

/** @typedef {import("../types.js").Items} Items */
/** @typedef {import("./colours.js").MapStyle} MapStyle */
/** @typedef {import("./panels.js").MapBox} MapBox */

/**
 * @typedef {object} MapAxis
 * @property {Items} items
 * @property {(string | undefined)[]} texts  as drawn, made when first in view
 * @property {number} room  the width that texts were shortened to
 * @property {string} font  the font they were measured in
 * @property {Map<number, string>} strong  the same in bold, of those picked or pointed at lately
 */

/** Middles and sizes of the labels that come before the others, in turn. Frames must not make garbage. */
const mapPlacedLabels = [0, 0, 0, 0];

/**
 * @typedef {object} MapAxisDrawing  one axis of one frame; the object is used again in the next
 * @property {MapAxis | null} axis
 * @property {boolean} down  the axis of the queries
 * @property {MapBox} plot
 * @property {number} first  item at the plot's edge
 * @property {number} scale
 * @property {number} total
 * @property {number} room  pixels beside the plot
 * @property {number | null} selected
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
  const both = drawing.hovered === drawing.selected;
  if (drawing.hovered >= 0)
    kept = drawPriorityLabel(context, drawing, style, drawing.hovered, both ? drawing.colour : style.text, kept, upright, counts);
  if (drawing.selected !== null && drawing.selected !== drawing.hovered) {
    kept = drawPriorityLabel(context, drawing, style, drawing.selected, drawing.colour, kept, upright, counts);
  }
  const step = ticks.step;
  const last = Math.min(total, Math.ceil(first + length / scale));
  for (let item = Math.max(0, Math.floor(first / step) * step); item < last; item += step) {
    const middle = (item + 0.5 - first) * scale;
    if (middle < 0 || middle > length || item === drawing.hovered || item === drawing.selected) continue;
    const tokens = ticks.mode === "tokens";
    if (!mapLabelFits(middle, tokens ? line : wide, mapPlacedLabels, kept)) continue;
    context.fillStyle = tokens && axis?.items.specials.has(item) ? style.muted : tokens ? style.text : style.muted;
    if (tokens && axis) mapAxisLabel(context, drawing, style, mapAxisText(axis, item, drawing.room - 8, context), middle, upright);
    else mapAxisNumber(context, drawing, cachedCountText(counts, item), middle);
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
 * @returns {number} entries of mapPlacedLabels that count
 */
function drawPriorityLabel(context, drawing, style, item, colour, kept, upright, counts) {
  const middle = (item + 0.5 - drawing.first) * drawing.scale;
  const length = drawing.down ? drawing.plot.h : drawing.plot.w;
  if (middle < -0.01 || middle > length) return kept;
  const size = upright ? drawing.room : style.size * 1.5;
  if (!mapLabelFits(middle, size, mapPlacedLabels, kept)) return kept;
  context.fillStyle = colour;
  context.font = style.strong;
  const text = drawing.axis ? mapAxisTextStrong(drawing.axis, item, drawing.room - 8, context) : cachedCountText(counts, item);
  mapAxisLabel(context, drawing, style, text, middle, upright);
  context.font = style.font;
  mapPlacedLabels[kept] = middle;
  mapPlacedLabels[kept + 1] = size;
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
function cachedCountText(counts, count) {
  let text = counts.get(count);
  if (text === undefined) {
    if (counts.size > 4000) counts.clear();
    text = countText(count);
    counts.set(count, text);
  }
  return text;
}

// The texts of an axis: measured, shortened, kept.

/** Labels of a long axis that are measured: the widest of so many is near enough. */
const maxMeasuredLabels = 500;

/** The part of the labels that may be too long for their room. */
const shortenedShare = 0.04;

/** @param {Items} items @returns {MapAxis} */
export function makeMapAxis(items) {
  return { items, texts: [], room: 0, font: "", strong: new Map() };
}

/**
 * Pixels that nearly all labels fit in: the few that are longer are shortened.
 * @param {MapAxis} axis
 * @param {CanvasRenderingContext2D} context  with its font set
 */
export function axisLabelWidth(axis, context) {
  const { labels } = axis.items;
  const step = Math.max(1, Math.floor(labels.length / maxMeasuredLabels));
  const widths = [];
  for (let i = 0; i < labels.length; i += step) widths.push(context.measureText(tokenText(labels[i]).slice(0, 64)).width);
  widths.sort((left, right) => left - right);
  return widths[Math.floor(widths.length * (1 - shortenedShare))] ?? 0;
}

/**
 * A label as it is drawn: visible, shortened, made once.
 * @param {MapAxis} axis
 * @param {number} item
 * @param {number} room  pixels
 * @param {CanvasRenderingContext2D} context
 */
export function mapAxisText(axis, item, room, context) {
  if (axis.room !== room || axis.font !== context.font) {
    axis.texts = [];
    axis.strong.clear();
    axis.room = room;
    axis.font = context.font;
  }
  let text = axis.texts[item];
  if (text === undefined) {
    text = shortenText(tokenText(axis.items.labels[item] ?? ""), room, (part) => context.measureText(part).width);
    axis.texts[item] = text;
  }
  return text;
}

/**
 * @param {MapAxis} axis
 * @param {number} item
 * @param {number} room
 * @param {CanvasRenderingContext2D} context
 */
export function mapAxisTextStrong(axis, item, room, context) {
  let text = axis.strong.get(item);
  if (text === undefined || axis.room !== room) {
    if (axis.strong.size > 64) axis.strong.clear();
    text = shortenText(tokenText(axis.items.labels[item] ?? ""), room, (part) => context.measureText(part).width);
    axis.strong.set(item, text);
  }
  return text;
}

// Which labels of an axis are drawn, and where: never one over another.

/** @typedef {{mode: "tokens" | "positions", step: number}} MapTicks */

/**
 * How an axis is labelled at a scale. Tokens as long as every one or every second fits: beyond that a word here and there
 * says nothing of its neighbours, and positions say where one is.
 * @param {number} scale  CSS pixels per item
 * @param {number} line  CSS pixels that a label takes along the axis
 * @param {number} wide  CSS pixels that a number takes along the axis
 * @returns {MapTicks}
 */
export function mapTicks(scale, line, wide) {
  if (scale >= line) return { mode: "tokens", step: 1 };
  if (scale * 2 >= line) return { mode: "tokens", step: 2 };
  return { mode: "positions", step: niceStep(wide / scale) };
}

/**
 * The least of 1, 2, 5, 10, 20, 50... that is not below a number.
 * @param {number} least
 */
export function niceStep(least) {
  const power = 10 ** Math.floor(Math.log10(Math.max(least, 1)));
  for (const times of [1, 2, 5]) if (times * power >= least * 0.999999) return times * power;
  return 10 * power;
}

/**
 * The longest beginning of a text that is not wider than so many pixels, with "…" where something is left out.
 * @param {string} text
 * @param {number} maxWidth
 * @param {(text: string) => number} measure
 */
export function shortenText(text, maxWidth, measure) {
  if (measure(text) <= maxWidth) return text;
  const letters = graphemes(text);
  let low = 0;
  let high = letters.length;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (measure(`${letters.slice(0, middle).join("")}…`) <= maxWidth) low = middle;
    else high = middle - 1;
  }
  return `${letters.slice(0, low).join("")}…`;
}

/**
 * Letters with their accents, so that none is cut in two.
 * @param {string} text
 */
function graphemes(text) {
  // A label that fits no axis needs no more of its beginning than this.
  const head = text.slice(0, 256);
  if (typeof Intl === "undefined" || !("Segmenter" in Intl)) return [...head];
  return [...new Intl.Segmenter(undefined, { granularity: "grapheme" }).segment(head)].map((part) => part.segment);
}

/**
 * Which of the labels may be drawn beside those that have to be: items whose stretch overlaps none of theirs.
 * @param {number} middle  of the label, in pixels along the axis
 * @param {number} size  that it takes along the axis
 * @param {readonly number[]} kept  middles and sizes of labels drawn already, in turn
 * @param {number} count  entries of kept that count
 */
export function mapLabelFits(middle, size, kept, count) {
  for (let i = 0; i < count; i += 2) {
    if (Math.abs(middle - kept[i]) < (size + kept[i + 1]) / 2) return false;
  }
  return true;
}
