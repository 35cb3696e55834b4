// Which maps are shown beside each other (one side, both, their difference), and the boxes of their parts on the canvas.

import { kindTitle } from "../format.js";
import { tr } from "../languages.js";
import { nearestHead, stackSize } from "../shell/app.js";
import { axisLabelWidth } from "./axes.js";
/** @import { App, Side } from "../types.js" */
/** @import { Display } from "./map_canvas.js" */
/** @import { Panel } from "./tile_drawing.js" */

/** The sides shown, in order: the store's, or both, or both and their difference. @param {App} app @returns {Side[]} */
export function comparedSides(app) {
  const { compare } = app.store.get();
  const { sides } = app.about;
  if (compare === "one" || sides.length < 2) return [app.side()];
  const difference = sides.filter(({ id }) => id === "difference");
  return [...sides.filter(({ id }) => id !== "difference"), ...(compare === "difference" ? difference : [])];
}

/**
 * @param {App} app @param {Side} side @param {string} kind @param {number} layer @param {number} head
 * @returns {string} the reason why the side has no such map, or ""
 */
function missingMapText(app, side, kind, layer, head) {
  const map = side.maps.find((one) => one.kind === kind && one.layer === layer);
  if (map && head < map.heads) return "";
  if (!side.maps.length) return tr("{title}: there are no maps", { title: side.title });
  const near = nearestHead(side, kind, layer, head);
  return tr("{title} has no {kind} layer {layer} head {head}; the nearest is {near} layer {near_layer} head {near_head}",
    { title: side.title, kind: kindTitle(kind), layer, head, near: kindTitle(near.kind), near_layer: near.layer, near_head: near.head });
}

/** A panel, before its tiles and labels are loaded. @param {App} app @param {Side} side @returns {Panel} */
export function makePanel(app, side) {
  const { kind, layer, head, merge, specials } = app.store.get();
  const missing = missingMapText(app, side, kind, layer, head);
  const axes = side.kinds[kind];
  const size = (/** @type {string} */ stack) => (axes && side.stacks[stack] ? Math.max(0, stackSize(side, stack, merge, specials)) : 0);
  const box = { x: 0, y: 0, w: 8, h: 8 }, sizes = missing ? { queries: 0, keys: 0 } : { queries: size(axes.queries), keys: size(axes.keys) };
  return {
    side, missing, title: side.id === "difference" || side.title === side.text_title
      ? side.title : `${side.title} \u00b7 ${side.text_title}`,
    sizes, seen: () => [0, sizes.keys],
    layer: null, queries: null, keys: null, cuts: [], plot: box, gutters: { title: 0, left: 0, top: 0 },
    colouring: {
      log: false, low: 0, high: 1, threshold: 0, hideSink: false, signed: side.signed,
      table: new Uint8Array(1024), unknown: 0, version: 0,
    },
    level: 0, colouringLevel: 0, range: new Int32Array(4), titleRoom: -1, titleShown: "",
  };
}

/** The accessible name of the map. @param {App} app @param {Panel[]} panels */
export function mapLabel(app, panels) {
  const { kind, layer, head, pooling } = app.store.get();
  const sizes = panels.map(({ sizes: { queries, keys } }) => tr("{queries} queries by {keys} keys", { queries, keys }));
  const whose = panels.map((panel) => panel.side.title).join(", ");
  const pooled = pooling === "sum" ? tr("mass") : tr("largest weights");
  const what = [...(panels.length > 1 ? [whose] : []), ...new Set(sizes)].join("; ");
  return tr("Attention map, {kind} layer {layer} head {head}, {pooled}: {what}", { kind: kindTitle(kind), layer, head, pooled, what });
}

// Boxes of the panels on the canvas, from its size and the widths of labels.

/**
 * @param {Display} display  whose panels are given their boxes
 * @param {CanvasRenderingContext2D} context  measures labels
 * @param {number} width  of the canvas; nothing is done before it is known
 * @param {number} height
 */
export function arrangePanels({ panels, sizes, style }, context, width, height) {
  if (!style || !width || !panels.length) return;
  context.font = style.font;
  const digits = String(Math.max(sizes.queries, sizes.keys)).length * style.size * 0.62 + style.size;
  const widest = (/** @type {"queries" | "keys"} */ axis) =>
    Math.max(axis === "queries" ? digits : 0, ...panels.map((panel) => (panel[axis] ? axisLabelWidth(panel[axis], context) : 0)));
  const room = width / Math.min(panels.length, 2);
  const gutters = panelGutters(widest("queries"), widest("keys"), room, height, style.size, panels.length > 1);
  const boxes = panelBoxes(width, height, panels.length, gutters);
  panels.forEach((panel, at) => {
    panel.plot = boxes[at];
    panel.gutters = gutters;
  });
}

/** @typedef {{x: number, y: number, w: number, h: number}} Box */
/** @typedef {{title: number, left: number, top: number}} Gutters */

const panelGap = 12;
const minPanelWidth = 260;

/**
 * The plots of one, two or three panels, all of one size because they share a viewport. Side by side if they are wide enough, else
 * stacked.
 * @param {number} width @param {number} height @param {number} count @param {Gutters} gutters @returns {Box[]}
 */
export function panelBoxes(width, height, count, gutters) {
  const sideBySide = count === 1 || (width - panelGap * (count - 1)) / count >= minPanelWidth || width > height;
  const across = sideBySide ? count : 1;
  const down = sideBySide ? 1 : count;
  const panelWidth = (width - panelGap * (across - 1)) / across;
  const panelHeight = (height - panelGap * (down - 1)) / down;
  return Array.from({ length: count }, (_, at) => {
    const x = Math.round((at % across) * (panelWidth + panelGap) + gutters.left);
    const y = Math.round(Math.floor(at / across) * (panelHeight + panelGap) + gutters.title + gutters.top);
    return {
      x, y,
      w: Math.max(8, Math.floor(panelWidth - gutters.left) - 1),
      h: Math.max(8, Math.floor(panelHeight - gutters.title - gutters.top) - 1),
    };
  });
}

/**
 * Space for labels: what the widest needs, limited to a share of the panel.
 * @param {number} widestQuery @param {number} widestKey
 * @param {number} width  of a panel
 * @param {number} height
 * @param {number} font  size in pixels
 * @param {boolean} titled @returns {Gutters}
 */
export function panelGutters(widestQuery, widestKey, width, height, font, titled) {
  const room = (/** @type {number} */ widest, /** @type {number} */ size) =>
    Math.round(Math.max(Math.min(widest + 10, size * 0.24, font * 11), font * 3.2));
  return { title: titled ? Math.round(font * 1.9) : 0, left: room(widestQuery, width), top: room(widestKey, height) };
}
