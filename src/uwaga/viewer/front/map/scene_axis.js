// Labels and scale of the map's picture in a file.

import { mapBarTicks, mapTickText } from "./colour_bar.js";
import { mapAxisText } from "./axis_text.js";
import { mapCount, mapTicks } from "./labels.js";

/** @typedef {import("../types.js").SceneItem} SceneItem */
/** @typedef {import("./stage.js").MapScenery} MapScenery */
/** @typedef {import("./panel.js").MapPanel} MapPanel */

/** CSS pixels above the map, for its title. */
export const mapSceneHead = 30;

/**
 * @param {MapPanel} panel
 * @param {MapScenery} scenery
 * @param {CanvasRenderingContext2D} context
 * @param {boolean} down
 * @param {number} length
 * @returns {SceneItem[]}
 */
export function mapSceneAxis(panel, scenery, context, down, length) {
  const { view } = scenery;
  const style = /** @type {import("./style.js").MapStyle} */ (scenery.style);
  const axis = down ? panel.queries : panel.keys;
  const total = down ? panel.sizes.queries : panel.sizes.keys;
  const first = down ? view.y : view.x;
  const room = down ? panel.gutters.left : panel.gutters.top;
  const upright = !down && axis !== null && view.scale >= room - 6 && view.scale >= style.size * 3;
  const wide = down ? style.size * 2.4 : (String(total).length + 2.5) * style.size * 0.62;
  const ticks = mapTicks(view.scale, axis ? (upright ? room : style.size * 1.28) : Infinity, wide);
  const top = panel.plot.y + mapSceneHead;
  /** @type {SceneItem[]} */
  const items = [];
  for (let item = Math.max(0, Math.ceil(first / ticks.step - 1e-9) * ticks.step); item < total; item += ticks.step) {
    const middle = (item + 0.5 - first) * view.scale;
    if (middle > length) break;
    const named = ticks.mode === "tokens" && axis;
    const text = named ? mapAxisText(axis, item, room - 8, context) : mapCount(item);
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
 * @param {MapPanel} panel
 * @param {number} x
 * @param {number} y
 * @param {import("./style.js").MapStyle} style
 * @returns {SceneItem[]}
 */
export function mapSceneBar(panel, x, y, style) {
  const width = 200;
  const name = panel.side.signed ? "difference" : panel.level === 0 ? "weight" : panel.layer?.how === "max"
    ? "largest weight of a cell" : "mass of a cell";
  /** @type {SceneItem[]} */
  const items = [
    { kind: "image", x, y, w: width, h: 10, pixels: new Uint8ClampedArray(panel.shade.table), columns: 256, rows: 1 },
    { kind: "text", x, y: y - 3, text: name, size: style.size * 0.9, anchor: "start", fill: style.muted },
  ];
  mapBarTicks(panel.shade).forEach(({ place, value }, at) => items.push({
    kind: "text", x: x + place * width, y: y + 12 + style.size, text: mapTickText(place, value), size: style.size * 0.9,
    anchor: at === 0 ? "start" : at === 1 ? "middle" : "end", fill: style.text,
  }));
  return items;
}
