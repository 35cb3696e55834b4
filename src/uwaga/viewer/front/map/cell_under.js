// The finest cell that is known of a place.

import { mapTileAt } from "./tiles.js";
import { mapFactor } from "./most.js";

/** @typedef {import("./panel.js").MapPanel} MapPanel */

/**
 * What one cell of a coarser level holds: its number at that level.
 * @param {MapPanel} panel
 * @param {number} query
 * @param {number} key
 * @returns {{value: number, complete: number, level: number} | null}
 */
export function mapCellUnder(panel, query, key) {
  const { layer } = panel;
  if (!layer) return null;
  for (let level = panel.level; level < layer.levels.length; level++) {
    const row = Math.floor(query / 2 ** level);
    const column = Math.floor(key / 2 ** level);
    const tile = mapTileAt(layer, level, row >> 8, column >> 8);
    if (!tile) continue;
    const value = tile.data[(row & 255) * tile.columns + (column & 255)];
    if (value === value || level >= layer.levels.length - 1) return { value, complete: tile.complete, level };
  }
  return null;
}

/**
 * The number of a cell as colours take it: by the measure of the level on show.
 * @param {MapPanel} panel
 * @param {{value: number, level: number}} cell
 */
export function mapCellShown(panel, cell) {
  return panel.layer ? cell.value * mapFactor(panel.layer, cell.level, panel.shadeLevel) : NaN;
}
