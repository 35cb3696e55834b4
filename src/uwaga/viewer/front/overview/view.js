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

/** @param {App} app @returns {View} */
export function overviewView(app) {
  const { store } = app;
  let zoom = 3, shown = false, frame = 0;
  /** @type {Layout} */
  let layout = makeLayout([], 100, 100, 16, 1);
  /** @type {Place} */
  let active = { row: 0, head: 0 };
  /** @type {Place | null} */
  let hovered = null;

  const canvas = el("canvas", { "aria-hidden": "true" });
  // Two gridcell elements in turn: a screen reader announces a step only if aria-activedescendant changes.
  const prefix = uniqueName();
  const cells = [0, 1].map((i) => el("div", { class: "uwaga-overview-cell", role: "gridcell", id: `${prefix}-cell-${i}` }));
  const line = el("div", { role: "row" }, cells);
  const space = el("div", { class: "uwaga-overview-space", role: "presentation" }, line);
  const scroll = el("div",
    { class: "uwaga-overview-scroll", role: "grid", tabindex: 0, "aria-label": tr("Small maps: a row per layer, a column per head"),
    on: { scroll: schedule, keydown, click, pointermove: move, pointerleave: () => setHover(null),
      focus: () => showActive(false), blur: () => setHover(null) } }, space);
  const card = headCard(app, () => placeCard());
  const stage = el("div", { class: "uwaga-overview-stage" }, scroll, canvas, card.element);
  const scale = segmentedControl(tr("Colours"), [
    { name: "head", title: tr("Colours per head"), hint: tr("Each small map uses all colours") },
    { name: "all", title: tr("Shared"), hint: tr("One scale of colours for all heads that are loaded") },
  ], (name) => store.set({ overviewScale: /** @type {"all" | "head"} */ (name) }));
  const bar = el("div", { class: "uwaga-overview-bar" }, makeAllHeadsSwitch(app, "overview"), scale.element,
    el("div", { class: "uwaga-segments", role: "group", "aria-label": tr("Size of the small maps") },
      el("button", { type: "button", text: "\u2212", "aria-label": tr("Smaller maps"), on: { click: () => resize(-1) } }),
      el("button", { type: "button", text: "+", "aria-label": tr("Larger maps"), on: { click: () => resize(1) } })),
    el("span", { class: "uwaga-hint", text: tr("Click a map, or press Enter, to open it. The grey strip is the share of weight on sinks") }));
  const element = el("section", { class: "uwaga-overview", "aria-label": tr("Overview") }, bar, stage);
  const loading = makeLoader(app, schedule);
  const drawing = makeDrawing(app, canvas, loading);
  const sizes = new ResizeObserver(() => relayout());

  function parts() {
    const { side, compare } = store.get();
    const sides = compare === "both" ? app.about.sides.filter(({ id }) => id !== "difference") : [app.side(side)];
    return kindsOf(app.about).flatMap((kind) => sides.filter((one) => layersOf(one, kind).length)
      .map((one) => ({ side: one, kind, title: kindTitle(kind) + (sides.length > 1 ? ` \u00b7 ${one.title}` : "") })));
  }

  function relayout() {
    if (!shown || !scroll.clientWidth) return;
    const rem = parseFloat(getComputedStyle(document.documentElement).fontSize) || 16;
    const last = layout.rows[active.row];
    layout = makeLayout(parts(), scroll.clientWidth, scroll.clientHeight, rem, zoomLevels[zoom]);
    const same = layout.rows.findIndex((row) => last && row.side === last.side && row.kind === last.kind && row.layer === last.layer);
    active = same >= 0 ? { row: same, head: Math.min(active.head, layout.rows[same].heads - 1) } : current();
    space.style.setProperty("width", `${layout.width}px`);
    space.style.setProperty("height", `${layout.height}px`);
    scroll.setAttribute("aria-rowcount", String(layout.rows.length));
    scroll.setAttribute("aria-colcount", String(Math.max(0, ...layout.rows.map(({ heads }) => heads))));
    placeActiveCell();
    schedule();
  }

  /** @returns {Place} the head of the store */
  function current() {
    const { side, kind, layer, head } = store.get();
    const row = layout.rows.findIndex((one) => one.side === side && one.kind === kind && one.layer === layer);
    return row < 0 ? { row: 0, head: 0 } : { row, head };
  }

  function schedule() {
    if (!shown || frame) return;
    frame = requestAnimationFrame(() => {
      frame = 0;
      if (!shown) return;
      const [first, end] = visibleRows(layout, scroll.scrollTop + layout.top, scroll.scrollTop + scroll.clientHeight);
      loading.request(layout.rows.slice(first, end));
      if (!drawing.draw(layout, scroll, [first, end], current())) schedule();
      const open = loading.pending();
      app.status(open ? trN("Overview: {count} layer in view still loading", "Overview: {count} layers in view still loading", open) : "");
    });
  }

  /** Places the gridcell element over the active small map. */
  function placeActiveCell() {
    const row = layout.rows[active.row];
    if (!row) return;
    const [cell, other] = cells[0].hasAttribute("data-active") ? [cells[1], cells[0]] : cells;
    const focused = scroll === document.activeElement || scroll === /** @type {ShadowRoot} */ (scroll.getRootNode()).activeElement;
    cells.forEach((one) => one.removeAttribute("data-active"));
    other.removeAttribute("aria-label");
    other.hidden = true;
    cell.hidden = false;
    cell.toggleAttribute("data-active", true);
    cell.style.setProperty("opacity", focused ? "1" : "0");
    for (const [name, value] of Object.entries({ left: layout.left + active.head * layout.pitch,
      top: row.y, width: layout.cell, height: layout.cell })) {
      cell.style.setProperty(name, `${value}px`);
    }
    cell.setAttribute("aria-label", card.words(row, active.head));
    cell.setAttribute("aria-colindex", String(active.head + 1));
    line.setAttribute("aria-rowindex", String(active.row + 1));
    scroll.setAttribute("aria-activedescendant", cell.id);
  }

  /** @param {boolean} moved */
  function showActive(moved) {
    const row = layout.rows[active.row];
    if (!row) return;
    const left = layout.left + active.head * layout.pitch, bottom = row.y + layout.cell + 6, right = left + layout.cell + 6;
    if (row.y - layout.top - 4 < scroll.scrollTop) scroll.scrollTop = row.y - layout.top - 4;
    else if (bottom > scroll.scrollTop + scroll.clientHeight) scroll.scrollTop = bottom - scroll.clientHeight;
    if (left - layout.left < scroll.scrollLeft) scroll.scrollLeft = left - layout.left;
    else if (right > scroll.scrollLeft + scroll.clientWidth) scroll.scrollLeft = right - scroll.clientWidth;
    placeActiveCell();
    if (moved || scroll.matches(":focus-visible")) setHover(active);
  }

  /** @param {Place | null} at */
  function setHover(at) {
    if (at?.row === hovered?.row && at?.head === hovered?.head) return;
    hovered = at;
    if (!at) { card.hide(); placeActiveCell(); return; }
    placeCard();
  }

  function placeCard() {
    const row = hovered && layout.rows[hovered.row];
    if (!hovered || !row) return;
    const left = layout.left + hovered.head * layout.pitch - scroll.scrollLeft, top = row.y - scroll.scrollTop;
    card.show(row, hovered.head,
      { left, right: left + layout.cell, top, bottom: top + layout.cell, width: scroll.clientWidth, height: scroll.clientHeight });
    if (hovered.row === active.row && hovered.head === active.head)
      cells.find((cell) => cell.hasAttribute("data-active"))?.setAttribute("aria-label", card.words(row, hovered.head));
  }

  /** @param {MouseEvent} event @returns {Place | null} */
  function under(event) {
    const box = scroll.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
    return y < layout.top || x < layout.left ? null : placeAt(layout, x + scroll.scrollLeft, y + scroll.scrollTop);
  }
  /** @param {PointerEvent} event */
  function move(event) {
    const at = under(event);
    scroll.style.setProperty("cursor", at ? "pointer" : "default");
    setHover(at);
  }
  /** @param {MouseEvent} event */
  function click(event) {
    const at = under(event);
    if (at) open(at);
  }
  /** @param {Place} at */
  function open(at) {
    active = at;
    const { side, kind, layer } = layout.rows[at.row];
    app.openHead(side, kind, layer, at.head);
  }
  /** @param {KeyboardEvent} event */
  function keydown(event) {
    if (isModified(event, true) || !layout.rows.length) return;
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      return open(active);
    }
    const page = Math.max(1, Math.floor((scroll.clientHeight - layout.top) / layout.pitch) - 1);
    const to = stepFrom(layout, active, event.key, page);
    if (!to) return;
    event.preventDefault();
    active = to;
    showActive(true);
  }
  /** @param {number} by */
  function resize(by) {
    zoom = Math.max(0, Math.min(zoomLevels.length - 1, zoom + by));
    relayout();
    showActive(false);
  }

  const isShown = () => store.get().tab === "overview";
  const enter = (/** @type {string} */ key) => () => {
    scroll.focus();
    const to = stepFrom(layout, active, key, 1);
    if (to) active = to;
    showActive(true);
  };
  const removeCommands = [
    ...Object.entries({ Left: tr("Small map to the left"), Right: tr("Small map to the right"), Up: tr("Small map above"), Down: tr("Small map below") })
      .map(([way, title]) => ({ id: `overview.${way}`, title, keys: [`Arrow${way}`], run: enter(`Arrow${way}`) })),
    { id: "overview.open", title: tr("Open the small map"), keys: ["Enter"], run: () => open(active) },
    { id: "overview.larger", title: tr("Larger maps"), keys: ["+", "="], run: () => resize(1) },
    { id: "overview.smaller", title: tr("Smaller maps"), keys: ["-"], run: () => resize(-1) },
    { id: "overview.scale", title: tr("Colours per head or shared"), keys: ["a"], run: () => store.set({ overviewScale: store.get().overviewScale === "all" ? "head" : "all" }) },
  ].map((command) => app.commands.add({ ...command, group: tr("Overview"), when: isShown }));
  const unsubscribe = [
    store.subscribe(["side", "compare"], relayout),
    store.subscribe(["layer", "head", "pooling", "merge", "specials", "colour", "dark", "overviewScale"], schedule),
    store.subscribe(["kind"], () => {
      active = current();
      const row = layout.rows[active.row];
      if (shown && row) scroll.scrollTop = row.y - layout.top - bandHeadRoom;
      placeActiveCell();
      schedule();
    }),
    store.subscribe(["overviewScale"], () => scale.show(store.get().overviewScale)),
  ];
  scale.show(store.get().overviewScale);

  return {
    element,
    show() {
      shown = true;
      sizes.observe(scroll);
      relayout();
      active = current();
      showActive(false);
      schedule();
    },
    hide() {
      shown = false;
      cancelAnimationFrame(frame);
      frame = 0;
      sizes.disconnect();
      loading.stop();
      setHover(null);
    },
    dispose() {
      loading.stop();
      removeCommands.forEach((remove) => remove());
      unsubscribe.forEach((leave) => leave());
      drawing.dispose();
    },
    scene: () => drawing.scene(layout),
  };
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
  /** @type {AbortController | null} */
  let pendingRequest = null, shown = "";

  /** Titles and values of the statistics that are known. @param {Row} row @param {number} head @returns {[string, string][]} */
  function known(row, head) {
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
      list.replaceChildren(...known(row, head).flatMap(([what, value]) => [el("dt", { text: what }), el("dd", { text: value })]));
      note.textContent = sampled ? tr("from a sample of {sampled} queries", { sampled }) : !reply && app.host.has(request) ? tr("loading statistics…") : "";
      element.hidden = false;
      const { offsetWidth: width, offsetHeight: height } = element;
      const left = place.right + width + 8 <= place.width ? place.right + 8 : Math.max(4, place.left - width - 8);
      element.style.setProperty("left", `${Math.min(left, Math.max(4, place.width - width - 4))}px`);
      element.style.setProperty("top", `${Math.max(4, Math.min(place.top, place.height - height - 4))}px`);
      const name = JSON.stringify(request);
      if (name === shown && pendingRequest) return;
      pendingRequest?.abort();
      pendingRequest = null;
      shown = name;
      if (!app.host.has(request)) return;
      const controller = (pendingRequest = new AbortController());
      app.client.follow(request, () => { if (!controller.signal.aborted) changed(); }, { signal: controller.signal, priority: 3 })
        .then(() => {}, () => {});
    },
    hide() {
      element.hidden = true;
      pendingRequest?.abort();
      pendingRequest = null;
      shown = "";
    },
    /** @param {Row} row @param {number} head @returns {string} as text for screen readers */
    words: (row, head) => [headTitle(row, head, app), ...known(row, head).map((parts) => parts.join(" "))].join("; "),
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
