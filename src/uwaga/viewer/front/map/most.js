// The largest weights of what is loaded, by level.

import { scaleTop } from "../shell/scale.js";

/** @typedef {import("./tiles.js").MapTile} MapTile */
/** @typedef {import("./tiles.js").MapLayer} MapLayer */

/** Levels of a map at most. */
export const mapLevelsMost = 40;

/** @param {MapTile} tile */
export function mapMeasure(tile) {
  const { data, columns } = tile;
  tile.most = scaleTop(data);
  tile.mostRest = tile.column === 0 ? scaleTop(data, 0, data.length, columns, 1) : tile.most;
}

/**
 * Where the colours of a level end, by the weights seen there; estimated from another level where none of this one is there.
 * @param {MapLayer} layer
 * @param {number} level
 * @param {boolean} rest  without the first key's column
 */
export function mapMost(layer, level, rest) {
  const own = mapMostOf(layer, level, rest);
  if (own > 0) return own;
  for (let away = 1; away < mapLevelsMost; away++) {
    for (const other of [level + away, level - away]) {
      if (other < 0 || other >= mapLevelsMost) continue;
      const found = mapMostOf(layer, other, rest);
      if (found > 0) return found * mapFactor(layer, other, level);
    }
  }
  return 0;
}

/**
 * @param {MapLayer} layer
 * @param {number} level
 * @param {boolean} rest
 */
function mapMostOf(layer, level, rest) {
  let most = rest ? layer.mostRest[level] : layer.most[level];
  for (const tile of layer.levels[level].values()) most = Math.max(most, rest ? tile.mostRest : tile.most);
  return most;
}

/**
 * What makes a cell of one level comparable with the cells of another: masses are sums over a cell's keys.
 * @param {{how: "mass" | "max"}} layer
 * @param {number} from
 * @param {number} to
 */
export function mapFactor(layer, from, to) {
  return layer.how === "mass" ? 2 ** (to - from) : 1;
}
