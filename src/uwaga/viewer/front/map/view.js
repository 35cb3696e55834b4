// The map of one head: the tab's elements, and what joins stage, tiles, input and readout.

import { el, tokenElement } from "../dom.js";
import { mapTileQuestion } from "../questions.js";
import { makeStrongest } from "../strongest_list.js";
import { TextReading } from "../weights.js";
import { makeMapAxis } from "./axes.js";
import { makeMapColourBar, readMapStyle, shadeMapPanels } from "./colours.js";
import { addMapCommands, listenMapInput } from "./input.js";
import { arrangeMapPanels, makeMapPanel, mapSides, mapWordsOf } from "./panels.js";
import { mapPlan } from "./pyramid.js";
import { makeMapReadout, mapBarTitle, mapLevelSeen, mapStatus } from "./readout.js";
import { mapScene } from "./scene.js";
import { makeMapStage } from "./stage.js";
import { mapPanelComplete } from "./tile_drawing.js";
import { makeMapTiles } from "./tiles.js";
import { mapNavigation } from "./viewport.js";

/** @typedef {import("../types.js").App} App */
/** @typedef {import("./tile_drawing.js").MapPanel} MapPanel */

/** Tiles are asked for so many milliseconds apart while the view moves. */
const mapWantEvery = 70;
/** The view is told to the others once it rests. */
const mapTellAfter = 200;
const mapFrameKeys = /** @type {const} */ (["side", "kind", "layer", "head", "how", "merge", "specials", "compare"]);

/**
 * @param {App} app
 * @param {{renderer?: "auto" | "canvas"}} [options]
 * @returns {import("../types.js").View & {block: () => {rows: [number, number], columns: [number, number]} | null,
 *   questions: () => import("../types.js").Question[], renderer: () => "webgl2" | "canvas"}}
 *   block: the items in view; questions: those whose replies are the tiles in view, for a page that keeps them
 */
export function mapView(app, { renderer = "auto" } = {}) {
  const { store } = app;
  /** @type {import("./stage.js").MapScenery} */
  const scenery = {
    panels: [], sizes: { queries: 0, keys: 0 }, view: { x: 0, y: 0, scale: 0 }, fit: true, query: -1, key: -1,
    pickedQuery: null, pickedKey: null, ratio: 1, style: null, live: app.about.live,
  };
  let width = 0;
  let height = 0;
  let shown = false;
  let changed = true; // the store has changed while nobody looked
  let lookDue = true;
  let lookLevel = -1;
  let percent = -1;
  let statusLevel = -1;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let wanting;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let telling;
  /** @type {import("../types.js").ViewBox} */
  let told = { x: NaN, y: NaN, scale: NaN };

  const stage = makeMapStage({ scenery, renderer, onAim: aim, onFrame: speak });
  const tiles = makeMapTiles({ client: app.client, onTile: arrived, onForget: stage.forget, onFail: () => speak() });
  const navigation = mapNavigation({ scenery, store, moved, pointed });
  const here = makeMapReadout({ app, title: "Here", name: "here", empty: "Point at a cell, or move with the arrow keys.",
    onWords: (text) => { if (byKeys) app.announce(text); } });
  const picked = makeMapReadout({ app, title: "Picked", name: "picked", empty: "Click a cell, or press Enter.", onWords: () => {} });
  const beside = makeMapBeside({ app, go: (query, key) => {
    store.set({ query, key });
    navigation.go(query ?? scenery.query, key ?? scenery.key);
    // The list is made anew, and its buttons would take the focus with them.
    frame.focus({ preventScroll: true });
  } });
  const bars = [makeMapColourBar(), makeMapColourBar()];
  let byKeys = false;
  const { element, frame, note } = makeMapChrome({
    stage: stage.element, bars: bars.map((bar) => bar.element), lines: [here.element, picked.element],
    beside: beside.element, zoom: navigation.zoomMiddle, fit: navigation.fit,
  });

  // Questions.

  /** @param {MapPanel} panel */
  const offered = (panel) => (/** @type {number} */ level, /** @type {number} */ row, /** @type {number} */ column) =>
    panel.layer !== null && app.host.has(mapTileQuestion(panel.layer, level, row, column));

  /** @param {MapPanel} panel */
  const wishes = (panel) => mapPlan(scenery.view, panel.plot, panel.sizes, scenery.ratio, offered(panel));

  function want() {
    clearTimeout(wanting);
    wanting = undefined;
    if (!shown || !width) return;
    for (const panel of scenery.panels) if (panel.layer && panel.sizes.queries && panel.sizes.keys) tiles.want(panel.layer, wishes(panel));
  }

  /** @param {import("./tiles.js").MapTile} tile */
  function arrived(tile) {
    if (!scenery.panels.some((panel) => panel.layer === tile.layer)) return;
    lookDue = true;
    stage.ask();
  }

  // Frames.

  /** @param {number} level */
  function aim(level) {
    if (!scenery.style || (!lookDue && level === lookLevel)) return;
    lookDue = false;
    lookLevel = level;
    shadeMapPanels(scenery.panels, store.get().colour, scenery.style, level);
    const plain = scenery.panels.find((panel) => !panel.side.signed);
    const signed = scenery.panels.find((panel) => panel.side.signed);
    bars[0].element.hidden = !plain;
    bars[1].element.hidden = !signed;
    if (plain) bars[0].show(plain.shade, mapBarTitle(store.get().how, level));
    if (signed) bars[1].show(signed.shade, "difference");
  }

  /** After a frame: the cell that is pointed at, and in the status line how exact everything is. */
  function speak() {
    const { panels } = scenery;
    here.show(panels, scenery.query, scenery.key, byKeys ? 300 : undefined);
    let complete = 1;
    for (let i = 0; i < panels.length; i++) complete = Math.min(complete, mapPanelComplete(panels[i]));
    const now = complete >= 1 ? 100 : Math.min(99, Math.floor(complete * 100));
    const { live } = app.about;
    const level = !panels.length ? 0 : live || complete >= 1 ? panels[0].level : mapLevelSeen(panels[0], scenery.view);
    tiles.trim(stage.frame());
    if (now === percent && level === statusLevel) return;
    percent = now;
    statusLevel = level;
    const failed = panels.find((panel) => panel.layer?.failed)?.layer?.failed;
    app.status(failed ?? mapStatus({ level, percent: now, merge: store.get().merge, how: store.get().how, live }));
    frame.toggleAttribute("data-sharpening", now < 100 && live);
    if (now < 100) return;
    here.renew(panels, scenery.query, scenery.key);
    picked.renew(panels, scenery.pickedQuery ?? -1, scenery.pickedKey ?? -1);
  }

  function moved() {
    stage.ask();
    if (!wanting) wanting = setTimeout(want, mapWantEvery);
    clearTimeout(telling);
    telling = setTimeout(tell, mapTellAfter);
  }

  function tell() {
    const { view, fit } = scenery;
    told = fit ? { x: 0, y: 0, scale: 0 } : { x: view.x, y: view.y, scale: view.scale };
    store.set({ view: told });
  }

  /** The readout follows with the frame: a drag points at many cells between two frames, and its text costs a layout. */
  function pointed() {
    stage.askOver();
  }

  // The store.

  function build() {
    changed = false;
    for (const panel of scenery.panels) if (panel.layer) tiles.abandon(panel.layer);
    const panels = mapSides(app).map((side) => makeMapPanel(app, side));
    scenery.panels = panels;
    scenery.sizes = {
      queries: Math.max(...panels.map(({ sizes }) => sizes.queries)), keys: Math.max(...panels.map(({ sizes }) => sizes.keys)),
    };
    for (const panel of panels) {
      if (panel.missing) continue;
      panel.layer = tiles.layer({ ...app.where(), side: panel.side.id }, store.get().how);
      void labels(panel);
    }
    note.textContent = panels.map((panel) => panel.missing).filter(Boolean).join(". ");
    note.hidden = !note.textContent;
    frame.setAttribute("aria-label", mapWordsOf(app, panels));
    element.dataset.panels = String(panels.length);
    lookDue = true;
    percent = -1;
    arrange();
    adopt();
    pick();
    here.refresh(panels, scenery.query, scenery.key);
    want();
  }

  /** @param {MapPanel} panel */
  async function labels(panel) {
    const axes = panel.side.kinds[store.get().kind];
    try {
      const [queries, keys] = await Promise.all([app.items(panel.side.id, axes.queries), app.items(panel.side.id, axes.keys)]);
      if (!scenery.panels.includes(panel)) return;
      panel.queries = makeMapAxis(queries);
      panel.keys = makeMapAxis(keys);
      arrange();
      if (scenery.fit) scenery.view.scale = 0;
      navigation.settle();
      here.refresh(scenery.panels, scenery.query, scenery.key);
      picked.refresh(scenery.panels, scenery.pickedQuery ?? -1, scenery.pickedKey ?? -1);
      beside.show(scenery.panels);
    } catch {
      // Said by whoever watches the client; positions stand where names would.
    }
  }

  const arrange = () => arrangeMapPanels(scenery, stage.context, width, height);

  /** The store's view, where another than this has set it. */
  function adopt() {
    const { view } = store.get();
    if (view.x !== told.x || view.y !== told.y || view.scale !== told.scale) {
      told = view;
      Object.assign(scenery.view, view);
    } else if (scenery.fit) scenery.view.scale = 0;
    navigation.settle();
  }

  function pick() {
    const { query, key } = store.get();
    scenery.pickedQuery = query;
    scenery.pickedKey = key;
    picked.show(scenery.panels, query ?? -1, key ?? -1, 0);
    beside.show(scenery.panels);
    stage.askOver();
  }

  function restyle() {
    scenery.style = readMapStyle(element, app.theme(), store.get().colour.scheme, scenery.ratio);
    lookDue = true;
    stage.ask();
  }

  const resized = new ResizeObserver((entries) => {
    const entry = entries[entries.length - 1];
    const { width: w, height: h } = entry.contentRect;
    if (!w || !h) return;
    width = w;
    height = h;
    scenery.ratio = window.devicePixelRatio || 1;
    stage.resize(Math.round(w * scenery.ratio), Math.round(h * scenery.ratio));
    restyle();
    arrange();
    if (scenery.fit) scenery.view.scale = 0;
    navigation.settle();
    stage.now();
    want();
    beside.show(scenery.panels);
  });

  const ends = [
    store.subscribe([...mapFrameKeys], () => { if (shown) build(); else changed = true; }),
    store.subscribe(["view"], ({ view }) => { if (!shown) changed = true; else if (view !== told) adopt(); }),
    store.subscribe(["query", "key"], () => { if (shown) pick(); else changed = true; }),
    store.subscribe(["colour"], () => { if (shown) restyle(); }),
    // The page turns dark after this is told; its colours are read when it has.
    store.subscribe(["theme", "dark"], () => { if (shown) requestAnimationFrame(restyle); }),
    listenMapInput(stage.element, {
      ...navigation,
      hover: (x, y) => { byKeys = false; navigation.hover(x, y); },
      takesWheel: () => app.host.mode !== "notebook" || frame.contains(document.activeElement),
    }),
    ...addMapCommands(app, navigation, () => shown, () => { byKeys = true; }),
  ];
  return {
    element,
    show() {
      shown = true;
      stage.run(true);
      resized.observe(stage.element);
      restyle();
      percent = -1;
      if (changed) build();
      else want();
    },
    hide() {
      shown = false;
      stage.run(false);
      resized.unobserve(stage.element);
      clearTimeout(wanting);
      wanting = undefined;
      for (const panel of scenery.panels) if (panel.layer) tiles.abandon(panel.layer);
    },
    dispose() {
      this.hide();
      clearTimeout(telling);
      ends.forEach((end) => end());
      resized.disconnect();
      here.dispose();
      picked.dispose();
      beside.dispose();
      tiles.dispose();
      stage.dispose();
    },
    scene: async () => mapScene(app, scenery, stage.context, width, height),
    block() {
      if (!width || !scenery.panels.length) return null;
      const [top, bottom, left, right] = navigation.block();
      return { rows: [top, bottom], columns: [left, right] };
    },
    questions: () => scenery.panels.flatMap((panel) => {
      const { layer } = panel;
      if (!layer) return [];
      return wishes(panel).filter(({ priority }) => priority > 20).map(({ level, row, column }) =>
        mapTileQuestion(layer, level, row, column));
    }),
    renderer: stage.kind,
  };
}

// The elements of the tab around the stage: zoom buttons, scales of colours, what is read off.

/**
 * @param {object} parts
 * @param {HTMLElement} parts.stage
 * @param {HTMLElement[]} parts.bars
 * @param {HTMLElement[]} parts.lines
 * @param {HTMLElement} parts.beside
 * @param {(factor: number) => void} parts.zoom
 * @param {() => void} parts.fit
 * @returns {{element: HTMLElement, frame: HTMLElement, note: HTMLElement}} frame: what has the focus; note: over the stage
 */
export function makeMapChrome({ stage, bars, lines, beside, zoom, fit }) {
  const button = (/** @type {string} */ text, /** @type {string} */ name, /** @type {() => void} */ click) =>
    el("button", { type: "button", text, "aria-label": name, title: name, on: { click } });
  const note = el("p", { class: "uwaga-map-note", hidden: true });
  const frame = el("div", { class: "uwaga-map-frame", tabindex: 0, role: "application", "aria-roledescription": "map" }, stage, note);
  const element = el("section", { class: "uwaga-map", "aria-label": "Map" },
    el("div", { class: "uwaga-map-bar" },
      el("div", { class: "uwaga-map-zoom", role: "group", "aria-label": "Zoom" },
        button("\u2212", "Zoom out", () => zoom(1 / 1.6)), button("+", "Zoom in", () => zoom(1.6)),
        button("Whole map", "Show the whole map", fit)),
      bars, el("span", { class: "uwaga-map-hint", text: "Drag to move, wheel or pinch to zoom, click to pick" })),
    el("div", { class: "uwaga-map-main" }, frame, beside), el("div", { class: "uwaga-map-readout" }, lines));
  stage.addEventListener("pointerdown", () => frame.focus({ preventScroll: true }));
  return { element, frame, note };
}

// Beside the map, where it leaves room: the strongest keys of the picked query, and the strongest queries of the picked key.

const besideAlone = 18;
const besideBoth = 9;

/**
 * @param {object} options
 * @param {import("../types.js").App} options.app
 * @param {(query: number | null, key: number | null) => void} options.go  to a cell
 */
export function makeMapBeside({ app, go }) {
  const hint = el("p", { class: "uwaga-map-beside-hint",
    text: "Pick a cell: here are then the strongest keys of its query, and the strongest queries of its key." });
  const keys = makeStrongest((item) => go(app.store.get().query, item));
  const queries = makeStrongest((item) => go(item, app.store.get().key));
  const element = el("aside", { class: "uwaga-map-beside", "aria-label": "Strongest of the picked cell" },
    hint, keys.element, queries.element);
  const row = new TextReading(app, "row", draw);
  const column = new TextReading(app, "column", draw);
  /** @type {MapPanel | null} */
  let panel = null;
  // Nothing is asked for what a narrow page has no room for.
  const visible = () => element.offsetParent !== null;

  function draw() {
    const { query, key } = app.store.get();
    const count = query !== null && key !== null ? besideBoth : besideAlone;
    keys.show(besideList(panel?.queries, panel?.keys, query, row, count, "query", ["What ", " attends to"]));
    queries.show(besideList(panel?.keys, panel?.queries, key, column, count, "key", ["What attends to ", ""]));
    hint.hidden = !keys.element.hidden || !queries.element.hidden;
  }

  return {
    element,
    /** @param {MapPanel[]} panels  lists are of one map: of several there are none */
    show(panels) {
      panel = panels.length === 1 && !panels[0].missing ? panels[0] : null;
      const { query, key } = app.store.get();
      const wanted = panel !== null && visible();
      row.want(wanted ? query : null);
      column.want(wanted ? key : null);
      draw();
    },
    dispose() {
      row.drop();
      column.drop();
    },
  };
}

/**
 * @param {import("./axes.js").MapAxis | null | undefined} own  of the picked item
 * @param {import("./axes.js").MapAxis | null | undefined} others  of the list
 * @param {number | null} item
 * @param {TextReading} reading
 * @param {number} count
 * @param {"query" | "key"} hue
 * @param {[string, string]} words  around the token's name
 * @returns {import("../strongest_list.js").StrongestShown | null}
 */
function besideList(own, others, item, { weights, absent }, count, hue, [before, behind]) {
  if (!own || !others || item === null || item >= own.items.total) return null;
  const note = weights ? "" : absent ? "This saved page holds no weights of it." : "Reading\u2026";
  return { hue, weights, items: others.items, count, note, title: [before, tokenElement(own.items.labels[item]), ` (${item})${behind}`] };
}
