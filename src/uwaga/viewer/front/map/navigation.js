// Moving over the map: what keys, pointer and wheel do to the view, the place pointed at, and what is picked.

import { mapBlock, mapClamp, mapIsFit, mapReveal, mapZoomAt } from "./viewport.js";

/** @typedef {import("./stage.js").MapScenery} MapScenery */
/** @typedef {import("./panel.js").MapPanel} MapPanel */

/**
 * @param {object} options
 * @param {MapScenery} options.scenery
 * @param {import("../types.js").Store} options.store
 * @param {() => void} options.moved  the view is another
 * @param {() => void} options.pointed  the place pointed at is another
 */
export function mapNavigation({ scenery, store, moved, pointed }) {
  /** The place pointed at is a key's doing: it stays while the view moves. */
  let byKey = false;
  let pointerX = -1;
  let pointerY = -1;
  let grabbed = false;

  const plot = () => scenery.panels[0]?.plot ?? { x: 0, y: 0, w: 8, h: 8 };

  /** @param {number} x @param {number} y @returns {MapPanel | null} the panel whose plot or labels are there */
  function panelAt(x, y) {
    for (const panel of scenery.panels) {
      const { plot: box, gutters } = panel;
      if (x >= box.x - gutters.left && x < box.x + box.w && y >= box.y - gutters.top && y < box.y + box.h) return panel;
    }
    return null;
  }

  function point() {
    byKey = false;
    const panel = pointerX < 0 ? null : panelAt(pointerX, pointerY);
    let query = -1;
    let key = -1;
    if (panel && !mapInBox(panel.minimap, pointerX, pointerY, scenery.fit)) {
      if (pointerY >= panel.plot.y) query = Math.floor(scenery.view.y + (pointerY - panel.plot.y) / scenery.view.scale);
      if (pointerX >= panel.plot.x) key = Math.floor(scenery.view.x + (pointerX - panel.plot.x) / scenery.view.scale);
      if (query >= scenery.sizes.queries || key >= scenery.sizes.keys) query = key = -1;
    }
    set(query, key);
  }

  /** @param {number} query @param {number} key */
  function set(query, key) {
    if (scenery.query === query && scenery.key === key) return;
    scenery.query = query;
    scenery.key = key;
    pointed();
  }

  function settle() {
    mapClamp(scenery.view, scenery.sizes, plot());
    scenery.fit = mapIsFit(scenery.view, scenery.sizes, plot());
    if (!byKey) point();
    moved();
  }

  /** @param {number} factor @param {number} x @param {number} y  in the stage */
  function zoom(factor, x, y) {
    const panel = panelAt(x, y) ?? scenery.panels[0];
    if (!panel) return;
    const { plot: box } = panel;
    mapZoomAt(scenery.view, factor, Math.min(Math.max(x - box.x, 0), box.w), Math.min(Math.max(y - box.y, 0), box.h), scenery.sizes, box);
    settle();
  }

  /** @param {number} factor  about the key's place where it is in view, else about the middle */
  function zoomMiddle(factor) {
    const box = plot();
    const { view } = scenery;
    const x = (scenery.key + 0.5 - view.x) * view.scale;
    const y = (scenery.query + 0.5 - view.y) * view.scale;
    const inside = scenery.key >= 0 && scenery.query >= 0 && x >= 0 && y >= 0 && x <= box.w && y <= box.h;
    mapZoomAt(view, factor, inside ? x : box.w / 2, inside ? y : box.h / 2, scenery.sizes, box);
    settle();
  }

  function fit() {
    scenery.view.scale = 0;
    settle();
  }

  /**
   * @param {number} dx  CSS pixels by which the map moves
   * @param {number} dy
   */
  function pan(dx, dy) {
    scenery.view.x -= dx / scenery.view.scale;
    scenery.view.y -= dy / scenery.view.scale;
    settle();
  }

  /**
   * Where the keys are: the place pointed at, else what is picked, else the middle of what is in view.
   * @returns {[number, number]} query and key
   */
  function start() {
    const { sizes, view } = scenery;
    const box = plot();
    const clamp = (/** @type {number} */ at, /** @type {number} */ total) => Math.max(0, Math.min(total - 1, Math.floor(at)));
    const middleY = clamp(Math.min(view.y + box.h / view.scale / 2, sizes.queries / 2 + view.y), sizes.queries);
    const middleX = clamp(Math.min(view.x + box.w / view.scale / 2, sizes.keys / 2 + view.x), sizes.keys);
    const query = scenery.query >= 0 ? scenery.query : scenery.pickedQuery ?? middleY;
    const key = scenery.key >= 0 ? scenery.key : scenery.pickedKey ?? middleX;
    return [query, key];
  }

  /**
   * The place pointed at moves and the view with it.
   * @param {number} down  cells; of items at the finest level
   * @param {number} along
   */
  function step(down, along) {
    const [query, key] = start();
    // A step that nobody sees is none: at least a few pixels.
    const items = Math.max(1, Math.round(4 / scenery.view.scale));
    go(query + down * items, key + along * items);
  }

  /** @param {number} query @param {number} key */
  function go(query, key) {
    const { sizes } = scenery;
    if (!sizes.queries || !sizes.keys) return;
    byKey = true;
    const toQuery = Math.max(0, Math.min(sizes.queries - 1, query));
    const toKey = Math.max(0, Math.min(sizes.keys - 1, key));
    mapReveal(scenery.view, toQuery, toKey, sizes, plot());
    set(toQuery, toKey);
    settle();
  }

  /** @param {number} query  -1: as it was @param {number} key */
  function pick(query, key) {
    const state = store.get();
    const same = (query < 0 || query === state.query) && (key < 0 || key === state.key);
    if (same && query >= 0 && key >= 0) store.set({ query: null, key: null });
    else store.set({ ...(query >= 0 ? { query } : {}), ...(key >= 0 ? { key } : {}) });
  }

  /** @param {number} x @param {number} y */
  function toMinimap(x, y) {
    const panel = scenery.panels[0];
    const box = panel.minimap;
    if (!box) return;
    scenery.view.x = ((x - box.x) / box.w) * panel.sizes.keys - panel.plot.w / scenery.view.scale / 2;
    scenery.view.y = ((y - box.y) / box.h) * panel.sizes.queries - panel.plot.h / scenery.view.scale / 2;
    settle();
  }

  return {
    zoom, zoomMiddle, fit, pan, step, go, start, pick, settle,
    /** @param {number} x @param {number} y */
    hover(x, y) {
      pointerX = x;
      pointerY = y;
      point();
    },
    leave() {
      pointerX = -1;
      if (!byKey) set(-1, -1);
    },
    /** @param {number} x @param {number} y */
    click(x, y) {
      pointerX = x;
      pointerY = y;
      point();
      if (scenery.query >= 0 || scenery.key >= 0) pick(scenery.query, scenery.key);
    },
    /** @param {number} x @param {number} y */
    grab(x, y) {
      grabbed = mapInBox(scenery.panels[0]?.minimap ?? null, x, y, scenery.fit);
      if (grabbed) toMinimap(x, y);
      return grabbed;
    },
    drag: toMinimap,
    pickCursor: () => pick(...start()),
    page: () => plot(),
    /** The items in view, of the longest axes. */
    block: () => mapBlock(scenery.view, scenery.sizes, plot()),
  };
}

/**
 * @param {import("./layout.js").MapBox | null} box
 * @param {number} x
 * @param {number} y
 * @param {boolean} hidden
 */
function mapInBox(box, x, y, hidden) {
  return box !== null && !hidden && x >= box.x && x < box.x + box.w && y >= box.y && y < box.y + box.h;
}
