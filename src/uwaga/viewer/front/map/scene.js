// The visible map as a scene: an image of its cells, the labels of both axes, titles and the scale of colours.

import { kindTitle } from "../shell/pieces.js";
import { mapCanvasBlit } from "./canvas.js";
import { mapNumberLeast } from "./overlay.js";
import { mapCellText } from "./cell_text.js";
import { drawMapPanel } from "./panel.js";
import { mapLightness, mapPlace, mapShadeCells } from "./shade.js";
import { mapTileAt } from "./tiles.js";
import { mapSceneAxis, mapSceneBar, mapSceneHead } from "./scene_axis.js";

/** @typedef {import("../types.js").SceneItem} SceneItem */
/** @typedef {import("./stage.js").MapScenery} MapScenery */
/** @typedef {import("./panel.js").MapPanel} MapPanel */

const mapSceneFoot = 54;
/** Pixels of the image per CSS pixel. */
const mapSceneSharp = 2;

/**
 * @param {import("../types.js").App} app
 * @param {MapScenery} scenery
 * @param {CanvasRenderingContext2D} context  measures labels
 * @param {number} width  of the stage
 * @param {number} height
 * @returns {import("../types.js").Scene}
 */
export function mapScene(app, scenery, context, width, height) {
  const { style, panels } = scenery;
  if (!style || !width) throw new Error("The map has not been drawn yet.");
  const { kind, layer, head } = app.store.get();
  const whose = panels.length === 1 ? `${panels[0].title}, ` : "";
  /** @type {SceneItem[]} */
  const items = [{ kind: "text", x: 4, y: 20, text: `${whose}${kindTitle(kind)} layer ${layer} head ${head}`,
    size: style.size * 1.15, anchor: "start", fill: style.text }];
  for (const panel of panels) items.push(...mapScenePanel(panel, scenery, context));
  let x = panels[0].plot.x;
  for (const signed of [false, true]) {
    const panel = panels.find((one) => one.side.signed === signed);
    if (!panel) continue;
    items.push(...mapSceneBar(panel, x, height + mapSceneHead + 18, style));
    x += 260;
  }
  return { width, height: height + mapSceneHead + mapSceneFoot, background: style.background, items };
}

/**
 * @param {MapPanel} panel
 * @param {MapScenery} scenery
 * @param {CanvasRenderingContext2D} context
 * @returns {SceneItem[]}
 */
function mapScenePanel(panel, scenery, context) {
  const { plot, gutters, sizes } = panel;
  const style = /** @type {import("./style.js").MapStyle} */ (scenery.style);
  const { view } = scenery;
  const top = plot.y + mapSceneHead;
  /** @type {SceneItem[]} */
  const items = [];
  if (gutters.title) {
    items.push({ kind: "text", x: plot.x - gutters.left + 2, y: top - gutters.top - gutters.title / 3,
      text: panel.title, size: style.size, anchor: "start", fill: style.text });
  }
  if (!panel.layer) return items;
  const w = Math.min(plot.w, (sizes.keys - view.x) * view.scale);
  const h = Math.min(plot.h, (sizes.queries - view.y) * view.scale);
  items.push({ kind: "image", x: plot.x, y: top, w, h, ...mapScenePixels(panel, view, w, h) });
  items.push(...mapSceneFrame(plot.x, top, w, h, style.line), ...mapSceneNumbers(panel, view, top, style));
  context.font = style.font;
  items.push(...mapSceneAxis(panel, scenery, context, true, h), ...mapSceneAxis(panel, scenery, context, false, w));
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
function mapSceneFrame(x, y, w, h, stroke) {
  const corners = [[x, y], [x + w, y], [x + w, y + h], [x, y + h], [x, y]];
  return corners.slice(1).map(([x2, y2],
    at) => ({ kind: "line", x1: corners[at][0], y1: corners[at][1], x2, y2, stroke, width: 1, opacity: 1 }));
}

/**
 * The cells as they are drawn, in pixels.
 * @param {MapPanel} panel
 * @param {import("../types.js").ViewBox} view
 * @param {number} w
 * @param {number} h
 */
function mapScenePixels(panel, view, w, h) {
  const columns = Math.max(1, Math.round(w * mapSceneSharp));
  const rows = Math.max(1, Math.round(h * mapSceneSharp));
  const pixels = new Uint32Array(columns * rows);
  const columnOf = new Int32Array(columns);
  /** @type {any} the part of a renderer that draws panels */
  const renderer = {
    fill(/** @type {number} */ left, /** @type {number} */ top, /** @type {number} */ right,
      /** @type {number} */ bottom, /** @type {number} */ colour) {
      for (let y = top; y < Math.min(bottom, rows); y++) pixels.fill(colour, y * columns + left, y * columns + Math.min(right, columns));
    },
    /** @type {import("./gl.js").MapRenderer["paint"]} */
    paint(tile, x, y, cell, left, top, right, bottom, shade, factor, through) {
      const colours = new Uint32Array(tile.data.length);
      mapShadeCells(shade, tile.data, tile.columns, tile.column === 0, factor, colours, through);
      mapCanvasBlit(pixels, columns, columnOf, colours, tile.columns, tile.rows, x, y, cell, left,
        top, Math.min(right, columns), Math.min(bottom, rows), through);
    },
  };
  const at = { ...panel, plot: { x: 0, y: 0, w: panel.plot.w, h: panel.plot.h } };
  drawMapPanel(renderer, at, view, mapSceneSharp, 0);
  return { pixels: new Uint8ClampedArray(pixels.buffer), columns, rows };
}

/**
 * @param {MapPanel} panel
 * @param {import("../types.js").ViewBox} view
 * @param {number} top
 * @param {import("./style.js").MapStyle} style
 * @returns {SceneItem[]}
 */
function mapSceneNumbers(panel, view, top, style) {
  const { plot, sizes, layer, shade } = panel;
  /** @type {SceneItem[]} */
  const items = [];
  if (!layer || view.scale < mapNumberLeast) return items;
  const size = Math.min(style.size, 12.5);
  for (let query = Math.ceil(view.y - 0.5); query < Math.min(sizes.queries, view.y + plot.h / view.scale - 0.5); query++) {
    for (let key = Math.ceil(view.x - 0.5); key < Math.min(sizes.keys, view.x + plot.w / view.scale - 0.5); key++) {
      const tile = mapTileAt(layer, 0, query >> 8, key >> 8);
      if (!tile) continue;
      const weight = tile.data[(query & 255) * tile.columns + (key & 255)];
      const light = shade.hideSink && key === 0
        ? style.asideLight : mapLightness(shade.table, Math.floor(mapPlace(shade, weight) * 255 + 0.5)) > 0.5;
      items.push({
        kind: "text", x: plot.x + (key + 0.5 - view.x) * view.scale, y: top + (query + 0.5 - view.y) * view.scale + size * 0.35,
        text: mapCellText(weight, view.scale), size, anchor: "middle", fill: light ? "#000000" : "#ffffff",
      });
    }
  }
  return items;
}
