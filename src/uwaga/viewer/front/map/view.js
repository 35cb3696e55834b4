// The map of one head: its elements, and what joins stage, tiles, input and readout.

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
import { makeStage } from "./stage.js";
import { panelComplete } from "./tile_drawing.js";
import { makeTiles } from "./tiles.js";
import { makeNavigation } from "./viewport.js";
/** @import { App, Request, View, ViewBox } from "../types.js" */
/** @import { Display } from "./stage.js" */
/** @import { Panel } from "./tile_drawing.js" */
/** @import { Tile } from "./tiles.js" */

/** Milliseconds between tile requests while the view moves. */
const tileRequestInterval = 70;
/** Milliseconds without movement after which the view is written to the store. */
const publishViewAfter = 200;
const panelStateKeys = /** @type {const} */ (["side", "kind", "layer", "head", "pooling", "merge", "specials", "compare"]);

/**
 * @param {App} app @param {{renderer?: "auto" | "canvas"}} [options]
 * @returns {View & {block: () => {rows: [number, number], columns: [number, number]} | null,
 *   requests: () => Request[], renderer: () => "webgl2" | "canvas", point: (query: number, key: number) => void}}
 *   block: the items in view; requests: those whose replies are the tiles in view; point: lights a row and a column, -1: none
 */
export function mapView(app, { renderer = "auto" } = {}) {
  const { store } = app;
  /** @type {Display} */
  const display = {
    panels: [], sizes: { queries: 0, keys: 0 }, view: { x: 0, y: 0, scale: 0 }, fit: true, query: -1, key: -1,
    selectedQuery: null, selectedKey: null, ratio: 1, style: null, live: app.about.live,
  };
  let width = 0, height = 0, shown = false;
  let changed = true; // the store has changed while the view was hidden
  let coloursDue = true, colouringLevel = -1, percent = -1, statusLevel = -1;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let requestTimer;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let publishTimer;
  /** @type {ViewBox} */
  let publishedView = { x: NaN, y: NaN, scale: NaN };

  const stage = makeStage({ display, renderer, onBeforeFrame: updateColours, onFrame: report });
  const tiles = makeTiles({ client: app.client, onTile: onTile, onForget: stage.forget, onFail: () => report() });
  // The readout is updated with the next frame: a drag hovers many cells between two frames, and each text costs a layout.
  const navigation = makeNavigation({ display, store, moved, pointed: stage.requestOverlay });
  const hoverReadout = makeReadout({ app, title: tr("Here"), name: "here", empty: tr("Point at a cell, or move with the arrow keys."),
    onText: (text, query, key) => { if (byKeys && !showActiveCell(text, query, key)) app.announce(text); } });
  const selectedReadout = makeReadout({ app, title: tr("Picked"), name: "picked", empty: tr("Click a cell, or press Enter."), onText: () => {} });
  const bars = [makeColourBar(), makeColourBar()];
  let byKeys = false;
  const table = makeTable(() => showTable());
  const { element, frame, note, showActiveCell } = makeElements({ table,
    stage: stage.element, bars: bars.map((bar) => bar.element), lines: [hoverReadout.element, selectedReadout.element],
    zoom: navigation.zoomMiddle, fit: navigation.fit,
  });

  /** @param {Panel} panel */
  const offered = (panel) => (/** @type {number} */ level, /** @type {number} */ row, /** @type {number} */ column) =>
    panel.layer !== null && app.host.has(tileRequest(panel.layer, level, row, column));

  /** @param {Panel} panel */
  const requests = (panel) => planTileRequests(display.view, panel.plot, panel.sizes, display.ratio, offered(panel));

  function request() {
    clearTimeout(requestTimer);
    requestTimer = undefined;
    if (!shown || !width) return;
    for (const panel of display.panels) if (panel.layer && panel.sizes.queries && panel.sizes.keys) tiles.request(panel.layer, requests(panel));
  }

  /** @param {Tile} tile */
  function onTile(tile) {
    if (!display.panels.some((panel) => panel.layer === tile.layer)) return;
    coloursDue = true;
    stage.requestFrame();
  }

  /** @param {number} level */
  function updateColours(level) {
    if (!display.style || (!coloursDue && level === colouringLevel)) return;
    coloursDue = false;
    colouringLevel = level;
    colourPanels(display.panels, store.get().colour, display.style, level);
    const plain = display.panels.find((panel) => !panel.side.signed);
    const signed = display.panels.find((panel) => panel.side.signed);
    bars[0].element.hidden = !plain;
    bars[1].element.hidden = !signed;
    if (plain) bars[0].show(plain.colouring, colourBarTitle(store.get().pooling, level));
    if (signed) bars[1].show(signed.colouring, "difference");
  }

  /** After a frame: the hovered cell's readout, and in the status line how exact the picture is. */
  function report() {
    const { panels } = display;
    hoverReadout.show(panels, display.query, display.key, byKeys ? 300 : undefined);
    let complete = 1;
    for (let i = 0; i < panels.length; i++) complete = Math.min(complete, panelComplete(panels[i]));
    const now = complete >= 1 ? 100 : Math.min(99, Math.floor(complete * 100));
    const { live } = app.about;
    const level = !panels.length ? 0 : live || complete >= 1 ? panels[0].level : levelInMiddle(panels[0], display.view);
    tiles.trim(stage.frame());
    showTable();
    if (now === percent && level === statusLevel) return;
    percent = now;
    statusLevel = level;
    const failed = panels.find((panel) => panel.layer?.failed)?.layer?.failed;
    app.status(failed ?? statusText({ level, percent: now, merge: store.get().merge, pooling: store.get().pooling, live }));
    frame.toggleAttribute("data-sharpening", now < 100 && live);
    if (now < 100) return;
    hoverReadout.renew(panels, display.query, display.key);
    selectedReadout.renew(panels, display.selectedQuery ?? -1, display.selectedKey ?? -1);
  }

  function moved() {
    stage.requestFrame();
    if (!requestTimer) requestTimer = setTimeout(request, tileRequestInterval);
    clearTimeout(publishTimer);
    publishTimer = setTimeout(publishView, publishViewAfter);
  }

  function publishView() {
    const { view, fit } = display;
    publishedView = fit ? { x: 0, y: 0, scale: 0 } : { x: view.x, y: view.y, scale: view.scale };
    store.set({ view: publishedView });
  }

  function rebuildPanels() {
    changed = false;
    for (const panel of display.panels) if (panel.layer) tiles.abandon(panel.layer);
    const panels = comparedSides(app).map((side) => makePanel(app, side));
    display.panels = panels;
    display.sizes = {
      queries: Math.max(...panels.map(({ sizes }) => sizes.queries)), keys: Math.max(...panels.map(({ sizes }) => sizes.keys)),
    };
    for (const panel of panels) {
      if (panel.missing) continue;
      panel.layer = tiles.layer({ ...app.where(), side: panel.side.id }, store.get().pooling);
      void loadLabels(panel);
    }
    note.textContent = panels.map((panel) => panel.missing).filter(Boolean).join(". ");
    note.hidden = !note.textContent;
    frame.setAttribute("aria-label", mapLabel(app, panels));
    frame.setAttribute("aria-rowcount", String(display.sizes.queries));
    frame.setAttribute("aria-colcount", String(display.sizes.keys));
    element.dataset.panels = String(panels.length);
    coloursDue = true;
    percent = -1;
    arrange();
    applyStoreView();
    showSelection();
    hoverReadout.refresh(panels, display.query, display.key);
    request();
  }

  /** @param {Panel} panel */
  async function loadLabels(panel) {
    const axes = panel.side.kinds[store.get().kind];
    try {
      const [queries, keys] = await Promise.all([app.items(panel.side.id, axes.queries), app.items(panel.side.id, axes.keys)]);
      if (!display.panels.includes(panel)) return;
      panel.queries = makeAxis(queries);
      panel.keys = makeAxis(keys);
      panel.seen = (query) => seenKeys(app, queries, keys, query, panel.side);
      if (panel.layer) tiles.setSinks(panel.layer, sinksOf(keys, store.get().kind));
      coloursDue = true;
      showCuts();
      arrange();
      if (display.fit) display.view.scale = 0;
      navigation.applyView();
      hoverReadout.refresh(display.panels, display.query, display.key);
      selectedReadout.refresh(display.panels, display.selectedQuery ?? -1, display.selectedKey ?? -1);
    } catch {
      // The client reports the error; positions are shown instead of labels.
    }
  }

  /** @returns {{rows: [number, number], columns: [number, number]} | null} the items in view */
  function block() {
    if (!width || !display.panels.length) return null;
    const [top, bottom, left, right] = navigation.block();
    return { rows: [top, bottom], columns: [left, right] };
  }

  function showTable() {
    const shown = block();
    table.show(display.panels, shown && shown.rows[1] > shown.rows[0] ? shown : null);
  }

  /** Cut links are hatched as soon as they are asked for, before the model has run again. */
  function showCuts() {
    const edits = app.session.isRunning() ? app.session.pending()?.edits : app.about.typed?.edits;
    for (const panel of display.panels) {
      const isBefore = panel.side.id === "0" && app.about.sides.length > 1 && !app.session.isRunning();
      panel.cuts = panel.queries && panel.keys && !isBefore ? cutsOfHead(edits, store.get(), panel.queries.items, panel.keys.items) : [];
    }
    stage.requestOverlay();
  }

  const arrange = () => arrangePanels(display, stage.context, width, height);

  /** Applies the store's view if something else has set it. */
  function applyStoreView() {
    const { view } = store.get();
    if (view.x !== publishedView.x || view.y !== publishedView.y || view.scale !== publishedView.scale) {
      publishedView = view;
      Object.assign(display.view, view);
    } else if (display.fit) display.view.scale = 0;
    navigation.applyView();
  }

  function showSelection() {
    const { query, key } = store.get();
    display.selectedQuery = query;
    display.selectedKey = key;
    selectedReadout.show(display.panels, query ?? -1, key ?? -1, 0);
    stage.requestOverlay();
  }

  function restyle() {
    display.style = readStyle(element, app.theme(), store.get().colour.scheme, display.ratio);
    coloursDue = true;
    stage.requestFrame();
  }

  const resized = new ResizeObserver((entries) => {
    const entry = entries[entries.length - 1];
    const { width: w, height: h } = entry.contentRect;
    if (!w || !h) return;
    width = w;
    height = h;
    display.ratio = window.devicePixelRatio || 1;
    stage.resize(Math.round(w * display.ratio), Math.round(h * display.ratio));
    restyle();
    arrange();
    if (display.fit) display.view.scale = 0;
    navigation.applyView();
    stage.now();
    request();
  });

  const cleanups = [
    store.subscribe([...panelStateKeys], () => { if (shown) rebuildPanels(); else changed = true; }),
    store.subscribe(["view"], ({ view }) => { if (!shown) changed = true; else if (view !== publishedView) applyStoreView(); }),
    store.subscribe(["query", "key"], () => { if (shown) showSelection(); else changed = true; }),
    store.subscribe(["colour"], () => { if (shown) restyle(); }),
    app.session.subscribe(showCuts),
    // The theme attribute changes after this notification; colours are read in the next frame.
    store.subscribe(["theme", "dark"], () => { if (shown) requestAnimationFrame(restyle); }),
    addInput(stage.element, {
      ...navigation,
      hover: (x, y) => { byKeys = false; navigation.hover(x, y); },
      takesWheel: () => (app.host.mode !== "notebook" && store.get().wide) || frame.contains(document.activeElement),
    }),
    ...addCommands(app, navigation, () => shown, () => { byKeys = true; }),
  ];
  return {
    element,
    show() {
      shown = true;
      stage.run(true);
      resized.observe(stage.element);
      restyle();
      percent = -1;
      if (changed) rebuildPanels();
      else request();
    },
    hide() {
      shown = false;
      stage.run(false);
      resized.unobserve(stage.element);
      clearTimeout(requestTimer);
      requestTimer = undefined;
      for (const panel of display.panels) if (panel.layer) tiles.abandon(panel.layer);
    },
    dispose() {
      this.hide();
      clearTimeout(publishTimer);
      cleanups.forEach((end) => end());
      resized.disconnect();
      hoverReadout.dispose();
      selectedReadout.dispose();
      tiles.dispose();
      stage.dispose();
    },
    point(query, key) {
      if (display.query === query && display.key === key && !byKeys) return;
      display.query = query;
      display.key = key;
      byKeys = false;
      stage.requestOverlay();
    },
    scene: async () => mapScene(display, stage.context),
    block,
    requests: () => display.panels.flatMap((panel) => {
      const { layer } = panel;
      if (!layer) return [];
      return requests(panel).filter(({ priority }) => priority > 20).map(({ level, row, column }) =>
        tileRequest(layer, level, row, column));
    }),
    renderer: stage.kind,
  };
}

// The elements around the stage: zoom buttons, colour bars, readouts.

/**
 * @param {object} parts @param {HTMLElement} parts.stage @param {HTMLElement[]} parts.bars
 * @param {HTMLElement[]} parts.lines @param {{button: HTMLElement, element: HTMLElement}} parts.table
 * @param {(factor: number) => void} parts.zoom @param {() => void} parts.fit
 * @returns {{element: HTMLElement, frame: HTMLElement, note: HTMLElement, showActiveCell: (text: string, query: number, key: number) => boolean}}
 *   frame: takes the focus; note: a message over the stage
 */
function makeElements({ table, stage, bars, lines, zoom, fit }) {
  const button = (/** @type {string} */ text, /** @type {string} */ name, /** @type {() => void} */ click) =>
    el("button", { type: "button", text, "aria-label": name, title: name, on: { click } });
  const note = el("p", { class: "uwaga-map-note", hidden: true });
  // Two cells in turn: a screen reader reads a step only if aria-activedescendant changes.
  const prefix = uniqueName();
  const cells = [0, 1].map((at) => el("div", { class: "uwaga-visually-hidden", role: "gridcell", id: `${prefix}-${at}` }));
  const line = el("div", { role: "row" }, cells);
  const frame = el("div", { class: "uwaga-map-frame", tabindex: 0, role: "grid" }, line, stage, note);
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
    el("div", { class: "uwaga-map-bar" }, bars,
      el("div", { class: "uwaga-map-zoom", role: "group", "aria-label": tr("Zoom") },
        button("\u2212", tr("Zoom out"), () => zoom(1 / 1.6)), button("+", tr("Zoom in"), () => zoom(1.6)),
        button(tr("Whole map"), tr("Show the whole map"), fit)), table.button),
    el("div", { class: "uwaga-map-readout" }, lines));
  stage.addEventListener("pointerdown", () => frame.focus({ preventScroll: true }));
  return { element, frame, note, showActiveCell };
}
