// The viewport over the map: pan, zoom, hovered cell and selected cell. Items at its edges, CSS pixels per item.

/** @import { Store, ViewBox } from "../types.js" */
/** @import { Display } from "./map_canvas.js" */
/** @import { Panel } from "./tile_drawing.js" */

/** @typedef {{queries: number, keys: number}} Sizes  items along the axes */
/** @typedef {{w: number, h: number}} Plot  CSS pixels that the cells may fill */

/** Largest zoom in CSS pixels per item. */
export const maxScale = 160;
/** Largest scale of the whole map: a map of few tokens does not fill a large window. */
const maxFitScale = 112;

/** CSS pixels per item at which the whole map is in view. @param {Sizes} sizes @param {Plot} plot */
export function wholeMapScale(sizes, plot) {
  const along = plot.w / Math.max(1, sizes.keys);
  const down = plot.h / Math.max(1, sizes.queries);
  return Math.max(1e-9, Math.min(along, down, maxFitScale));
}

/**
 * Clamps the view, in place, so that it shows no unnecessary empty space.
 * @param {ViewBox} view @param {Sizes} sizes @param {Plot} plot
 */
export function clampView(view, sizes, plot) {
  const least = wholeMapScale(sizes, plot);
  if (!(view.scale > 0)) view.scale = least;
  view.scale = Math.min(Math.max(view.scale, least), Math.max(maxScale, least));
  view.x = clampEdge(view.x, sizes.keys, plot.w / view.scale);
  view.y = clampEdge(view.y, sizes.queries, plot.h / view.scale);
}

/** @param {number} first @param {number} total @param {number} visible */
function clampEdge(first, total, visible) {
  // A map smaller than the window is at its top left, beside its labels.
  if (!Number.isFinite(first) || visible >= total) return 0;
  return Math.min(Math.max(first, 0), total - visible);
}

/**
 * Zooms by a factor; the item under the given point stays there.
 * @param {ViewBox} view  changed in place
 * @param {number} factor
 * @param {number} px  CSS pixels from the plot's left edge
 * @param {number} py @param {Sizes} sizes @param {Plot} plot
 */
export function zoomViewAt(view, factor, px, py, sizes, plot) {
  const x = view.x + px / view.scale;
  const y = view.y + py / view.scale;
  const least = wholeMapScale(sizes, plot);
  view.scale = Math.min(Math.max(view.scale * factor, least), Math.max(maxScale, least));
  view.x = x - px / view.scale;
  view.y = y - py / view.scale;
  clampView(view, sizes, plot);
}

/**
 * Pans as little as needed to bring a cell into view, with a margin.
 * @param {ViewBox} view  changed in place
 * @param {number} query @param {number} key @param {Sizes} sizes @param {Plot} plot
 */
export function revealCell(view, query, key, sizes, plot) {
  view.x = revealEdge(view.x, key, plot.w / view.scale);
  view.y = revealEdge(view.y, query, plot.h / view.scale);
  clampView(view, sizes, plot);
}

/** @param {number} first @param {number} item @param {number} visible */
function revealEdge(first, item, visible) {
  const room = Math.min(2, visible / 4);
  if (item < first + room) return item - room;
  if (item + 1 > first + visible - room) return item + 1 + room - visible;
  return first;
}

/** Whether the whole map is in view. @param {ViewBox} view @param {Sizes} sizes @param {Plot} plot */
export function isWholeMap(view, sizes, plot) {
  return view.scale <= wholeMapScale(sizes, plot) * 1.0001;
}

/**
 * The items in view: [first query, one past the last, first key, one past the last].
 * @param {ViewBox} view @param {Sizes} sizes @param {Plot} plot @returns {[number, number, number, number]}
 */
export function itemsInView(view, sizes, plot) {
  const edge = (/** @type {number} */ at, /** @type {number} */ total) => Math.min(Math.max(at, 0), total);
  return [
    edge(Math.floor(view.y), sizes.queries), edge(Math.ceil(view.y + plot.h / view.scale), sizes.queries),
    edge(Math.floor(view.x), sizes.keys), edge(Math.ceil(view.x + plot.w / view.scale), sizes.keys),
  ];
}

// Navigation: what keys, pointer and wheel do to the view, the hovered cell and the selection.

/**
 * @param {object} options @param {Display} options.display @param {Store} options.store
 * @param {() => void} options.moved  the view has changed
 * @param {() => void} options.pointed  the hovered cell has changed
 */
export function makeNavigation({ display, store, moved, pointed }) {
  /** The hovered cell was set by a key: it stays while the view moves. */
  let byKey = false, pointerX = -1, pointerY = -1;

  const plot = () => display.panels[0]?.plot ?? { x: 0, y: 0, w: 8, h: 8 };

  /** @param {number} x @param {number} y @returns {Panel | null} the panel whose plot or labels contain the point */
  function panelAt(x, y) {
    for (const panel of display.panels) {
      const { plot: box, gutters } = panel;
      if (x >= box.x - gutters.left && x < box.x + box.w && y >= box.y - gutters.top && y < box.y + box.h) return panel;
    }
    return null;
  }

  function updateHover() {
    byKey = false;
    const panel = pointerX < 0 ? null : panelAt(pointerX, pointerY);
    let query = -1, key = -1;
    if (panel) {
      if (pointerY >= panel.plot.y) query = Math.floor(display.view.y + (pointerY - panel.plot.y) / display.view.scale);
      if (pointerX >= panel.plot.x) key = Math.floor(display.view.x + (pointerX - panel.plot.x) / display.view.scale);
      if (query >= display.sizes.queries || key >= display.sizes.keys) query = key = -1;
    }
    setHover(query, key);
  }

  /** @param {number} query @param {number} key */
  function setHover(query, key) {
    if (display.query === query && display.key === key) return;
    display.query = query;
    display.key = key;
    pointed();
  }

  function applyView() {
    clampView(display.view, display.sizes, plot());
    display.fit = isWholeMap(display.view, display.sizes, plot());
    if (!byKey) updateHover();
    moved();
  }

  /** @param {number} factor @param {number} x @param {number} y  in the canvas */
  function zoom(factor, x, y) {
    const panel = panelAt(x, y) ?? display.panels[0];
    if (!panel) return;
    const { plot: box } = panel;
    zoomViewAt(display.view, factor, Math.min(Math.max(x - box.x, 0), box.w), Math.min(Math.max(y - box.y, 0), box.h), display.sizes, box);
    applyView();
  }

  /** @param {number} factor  around the hovered cell if it is in view, else around the middle */
  function zoomMiddle(factor) {
    const box = plot();
    const { view } = display;
    const x = (display.key + 0.5 - view.x) * view.scale;
    const y = (display.query + 0.5 - view.y) * view.scale;
    const inside = display.key >= 0 && display.query >= 0 && x >= 0 && y >= 0 && x <= box.w && y <= box.h;
    zoomViewAt(view, factor, inside ? x : box.w / 2, inside ? y : box.h / 2, display.sizes, box);
    applyView();
  }

  function fit() {
    display.view.scale = 0;
    applyView();
  }

  /** @param {number} dx  CSS pixels by which the map moves @param {number} dy */
  function pan(dx, dy) {
    display.view.x -= dx / display.view.scale;
    display.view.y -= dy / display.view.scale;
    applyView();
  }

  /**
   * Where keyboard steps start: the hovered cell, else the selected one, else the middle of the view.
   * @returns {[number, number]} query and key
   */
  function start() {
    const { sizes, view } = display;
    const box = plot();
    const clamp = (/** @type {number} */ at, /** @type {number} */ total) => Math.max(0, Math.min(total - 1, Math.floor(at)));
    const middleY = clamp(Math.min(view.y + box.h / view.scale / 2, sizes.queries / 2 + view.y), sizes.queries);
    const middleX = clamp(Math.min(view.x + box.w / view.scale / 2, sizes.keys / 2 + view.x), sizes.keys);
    const query = display.query >= 0 ? display.query : display.selectedQuery ?? middleY;
    const key = display.key >= 0 ? display.key : display.selectedKey ?? middleX;
    return [query, key];
  }

  /**
   * Moves the hovered cell by a step, and the view with it.
   * @param {number} down  cells; of items at the finest level
   * @param {number} along
   */
  function step(down, along) {
    const [query, key] = start();
    // At least four pixels, so that the step is visible.
    const items = Math.max(1, Math.round(4 / display.view.scale));
    go(query + down * items, key + along * items);
  }

  /** @param {number} query @param {number} key */
  function go(query, key) {
    const { sizes } = display;
    if (!sizes.queries || !sizes.keys) return;
    byKey = true;
    const toQuery = Math.max(0, Math.min(sizes.queries - 1, query));
    const toKey = Math.max(0, Math.min(sizes.keys - 1, key));
    revealCell(display.view, toQuery, toKey, sizes, plot());
    setHover(toQuery, toKey);
    applyView();
  }

  /** @param {number} query  -1: unchanged @param {number} key */
  function select(query, key) {
    const state = store.get();
    const same = (query < 0 || query === state.query) && (key < 0 || key === state.key);
    if (same && query >= 0 && key >= 0) store.set({ query: null, key: null });
    else store.set({ ...(query >= 0 ? { query } : {}), ...(key >= 0 ? { key } : {}) });
  }

  return {
    zoom, zoomMiddle, fit, pan, step, go, start, select, applyView,
    /** @param {number} x @param {number} y */
    hover(x, y) {
      pointerX = x;
      pointerY = y;
      updateHover();
    },
    leave() {
      pointerX = -1;
      if (!byKey) setHover(-1, -1);
    },
    /** @param {number} x @param {number} y */
    click(x, y) {
      pointerX = x;
      pointerY = y;
      updateHover();
      if (display.query >= 0 || display.key >= 0) select(display.query, display.key);
    },
    selectCursor: () => select(...start()),
    page: () => plot(),
    /** The items in view, of the longest axes. */
    block: () => itemsInView(display.view, display.sizes, plot()),
  };
}
