// Where the window stands over the map: items at its edges, CSS pixels per item. Pure arithmetic.

/** @typedef {{queries: number, keys: number}} MapSizes  items along the axes */
/** @typedef {{w: number, h: number}} MapPlot  CSS pixels that the cells may fill */
/** @typedef {import("../types.js").ViewBox} ViewBox */

/** Cells larger than this tell nothing more. */
export const mapScaleMost = 160;
/** A map of few tokens does not fill a large window: its cells stay this small at first. */
const mapScaleFitMost = 112;

/**
 * CSS pixels per item at which the whole map is in view.
 * @param {MapSizes} sizes
 * @param {MapPlot} plot
 */
export function mapFitScale(sizes, plot) {
  const along = plot.w / Math.max(1, sizes.keys);
  const down = plot.h / Math.max(1, sizes.queries);
  return Math.max(1e-9, Math.min(along, down, mapScaleFitMost));
}

/**
 * The view changed, in place, to the nearest that shows no more emptiness than it has to.
 * @param {ViewBox} view
 * @param {MapSizes} sizes
 * @param {MapPlot} plot
 */
export function mapClamp(view, sizes, plot) {
  const least = mapFitScale(sizes, plot);
  if (!(view.scale > 0)) view.scale = least;
  view.scale = Math.min(Math.max(view.scale, least), Math.max(mapScaleMost, least));
  view.x = mapClampEdge(view.x, sizes.keys, plot.w / view.scale);
  view.y = mapClampEdge(view.y, sizes.queries, plot.h / view.scale);
}

/**
 * @param {number} first
 * @param {number} total
 * @param {number} shown
 */
function mapClampEdge(first, total, shown) {
  // A map narrower than the window stands at its left and top, beside its labels.
  if (!Number.isFinite(first) || shown >= total) return 0;
  return Math.min(Math.max(first, 0), total - shown);
}

/**
 * Nearer by a factor; the item under a point of the plot stays there.
 * @param {ViewBox} view  changed in place
 * @param {number} factor
 * @param {number} px  CSS pixels from the plot's left edge
 * @param {number} py
 * @param {MapSizes} sizes
 * @param {MapPlot} plot
 */
export function mapZoomAt(view, factor, px, py, sizes, plot) {
  const x = view.x + px / view.scale;
  const y = view.y + py / view.scale;
  const least = mapFitScale(sizes, plot);
  view.scale = Math.min(Math.max(view.scale * factor, least), Math.max(mapScaleMost, least));
  view.x = x - px / view.scale;
  view.y = y - py / view.scale;
  mapClamp(view, sizes, plot);
}

/**
 * Moves the least that brings an item into view, with some room beside it.
 * @param {ViewBox} view  changed in place
 * @param {number} query
 * @param {number} key
 * @param {MapSizes} sizes
 * @param {MapPlot} plot
 */
export function mapReveal(view, query, key, sizes, plot) {
  view.x = mapRevealEdge(view.x, key, plot.w / view.scale);
  view.y = mapRevealEdge(view.y, query, plot.h / view.scale);
  mapClamp(view, sizes, plot);
}

/**
 * @param {number} first
 * @param {number} item
 * @param {number} shown
 */
function mapRevealEdge(first, item, shown) {
  const room = Math.min(2, shown / 4);
  if (item < first + room) return item - room;
  if (item + 1 > first + shown - room) return item + 1 + room - shown;
  return first;
}

/**
 * The whole map is in view.
 * @param {ViewBox} view
 * @param {MapSizes} sizes
 * @param {MapPlot} plot
 */
export function mapIsFit(view, sizes, plot) {
  return view.scale <= mapFitScale(sizes, plot) * 1.0001;
}

/**
 * The items in view: [first query, one past the last, first key, one past the last].
 * @param {ViewBox} view
 * @param {MapSizes} sizes
 * @param {MapPlot} plot
 * @returns {[number, number, number, number]}
 */
export function mapBlock(view, sizes, plot) {
  const edge = (/** @type {number} */ at, /** @type {number} */ total) => Math.min(Math.max(at, 0), total);
  return [
    edge(Math.floor(view.y), sizes.queries), edge(Math.ceil(view.y + plot.h / view.scale), sizes.queries),
    edge(Math.floor(view.x), sizes.keys), edge(Math.ceil(view.x + plot.w / view.scale), sizes.keys),
  ];
}
