// The labels of an axis: measured, shortened, cached, and which of them are drawn.

import { tokenText } from "../dom.js";
import { countText } from "../format.js";
/** @import { Items } from "../types.js" */
/** @import { Style } from "./colours.js" */
/** @import { Box } from "./panels.js" */
/** @import { Display } from "./map_canvas.js" */
/** @import { Panel } from "./tile_drawing.js" */

/**
 * @typedef {object} Axis
 * @property {Items} items
 * @property {(string | undefined)[]} texts  cache of shortened texts
 * @property {number} room  the width in pixels that texts were shortened to
 * @property {string} font  the font they were measured in
 * @property {Map<number, string>} strong  cached bold texts of selected and hovered items
 * @property {number} letters  of its longest word; 1 or 2: letters of a word, Chinese characters
 */

/** Letters of words that are horizontal along the upper edge even where a cell is narrow. */
const shortLetters = 2;
/** Middles and sizes, alternating, of labels with priority. Reused: frames must not allocate. */
const placedLabels = [0, 0, 0, 0];

/**
 * @typedef {object} AxisDrawing  one axis of one frame; the object is reused
 * @property {Axis | null} axis
 * @property {boolean} down  the axis of the queries
 * @property {Box} plot
 * @property {number} first  item at the plot's edge
 * @property {number} scale
 * @property {number} total
 * @property {number} room  pixels beside the plot
 * @property {number | null} selected
 * @property {number} hovered  -1: none
 * @property {string} colour  of the selected item
 */

/** @type {AxisDrawing} */
const reused = { axis: null, down: false, plot: { x: 0, y: 0, w: 0, h: 0 }, first: 0, scale: 1, total: 0, room: 0, selected: null, hovered: -1, colour: "" };
/** Numbers as text. @type {Map<number, string>} */
const counts = new Map();

/**
 * The labels of an axis of a panel.
 * @param {CanvasRenderingContext2D} context @param {Panel} panel @param {boolean} down @param {Display} display
 * @param {Style} style
 */
export function drawAxis(context, panel, down, display, style) {
  reused.axis = down ? panel.queries : panel.keys;
  reused.down = down;
  reused.plot = panel.plot;
  reused.first = down ? display.view.y : display.view.x;
  reused.scale = display.view.scale;
  reused.total = down ? panel.sizes.queries : panel.sizes.keys;
  reused.room = down ? panel.gutters.left : panel.gutters.top;
  reused.selected = down ? display.selectedQuery : display.selectedKey;
  reused.hovered = down ? display.query : display.key;
  if (reused.hovered >= reused.total) reused.hovered = -1;
  if (reused.selected !== null && reused.selected >= reused.total) reused.selected = null;
  reused.colour = down ? style.query : style.key;
  drawLabels(context, reused, style);
}

/** @param {CanvasRenderingContext2D} context @param {AxisDrawing} drawing @param {Style} style */
export function drawLabels(context, drawing, style) {
  const { axis, scale, total, first, down, plot } = drawing;
  const length = down ? plot.h : plot.w;
  // Along the upper edge labels are horizontal if a cell is wide enough for the widest or all are short, else vertical.
  const isShort = axis !== null && axis.letters <= shortLetters, upright = !down && axis !== null && (isShort ? scale >= style.size * (axis.letters + 0.3) : scale >= drawing.room - 6 && scale >= style.size * 3);
  const line = upright && !isShort ? drawing.room : style.size * 1.28;
  const wide = down ? style.size * 2.4 : (String(total).length + 2.5) * style.size * 0.62;
  const ticks = ticksFor(scale, axis ? line : Infinity, wide);
  let placed = 0;
  context.textBaseline = "middle";
  const both = drawing.hovered === drawing.selected;
  if (drawing.hovered >= 0)
    placed = drawPriorityLabel(context, drawing, style, drawing.hovered, both ? drawing.colour : style.text, placed, upright);
  if (drawing.selected !== null && drawing.selected !== drawing.hovered) {
    placed = drawPriorityLabel(context, drawing, style, drawing.selected, drawing.colour, placed, upright);
  }
  const step = ticks.step;
  const last = Math.min(total, Math.ceil(first + length / scale));
  for (let item = Math.max(0, Math.floor(first / step) * step); item < last; item += step) {
    const middle = (item + 0.5 - first) * scale;
    if (middle < 0 || middle > length || item === drawing.hovered || item === drawing.selected) continue;
    const tokens = ticks.mode === "tokens";
    if (!labelFits(middle, tokens ? line : wide, placedLabels, placed)) continue;
    context.fillStyle = tokens && axis?.items.specials.has(item) ? style.muted : tokens ? style.text : style.muted;
    if (tokens && axis) drawLabel(context, drawing, style, labelText(axis, item, drawing.room - 8, context), middle, upright && !(isShort && axis.items.specials.has(item)));
    else drawNumber(context, drawing, cachedCountText(item), middle);
  }
}

/**
 * Draws a label with priority (hovered or selected) and reserves its space.
 * @param {CanvasRenderingContext2D} context @param {AxisDrawing} drawing @param {Style} style @param {number} item
 * @param {string} colour @param {number} placed @param {boolean} upright
 * @returns {number} used entries of mapPlacedLabels
 */
function drawPriorityLabel(context, drawing, style, item, colour, placed, upright) {
  const middle = (item + 0.5 - drawing.first) * drawing.scale;
  const length = drawing.down ? drawing.plot.h : drawing.plot.w;
  if (middle < -0.01 || middle > length) return placed;
  const isShort = drawing.axis !== null && drawing.axis.letters <= shortLetters, size = upright && !isShort ? drawing.room : style.size * 1.5;
  if (!labelFits(middle, size, placedLabels, placed)) return placed;
  context.fillStyle = colour;
  context.font = style.strong;
  const text = drawing.axis ? strongLabelText(drawing.axis, item, drawing.room - 8, context) : cachedCountText(item);
  drawLabel(context, drawing, style, text, middle, upright && !(isShort && drawing.axis?.items.specials.has(item)));
  context.font = style.font;
  placedLabels[placed] = middle;
  placedLabels[placed + 1] = size;
  return placed + 2;
}

/**
 * @param {CanvasRenderingContext2D} context @param {AxisDrawing} drawing @param {Style} style @param {string} text
 * @param {number} middle @param {boolean} upright
 */
function drawLabel(context, drawing, style, text, middle, upright) {
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

/** @param {CanvasRenderingContext2D} context @param {AxisDrawing} drawing @param {string} text @param {number} middle */
function drawNumber(context, drawing, text, middle) {
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

/** @param {number} count */
function cachedCountText(count) {
  let text = counts.get(count);
  if (text === undefined) {
    if (counts.size > 4000) counts.clear();
    text = countText(count);
    counts.set(count, text);
  }
  return text;
}

// Label texts: measured, shortened, cached.

/** How many labels of a long axis are measured: a sample is accurate enough. */
const maxMeasuredLabels = 500;

/** The share of the labels that may be shortened, if they are much wider than the others. */
const shortenedShare = 0.04;
const muchWider = 1.6;
/** A bold label is so much wider, at most. */
const boldWidth = 1.12;

/** @param {Items} items @returns {Axis} */
export function makeAxis(items) {
  const letters = items.labels.reduce((most, label, item) => (most > shortLetters || items.specials.has(item) ? most : Math.max(most, [...label].length)), 1);
  return { items, texts: [], room: 0, font: "", strong: new Map(), letters };
}

/**
 * The width in pixels that fits nearly all labels (a quantile).
 * @param {Axis} axis
 * @param {CanvasRenderingContext2D} context  with its font set
 */
export function axisLabelWidth(axis, context) {
  const { labels } = axis.items;
  const step = Math.max(1, Math.floor(labels.length / maxMeasuredLabels));
  const widths = [];
  for (let i = 0; i < labels.length; i += step) widths.push(context.measureText(tokenText(labels[i]).slice(0, 64)).width);
  widths.sort((left, right) => left - right);
  const most = widths[Math.floor(widths.length * (1 - shortenedShare))] ?? 0;
  return boldWidth * Math.max(most, ...widths.filter((width) => width <= muchWider * most));
}

/**
 * A label's text as drawn: invisible characters made visible, shortened, cached.
 * @param {Axis} axis @param {number} item
 * @param {number} room  pixels
 * @param {CanvasRenderingContext2D} context
 */
export function labelText(axis, item, room, context) {
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

/** @param {Axis} axis @param {number} item @param {number} room @param {CanvasRenderingContext2D} context */
function strongLabelText(axis, item, room, context) {
  let text = axis.strong.get(item);
  if (text === undefined || axis.room !== room) {
    if (axis.strong.size > 64) axis.strong.clear();
    text = shortenText(tokenText(axis.items.labels[item] ?? ""), room, (part) => context.measureText(part).width);
    axis.strong.set(item, text);
  }
  return text;
}

// Which labels are drawn, without overlap.

/** @typedef {{mode: "tokens" | "positions", step: number}} Ticks */

/**
 * How an axis is labelled at a scale: with tokens while at least every second one fits, else with positions.
 * @param {number} scale  CSS pixels per item
 * @param {number} line  CSS pixels of a label along the axis
 * @param {number} wide  CSS pixels of a number along the axis
 * @returns {Ticks}
 */
export function ticksFor(scale, line, wide) {
  if (scale >= line) return { mode: "tokens", step: 1 };
  if (scale * 2 >= line) return { mode: "tokens", step: 2 };
  return { mode: "positions", step: niceStep(wide / scale) };
}

/** The smallest of 1, 2, 5, 10, 20, 50... that is at least the given number. @param {number} least */
export function niceStep(least) {
  const power = 10 ** Math.floor(Math.log10(Math.max(least, 1)));
  for (const times of [1, 2, 5]) if (times * power >= least * 0.999999) return times * power;
  return 10 * power;
}

/**
 * The longest prefix of a text that fits a width, with "…" if something is cut off.
 * @param {string} text @param {number} maxWidth @param {(text: string) => number} measure
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

/** Grapheme clusters, so that no accent is cut off its letter. @param {string} text */
function graphemes(text) {
  // More than 256 characters fit no axis.
  const head = text.slice(0, 256);
  if (typeof Intl === "undefined" || !("Segmenter" in Intl)) return [...head];
  return [...new Intl.Segmenter(undefined, { granularity: "grapheme" }).segment(head)].map((part) => part.segment);
}

/**
 * Whether a label overlaps none of those already drawn.
 * @param {number} middle  of the label, in pixels along the axis
 * @param {number} size  of the label along the axis
 * @param {readonly number[]} placed  middles and sizes, alternating, of labels already drawn
 * @param {number} count  used entries of kept
 */
export function labelFits(middle, size, placed, count) {
  for (let i = 0; i < count; i += 2) {
    if (Math.abs(middle - placed[i]) < (size + placed[i + 1]) / 2) return false;
  }
  return true;
}
