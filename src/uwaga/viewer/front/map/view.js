// The map of one head: its elements, and what joins canvas, tiles, input and readout.

import { el, uniqueName } from "../dom.js";
import { tr } from "../languages.js";
import { tileRequest } from "../requests.js";
import { seenKeys, sinksOf } from "../weights.js";
import { makeTable } from "./as_table.js";
import { makeAxis } from "./axes.js";
import { colourPanels, makeColourBar, readStyle } from "./colours.js";
import { addCommands, addInput } from "./input.js";
import { arrangePanels, comparedSides, makePanel, mapLabel } from "./panels.js";
import { planTileRequests } from "./pyramid.js";
import { colourBarTitle, levelInMiddle, makeReadout, statusText } from "./readout.js";
import { cutsOfHead } from "./overlay.js";
import { mapScene } from "./scene.js";
import { makeMapCanvas } from "./map_canvas.js";
import { panelComplete } from "./tile_drawing.js";
import { makeTiles } from "./tiles.js";
import { makeNavigation } from "./viewport.js";
/** @import { App, Request, View, ViewBox } from "../types.js" */
/** @import { Display } from "./map_canvas.js" */
/** @import { Panel } from "./tile_drawing.js" */
/** @import { Tile } from "./tiles.js" */

/** Milliseconds between tile requests while the view moves. */
const tileRequestInterval = 70;
/** Milliseconds without movement after which the view is written to the store. */
const publishViewAfter = 200;
const panelStateKeys = /** @type {const} */ (["side", "kind", "layer", "head", "pooling", "merge", "specials", "compare"]);

/**
 * @typedef {Display & {width: number, height: number, isShown: boolean, isOld: boolean, areColoursDue: boolean, colouringLevel: number, percent: number,
 *   statusLevel: number, byKeys: boolean, publishedView: ViewBox, requestTimer: ReturnType<typeof setTimeout> | undefined,
 *   publishTimer: ReturnType<typeof setTimeout> | undefined}} MapState  mutated in place. isOld: the store has changed while the map was hidden;
 *   percent, statusLevel: what the status line says; byKeys: a key has set the hovered cell; publishedView: the view that the store has
 */
/** @typedef {ReturnType<typeof makeParts>} Parts */

/**
 * @param {App} app @param {{renderer?: "auto" | "canvas"}} [options]
 * @returns {View & {block: () => {rows: [number, number], columns: [number, number]} | null,
 *   requests: () => Request[], renderer: () => "webgl2" | "canvas", point: (query: number, key: number) => void}}
 *   block: the items in view; requests: those whose replies are the tiles in view; point: lights a row and a column, -1: none
 */
export function mapView(app, { renderer = "auto" } = {}) {
  const { store } = app;
  /** @type {MapState} */
  const state = {
    panels: [], sizes: { queries: 0, keys: 0 }, view: { x: 0, y: 0, scale: 0 }, fit: true, query: -1, key: -1,
    selectedQuery: null, selectedKey: null, ratio: 1, style: null, live: app.about.live,
    width: 0, height: 0, isShown: false, isOld: true, areColoursDue: true, colouringLevel: -1, percent: -1, statusLevel: -1, byKeys: false,
    publishedView: { x: NaN, y: NaN, scale: NaN }, requestTimer: undefined, publishTimer: undefined,
  };
  const parts = makeParts(app, state, renderer, {
    colour: (level) => updateColours(app, parts, state, level),
    report: () => report(app, parts, state),
    showTable: () => showTable(parts, state),
    receive(tile) {
      if (!state.panels.some((panel) => panel.layer === tile.layer)) return;
      state.areColoursDue = true;
      parts.mapCanvas.requestFrame();
    },
    moved() {
      parts.mapCanvas.requestFrame();
      state.requestTimer ??= setTimeout(requestTiles, tileRequestInterval, app, parts, state);
      clearTimeout(state.publishTimer);
      state.publishTimer = setTimeout(publishView, publishViewAfter, app, state);
    },
  });
  const { element, frame, mapCanvas, tiles, navigation, hoverReadout, selectedReadout } = parts;
  const resized = new ResizeObserver((entries) => resize(app, parts, state, entries[entries.length - 1].contentRect));
  /** @param {(app: App, parts: Parts, state: MapState) => void} update */
  const updateIfShown = (update) => () => { if (state.isShown) update(app, parts, state); else state.isOld = true; };
  const cleanups = [
    store.subscribe([...panelStateKeys], updateIfShown(rebuildPanels)),
    store.subscribe(["view"], ({ view }) => { if (!state.isShown || view !== state.publishedView) updateIfShown(applyStoreView)(); }),
    store.subscribe(["query", "key"], updateIfShown(showSelection)),
    store.subscribe(["colour"], () => { if (state.isShown) restyle(app, parts, state); }),
    app.session.subscribe(() => showCuts(app, parts, state)),
    // The theme attribute changes after this notification; colours are read in the next frame.
    store.subscribe(["theme", "dark"], () => { if (state.isShown) requestAnimationFrame(() => restyle(app, parts, state)); }),
    addInput(mapCanvas.element, {
      ...navigation,
      hover: (x, y) => { state.byKeys = false; navigation.hover(x, y); },
      takesWheel: () => (app.host.mode !== "notebook" && store.get().wide) || frame.contains(document.activeElement),
    }),
    ...addCommands(app, navigation, () => state.isShown, () => { state.byKeys = true; }),
  ];
  return {
    element,
    show() {
      state.isShown = true;
      mapCanvas.run(true);
      resized.observe(mapCanvas.element);
      restyle(app, parts, state);
      state.percent = -1;
      (state.isOld ? rebuildPanels : requestTiles)(app, parts, state);
    },
    hide() {
      state.isShown = false;
      mapCanvas.run(false);
      resized.unobserve(mapCanvas.element);
      clearTimeout(state.requestTimer);
      state.requestTimer = undefined;
      for (const panel of state.panels) if (panel.layer) tiles.abandon(panel.layer);
    },
    dispose() {
      this.hide();
      clearTimeout(state.publishTimer);
      cleanups.forEach((end) => end());
      resized.disconnect();
      for (const part of [hoverReadout, selectedReadout, tiles, mapCanvas]) part.dispose();
    },
    point(query, key) {
      if (state.query === query && state.key === key && !state.byKeys) return;
      Object.assign(state, { query, key, byKeys: false });
      mapCanvas.requestOverlay();
    },
    scene: async () => mapScene(state, mapCanvas.context),
    block: () => block(parts, state),
    requests: () => state.panels.flatMap((panel) => {
      const { layer } = panel;
      if (!layer) return [];
      return planRequests(app, state, panel).filter(({ priority }) => priority > 20).map(({ level, row, column }) =>
        tileRequest(layer, level, row, column));
    }),
    renderer: mapCanvas.kind,
  };
}

/**
 * What the map is made of: the canvas, and around it zoom buttons, colour bars, readouts and the table.
 * @param {App} app @param {MapState} state @param {"auto" | "canvas"} renderer
 * @param {{colour: (level: number) => void, report: () => void, showTable: () => void, receive: (tile: Tile) => void, moved: () => void}} act
 */
function makeParts(app, state, renderer, { colour, report, showTable, receive, moved }) {
  const mapCanvas = makeMapCanvas({ display: state, renderer, onBeforeFrame: colour, onFrame: report });
  const tiles = makeTiles({ client: app.client, onTile: receive, onForget: mapCanvas.forget, onFail: report });
  // The readout is updated with the next frame: a drag hovers many cells between two frames, and each text costs a layout.
  const navigation = makeNavigation({ display: state, store: app.store, moved, pointed: mapCanvas.requestOverlay });
  const hoverReadout = makeReadout({ app, title: tr("Here"), name: "here", empty: tr("Point at a cell, or move with the arrow keys."),
    onText: (text, query, key) => { if (state.byKeys && !showActiveCell(text, query, key)) app.announce(text); } });
  const selectedReadout = makeReadout({ app, title: tr("Picked"), name: "picked", empty: tr("Click a cell, or press Enter."), onText: () => {} });
  const bars = [makeColourBar(), makeColourBar()], table = makeTable(showTable);
  const button = (/** @type {string} */ text, /** @type {string} */ name, /** @type {() => void} */ click) =>
    el("button", { type: "button", text, "aria-label": name, title: name, on: { click } });
  const note = el("p", { class: "uwaga-map-note", hidden: true });
  // Two cells in turn: a screen reader reads a step only if aria-activedescendant changes.
  const prefix = uniqueName();
  const cells = [0, 1].map((at) => el("div", { class: "uwaga-visually-hidden", role: "gridcell", id: `${prefix}-${at}` }));
  const line = el("div", { role: "row" }, cells);
  // The frame takes the focus.
  const frame = el("div", { class: "uwaga-map-frame", tabindex: 0, role: "grid" }, line, mapCanvas.element, note);
  let turn = 0;
  /**
   * Names the cell that the keys have moved to.
   * @param {string} text @param {number} query @param {number} key
   * @returns {boolean} whether a screen reader reads it: the grid has the focus
   */
  function showActiveCell(text, query, key) {
    const cell = cells[(turn = 1 - turn)];
    cell.textContent = text;
    cell.setAttribute("aria-colindex", String(key + 1));
    line.setAttribute("aria-rowindex", String(query + 1));
    frame.setAttribute("aria-activedescendant", cell.id);
    return frame === /** @type {Document | ShadowRoot} */ (frame.getRootNode()).activeElement;
  }
  const element = el("section", { class: "uwaga-map", "aria-label": tr("Map") },
    el("div", { class: "uwaga-map-main" }, frame, table.element),
    el("div", { class: "uwaga-map-bar" }, bars.map((bar) => bar.element),
      el("div", { class: "uwaga-map-zoom", role: "group", "aria-label": tr("Zoom") },
        button("\u2212", tr("Zoom out"), () => navigation.zoomMiddle(1 / 1.6)), button("+", tr("Zoom in"), () => navigation.zoomMiddle(1.6)),
        button(tr("Whole map"), tr("Show the whole map"), navigation.fit)), table.button),
    el("div", { class: "uwaga-map-readout" }, hoverReadout.element, selectedReadout.element));
  mapCanvas.element.addEventListener("pointerdown", () => frame.focus({ preventScroll: true }));
  return { element, frame, note, mapCanvas, tiles, navigation, hoverReadout, selectedReadout, bars, table };
}

/** @param {App} app @param {MapState} state @param {Panel} panel @returns {ReturnType<typeof planTileRequests>} of the tiles in view */
function planRequests(app, { view, ratio }, panel) {
  return planTileRequests(view, panel.plot, panel.sizes, ratio, (level, row, column) =>
    panel.layer !== null && app.host.has(tileRequest(panel.layer, level, row, column)));
}

/** @param {App} app @param {Parts} parts @param {MapState} state */
function requestTiles(app, { tiles }, state) {
  clearTimeout(state.requestTimer);
  state.requestTimer = undefined;
  if (!state.isShown || !state.width) return;
  for (const panel of state.panels) {
    if (panel.layer && panel.sizes.queries && panel.sizes.keys) tiles.request(panel.layer, planRequests(app, state, panel));
  }
}

/** @param {App} app @param {Parts} parts @param {MapState} state @param {number} level */
function updateColours({ store }, { bars }, state, level) {
  const { panels, style } = state;
  if (!style || (!state.areColoursDue && level === state.colouringLevel)) return;
  state.areColoursDue = false;
  state.colouringLevel = level;
  colourPanels(panels, store.get().colour, style, level);
  [false, true].forEach((signed, at) => {
    const panel = panels.find(({ side }) => side.signed === signed);
    bars[at].element.hidden = !panel;
    if (panel) bars[at].show(panel.colouring, signed ? "difference" : colourBarTitle(store.get().pooling, level));
  });
}

/** After a frame: the hovered cell's readout, and in the status line how exact the picture is. @param {App} app @param {Parts} parts @param {MapState} state */
function report(app, parts, state) {
  const { panels, live, view } = state, { hoverReadout, selectedReadout } = parts;
  hoverReadout.show(panels, state.query, state.key, state.byKeys ? 300 : undefined);
  let complete = 1;
  for (let i = 0; i < panels.length; i++) complete = Math.min(complete, panelComplete(panels[i]));
  const percent = complete >= 1 ? 100 : Math.min(99, Math.floor(complete * 100));
  const level = !panels.length ? 0 : live || complete >= 1 ? panels[0].level : levelInMiddle(panels[0], view);
  parts.tiles.trim(parts.mapCanvas.frame());
  showTable(parts, state);
  if (percent === state.percent && level === state.statusLevel) return;
  state.percent = percent;
  state.statusLevel = level;
  const failed = panels.find((panel) => panel.layer?.failed)?.layer?.failed, { merge, pooling } = app.store.get();
  app.status(failed ?? statusText({ level, percent, merge, pooling, live }));
  parts.frame.toggleAttribute("data-sharpening", percent < 100 && live);
  if (percent < 100) return;
  hoverReadout.renew(panels, state.query, state.key);
  selectedReadout.renew(panels, state.selectedQuery ?? -1, state.selectedKey ?? -1);
}

/** @param {App} app @param {MapState} state */
function publishView({ store }, state) {
  const { view, fit } = state;
  state.publishedView = fit ? { x: 0, y: 0, scale: 0 } : { x: view.x, y: view.y, scale: view.scale };
  store.set({ view: state.publishedView });
}

/** @param {App} app @param {Parts} parts @param {MapState} state */
function rebuildPanels(app, parts, state) {
  const { element, frame, note, tiles } = parts;
  for (const panel of state.panels) if (panel.layer) tiles.abandon(panel.layer);
  const panels = comparedSides(app).map((side) => makePanel(app, side));
  const sizes = {
    queries: Math.max(...panels.map((panel) => panel.sizes.queries)), keys: Math.max(...panels.map((panel) => panel.sizes.keys)),
  };
  Object.assign(state, { panels, sizes, isOld: false, areColoursDue: true, percent: -1 });
  for (const panel of panels) {
    if (panel.missing) continue;
    panel.layer = tiles.layer({ ...app.where(), side: panel.side.id }, app.store.get().pooling);
    void loadLabels(app, parts, state, panel);
  }
  note.textContent = panels.map((panel) => panel.missing).filter(Boolean).join(". ");
  note.hidden = !note.textContent;
  frame.setAttribute("aria-label", mapLabel(app, panels));
  frame.setAttribute("aria-rowcount", String(sizes.queries));
  frame.setAttribute("aria-colcount", String(sizes.keys));
  element.dataset.panels = String(panels.length);
  arrangePanels(state, parts.mapCanvas.context, state.width, state.height);
  applyStoreView(app, parts, state);
  showSelection(app, parts, state);
  parts.hoverReadout.refresh(panels, state.query, state.key);
  requestTiles(app, parts, state);
}

/** @param {App} app @param {Parts} parts @param {MapState} state @param {Panel} panel */
async function loadLabels(app, parts, state, panel) {
  const { kind } = app.store.get(), axes = panel.side.kinds[kind];
  try {
    const [queries, keys] = await Promise.all([app.items(panel.side.id, axes.queries), app.items(panel.side.id, axes.keys)]);
    if (!state.panels.includes(panel)) return;
    panel.queries = makeAxis(queries);
    panel.keys = makeAxis(keys);
    panel.seen = (query) => seenKeys(app, queries, keys, query, panel.side);
    if (panel.layer) parts.tiles.setSinks(panel.layer, sinksOf(keys, app.store.get().kind));
    state.areColoursDue = true;
    showCuts(app, parts, state);
    arrange(parts, state);
    parts.hoverReadout.refresh(state.panels, state.query, state.key);
    parts.selectedReadout.refresh(state.panels, state.selectedQuery ?? -1, state.selectedKey ?? -1);
  } catch {
    // The client reports the error; positions are shown instead of labels.
  }
}

/** @param {Parts} parts @param {MapState} state @returns {{rows: [number, number], columns: [number, number]} | null} the items in view */
function block({ navigation }, { width, panels }) {
  if (!width || !panels.length) return null;
  const [top, bottom, left, right] = navigation.block();
  return { rows: [top, bottom], columns: [left, right] };
}

/** @param {Parts} parts @param {MapState} state */
function showTable(parts, state) {
  const items = block(parts, state);
  parts.table.show(state.panels, items && items.rows[1] > items.rows[0] ? items : null);
}

/** Cut links are hatched as soon as they are asked for, before the model has run again. @param {App} app @param {Parts} parts @param {MapState} state */
function showCuts({ session, about, store }, { mapCanvas }, { panels }) {
  const edits = session.isRunning() ? session.pending()?.edits : about.typed?.edits;
  for (const panel of panels) {
    const isBefore = panel.side.id === "0" && about.sides.length > 1 && !session.isRunning();
    panel.cuts = panel.queries && panel.keys && !isBefore ? cutsOfHead(edits, store.get(), panel.queries.items, panel.keys.items) : [];
  }
  mapCanvas.requestOverlay();
}

/** Places the panels; a whole map fits again. @param {Parts} parts @param {MapState} state */
function arrange({ mapCanvas, navigation }, state) {
  arrangePanels(state, mapCanvas.context, state.width, state.height);
  if (state.fit) state.view.scale = 0;
  navigation.applyView();
}

/** Applies the store's view if something else has set it. @param {App} app @param {Parts} parts @param {MapState} state */
function applyStoreView({ store }, { navigation }, state) {
  const { view } = store.get(), { publishedView } = state;
  if (view.x !== publishedView.x || view.y !== publishedView.y || view.scale !== publishedView.scale) {
    state.publishedView = view;
    Object.assign(state.view, view);
  } else if (state.fit) state.view.scale = 0;
  navigation.applyView();
}

/** @param {App} app @param {Parts} parts @param {MapState} state */
function showSelection({ store }, { selectedReadout, mapCanvas }, state) {
  const { query, key } = store.get();
  Object.assign(state, { selectedQuery: query, selectedKey: key });
  selectedReadout.show(state.panels, query ?? -1, key ?? -1, 0);
  mapCanvas.requestOverlay();
}

/** @param {App} app @param {Parts} parts @param {MapState} state */
function restyle(app, { element, mapCanvas }, state) {
  state.style = readStyle(element, app.theme(), app.store.get().colour.scheme, state.ratio);
  state.areColoursDue = true;
  mapCanvas.requestFrame();
}

/** @param {App} app @param {Parts} parts @param {MapState} state @param {{width: number, height: number}} box */
function resize(app, parts, state, { width, height }) {
  if (!width || !height) return;
  const ratio = window.devicePixelRatio || 1;
  Object.assign(state, { width, height, ratio });
  parts.mapCanvas.resize(Math.round(width * ratio), Math.round(height * ratio));
  restyle(app, parts, state);
  arrange(parts, state);
  parts.mapCanvas.now();
  requestTiles(app, parts, state);
}
