// Which panels the comparison asks for, and what stands on their axes.

import { nearestHead, stackSize } from "../shell/app.js";
import { kindTitle } from "../shell/pieces.js";

/** @typedef {import("../types.js").App} App */
/** @typedef {import("../types.js").Side} Side */
/** @typedef {import("./panel.js").MapPanel} MapPanel */

/**
 * The sides on show, in order: the store's, or both, or both and what is between them.
 * @param {App} app
 * @returns {Side[]}
 */
export function mapSides(app) {
  const { compare } = app.store.get();
  const { sides } = app.about;
  if (compare === "one" || sides.length < 2) return [app.side()];
  const difference = sides.filter(({ id }) => id === "difference");
  return [...sides.filter(({ id }) => id !== "difference"), ...(compare === "difference" ? difference : [])];
}

/**
 * @param {App} app
 * @param {Side} side
 * @param {string} kind
 * @param {number} layer
 * @param {number} head
 * @returns {string} why the side has no such map, or ""
 */
export function mapMissing(app, side, kind, layer, head) {
  const map = side.maps.find((one) => one.kind === kind && one.layer === layer);
  if (map && head < map.heads) return "";
  if (!side.maps.length) return `${side.title}: there are no maps`;
  const near = nearestHead(side, kind, layer, head);
  const other = `; the nearest is ${kindTitle(near.kind)} layer ${near.layer} head ${near.head}`;
  return `${side.title} has no ${kindTitle(kind)} layer ${layer} head ${head}${other}`;
}

/**
 * A panel without tiles and labels yet.
 * @param {App} app
 * @param {Side} side
 * @returns {MapPanel}
 */
export function makeMapPanel(app, side) {
  const { kind, layer, head, merge, specials } = app.store.get();
  const missing = mapMissing(app, side, kind, layer, head);
  const axes = side.kinds[kind];
  const size = (/** @type {string} */ stack) => (axes && side.stacks[stack] ? Math.max(0, stackSize(side, stack, merge, specials)) : 0);
  const box = { x: 0, y: 0, w: 8, h: 8 };
  return {
    side, missing, title: side.id === "difference" || side.title === side.text_title
      ? side.title : `${side.title} \u00b7 ${side.text_title}`,
    sizes: missing ? { queries: 0, keys: 0 } : { queries: size(axes.queries), keys: size(axes.keys) },
    layer: null, queries: null, keys: null, plot: box, gutters: { title: 0, left: 0, top: 0 }, minimap: null,
    shade: {
      log: false, low: 0, high: 1, threshold: 0, hideSink: false, signed: side.signed,
      table: new Uint8Array(1024), unknown: 0, aside: 0, version: 0,
    },
    level: 0, shadeLevel: 0, range: new Int32Array(4), titleRoom: -1, titleShown: "",
  };
}

/**
 * What the panels show, in words.
 * @param {App} app
 * @param {MapPanel[]} panels
 */
export function mapWordsOf(app, panels) {
  const { kind, layer, head, how } = app.store.get();
  const sizes = panels.map(({ sizes: { queries, keys } }) => `${queries} queries by ${keys} keys`);
  const whose = panels.map((panel) => panel.side.title).join(", ");
  const pooled = how === "mass" ? "mass" : "largest weights";
  const what = [...(panels.length > 1 ? [whose] : []), ...new Set(sizes)].join("; ");
  return `Attention map, ${kindTitle(kind)} layer ${layer} head ${head}, ${pooled}: ${what}`;
}
