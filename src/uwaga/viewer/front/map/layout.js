// Where the panels stand on the stage, and how much of each its labels take. CSS pixels.

/** @typedef {{x: number, y: number, w: number, h: number}} MapBox */
/** @typedef {{title: number, left: number, top: number}} MapGutters */

const mapPanelGap = 12;
const mapPanelLeast = 260;

/**
 * The plots of one, two or three panels, all of one size: locked navigation needs that. Side by side where they are wide
 * enough to be read, one below another otherwise.
 * @param {number} width
 * @param {number} height
 * @param {number} count
 * @param {MapGutters} gutters
 * @returns {MapBox[]}
 */
export function mapLayout(width, height, count, gutters) {
  const beside = count === 1 || (width - mapPanelGap * (count - 1)) / count >= mapPanelLeast || width > height;
  const across = beside ? count : 1;
  const down = beside ? 1 : count;
  const panelWidth = (width - mapPanelGap * (across - 1)) / across;
  const panelHeight = (height - mapPanelGap * (down - 1)) / down;
  return Array.from({ length: count }, (_, at) => {
    const x = Math.round((at % across) * (panelWidth + mapPanelGap) + gutters.left);
    const y = Math.round(Math.floor(at / across) * (panelHeight + mapPanelGap) + gutters.title + gutters.top);
    return {
      x, y,
      w: Math.max(8, Math.floor(panelWidth - gutters.left) - 1),
      h: Math.max(8, Math.floor(panelHeight - gutters.title - gutters.top) - 1),
    };
  });
}

/**
 * Room for labels: what the widest needs, but never so much that the map becomes small.
 * @param {number} widestQuery
 * @param {number} widestKey
 * @param {number} width  of a panel
 * @param {number} height
 * @param {number} font  size in pixels
 * @param {boolean} titled
 * @returns {MapGutters}
 */
export function mapGutters(widestQuery, widestKey, width, height, font, titled) {
  const room = (/** @type {number} */ widest, /** @type {number} */ size) =>
    Math.round(Math.max(Math.min(widest + 10, size * 0.24, font * 11), font * 3.2));
  return { title: titled ? Math.round(font * 1.9) : 0, left: room(widestQuery, width), top: room(widestKey, height) };
}

/**
 * The overview in a corner of the plot; null where it would show nothing or hide too much.
 * @param {MapBox} plot
 * @param {{queries: number, keys: number}} sizes
 * @returns {MapBox | null}
 */
export function mapMinimapBox(plot, sizes) {
  const most = Math.min(128, plot.w * 0.3, plot.h * 0.3);
  const longer = Math.max(sizes.queries, sizes.keys);
  const w = Math.round((most * sizes.keys) / longer);
  const h = Math.round((most * sizes.queries) / longer);
  if (w < 6 || h < 6 || most < 40) return null;
  return { x: plot.x + plot.w - w - 8, y: plot.y + plot.h - h - 8, w, h };
}
