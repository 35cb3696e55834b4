// Explore: the most distinctive heads, a sentence on the picked link, the text, the map and the strongest links; and the map alone, as a tab of its own.

import { bandFloor, bandScale } from "../colours.js";
import { briefText, el } from "../dom.js";
import { headText, percentText } from "../format.js";
import { tr, trParts } from "../languages.js";
import { mapView } from "../map/view.js";
import { makeHeadBar } from "../shell/header.js";
import { strongestItems } from "../strongest_list.js";
import { sinksOf, WeightsReader } from "../weights.js";
import { makeTextBox } from "../typing/box.js";
import { makeChanges } from "../typing/changes.js";
import { makePredictions } from "../typing/predictions.js";
import { makeProse } from "./prose.js";
import { makeRail } from "./rail.js";
import { askDistinctive } from "./distinctive.js";

/** @typedef {import("../types.js").App} App */
/** @typedef {import("../types.js").Items} Items */
/** @typedef {import("./distinctive.js").DistinctiveHeads} DistinctiveHeads */
/** @typedef {import("./distinctive.js").DistinctiveHead} DistinctiveHead */

const linkBars = 5;
/** Milliseconds of a run after which the page says that it computes. */
const sayComputingAfter = 300;

/**
 * @param {App} app
 * @returns {ReturnType<typeof mapView>}
 */
export function exploreView(app) {
  const { store } = app;
  const map = mapView(app);
  const box = makeTextBox(app), predictions = makePredictions(app), changes = makeChanges(app);
  const headline = el("h2", { class: "uwaga-headline", "aria-live": "polite" });
  const note = el("p", { class: "uwaga-headline-note" });
  const evidence = el("details", { class: "uwaga-evidence", hidden: true }, el("summary", { text: tr("Why this name") }), el("p"));
  const bands = el("p", { class: "uwaga-band-note", hidden: true });
  const prose = makeProse({
    pick: (axis, item) => store.set(axis === "key" ? { key: item } : { query: item, ...(store.get().query === item ? {} : { key: null }) }),
    point: (axis, item) => (axis === "key" ? map.point(-1, item) : map.point(item, -1)),
    whole: () => store.set({ tab: "text" }),
  });
  const links = makeLinks((key) => store.set({ key }));
  const rail = makeRail(app, openDistinctive);
  const handle = el("button", { type: "button", class: "uwaga-sheet-handle", "aria-label": tr("Details: smaller or larger"), on: { click() {
    side.dataset.sheet = { low: "half", half: "full" }[side.dataset.sheet ?? "low"] ?? "low";
  } } });
  const side = el("aside", { class: "uwaga-side", "aria-label": tr("Details"), "data-sheet": "low" }, handle, predictions.element, links.element);
  const middle = el("div", { class: "uwaga-middle" }, box.element, headline,
    el("div", { class: "uwaga-headline-row" }, note, makeHeadBar(app), changes.controls), evidence, prose.element, bands, map.element, changes.bar);
  const element = el("section", { class: "uwaga-explore", "aria-label": tr("Explore") }, rail.element, middle, side);
  const row = new WeightsReader(app, "row", draw);
  /** @type {{queries: Items, keys: Items, name: string} | null} */
  let texts = null;
  /** @type {DistinctiveHeads | null} */
  let distinctive = null;
  let asked = new AbortController();
  let askedFor = "";
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let computing;
  let shown = false;
  // The page opens on the most distinctive head, unless the URL or a click has named another one.
  let opens = app.isFresh && isUntouched();

  function isUntouched() {
    const { tab, kind, layer, head, query } = store.get(), { start } = app.about;
    return tab === "explore" && query === null && kind === start?.kind && layer === start.layer && head === start.head;
  }

  /** @param {DistinctiveHead} one */
  function openDistinctive({ kind, layer, head, link }) {
    opens = false;
    store.set({ kind, layer, head, query: link.query, key: link.key, view: { x: 0, y: 0, scale: 0 } });
  }

  async function load() {
    const { side: id, kind, merge, specials } = store.get(), axes = app.side().kinds[kind];
    const name = JSON.stringify([id, axes, merge, specials]);
    if (texts?.name === name) return;
    try {
      const [queries, keys] = await Promise.all([app.items(id, axes.queries), app.items(id, axes.keys)]);
      const now = store.get();
      if (name !== JSON.stringify([now.side, app.side().kinds[now.kind], now.merge, now.specials])) return;
      texts = { queries, keys, name };
      draw();
    } catch {
      // The client reports the error.
    }
  }

  async function loadDistinctive() {
    if (store.get().tab !== "explore") return;
    const { side: id, kind, merge, specials, pooling } = store.get();
    const name = JSON.stringify([id, kind, merge, specials, pooling]);
    if (name === askedFor || app.side().signed) return;
    askedFor = name;
    distinctive = null; // links are items of the settings before
    asked.abort();
    asked = new AbortController();
    const { signal } = asked;
    try {
      const found = await askDistinctive(app, signal);
      await load();
      if (signal.aborted) return;
      distinctive = found;
      rail.show(distinctive, texts);
      // "Back" leads to what was shown before the page opened this head by itself.
      app.quiet.on = true;
      if (opens && isUntouched() && found.heads.length) openDistinctive(found.heads[0]);
      app.quiet.on = false;
      opens = false;
      pickStrongest();
      draw();
    } catch {
      if (!signal.aborted) askedFor = "";
    }
  }

  /** Something is always picked: without a query it is the head's strongest link. */
  function pickStrongest() {
    const { tab, kind, layer, head, query } = store.get();
    const own = distinctive?.all.find((one) => one.kind === kind && one.layer === layer && one.head === head);
    if (tab === "explore" && query === null && own && !opens) store.set({ query: own.link.query, key: own.link.key });
  }

  function refresh() {
    if (!shown) return;
    void load();
    void loadDistinctive();
    pickStrongest();
    const { query } = store.get();
    row.request(query);
    rail.mark();
    draw();
  }

  function draw() {
    if (!shown || store.get().tab !== "explore") return;
    const state = store.get(), { kind, layer, head, query, key } = state;
    // A saved page may hold means of many words here: they are no weights between two words.
    const known = texts, isExact = row.weights?.cell === 1, weights = isExact ? row.weights?.weights ?? null : null;
    const own = distinctive?.all.find((one) => one.kind === kind && one.layer === layer && one.head === head);
    if (!known || query === null || query >= known.queries.total) {
      headline.replaceChildren(app.side().text_title);
      note.textContent = known ? tr("Pick a word to see what it attends to.") : "";
      evidence.hidden = true;
      links.show(null);
    }
    predictions.show(known);
    changes.show(known);
    if (!known) return;
    const sinks = state.colour.hideSink ? sinksOf(known.keys, kind) : new Set();
    const one = app.side().kinds[kind].queries === app.side().kinds[kind].keys;
    const inQueries = query !== null && query < known.queries.total ? query : null;
    const shownWeights = inQueries === null ? null : weights;
    if (inQueries !== null) {
      headline.replaceChildren(...headlineOf(known, inQueries, key, shownWeights, sinks, app.side().signed, own?.link));
      note.replaceChildren(noteOf(state, own, shownWeights, sinks), row.weights && !isExact
        ? ` ${meansText(row.weights.cell)}` : "");
      evidence.hidden = !own?.evidence;
      /** @type {HTMLElement} */ (evidence.lastElementChild).textContent = own?.evidence ?? "";
      links.show(shownWeights && { name: known.queries.labels[inQueries], weights: shownWeights, items: known.keys, sinks, picked: key });
    }
    const common = { picked: inQueries, sinks };
    prose.show(one ? [{ ...common, items: known.queries, axis: "both", marked: key, weights: shownWeights }]
      : [{ ...common, items: known.queries, axis: "query", marked: null, weights: null, sinks: new Set() },
        { ...common, items: known.keys, axis: "key", picked: null, marked: key, weights: shownWeights }]);
    const scale = shownWeights ? bandScale(shownWeights, sinks) : 1;
    bands.hidden = scale >= bandFloor;
    bands.textContent = tr("The largest weight is {scale}: the colours of the text are fractions of it.", { scale: percentText(scale) });
  }

  function layoutTab() {
    const { tab } = store.get();
    element.dataset.tab = tab === "map" ? "map" : "explore";
    if (shown) refresh();
  }
  /** Old numbers stay, paler, until the new ones come; a run that takes longer says so. */
  function showRunning() {
    const isRunning = app.session.isRunning();
    element.toggleAttribute("data-running", isRunning);
    clearTimeout(computing);
    element.removeAttribute("data-computing");
    if (isRunning) computing = setTimeout(() => element.setAttribute("data-computing", ""), sayComputingAfter);
  }

  const unsubscribe = [
    app.session.subscribe(showRunning),
    store.subscribe(["tab"], layoutTab),
    store.subscribe(["side", "kind", "layer", "head", "merge", "specials", "pooling", "query", "key", "colour"], () => {
      if (shown) refresh();
    }),
    store.subscribe(["colour", "dark"], () => { if (shown) rail.draw(); }),
  ];
  layoutTab();

  return {
    ...map,
    element,
    show() {
      shown = true;
      layoutTab();
      map.show();
    },
    hide() {
      shown = false;
      map.hide();
    },
    dispose() {
      asked.abort();
      clearTimeout(computing);
      row.cancel();
      unsubscribe.forEach((end) => end());
      rail.dispose();
      box.dispose();
      predictions.dispose();
      changes.dispose();
      map.dispose();
    },
  };
}

/** @param {number} cell @returns {string} */
function meansText(cell) {
  return tr("Means over {cell} by {cell} items: this saved page contains nothing finer here.", { cell });
}

/**
 * "it" looks mostly at "tired": 59 %.
 * @param {{queries: Items, keys: Items}} texts
 * @param {number} query
 * @param {number | null} key
 * @param {Float32Array | null} weights
 * @param {ReadonlySet<number>} sinks
 * @param {boolean} signed
 * @param {import("./distinctive.js").Link} [strongest]  of the head
 * @returns {(string | Node)[]}
 */
function headlineOf({ queries, keys }, query, key, weights, sinks, signed, strongest) {
  const word = (/** @type {Items} */ items, /** @type {number} */ item) => el("bdi", { text: tr("“{token}”", { token: briefText(items.labels[item] ?? String(item)) }) });
  const from = word(queries, query);
  if (!weights && strongest?.query === query && (key === null || key === strongest.key))
    return trParts("{from} looks at {to}: {weight}", { from, to: word(keys, strongest.key), weight: percentText(strongest.weight) });
  if (!weights) return [from];
  const best = strongestItems(weights, sinks.size + 1).find((item) => !sinks.has(item));
  const at = key !== null && key < keys.total ? key : best;
  if (at === undefined) return trParts("{from} looks at nothing but special tokens", { from });
  if (signed) return [from, " \u2192 ", word(keys, at), `: ${weights[at] > 0 ? "+" : ""}${percentText(weights[at])}`];
  const to = word(keys, at), weight = percentText(weights[at]);
  if (at === best) return trParts("{from} looks mostly at {to}: {weight}", { from, to, weight });
  if (best === undefined || sinks.has(at)) return trParts("{from} looks at {to}: {weight}", { from, to, weight });
  return trParts("{from} looks at {to}: {weight}, mostly at {most}: {largest}", { from, to, weight, most: word(keys, best), largest: percentText(weights[best]) });
}

/**
 * @param {import("../types.js").State} state
 * @param {DistinctiveHead | undefined} distinctive
 * @param {Float32Array | null} weights
 * @param {ReadonlySet<number>} sinks
 * @returns {string}
 */
function noteOf({ kind, layer, head }, distinctive, weights, sinks) {
  const where = `${headText(kind, layer, head).replace(/^./u, (letter) => letter.toUpperCase())}.`;
  const resting = weights ? [...sinks].reduce((sum, sink) => sum + (weights[sink] || 0), 0) : 0;
  return [where, distinctive?.label && `${distinctive.sentence}.`,
    resting > 0.5 && tr("{resting} of this word’s weight rests on special tokens: a grey bar, not a colour.", { resting: percentText(resting) })].filter(Boolean).join(" ");
}

/**
 * "What it attends to": five bars on a scale from 0 to 100 % and the rest.
 * @param {(key: number) => void} pick
 */
function makeLinks(pick) {
  const title = el("h2"), list = el("ul", { class: "uwaga-bars" });
  const element = el("section", { class: "uwaga-links" }, title, list);
  return {
    element,
    /** @param {{name: string, weights: Float32Array, items: Items, sinks: ReadonlySet<number>, picked: number | null} | null} content */
    show(content) {
      element.hidden = content === null;
      if (!content) return;
      const { name, weights, items, sinks, picked } = content;
      title.replaceChildren(...trParts("What {token} attends to", { token: el("bdi", { text: tr("“{token}”", { token: briefText(name) }) }) }));
      const best = strongestItems(weights, linkBars);
      const others = weights.reduce((sum, weight, item) => (best.includes(item) || Number.isNaN(weight) ? sum : sum + weight), 0);
      const bar = (/** @type {number} */ weight, /** @type {string} */ hue) => {
        const fill = el("i", { class: "uwaga-bar-fill", "data-hue": hue });
        fill.style.setProperty("width", `${Math.min(100, 100 * Math.abs(weight))}%`);
        return el("span", { class: "uwaga-bar" }, fill);
      };
      list.replaceChildren(...best.map((item) => el("li", {}, el("button", { type: "button", "data-key": item, "aria-pressed": String(item === picked),
        on: { click: () => pick(item) } }, el("bdi", { class: "uwaga-token", text: briefText(items.labels[item]) }),
      bar(weights[item], sinks.has(item) ? "sink" : "query"), el("span", { class: "uwaga-bar-number", text: percentText(weights[item]) })))),
      el("li", { class: "uwaga-bar-others" }, el("span", { text: tr("others") }), bar(others, "others"), el("span", { class: "uwaga-bar-number", text: percentText(others) })));
    },
  };
}
