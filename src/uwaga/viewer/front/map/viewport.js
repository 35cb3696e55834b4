// The viewport over the map: pan, zoom, hovered cell and selected cell. Items at its edges, CSS pixels per item.

/** @typedef {import("../types.js").ViewBox} ViewBox */
/** @typedef {import("./stage.js").MapScenery} MapScenery */
/** @typedef {import("./tile_drawing.js").MapPanel} MapPanel */

/** @typedef {{queries: number, keys: number}} MapSizes  items along the axes */
/** @typedef {{w: number, h: number}} MapPlot  CSS pixels that the cells may fill */

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

// Moving over the map: what keys, pointer and wheel do to the view, the place pointed at, and what is picked.

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
 * @param {import("./panels.js").MapBox | null} box
 * @param {number} x
 * @param {number} y
 * @param {boolean} hidden
 */
function mapInBox(box, x, y, hidden) {
  return box !== null && !hidden && x >= box.x && x < box.x + box.w && y >= box.y && y < box.y + box.h;
}
