// The tiles of one map drawn by a renderer: coarse ones first, sharper ones over them.

import { lastLevel, levelFor, tileRange, tileSide, topLevel } from "./pyramid.js";
import { levelFactor, tileAt } from "./tiles.js";
/** @import { Range, Side, ViewBox } from "../types.js" */
/** @import { Axis } from "./axes.js" */
/** @import { Colouring } from "./colours.js" */
/** @import { Cut } from "./overlay.js" */
/** @import { Box, Gutters } from "./panels.js" */
/** @import { Renderer } from "./renderer.js" */
/** @import { Layer, Tile } from "./tiles.js" */

/**
 * @typedef {object} Panel
 * @property {Side} side
 * @property {string} title
 * @property {string} missing  the reason why there is no map, or ""
 * @property {{queries: number, keys: number}} sizes
 * @property {Layer | null} layer
 * @property {Axis | null} queries
 * @property {Axis | null} keys
 * @property {Box} plot
 * @property {Gutters} gutters
 * @property {(query: number) => Range} seen  keys that a query may look at
 * @property {Cut[]} cuts  links that a change of the model cuts
 * @property {Colouring} colouring
 * @property {number} level  of the tiles in view
 * @property {number} colouringLevel  the level whose scale colours all panels
 * @property {Int32Array} range  tiles in view: first row, one past the last, first column, one past the last
 * @property {number} titleRoom
 * @property {string} titleShown
 */

/**
 * Sets the level and the range of tiles of a panel for a view.
 * @param {Panel} panel @param {ViewBox} view @param {number} ratio @param {number} colouringLevel
 */
export function setPanelTiles(panel, view, ratio, colouringLevel) {
  panel.colouringLevel = colouringLevel;
  panel.level = levelFor(view.scale, ratio, topLevel(panel.sizes));
  tileRange(view, panel.plot, panel.sizes, panel.level, panel.range);
}

/** @param {Renderer} renderer @param {Panel} panel @param {ViewBox} view @param {number} ratio @param {number} frame */
export function drawTiles(renderer, panel, view, ratio, frame) {
  const { plot, sizes, layer, range, level } = panel;
  if (!layer) return;
  const pixels = view.scale * ratio;
  const left = Math.round(plot.x * ratio);
  const top = Math.round(plot.y * ratio);
  const right = Math.round((plot.x + plot.w) * ratio);
  const bottom = Math.round((plot.y + plot.h) * ratio);
  const originX = left - view.x * pixels;
  const originY = top - view.y * pixels;
  const side = tileSide * 2 ** level;
  renderer.fill(left, top, Math.min(right, firstPixelAfter(originX + sizes.keys * pixels)),
    Math.min(bottom, firstPixelAfter(originY + sizes.queries * pixels)), panel.colouring.unknown);
  for (let row = range[0]; row < range[1]; row++) {
    const y0 = Math.max(top, firstPixelAfter(originY + row * side * pixels));
    const y1 = Math.min(bottom, firstPixelAfter(originY + Math.min((row + 1) * side, sizes.queries) * pixels));
    for (let column = range[2]; column < range[3]; column++) {
      const x0 = Math.max(left, firstPixelAfter(originX + column * side * pixels));
      const x1 = Math.min(right, firstPixelAfter(originX + Math.min((column + 1) * side, sizes.keys) * pixels));
      drawTilePlace(renderer, panel, row, column, originX, originY, pixels, x0, y0, x1, y1, frame);
    }
  }
}

/** The first pixel whose centre lies after an edge. @param {number} edge */
function firstPixelAfter(edge) {
  return Math.ceil(edge - 0.5);
}

/**
 * Draws the place of one tile: coarser tiles first if it is incomplete or missing, else finer ones if they are loaded.
 * @param {Renderer} renderer @param {Panel} panel @param {number} row @param {number} column @param {number} originX
 * @param {number} originY
 * @param {number} pixels  per item
 * @param {number} x0 @param {number} y0 @param {number} x1 @param {number} y1 @param {number} frame
 */
function drawTilePlace(renderer, panel, row, column, originX, originY, pixels, x0, y0, x1, y1, frame) {
  const layer = /** @type {Layer} */ (panel.layer);
  const { level, colouring, colouringLevel } = panel;
  const currentTile = tileAt(layer, level, row, column);
  const last = lastLevel(panel.sizes);
  // Start at the finest complete level above.
  let from = level;
  for (let above = level; above <= last; above++) {
    const tile = tileAt(layer, above, row >> (above - level), column >> (above - level));
    if (!tile) continue;
    from = above;
    if (tile.complete >= 1) break;
  }
  let transparent = false;
  for (let above = from; above >= level; above--) {
    const tile = tileAt(layer, above, row >> (above - level), column >> (above - level));
    if (!tile) continue;
    drawTile(renderer, tile, colouring, levelFactor(layer, above, colouringLevel), originX, originY, pixels, x0, y0, x1, y1, transparent, frame);
    transparent = true;
  }
  if (currentTile || level === 0) return;
  for (let child = 0; child < 4; child++) {
    const tile = tileAt(layer, level - 1, row * 2 + (child >> 1), column * 2 + (child & 1));
    if (!tile) continue;
    const size = tileSide * 2 ** (level - 1) * pixels;
    const left = Math.max(x0, firstPixelAfter(originX + tile.column * size));
    const top = Math.max(y0, firstPixelAfter(originY + tile.row * size));
    const right = Math.min(x1, firstPixelAfter(originX + (tile.column + 1) * size));
    const bottom = Math.min(y1, firstPixelAfter(originY + (tile.row + 1) * size));
    drawTile(renderer, tile, colouring, levelFactor(layer, level - 1, colouringLevel), originX,
      originY, pixels, left, top, right, bottom, transparent, frame);
  }
}

/**
 * @param {Renderer} renderer @param {Tile} tile @param {Colouring} colouring @param {number} factor
 * @param {number} originX @param {number} originY
 * @param {number} pixels  per item
 * @param {number} left @param {number} top @param {number} right @param {number} bottom @param {boolean} transparent
 * @param {number} frame
 */
function drawTile(renderer, tile, colouring, factor, originX, originY, pixels, left, top, right, bottom, transparent, frame) {
  tile.used = frame;
  const cell = 2 ** tile.level * pixels;
  const size = tileSide * cell;
  renderer.paint(tile, originX + tile.column * size, originY + tile.row * size, cell, left, top, right, bottom, colouring, factor, transparent);
}

/** The share of the view that is exact, 0 to 1. @param {Panel} panel */
export function panelComplete(panel) {
  const { layer, range, level } = panel;
  if (!layer) return 1;
  let sum = 0, count = 0;
  for (let row = range[0]; row < range[1]; row++) {
    for (let column = range[2]; column < range[3]; column++) {
      count += 1;
      sum += Math.min(1, tileAt(layer, level, row, column)?.complete ?? 0);
    }
  }
  return count ? sum / count : 1;
}
