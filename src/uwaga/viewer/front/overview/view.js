// Layers by heads as small maps. One canvas over a scrolled element; only what is in view is asked for and drawn.

import { segmentedControl } from "../controls.js";
import { el, isModified, uniqueName } from "../dom.js";
import { kindTitle, numberText } from "../format.js";
import { tr, trN } from "../languages.js";
import { makeRequestSet, statisticsRequest } from "../requests.js";
import { kindsOf, layersOf, makeAllHeadsSwitch } from "../shell/head_navigation.js";
import { makeDrawing } from "./drawing.js";
import { placeAt, makeLayout, stepFrom, visibleRows } from "./layout.js";
/** @import { App, Kind, Reply, SideId, View } from "../types.js" */
/** @import { Layout, Row } from "./layout.js" */

/** @typedef {{row: number, head: number}} Place */

/** CSS pixels for a band's title above the layer that is scrolled to. */
const bandHeadRoom = 36;

const zoomLevels = [0.4, 0.55, 0.75, 1, 1.35, 1.8, 2.4, 3.2];

/**
 * @typedef {{zoom: number, isShown: boolean, frame: number, layout: Layout, active: Place, hovered: Place | null}} OverviewState  mutated in place.
 *   zoom: of zoomLevels; frame: the requested one; active: the small map that the keys have moved to
 */
/** @typedef {ReturnType<typeof makeParts>} Parts */

/** @param {App} app @returns {View} */
export function overviewView(app) {
  const { store } = app;
  /** @type {OverviewState} */
  const state = { zoom: 3, isShown: false, frame: 0, layout: makeLayout([], 100, 100, 16, 1), active: { row: 0, head: 0 }, hovered: null };
  const redraw = () => schedule(app, parts, state);
  const parts = makeParts(app, {
    redraw, resize,
    keydown: (event) => pressKey(app, parts, state, event),
    focus: () => showActive(parts, state, false),
    hover(event) {
      const place = event && placeUnder(parts, state, event);
      if (event) parts.scroll.style.setProperty("cursor", place ? "pointer" : "default");
      setHover(parts, state, place);
    },
    click(event) {
      const place = placeUnder(parts, state, event);
      if (place) open(app, state, place);
    },
    placeCard: () => placeCard(parts, state),
  });
  const { element, scroll, scale, loading, drawing } = parts;
  const sizes = new ResizeObserver(() => relayout(app, parts, state));

  /** @param {number} by */
  function resize(by) {
    state.zoom = Math.max(0, Math.min(zoomLevels.length - 1, state.zoom + by));
    relayout(app, parts, state);
    showActive(parts, state, false);
  }
  const enter = (/** @type {string} */ key) => () => {
    scroll.focus();
    state.active = stepFrom(state.layout, state.active, key, 1) ?? state.active;
    showActive(parts, state, true);
  };
  const cleanups = [
    ...[
      ...Object.entries({ Left: tr("Small map to the left"), Right: tr("Small map to the right"), Up: tr("Small map above"), Down: tr("Small map below") })
        .map(([way, title]) => ({ id: `overview.${way}`, title, keys: [`Arrow${way}`], run: enter(`Arrow${way}`) })),
      { id: "overview.open", title: tr("Open the small map"), keys: ["Enter"], run: () => open(app, state, state.active) },
      { id: "overview.larger", title: tr("Larger maps"), keys: ["+", "="], run: () => resize(1) },
      { id: "overview.smaller", title: tr("Smaller maps"), keys: ["-"], run: () => resize(-1) },
      { id: "overview.scale", title: tr("Colours per head or shared"), keys: ["a"], run: () => store.set({ overviewScale: store.get().overviewScale === "all" ? "head" : "all" }) },
    ].map((command) => app.commands.add({ ...command, group: tr("Overview"), when: () => store.get().tab === "overview" })),
    store.subscribe(["side", "compare"], () => relayout(app, parts, state)),
    store.subscribe(["layer", "head", "pooling", "merge", "specials", "colour", "dark", "overviewScale"], redraw),
    store.subscribe(["kind"], () => {
      state.active = selectedPlace(app, state);
      const row = state.layout.rows[state.active.row];
      if (state.isShown && row) scroll.scrollTop = row.y - state.layout.top - bandHeadRoom;
      placeActiveCell(parts, state);
      redraw();
    }),
    store.subscribe(["overviewScale"], () => scale.show(store.get().overviewScale)),
  ];
  scale.show(store.get().overviewScale);

  return {
    element,
    show() {
      state.isShown = true;
      sizes.observe(scroll);
      relayout(app, parts, state);
      state.active = selectedPlace(app, state);
      showActive(parts, state, false);
      redraw();
    },
    hide() {
      state.isShown = false;
      cancelAnimationFrame(state.frame);
      state.frame = 0;
      sizes.disconnect();
      loading.stop();
      setHover(parts, state, null);
    },
    dispose() {
      loading.stop();
      cleanups.forEach((end) => end());
      drawing.dispose();
    },
    scene: () => drawing.scene(state.layout),
  };
}

/**
 * What the overview is made of.
 * @param {App} app
 * @param {{redraw: () => void, resize: (by: number) => void, keydown: (event: KeyboardEvent) => void, focus: () => void, hover: (event: PointerEvent | null) => void,
 *   click: (event: MouseEvent) => void, placeCard: () => void}} act
 */
function makeParts(app, { redraw, resize, keydown, focus, hover, click, placeCard }) {
  const canvas = el("canvas", { "aria-hidden": "true" });
  // Two gridcell elements in turn: a screen reader announces a step only if aria-activedescendant changes.
  const prefix = uniqueName();
  const cells = [0, 1].map((i) => el("div", { class: "uwaga-overview-cell", role: "gridcell", id: `${prefix}-cell-${i}` }));
  const line = el("div", { role: "row" }, cells), space = el("div", { class: "uwaga-overview-space", role: "presentation" }, line);
  const scroll = el("div", { class: "uwaga-overview-scroll", role: "grid", tabindex: 0, "aria-label": tr("Small maps: a row per layer, a column per head"),
    on: { scroll: redraw, keydown, click, pointermove: hover, pointerleave: () => hover(null), focus, blur: () => hover(null) } }, space);
  const card = headCard(app, placeCard);
  const scale = segmentedControl(tr("Colours"), [
    { name: "head", title: tr("Colours per head"), hint: tr("Each small map uses all colours") },
    { name: "all", title: tr("Shared"), hint: tr("One scale of colours for all heads that are loaded") },
  ], (name) => app.store.set({ overviewScale: /** @type {"all" | "head"} */ (name) }));
  const bar = el("div", { class: "uwaga-overview-bar" }, makeAllHeadsSwitch(app, "overview"), scale.element,
    el("div", { class: "uwaga-segments", role: "group", "aria-label": tr("Size of the small maps") },
      el("button", { type: "button", text: "\u2212", "aria-label": tr("Smaller maps"), on: { click: () => resize(-1) } }),
      el("button", { type: "button", text: "+", "aria-label": tr("Larger maps"), on: { click: () => resize(1) } })),
    el("span", { class: "uwaga-hint", text: tr("Click a map, or press Enter, to open it. The grey strip is the share of weight on sinks") }));
  const element = el("section", { class: "uwaga-overview", "aria-label": tr("Overview") }, bar,
    el("div", { class: "uwaga-overview-stage" }, scroll, canvas, card.element));
  const loading = makeLoader(app, redraw);
  return { element, scroll, space, line, cells, card, scale, loading, drawing: makeDrawing(app, canvas, loading) };
}

/** @param {App} app @param {Parts} parts @param {OverviewState} state */
function relayout(app, parts, state) {
  const { scroll, space } = parts, { active } = state, { side, compare } = app.store.get();
  if (!state.isShown || !scroll.clientWidth) return;
  const rem = parseFloat(getComputedStyle(document.documentElement).fontSize) || 16;
  const last = state.layout.rows[active.row];
  const sides = compare === "both" ? app.about.sides.filter(({ id }) => id !== "difference") : [app.side(side)];
  const bands = kindsOf(app.about).flatMap((kind) => sides.filter((one) => layersOf(one, kind).length)
    .map((one) => ({ side: one, kind, title: kindTitle(kind) + (sides.length > 1 ? ` \u00b7 ${one.title}` : "") })));
  const layout = state.layout = makeLayout(bands, scroll.clientWidth, scroll.clientHeight, rem, zoomLevels[state.zoom]);
  const same = layout.rows.findIndex((row) => last && row.side === last.side && row.kind === last.kind && row.layer === last.layer);
  state.active = same >= 0 ? { row: same, head: Math.min(active.head, layout.rows[same].heads - 1) } : selectedPlace(app, state);
  Object.assign(space.style, { width: `${layout.width}px`, height: `${layout.height}px` });
  scroll.setAttribute("aria-rowcount", String(layout.rows.length));
  scroll.setAttribute("aria-colcount", String(Math.max(0, ...layout.rows.map(({ heads }) => heads))));
  placeActiveCell(parts, state);
  schedule(app, parts, state);
}

/** @param {App} app @param {OverviewState} state @returns {Place} the head of the store */
function selectedPlace({ store }, { layout }) {
  const { side, kind, layer, head } = store.get();
  const row = layout.rows.findIndex((one) => one.side === side && one.kind === kind && one.layer === layer);
  return row < 0 ? { row: 0, head: 0 } : { row, head };
}

/** Requests a frame. @param {App} app @param {Parts} parts @param {OverviewState} state */
function schedule(app, parts, state) {
  if (state.isShown) state.frame ||= requestAnimationFrame(() => draw(app, parts, state));
}

/** @param {App} app @param {Parts} parts @param {OverviewState} state */
function draw(app, parts, state) {
  const { scroll, loading, drawing } = parts, { layout } = state;
  state.frame = 0;
  if (!state.isShown) return;
  const [first, end] = visibleRows(layout, scroll.scrollTop + layout.top, scroll.scrollTop + scroll.clientHeight);
  loading.request(layout.rows.slice(first, end));
  if (!drawing.draw(layout, scroll, [first, end], selectedPlace(app, state))) schedule(app, parts, state);
  const count = loading.pending();
  app.status(count ? trN("Overview: {count} layer in view still loading", "Overview: {count} layers in view still loading", count) : "");
}

/** Places the gridcell element over the active small map. @param {Parts} parts @param {OverviewState} state */
function placeActiveCell({ scroll, line, cells, card }, { layout, active }) {
  const row = layout.rows[active.row];
  if (!row) return;
  const [cell, other] = cells[0].hasAttribute("data-active") ? [cells[1], cells[0]] : cells;
  const focused = scroll === document.activeElement || scroll === /** @type {ShadowRoot} */ (scroll.getRootNode()).activeElement;
  other.removeAttribute("aria-label");
  for (const one of cells) {
    one.hidden = one !== cell;
    one.toggleAttribute("data-active", one === cell);
  }
  const left = `${layout.left + active.head * layout.pitch}px`, size = `${layout.cell}px`;
  Object.assign(cell.style, { opacity: focused ? "1" : "0", left, top: `${row.y}px`, width: size, height: size });
  cell.setAttribute("aria-label", card.words(row, active.head));
  cell.setAttribute("aria-colindex", String(active.head + 1));
  line.setAttribute("aria-rowindex", String(active.row + 1));
  scroll.setAttribute("aria-activedescendant", cell.id);
}

/** Scrolls to the active small map. @param {Parts} parts @param {OverviewState} state @param {boolean} isMoved  by a key */
function showActive(parts, state, isMoved) {
  const { scroll } = parts, { layout, active } = state, row = layout.rows[active.row];
  if (!row) return;
  const left = layout.left + active.head * layout.pitch, bottom = row.y + layout.cell + 6, right = left + layout.cell + 6;
  if (row.y - layout.top - 4 < scroll.scrollTop) scroll.scrollTop = row.y - layout.top - 4;
  else if (bottom > scroll.scrollTop + scroll.clientHeight) scroll.scrollTop = bottom - scroll.clientHeight;
  if (left - layout.left < scroll.scrollLeft) scroll.scrollLeft = left - layout.left;
  else if (right > scroll.scrollLeft + scroll.clientWidth) scroll.scrollLeft = right - scroll.clientWidth;
  placeActiveCell(parts, state);
  if (isMoved || scroll.matches(":focus-visible")) setHover(parts, state, active);
}

/** @param {Parts} parts @param {OverviewState} state @param {Place | null} place */
function setHover(parts, state, place) {
  if (place?.row === state.hovered?.row && place?.head === state.hovered?.head) return;
  state.hovered = place;
  if (place) return placeCard(parts, state);
  parts.card.hide();
  placeActiveCell(parts, state);
}

/** @param {Parts} parts @param {OverviewState} state */
function placeCard({ scroll, cells, card }, { layout, active, hovered }) {
  const row = hovered && layout.rows[hovered.row];
  if (!hovered || !row) return;
  const left = layout.left + hovered.head * layout.pitch - scroll.scrollLeft, top = row.y - scroll.scrollTop;
  card.show(row, hovered.head,
    { left, right: left + layout.cell, top, bottom: top + layout.cell, width: scroll.clientWidth, height: scroll.clientHeight });
  if (hovered.row === active.row && hovered.head === active.head)
    cells.find((cell) => cell.hasAttribute("data-active"))?.setAttribute("aria-label", card.words(row, hovered.head));
}

/** @param {Parts} parts @param {OverviewState} state @param {MouseEvent} event @returns {Place | null} the small map under the pointer */
function placeUnder({ scroll }, { layout }, event) {
  const box = scroll.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
  return y < layout.top || x < layout.left ? null : placeAt(layout, x + scroll.scrollLeft, y + scroll.scrollTop);
}

/** @param {App} app @param {OverviewState} state @param {Place} place */
function open(app, state, place) {
  state.active = place;
  const { side, kind, layer } = state.layout.rows[place.row];
  app.openHead(side, kind, layer, place.head);
}

/** @param {App} app @param {Parts} parts @param {OverviewState} state @param {KeyboardEvent} event */
function pressKey(app, parts, state, event) {
  const { layout, active } = state;
  if (isModified(event, true) || !layout.rows.length) return;
  const isOpening = event.key === "Enter" || event.key === " ";
  const page = Math.max(1, Math.floor((parts.scroll.clientHeight - layout.top) / layout.pitch) - 1);
  const place = isOpening ? active : stepFrom(layout, active, event.key, page);
  if (!place) return;
  event.preventDefault();
  if (isOpening) return open(app, state, place);
  state.active = place;
  showActive(parts, state, true);
}

// The card beside the hovered small map: the statistics of its head.

/** @param {Row} row @param {number} head @param {App} app @returns {string} */
function headTitle({ side, kind, layer }, head, app) {
  const several = app.about.sides.length > 1 ? `${app.side(side).title}, ` : "";
  return several + tr("{kind} layer {layer}, head {head}", { kind: kindTitle(kind), layer, head });
}

/** @param {App} app @param {() => void} changed  called when statistics have arrived */
function headCard(app, changed) {
  const title = el("strong"), list = el("dl"), note = el("p", { class: "uwaga-card-note" });
  const element = el("div", { class: "uwaga-card", role: "tooltip", hidden: true }, title, list, note);
  let controller = new AbortController(), shown = "";

  /** Titles and values of the statistics that are known. @param {Row} row @param {number} head @returns {[string, string][]} */
  function statisticTexts(row, head) {
    const values = app.client.peek(statisticsRequest(row))?.meta.columns ?? {};
    return app.about.statistics.filter(({ name }) => (values[name]?.[head] ?? null) !== null).map(({ name, title: what }) => [tr(what), numberText(values[name][head])]);
  }
  return {
    element,
    /**
     * @param {Row} row @param {number} head
     * @param {{left: number, right: number, top: number, bottom: number, width: number, height: number}} place
     */
    show(row, head, place) {
      const request = statisticsRequest(row), reply = app.client.peek(request), sampled = reply?.meta.sampled;
      title.textContent = headTitle(row, head, app);
      list.replaceChildren(...statisticTexts(row, head).flatMap(([what, value]) => [el("dt", { text: what }), el("dd", { text: value })]));
      note.textContent = sampled ? tr("from a sample of {sampled} queries", { sampled }) : !reply && app.host.has(request) ? tr("loading statistics…") : "";
      element.hidden = false;
      const { offsetWidth: width, offsetHeight: height } = element;
      const left = place.right + width + 8 <= place.width ? place.right + 8 : Math.max(4, place.left - width - 8);
      Object.assign(element.style, { left: `${Math.min(left, Math.max(4, place.width - width - 4))}px`, top: `${Math.max(4, Math.min(place.top, place.height - height - 4))}px` });
      const name = JSON.stringify(request);
      if (name === shown) return;
      controller.abort();
      shown = app.host.has(request) ? name : "";
      if (!shown) return;
      const { signal } = (controller = new AbortController());
      app.client.follow(request, () => { if (!signal.aborted) changed(); }, { signal, priority: 3 }).catch(() => {});
    },
    hide() {
      element.hidden = true;
      controller.abort();
      shown = "";
    },
    /** @param {Row} row @param {number} head @returns {string} as text for screen readers */
    words: (row, head) => [headTitle(row, head, app), ...statisticTexts(row, head).map((parts) => parts.join(" "))].join("; "),
  };
}

/** The overviews of layers: requested while in view. @param {App} app @param {() => void} onChange */
function makeLoader(app, onChange) {
  const requests = makeRequestSet(app, 1, onChange);
  /** @param {Row} row */
  const request = ({ side, kind, layer }) => {
    const { pooling, merge, specials } = app.store.get();
    return { request: "overview", side, kind, layer, pooling, merge, specials };
  };
  // The names of the keys tell the sinks.
  const loadKeys = (/** @type {SideId} */ side, /** @type {Kind} */ kind) => {
    const { keys } = app.side(side).kinds[kind];
    return app.peekItems(side, keys) ? null : app.items(side, keys).then(onChange, () => {});
  };
  return {
    name: (/** @type {Row} */ row) => JSON.stringify(request(row)),
    /** @param {Row} row @returns {Reply | undefined} the most complete reply so far */
    peek: (row) => app.client.peek(request(row)),
    /** @param {Row} row */
    isUnavailable: (row) => requests.isUnavailable(request(row)),
    /** @param {Row[]} rows  in view */
    request(rows) {
      requests.request(rows.map(request));
      for (const { side, kind } of rows) void loadKeys(side, kind);
    },
    /** @param {Row[]} rows  each has a reply afterwards, unless the host refuses it */
    async loadAll(rows) {
      const unknown = rows.map(request).filter((one) => !app.client.peek(one) && app.host.has(one));
      await Promise.allSettled([...rows.map(({ side, kind }) => loadKeys(side, kind)),
        ...unknown.map((one) => app.client.ask(one, { priority: 1 }))]);
    },
    stop: requests.stop,
    pending: requests.pending,
  };
}
