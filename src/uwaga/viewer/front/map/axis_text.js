// The texts of an axis: measured, shortened, kept.

import { tokenText } from "../dom.js";
import { mapShorten } from "./labels.js";

/** @typedef {import("./axis.js").MapAxis} MapAxis */
/** @typedef {import("../types.js").Items} Items */

/** Labels of a long axis that are measured: the widest of so many is near enough. */
const mapMeasured = 500;

/** The part of the labels that may be too long for their room. */
const mapLongest = 0.04;

/** @param {Items} items @returns {MapAxis} */
export function makeMapAxis(items) {
  return { items, texts: [], room: 0, font: "", strong: new Map() };
}

/**
 * Pixels that nearly all labels fit in: the few that are longer are shortened.
 * @param {MapAxis} axis
 * @param {CanvasRenderingContext2D} context  with its font set
 */
export function mapWidest(axis, context) {
  const { labels } = axis.items;
  const step = Math.max(1, Math.floor(labels.length / mapMeasured));
  const widths = [];
  for (let i = 0; i < labels.length; i += step) widths.push(context.measureText(tokenText(labels[i]).slice(0, 64)).width);
  widths.sort((left, right) => left - right);
  return widths[Math.floor(widths.length * (1 - mapLongest))] ?? 0;
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
    text = mapShorten(tokenText(axis.items.labels[item] ?? ""), room, (part) => context.measureText(part).width);
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
    text = mapShorten(tokenText(axis.items.labels[item] ?? ""), room, (part) => context.measureText(part).width);
    axis.strong.set(item, text);
  }
  return text;
}
