// Explore: what one word looks at, as a sentence, as arcs over the text, and as a row of the map; every head as a drawing; and the map
// alone, as a tab of its own.

import { bandFloor, bandScale } from "../colours.js";
import { briefText, el } from "../dom.js";
import { headText, percentText } from "../format.js";
import { tr, trParts } from "../languages.js";
import { mapView } from "../map/view.js";
import { makeHeadBar } from "../shell/header.js";
import { menuButton } from "../controls.js";
import { strongestItems } from "../strongest_list.js";
import { sinksOf, WeightsReader } from "../weights.js";
import { makeTextBox } from "../typing/box.js";
import { makeChanges } from "../typing/changes.js";
import { makePredictions } from "../typing/predictions.js";
import { makeMoved } from "../typing/moved.js";
import { makeSwap } from "../typing/swap.js";
import { hasExactCells, headCells, makeEveryHead, shownLayers } from "./every_head.js";
import { filmLinks, filmText, layerShares, makeLayerFilm, meanOfHeads } from "./film.js";
import { makeProse } from "./prose.js";
import { makeRibbons, mostRibbons } from "./ribbons.js";
import { makeStage, wantsNoMotion } from "./stage.js";
import { makeWall } from "./wall.js";
import { askDistinctive, linkStory } from "./distinctive.js";

/** @typedef {import("../types.js").App} App */
/** @typedef {import("../types.js").Items} Items */
/** @typedef {import("./distinctive.js").DistinctiveHeads} DistinctiveHeads */
/** @typedef {import("./distinctive.js").DistinctiveHead} DistinctiveHead */

const linkBars = 8;
/** Words that are shown on one line, with arcs; a longer text is read as prose. */
const stageWords = 24;
/** Milliseconds of a run after which the page says that it computes. */
const sayComputingAfter = 300;
/** Milliseconds in which arcs go over into those of another head. */
const headTime = 600, filmTime = 850, holdTime = 700, flowTime = 1400;

/**
 * @param {App} app
 * @returns {ReturnType<typeof mapView>}
 */
export function exploreView(app) {
  const { store } = app;
  const map = mapView(app);
  const box = makeTextBox(app), predictions = makePredictions(app), changes = makeChanges(app), swap = makeSwap(app);
  const where = el("p", { class: "uwaga-sub uwaga-headline-note" });
  const headline = el("h2", { class: "uwaga-headline", "aria-live": "polite" });
  const story = el("p", { class: "uwaga-sub" });
  const evidence = el("details", { class: "uwaga-evidence", hidden: true }, el("summary", { text: tr("Why this name") }), el("p"));
  const bands = el("p", { class: "uwaga-sub", hidden: true });
  const pick = (/** @type {number} */ item) => {
    if (store.get().query === item) return swap.edit();
    store.set({ query: item, key: null });
  };
  const stage = makeStage({ pick, point, pickKey: (key) => store.set({ key }) });
  const ribbons = makeRibbons({ pick: (item) => store.set({ query: item, key: null }), point, pickKey: (key) => store.set({ key }) });
  const prose = makeProse({
    pick: (axis, item) => store.set(axis === "key" ? { key: item } : { query: item, ...(store.get().query === item ? {} : { key: null }) }),
    point: (axis, item) => (axis === "key" ? map.point(-1, item) : map.point(item, -1)),
    whole: () => store.set({ tab: "text" }),
  });
  const film = makeLayerFilm(() => draw());
  const links = makeLinks((key) => store.set({ key }));
  const every = makeEveryHead(app, () => draw());
  const wall = makeWall(app, every, (layer, head) => store.set({ layer, head, view: { x: 0, y: 0, scale: 0 } }));
  const moved = makeMoved(app, () => draw());
  const headMenu = changes.controls && menuButton(tr("This head"), changes.controls).element;
  const top = el("div", { class: "uwaga-top" },
    el("div", {}, where, headline, story, evidence),
    el("div", { class: "uwaga-row" }, makeHeadBar(app, { heads: false }), headMenu, box.button));
  const mapPart = el("div", { class: "uwaga-map-part" }, el("h2", { text: tr("Every word at once") }),
    el("p", { class: "uwaga-sub" }, el("span", { class: "uwaga-if-light", text: tr("Each row is a word; darker means it looks there more.") }),
      el("span", { class: "uwaga-if-dark", text: tr("Each row is a word; brighter means it looks there more.") })), map.element, predictions.element);
  const side = el("div", { class: "uwaga-low-side" }, links.element, moved.element, wall.element);
  const element = el("section", { class: "uwaga-explore", "aria-label": tr("Explore") }, el("div", { class: "uwaga-explore-page" },
    top, box.element, stage.element, ribbons.element, prose.element, bands, el("div", { class: "uwaga-top uwaga-under" }, film.element, changes.cut, swap.element),
    el("div", { class: "uwaga-low" }, mapPart, side), changes.bar));
  const row = new WeightsReader(app, "row", () => draw());
  /** @type {{queries: Items, keys: Items, name: string} | null} */
  let texts = null;
  /** @type {DistinctiveHeads | null} */
  let distinctive = null;
  let asked = new AbortController();
  let askedFor = "", drawnHead = "", pointed = -1;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let computing;
  let shown = false;
  // After a change the arcs begin as they were, and flow into what they are.
  let flows = Boolean(app.about.python) && store.get().side !== "0" && !wantsNoMotion();
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let flowing;
  let flowEnded = false;
  // The page opens on the most telling head, unless the URL or a click has named another one.
  let opens = app.isFresh && isUntouched();

  function isUntouched() {
    const { tab, kind, layer, head, query } = store.get(), { start } = app.about;
    return tab === "explore" && query === null && kind === start?.kind && layer === start.layer && head === start.head;
  }

  /** Shows the arcs of the word under the pointer; -1: of the picked one. @param {number} item */
  function point(item) {
    map.point(item, -1);
    if (item === pointed || (item >= 0 && !every.row(item))) return;
    pointed = item;
    draw(true);
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
    const { side: id, kind, merge, specials } = store.get();
    const name = JSON.stringify([id, kind, merge, specials]);
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
      // "Back" leads to what was shown before the page opened this head by itself.
      app.quiet.on = true;
      if (opens && isUntouched() && found.all.length) openDistinctive(found.all[0]);
      app.quiet.on = false;
      opens = false;
      pickStrongest();
      draw();
    } catch {
      if (!signal.aborted) askedFor = "";
    }
  }

  const ownHead = () => {
    const { kind, layer, head } = store.get();
    return distinctive?.all.find((one) => one.kind === kind && one.layer === layer && one.head === head);
  };

  /** Something is always picked: without a query it is the head's most telling link. */
  function pickStrongest() {
    const { tab, query } = store.get(), own = ownHead();
    if (tab === "explore" && query === null && own && !opens) store.set({ query: own.link.query, key: own.link.key });
  }

  function refresh() {
    if (!shown) return;
    void load();
    void loadDistinctive();
    pickStrongest();
    row.request(store.get().query);
    if (store.get().tab === "explore") { every.request(); moved.request(); }
    draw();
  }

  /** @param {boolean} [isPointing]  only another word is pointed at */
  function draw(isPointing = false) {
    if (!shown || store.get().tab !== "explore") return;
    const state = store.get(), { kind } = state, known = texts;
    const query = pointed >= 0 ? pointed : state.query, key = pointed >= 0 ? null : state.key;
    // A saved page may hold means of many words here: they are no weights between two words.
    const isExact = row.weights?.cell === 1, own = ownHead();
    const weights = query === null || !known ? null : every.row(query) ?? (query === state.query && isExact ? row.weights?.weights ?? null : null);
    const inQueries = known && query !== null && query < known.queries.total ? query : null;
    if (!known || inQueries === null) {
      headline.replaceChildren(app.side().text_title);
      where.textContent = known ? tr("Pick a word to see what it attends to.") : "";
      evidence.hidden = true;
      story.textContent = "";
      links.show(null);
    }
    if (!isPointing) predictions.show(known);
    if (!known) return;
    const sinks = state.colour.hideSink ? sinksOf(known.keys, kind) : new Set(), one = app.side().kinds[kind].queries === app.side().kinds[kind].keys;
    const shownWeights = inQueries === null ? null : weights;
    const best = shownWeights ? strongestItems(shownWeights, sinks.size + 1).find((item) => !sinks.has(item)) ?? null : null;
    if (!isPointing) {
      changes.show(known, best);
      swap.show(one ? known.queries : null, state.query);
    }
    if (inQueries !== null) {
      headline.replaceChildren(...headlineOf(known, inQueries, key, shownWeights, sinks, app.side().signed, own?.link));
      where.textContent = whereText(app, own);
      const at = key ?? best;
      story.replaceChildren([restText(shownWeights, sinks), at !== null && at === best ? linkStory({ query: inQueries, key: at, weight: 0 }, known.queries, known.keys, kind) : "",
        !one ? tr("Every word sends out a ribbon of the same width, 100%; what many look at grows wide.") : shownWeights && stage.element.hidden ? "" : tr("A wide arc is a big share of this word’s attention; the numbers under the words add up to 100%."),
        row.weights && !isExact && !shownWeights ? meansText(row.weights.cell) : ""].filter(Boolean).join(" "));
      evidence.hidden = !own?.evidence;
      /** @type {HTMLElement} */ (evidence.lastElementChild).textContent = own?.evidence ?? "";
    }
    const layer = film.layer(), filmed = layer === null ? null : every.layer(layer), reel = filmed?.complete === 1 && filmed.rows === known.queries.total ? filmed : null;
    const was = inQueries === null || state.side !== "1" ? null : moved.row("0", inQueries), isHeld = flows && was !== null, cut = inQueries !== null && state.side === "1" ? moved.cut(known.queries, known.keys, inQueries) : new Set();
    if (isHeld && flowing === undefined) flowing = setTimeout(() => { flows = false; draw(); }, holdTime);
    if (cut.size && !isHeld && shownWeights && inQueries !== null && (key === null || cut.has(key))) headline.replaceChildren(...withoutText(known, inQueries, cut, shownWeights));
    const mean = reel && meanOfHeads(reel), atRest = sinksOf(known.keys, kind);
    if (reel && mean && layer !== null) headline.textContent = filmText(layer, layerShares(mean, reel.rows, reel.columns, atRest));
    const isStaged = one && !app.side().signed && isOneLine(known.queries)
      && stage.show({ items: known.queries, query: inQueries, key, weights: isHeld ? was : shownWeights, sinks, before: isHeld ? null : was, cut: isHeld ? new Set() : cut, ...(reel && mean && { links: filmLinks(mean, reel.rows, reel.columns, atRest) }) },
        { time: isHeld ? 0 : mean ? filmTime : flowing !== undefined && !flowEnded ? flowTime : timeOf(state), sameKeys: Boolean(app.about.python) });
    if (flowing !== undefined && !flows) flowEnded = true;
    film.element.hidden = !isStaged || !hasExactCells(app);
    film.setLayers(shownLayers(app).map((each) => each.layer));
    wall.light(film.element.hidden ? null : layer);
    if (!isStaged) stage.hide();
    const cells = !one && !app.side().signed && hasExactCells(app) && Math.max(known.queries.total, known.keys.total) <= mostRibbons ? every.layer(state.layer) : null;
    const isRibboned = cells !== null && cells.complete === 1 && cells.rows === known.queries.total && cells.columns === known.keys.total;
    if (isRibboned) ribbons.show({ ...known, cells: headCells(cells, state.head), rows: cells.rows, columns: cells.columns, query: inQueries, key, sinks });
    else ribbons.hide();
    const isDrawn = isStaged || isRibboned;
    prose.element.hidden = isDrawn;
    const common = { picked: inQueries, sinks };
    prose.show(isDrawn ? [] : one ? [{ ...common, items: known.queries, axis: "both", marked: key, weights: shownWeights }]
      : [{ ...common, items: known.queries, axis: "query", marked: null, weights: null, sinks: new Set() },
        { ...common, items: known.keys, axis: "key", picked: null, marked: key, weights: shownWeights }]);
    links.show(shownWeights && inQueries !== null && !isDrawn ? { name: known.queries.labels[inQueries], weights: shownWeights, items: known.keys, sinks, picked: key } : null);
    const scale = shownWeights ? bandScale(shownWeights, sinks) : 1;
    bands.hidden = isDrawn || scale >= bandFloor;
    bands.textContent = tr("The largest weight is {scale}: the colours of the text are fractions of it.", { scale: percentText(scale) });
    if (isPointing) return;
    wall.show(distinctive, known);
    moved.show(known, inQueries);
  }

  /** Arcs of another head take their time. @param {import("../types.js").State} state */
  function timeOf({ kind, layer, head }) {
    const name = `${kind} ${layer} ${head}`, time = name === drawnHead ? undefined : headTime;
    drawnHead = name;
    return time;
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

  let width = 0;
  const sizes = new ResizeObserver(() => {
    if (element.clientWidth === width) return;
    width = element.clientWidth;
    draw();
  });
  sizes.observe(element);
  const unsubscribe = [
    app.session.subscribe(showRunning),
    store.subscribe(["tab"], layoutTab),
    store.subscribe(["side", "kind", "layer", "head", "merge", "specials", "pooling", "query", "key", "colour", "dark"], () => {
      pointed = -1;
      if (shown) refresh();
    }),
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
      every.stop();
      moved.stop();
      map.hide();
    },
    dispose() {
      asked.abort();
      clearTimeout(computing);
      row.cancel();
      clearTimeout(flowing);
      every.stop();
      moved.stop();
      sizes.disconnect();
      unsubscribe.forEach((end) => end());
      shown = false;
      film.stop();
      stage.dispose();
      box.dispose();
      predictions.dispose();
      changes.dispose();
      map.dispose();
    },
  };
}

/** @param {Items} items @returns {boolean} whether it is short, and without newlines */
function isOneLine({ labels, specials, breaks }) {
  return labels.length - specials.size <= stageWords && !breaks?.size && !labels.some((label) => label.includes("\n"));
}

/** @param {number} cell @returns {string} */
function meansText(cell) {
  return tr("Means over {cell} by {cell} items: this saved page contains nothing finer here.", { cell });
}

/**
 * it looks mostly at tired: 59 %.
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
  const word = (/** @type {Items} */ items, /** @type {number} */ item) =>
    el("bdi", { class: items === queries && item === query ? "uwaga-asks" : sinks.has(item) ? "" : "uwaga-asked", text: briefText(items.labels[item] ?? String(item)) });
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
 * Without animal, it looks mostly at [CLS]: 31.4 %.
 * @param {{queries: Items, keys: Items}} texts @param {number} query @param {ReadonlySet<number>} cut @param {ArrayLike<number>} weights
 */
function withoutText({ queries, keys }, query, cut, weights) {
  const [most] = strongestItems(weights, 1), [lost] = cut, word = (/** @type {string} */ hue, /** @type {string} */ text) => el("bdi", { class: hue, text: briefText(text) });
  if (most === undefined) return trParts("Without {lost}, {from} looks at nothing", { lost: word("uwaga-asked", keys.labels[lost]), from: word("uwaga-asks", queries.labels[query]) });
  return trParts("Without {lost}, {from} looks mostly at {most}: {largest}", { lost: word("uwaga-asked", keys.labels[lost]), from: word("uwaga-asks", queries.labels[query]),
    most: word("", keys.labels[most]), largest: percentText(weights[most]) });
}

/** @param {App} app @param {DistinctiveHead | undefined} own @returns {string} the model, which head, and what the head does */
function whereText(app, own) {
  const { kind, layer, head } = app.store.get();
  return [app.side().model, headText(kind, layer, head), own?.label && own.sentence.replace(/^./u, (letter) => letter.toLowerCase())].filter(Boolean).join(" \u00b7 ");
}

/** @param {ArrayLike<number> | null} weights @param {ReadonlySet<number>} sinks @returns {string} */
function restText(weights, sinks) {
  const resting = weights ? [...sinks].reduce((sum, sink) => sum + (weights[sink] || 0), 0) : 0;
  return resting > 0.5 ? tr("{resting} of this word’s weight rests on special tokens.", { resting: percentText(resting) }) : "";
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
