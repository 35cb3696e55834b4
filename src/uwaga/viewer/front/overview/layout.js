// Where each small map is: a row per layer, a column per head, a band per kind (and side). CSS pixels.

/** @import { Kind, Side, SideId } from "../types.js" */

/** @typedef {{side: SideId, kind: Kind, layer: number, heads: number, band: number, y: number}} Row */
/** @typedef {{title: string, y: number}} Band */
/**
 * @typedef {object} Layout
 * @property {Row[]} rows
 * @property {Band[]} bands
 * @property {number} cell  side of a small map
 * @property {number} pitch  distance from one small map to the next
 * @property {number} left  space for the layer numbers
 * @property {number} top  space for the head numbers, always in view
 * @property {number} width
 * @property {number} height
 */

/**
 * Small maps as wide as the width allows, times `zoom`, within a readable range.
 * @param {{side: Side, kind: Kind, title: string}[]} parts  the bands
 * @param {number} width  in view
 * @param {number} height  in view
 * @param {number} rem  CSS pixels
 * @param {number} zoom @returns {Layout}
 */
export function makeLayout(parts, width, height, rem, zoom) {
  const left = 2.5 * rem, top = 1.5 * rem, bandRoom = parts.length > 1 ? 2 * rem : 0, gap = Math.max(7, 0.5 * rem);
  const maps = parts.map(({ side, kind }) => side.maps.filter((map) => map.kind === kind));
  const most = Math.max(1, ...maps.flat().map(({ heads }) => heads));
  const rows = maps.flat().length;
  const fits = (width - left - 0.5 * rem) / most - gap;
  // Few heads take the width as far as four layers of them are in view; many share it.
  const largest = Math.max(7 * rem, (height - top) / Math.max(1, Math.min(rows, 4)) - gap);
  const cell = Math.round(Math.max(1.1 * rem, Math.min(largest, Math.max((width < 42 * rem ? 1.1 : 2) * rem, fits)) * zoom));
  const layout = { rows: /** @type {Row[]} */ ([]), bands: /** @type {Band[]} */ ([]), cell, pitch: cell + gap,
    left, top, width: left + most * (cell + gap) + 0.25 * rem, height: 0 };
  let y = top;
  parts.forEach(({ side, title }, band) => {
    if (bandRoom) layout.bands.push({ title, y });
    y += bandRoom;
    for (const { kind, layer, heads } of maps[band]) {
      layout.rows.push({ side: side.id, kind, layer, heads, band, y });
      y += layout.pitch;
    }
  });
  layout.height = y + 0.5 * rem;
  return layout;
}

/**
 * The rows between `top` and `bottom`: first, one past the last.
 * @param {Layout} layout @param {number} top @param {number} bottom @returns {[number, number]}
 */
export function visibleRows({ rows, pitch }, top, bottom) {
  const first = rows.findIndex(({ y }) => y + pitch > top);
  if (first < 0) return [rows.length, rows.length];
  let end = first;
  while (end < rows.length && rows[end].y < bottom) end += 1;
  return [first, end];
}

/**
 * The small map at a point, or null.
 * @param {Layout} layout @param {number} x @param {number} y @returns {{row: number, head: number} | null}
 */
export function placeAt({ rows, left, pitch, cell }, x, y) {
  const row = rows.findIndex((one) => y >= one.y && y < one.y + cell), head = Math.floor((x - left) / pitch);
  if (row < 0 || head < 0 || head >= rows[row].heads || x - left - head * pitch >= cell) return null;
  return { row, head };
}

/**
 * The small map that a key moves to.
 * @param {Layout} layout @param {{row: number, head: number}} from @param {string} key
 * @param {number} page  rows in view
 * @returns {{row: number, head: number} | null} null: not a navigation key
 */
export function stepFrom({ rows }, { row, head }, key, page) {
  const to = {
    ArrowLeft: [row, head - 1], ArrowRight: [row, head + 1], ArrowUp: [row - 1, head], ArrowDown: [row + 1, head],
    PageUp: [row - page, head], PageDown: [row + page, head], Home: [row, 0], End: [row, Infinity],
  }[key];
  if (!to) return null;
  const there = Math.max(0, Math.min(rows.length - 1, to[0]));
  return { row: there, head: Math.max(0, Math.min(rows[there].heads - 1, to[1])) };
}
