// The numbers of the cell that is pointed at, and of the one that is picked.

import { el } from "../dom.js";
import { isAbort } from "../hosts/errors.js";
import { mapHolds, mapEntryQuestion, mapUnasked, mapKnownEntry, mapTokenAt, mapValues, mapWords } from "./entry.js";

/** @typedef {import("./panel.js").MapPanel} MapPanel */
/** @typedef {{weight: number | null, score: number | null, rank: number | null, visible: boolean}} MapEntry */

/** Milliseconds that a pointer rests before its entry is asked for. */
const mapRest = 120;

/**
 * @param {object} options
 * @param {import("../types.js").App} options.app
 * @param {string} options.title
 * @param {string} options.name  of the line
 * @param {string} options.empty  what stands there while there is no cell
 * @param {(text: string) => void} options.onWords  the cell in words, when all of it is known
 */
export function makeMapReadout({ app, title, name, empty, onWords }) {
  const body = el("span", { class: "uwaga-map-read" });
  const element = el("div", { class: "uwaga-map-line", "data-map-line": name }, el("span", { class: "uwaga-label", text: title }), body);
  /** @type {AbortController | null} */
  let asking = null;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let later;
  let shown = "";
  /** @type {MapPanel[]} */
  let shownPanels = [];
  let shownQuery = -1;
  let shownKey = -1;
  body.textContent = empty;

  /**
   * @param {MapPanel[]} panels
   * @param {number} query  -1: none
   * @param {number} key
   * @param {number} wait  milliseconds before questions are asked
   */
  function show(panels, query, key, wait = mapRest) {
    if (panels === shownPanels && query === shownQuery && key === shownKey) return;
    shownPanels = panels;
    shownQuery = query;
    shownKey = key;
    const now = query < 0 && key < 0 ? "" : `${panels.map((panel) => panel.layer?.name ?? "").join()} ${query} ${key}`;
    if (now === shown) return;
    shown = now;
    clearTimeout(later);
    asking?.abort();
    asking = null;
    if (!now) return void (body.textContent = empty);
    if (query < 0 || key < 0) return half(panels, query, key);
    /** @type {(MapEntry | null)[]} */
    const entries = panels.map((panel) => mapKnownEntry(app, panel, query, key));
    fill(panels, query, key, entries);
    if (!panels.some((panel) => mapUnasked(app, panel, query, key))) return tell(panels, query, key, entries);
    later = setTimeout(() => void askEntries(panels, query, key, entries), wait);
  }

  /** A label that is pointed at, or a query picked without a key. @param {MapPanel[]} panels @param {number} query @param {number} key */
  function half(panels, query, key) {
    const item = Math.max(query, key);
    const axes = panels.map((panel) => (key < 0 ? panel.queries : panel.keys));
    const axis = axes.find((one) => one !== null && item < one.items.total) ?? null;
    body.replaceChildren(el("span", { text: key < 0 ? "query" : "key" }), mapTokenAt(axis, item, key < 0 ? "query" : "key"));
  }

  /** @param {MapPanel[]} panels @param {number} query @param {number} key @param {(MapEntry | null)[]} entries */
  async function askEntries(panels, query, key, entries) {
    const controller = asking = new AbortController();
    await Promise.all(panels.map(async (panel, at) => {
      const question = mapEntryQuestion(panel, query, key);
      if (!question || !app.host.has(question)) return;
      try {
        const { meta } = await app.client.ask(question, { signal: controller.signal, priority: 300 });
        entries[at] = /** @type {MapEntry} */ (meta);
      } catch (error) {
        // Whoever watches the client says what was refused; what a tile knew of the entry stays.
        if (isAbort(error)) return;
      }
    }));
    if (controller.signal.aborted) return;
    fill(panels, query, key, entries);
    tell(panels, query, key, entries);
  }

  /** @param {MapPanel[]} panels @param {number} query @param {number} key @param {(MapEntry | null)[]} entries */
  function fill(panels, query, key, entries) {
    const many = panels.length > 1;
    const first = panels.find((panel) => mapHolds(panel, query, key)) ?? panels[0];
    body.replaceChildren(
      el("span", { class: "uwaga-map-pair", "data-query": query, "data-key": key },
        mapTokenAt(first.queries, query, "query"), " \u2192 ", mapTokenAt(first.keys, key, "key")),
      el("span", { class: "uwaga-map-sides" },
        panels.map((panel, at) => el("span", { class: "uwaga-map-values", "data-side": panel.side.id },
        many && el("span", { class: "uwaga-label uwaga-map-whose", text: panel.side.title, title: panel.side.title }),
        ...mapValues(panel, query, key, entries[at])))));
  }

  /** @param {MapPanel[]} panels @param {number} query @param {number} key @param {(MapEntry | null)[]} entries */
  function tell(panels, query, key, entries) {
    const words = panels.map((panel, at) => mapWords(panel, entries[at], panels.length > 1)).filter(Boolean).join("; ");
    const first = panels.find((panel) => mapHolds(panel, query, key)) ?? panels[0];
    const token = (/** @type {import("./axis.js").MapAxis | null} */ axis, /** @type {number} */ item) => axis?.items.labels[item] ?? "";
    onWords(`${token(first.queries, query)} ${query} to ${token(first.keys, key)} ${key}: ${words || "not there"}`);
  }

  return {
    element,
    show,
    /** Once more what is known, after tiles have come. @param {MapPanel[]} panels @param {number} query @param {number} key */
    renew(panels, query, key) {
      if (query >= 0 && key >= 0 && panels.length) fill(panels, query, key, panels.map((panel) => mapKnownEntry(app, panel, query, key)));
    },
    /** @param {MapPanel[]} panels @param {number} query @param {number} key */
    refresh(panels, query, key) {
      shown = "";
      shownPanels = [];
      show(panels, query, key, 0);
    },
    dispose() {
      clearTimeout(later);
      asking?.abort();
    },
  };
}
