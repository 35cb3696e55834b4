// Explore: what one word looks at, as a sentence, as arcs over the text or beside it, and as a row of the map; and every head as a drawing.

import { bandFloor, bandScale } from "../colours.js";
import { menuButton } from "../controls.js";
import { el } from "../dom.js";
import { percentText } from "../format.js";
import { tr, trParts } from "../languages.js";
import { mapView } from "../map/view.js";
import { makePlayer } from "../player.js";
import { makeHeadBar } from "../shell/header.js";
import { headlineOf, holdHeight, meansText, restText, shrinkLong, unknownText, whereText } from "./headline.js";
import { holdsPassages } from "../text/folds.js";
import { makeLinks, quoted } from "../text/links.js";
import { makeReading } from "../text/reading.js";
import { makeSearchBox } from "../text/search.js";
import { hiddenOutside, seenKeys, sinksOf, strongestItems, WeightsReader } from "../weights.js";
import { makeTextBox } from "../typing/box.js";
import { makeChanges } from "../typing/changes.js";
import { makePredictions } from "../typing/predictions.js";
import { makeMoved } from "../typing/moved.js";
import { makeSwap } from "../typing/swap.js";
import { hasExactCells, headCells, makeEveryHead, shownLayers } from "./every_head.js";
import { maxLineWords } from "./arcs.js";
import { filmLinks, filmText, hasFilm, layerShares, leastLink, makeLayerFilm, meanOfHeads } from "./film.js";
import { makeRibbons, mostRibbons } from "./ribbons.js";
import { makeArcView, wantsNoMotion } from "./arc_view.js";
import { makeHeadGrid } from "./head_grid.js";
import { makeWhy } from "./why.js";
import { askDistinctive, linkStory, sinkNames } from "./distinctive.js";
/** @import { App, Items } from "../types.js" */
/** @import { DistinctiveHead, DistinctiveHeads } from "./distinctive.js" */

/** Milliseconds of a run after which the page says that it computes. */
const sayComputingAfter = 300;
/** Milliseconds in which arcs go over into those of another head. */
const headTime = 600, filmTime = 850, holdTime = 700, flowTime = 1400;
/** Milliseconds of a word that is written. */
const writeTime = 900;

/** @typedef {{queries: Items, keys: Items, name: string}} Texts */
/** @typedef {ReturnType<typeof makeParts>} Parts */
/** @typedef {ReturnType<typeof lookAt>} Look */

/**
 * What is shown beside the page's state.
 * @typedef {object} Now
 * @property {boolean} isShown
 * @property {boolean} isRead  as running prose
 * @property {number} pointed  the word under the pointer; -1: none
 * @property {number} written  the last word that is written so far; -1: all are there
 * @property {number} mostSeen  what the picked word looks at most, as it was last known
 * @property {"held" | "flows" | "done"} flow  after a change the arcs begin as they were, and flow into what they are
 * @property {string} head  whose arcs were drawn
 */

/** @param {App} app @returns {ReturnType<typeof mapView>} */
export function exploreView(app) {
  const { store } = app, map = mapView(app), analysis = makeAnalysis(app, redraw);
  const parts = makeParts(app, map, { point, redraw, draw, write: () => (writer.isOn() ? stopWriting() : writer.start()) });
  const { element, film, every, moved, row, column } = parts;
  /** @type {Now} */
  const now = { isShown: false, isRead: false, pointed: -1, written: -1, mostSeen: 0, head: "",
    flow: app.about.python && store.get().side !== "0" && !wantsNoMotion() ? "held" : "done" };
  // One word after the other comes with its ribbons.
  const writer = makePlayer(writeTime, (item) => {
    if (item >= (analysis.texts()?.queries.total ?? 0)) return stopWriting();
    now.written = now.pointed = item;
    draw();
  });
  /** @type {{[name: string]: ReturnType<typeof setTimeout> | undefined}} */
  const timers = {};
  let isQueued = false, width = 0;

  /** Shows the arcs of the word under the pointer; -1: of the picked one. @param {number} item */
  function point(item) {
    map.point(item, -1);
    if (writer.isOn() || item === now.pointed || (item >= 0 && !every.row(item))) return;
    now.pointed = item;
    holdHeight(parts.top, item >= 0);
    draw(true);
  }

  function stopWriting() {
    writer.stop();
    if (now.written < 0) return;
    now.written = now.pointed = -1;
    draw();
  }

  function refresh() {
    if (!now.isShown) return;
    analysis.request();
    row.request(store.get().query);
    every.request();
    moved.request();
    redraw();
  }

  /** Draws once, whatever has changed in this turn. */
  function redraw() {
    if (isQueued) return;
    isQueued = true;
    queueMicrotask(() => { isQueued = false; draw(); });
  }

  /** @param {boolean} [isPointing]  only another word is pointed at */
  function draw(isPointing = false) {
    if (!now.isShown || analysis.isOld()) return;
    const texts = analysis.texts();
    drawPage(app, parts, texts, isPointing);
    if (!texts) return;
    const look = lookAt(app, parts, now, texts, analysis.openHead());
    if (!isPointing) {
      parts.changes.show(texts, look.best);
      if (now.pointed < 0) parts.why.show(texts, look.query, look.state.key ?? look.best, look.weights, look.sinks);
      parts.swap.show(look.isPair ? null : texts.queries, look.state.query);
    }
    if (look.query !== null) drawSentence(app, parts, look, analysis.heads()?.rests.get(`${look.state.layer} ${look.state.head}`));
    if (look.isHeld) timers.flow ??= setTimeout(() => { now.flow = "flows"; draw(); }, holdTime);
    const hasArcs = drawArcs(app, parts, now, look), isRibboned = drawRibbons(app, parts, now, look);
    parts.write.textContent = writer.isOn() ? tr("■ Stop") : ["▶", tr("Watch it write")].join(" ");
    if (parts.write.hidden) stopWriting();
    now.isRead = !hasArcs && !isRibboned;
    drawReading(parts, look, now.isRead, isPointing);
    shrinkLong(parts.headline);
    if (isPointing) return;
    parts.headGrid.show(analysis.heads(), texts);
    moved.show(texts, look.query, look.atRest);
  }

  /** Old numbers stay, paler, until the new ones come; a run that takes longer says so. */
  function showRunning() {
    const isRunning = app.session.isRunning();
    element.toggleAttribute("data-running", isRunning);
    clearTimeout(timers.computing);
    element.removeAttribute("data-computing");
    if (isRunning) timers.computing = setTimeout(() => element.setAttribute("data-computing", ""), sayComputingAfter);
  }

  function stop() {
    film.stop();
    stopWriting();
    every.stop();
    moved.stop();
  }

  const sizes = new ResizeObserver(() => {
    if (element.clientWidth === width) return;
    width = element.clientWidth;
    draw();
  });
  sizes.observe(element);
  const isRead = () => now.isShown && now.isRead, longTexts = tr("Long texts");
  const ends = [
    ...[{ id: "read.next", title: tr("Next word that it looks at"), keys: ["n"], group: longTexts, when: isRead, run: () => parts.reading().step(1) },
      { id: "read.before", title: tr("Previous word that it looks at"), keys: ["p"], group: longTexts, when: isRead, run: () => parts.reading().step(-1) },
      { id: "read.find", title: tr("Find a word"), keys: ["f"], group: longTexts, when: isRead, run: () => parts.openSearch(true) },
      { id: "map.wide", title: tr("Larger map"), keys: ["m"], group: tr("Map"), when: () => now.isShown, run: () => parts.widen.click() }].map(app.commands.add),
    app.session.subscribe(showRunning),
    store.subscribe(["side", "kind", "layer", "head", "merge", "specials", "pooling", "query", "key", "colour", "dark", "compare", "wide"], () => {
      now.pointed = -1;
      holdHeight(parts.top, false);
      refresh();
    }),
  ];
  return {
    ...map,
    element,
    show() {
      now.isShown = true;
      map.show();
      refresh();
    },
    hide() {
      now.isShown = false;
      stop();
      map.hide();
    },
    dispose() {
      now.isShown = false;
      stop();
      Object.values(timers).forEach(clearTimeout);
      sizes.disconnect();
      for (const end of ends) end();
      for (const reader of [row, column]) reader.cancel();
      for (const part of [analysis, parts.arcView, parts.box, parts.predictions, parts.changes, parts.why, map]) part.dispose();
    },
  };
}

/**
 * The texts, and what each head does in them. A page opens on the most informative head, unless the address or a click has named another one.
 * @param {App} app @param {() => void} onChange
 */
function makeAnalysis(app, onChange) {
  const { store } = app;
  /** @type {Texts | null} */
  let texts = null;
  /** @type {DistinctiveHeads | null} */
  let distinctive = null;
  let asked = new AbortController(), askedFor = "", opens = app.isFresh && isUntouched();

  function isUntouched() {
    const { kind, layer, head, query } = store.get(), { start } = app.about;
    return query === null && kind === start?.kind && layer === start.layer && head === start.head;
  }

  /** Which texts the state is of. */
  function name() {
    const { side: id, kind, merge, specials } = store.get();
    return JSON.stringify([id, app.side().kinds[kind], merge, specials]);
  }

  async function load() {
    const { side: id, kind } = store.get(), axes = app.side().kinds[kind], requestedName = name();
    if (texts?.name === requestedName) return;
    try {
      const [queries, keys] = await Promise.all([app.items(id, axes.queries), app.items(id, axes.keys)]);
      if (requestedName !== name()) return;
      texts = { queries, keys, name: requestedName };
      onChange();
    } catch {
      // The client reports the error.
    }
  }

  async function loadHeads() {
    if (name() === askedFor || app.side().signed) return;
    askedFor = name();
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
      const [{ kind, layer, head, link } = /** @type {Partial<DistinctiveHead>} */ ({})] = found.all;
      if (opens && isUntouched() && link) {
        opens = false;
        store.set({ kind, layer, head, query: link.query, key: link.key, view: { x: 0, y: 0, scale: 0 } });
      }
      app.quiet.on = false;
      opens = false;
      pickStrongest();
      app.provisional.end();
      onChange();
    } catch {
      if (!signal.aborted) askedFor = "";
    }
  }

  /** What is known of the heads; its links are items of the texts that it was asked for. */
  const heads = () => (askedFor === name() ? distinctive : null);
  const openHead = () => {
    const { kind, layer, head } = store.get();
    return heads()?.all.find((one) => one.kind === kind && one.layer === layer && one.head === head);
  };

  /** Something is always picked: without a query it is the head's most informative link. */
  function pickStrongest() {
    const link = openHead()?.link;
    if (store.get().query === null && link && !opens) store.set({ query: link.query, key: link.key });
  }

  return {
    heads, openHead,
    texts: () => texts,
    /** Whether the texts are of other settings: their items say nothing of what is shown now. */
    isOld: () => texts !== null && texts.name !== name(),
    request() {
      void load();
      void loadHeads();
      pickStrongest();
    },
    dispose: () => asked.abort(),
  };
}

/**
 * What the view is made of.
 * @param {App} app @param {ReturnType<typeof mapView>} map
 * @param {{point: (item: number) => void, redraw: () => void, draw: () => void, write: () => void}} act
 */
function makeParts(app, map, { point, redraw, draw, write: toggleWriting }) {
  const { store, about } = app;
  const box = makeTextBox(app), predictions = makePredictions(app), changes = makeChanges(app), swap = makeSwap(app), why = makeWhy(app);
  const where = el("p", { class: "uwaga-sub uwaga-headline-note" }), headline = el("h2", { class: "uwaga-headline", "aria-live": "polite" }), story = el("p", { class: "uwaga-sub" });
  const evidence = el("details", { class: "uwaga-evidence", hidden: true }, el("summary", { text: tr("Why this name") }), el("p"));
  const unknown = el("p", { class: "uwaga-sub uwaga-unknown-note", hidden: true }), bands = el("p", { class: "uwaga-sub", hidden: true });
  const pickKey = (/** @type {number} */ key) => store.set({ key }), pick = (/** @type {number} */ item) => store.set({ query: item, key: null });
  const arcView = makeArcView({ pick: (item) => (store.get().query === item ? swap.edit() : pick(item)), point, pickKey });
  const ribbons = makeRibbons({ pick, point, pickKey });
  const readings = [0, 1].map(() => makeReading({
    pick: (axis, item) => (axis === "key" ? pickKey(item) : store.get().query === item ? undefined : pick(item)),
    pickKey,
    point: (axis, item) => (axis === "key" ? map.point(-1, item) : map.point(item, -1)),
  }));
  /** The text that is looked at. */
  const reading = () => (readings[1].element.hidden ? readings[0] : readings[1]);
  const search = makeSearchBox((range) => reading().find(range)), find = el("button", { type: "button", class: "uwaga-pill", text: tr("Find a word"), "aria-expanded": "false", on: { click: () => openSearch(search.element.hidden) } });
  search.element.hidden = true;
  /** @param {boolean} on */
  function openSearch(on) {
    search.element.hidden = !on;
    find.setAttribute("aria-expanded", String(on));
    if (on) search.focus();
    else reading().find(null);
  }
  const film = makeLayerFilm(() => draw()), write = el("button", { type: "button", class: "uwaga-pill", hidden: true, on: { click: toggleWriting } });
  const links = makeLinks(pickKey), lookers = makeLinks((query) => store.set({ query }));
  const every = makeEveryHead(app, redraw), moved = makeMoved(app, redraw);
  const headGrid = makeHeadGrid(app, every, (layer, head) => store.set({ layer, head, view: { x: 0, y: 0, scale: 0 } }));
  const top = el("div", { class: "uwaga-top" }, el("div", {}, where, headline, story, unknown, evidence),
    el("div", { class: "uwaga-row" }, makeHeadBar(app), find, changes.controls && menuButton(tr("This head"), changes.controls).element, box.button));
  const widen = el("button", { type: "button", class: "uwaga-link", on: { click: () => store.set({ wide: !store.get().wide }) } });
  const mapPart = el("div", { class: "uwaga-map-part" }, el("div", { class: "uwaga-top" }, el("h2", { text: tr("Every word at once") }), widen),
    el("p", { class: "uwaga-sub" }, el("span", { class: "uwaga-if-light", text: tr("Each row is a word; darker means it looks there more.") }),
      el("span", { class: "uwaga-if-dark", text: tr("Each row is a word; brighter means it looks there more.") })), map.element, !about.python && predictions.element);
  // After a change: where the weight went, and what came of it.
  const after = about.python ? el("div", { class: "uwaga-after" }, moved.flow, predictions.element) : null;
  const element = el("section", { class: "uwaga-explore", "aria-label": tr("Explore") }, el("div", { class: "uwaga-explore-page" },
    top, box.element, search.element, arcView.element, ribbons.element, el("div", { class: "uwaga-top uwaga-under" }, film.element, write, why.button, changes.cut, swap.element), why.element, after,
    el("div", { class: "uwaga-low" }, el("div", { class: "uwaga-read-part" }, readings.map((one) => one.element), bands),
      el("div", { class: "uwaga-aside" }, el("div", { class: "uwaga-low-side" }, mapPart, links.element, lookers.element)), el("div", { class: "uwaga-low-side uwaga-heads-part" }, moved.element, headGrid.element)), changes.bar));
  return {
    element, top, where, headline, story, evidence, unknown, bands, box, predictions, changes, swap, why, arcView, ribbons, readings, reading, search, find, openSearch, film, write, links, lookers, every, headGrid, moved, widen,
    row: new WeightsReader(app, "row", redraw), column: new WeightsReader(app, "column", redraw),
  };
}

/** What needs no word: the text's title, what the model makes of the text, the size of the map. @param {App} app @param {Parts} parts @param {Texts | null} texts @param {boolean} isPointing */
function drawPage(app, { element, headline, where, evidence, story, links, predictions, widen, unknown }, texts, isPointing) {
  const state = app.store.get(), side = app.side(), axes = side.kinds[state.kind];
  if (!texts || state.query === null || state.query >= texts.queries.total) {
    headline.replaceChildren(side.text_title);
    where.textContent = texts ? tr("Pick a word to see what it attends to.") : "";
    evidence.hidden = true;
    story.textContent = "";
    links.show(null);
  }
  if (!isPointing) predictions.show(texts);
  const isWide = state.wide || state.compare !== "one";
  element.toggleAttribute("data-wide", isWide);
  widen.textContent = isWide ? tr("Smaller map") : tr("Larger map");
  widen.hidden = state.compare !== "one";
  unknown.textContent = unknownText(side, [axes.queries, axes.keys]);
  unknown.hidden = !unknown.textContent;
}

/**
 * What is looked at: the pointed word or the picked one, its weights, and what is left out of them.
 * @param {App} app @param {Parts} parts @param {Now} now @param {Texts} texts @param {DistinctiveHead | undefined} openHead
 */
function lookAt(app, { every, row, moved }, { pointed, flow }, texts, openHead) {
  const state = app.store.get(), side = app.side(), { queries, keys } = texts, isPair = queries !== keys;
  const item = pointed >= 0 ? pointed : state.query, key = pointed >= 0 ? null : state.key, query = item !== null && item < queries.total ? item : null;
  // A saved page may hold means of many words here: they are no weights between two words.
  const exact = row.weights?.cell === 1 ? row.weights.weights : null, cell = row.weights && !exact ? row.weights.cell : 0;
  const weights = query === null ? null : every.row(query) ?? (query === state.query ? exact : null);
  const atRest = sinksOf(keys, state.kind), sinks = state.colour.hideSink ? atRest : new Set();
  const best = weights ? strongestItems(weights, sinks.size + 1).find((one) => !sinks.has(one)) ?? null : null;
  const isAfter = query !== null && state.side === "1", was = isAfter ? moved.row("0", query) : null;
  return { state, side, texts, openHead, query, key, weights, cell, atRest, sinks, best, was, isPair, isLine: !isPair && isOneLine(queries), isHeld: flow === "held" && was !== null,
    cut: isAfter ? moved.cut(queries, keys, query) : new Set(), isHidden: hiddenOutside(query === null ? [0, keys.total] : seenKeys(app, queries, keys, query)) };
}

/** @param {App} app @param {Parts} parts @param {Look} look @param {number | undefined} rest  the head's share at rest */
function drawSentence(app, { headline, where, story, evidence, arcView }, { state, side, texts, openHead, query, key, weights, cell, atRest, sinks, best, isPair, isLine, isHeld, isHidden, cut }, rest) {
  const asking = /** @type {number} */ (query), at = key ?? best;
  headline.replaceChildren(...headlineOf(texts, asking, key, weights, { sinks: atRest, signed: side.signed, strongest: openHead?.link, isCounted: !isPair && !isLine, isHidden,
    cut: !isHeld && (key === null || cut.has(key)) ? cut : undefined }));
  where.textContent = whereText(app, openHead, rest);
  story.replaceChildren([restText(weights, sinks, texts.keys), at !== null && at === best ? linkStory({ query: asking, key: at, weight: 0 }, texts.queries, texts.keys, state.kind) : "",
    isPair ? !hasExactCells(app) ? "" : tr("Every word sends out a ribbon of the same width, 100%; what many look at grows wide.") : weights && arcView.element.hidden ? "" : tr("A wide arc is a big share of this word’s attention; the numbers under the words add up to 100%."),
    cell && !weights ? meansText(cell) : ""].filter(Boolean).join(" "));
  evidence.hidden = !openHead?.evidence;
  /** @type {HTMLElement} */ (evidence.lastElementChild).textContent = openHead?.evidence ?? "";
}

/** The text on one line, with the arcs of a word, or of a layer while the film shows it. @param {App} app @param {Parts} parts @param {Now} now @param {Look} look @returns {boolean} whether it fits */
function drawArcs(app, { arcView, film, every, headGrid, where, headline, story, evidence }, now, { state, side, texts, query, key, weights, atRest, sinks, was, isLine, isHeld, isHidden, cut }) {
  const canShowArcs = isLine && !side.signed, layer = canShowArcs ? film.layer() : null, filmed = layer === null ? null : every.layer(layer);
  const reel = filmed?.complete === 1 && filmed.rows === texts.queries.total ? { ...filmed, mean: meanOfHeads(filmed) } : null;
  if (reel && layer !== null) {
    where.textContent = [side.model, tr("layer {layer}, mean of {count} heads", { layer, count: reel.heads })].join(" \u00b7 ");
    headline.textContent = filmText(layer, layerShares(reel.mean, texts.queries, atRest), sinkNames(texts.keys, state.kind));
    story.textContent = tr("Arcs are the three widest links of each word to other words, from {least} on.", { least: percentText(leastLink) });
    evidence.hidden = true;
  }
  const name = `${state.kind} ${state.layer} ${state.head}`, special = isHeld ? 0 : reel ? filmTime : now.flow === "flows" ? flowTime : null;
  const time = special ?? (name === now.head ? undefined : headTime);
  const hasArcs = canShowArcs && arcView.show({ items: texts.queries, query, key, weights: isHeld ? was : weights, isHidden, sinks, before: isHeld ? null : was, cut: isHeld ? new Set() : cut,
    ...(reel && { links: filmLinks(reel.mean, reel.rows, reel.columns, atRest) }) }, { time, sameKeys: Boolean(app.about.python) });
  if (canShowArcs && special === null) now.head = name;
  if (now.flow === "flows") now.flow = "done";
  film.element.hidden = !hasArcs || !hasFilm(app);
  film.setLayers(shownLayers(app).map((one) => one.layer));
  headGrid.light(film.element.hidden ? null : layer);
  if (!hasArcs) arcView.hide();
  if (film.element.hidden) film.stop();
  return hasArcs;
}

/** Two texts as ribbons. @param {App} app @param {Parts} parts @param {Now} now @param {Look} look @returns {boolean} whether they are short enough */
function drawRibbons(app, { ribbons, every, write }, now, { state, side, texts, query, key, weights, atRest, sinks, isPair }) {
  const { queries, keys } = texts, isShort = isPair && !side.signed && !holdsPassages(keys) && Math.max(queries.total, keys.total) <= mostRibbons;
  const cells = isShort ? ribbonWeights(app, every, texts, query, weights) : null;
  write.hidden = !cells || !hasExactCells(app);
  if (!cells) {
    ribbons.hide();
    return false;
  }
  // In the middle of rows that do not fit: the picked word, which stays there while others are pointed at, and what it looks at most.
  const asking = Math.min(now.written < 0 ? state.query ?? 0 : now.written, queries.total - 1);
  const row = Array.from({ length: keys.total }, (_, at) => (atRest.has(at) ? 0 : cells[asking * keys.total + at]));
  // Of a longer text the row of the picked word is not known while another is pointed at.
  if (row.some((weight) => weight > 0)) now.mostSeen = strongestItems(row, 1)[0];
  ribbons.show({ ...texts, cells, query, key, sinks, isKnown: hasExactCells(app) || weights !== null, last: now.written < 0 ? queries.total : now.written,
    middle: { query: asking, key: state.key ?? Math.min(now.mostSeen, keys.total - 1) } });
  return true;
}

/**
 * The weights of the open head between two texts; of longer ones those of the picked word alone, as others are not known.
 * @param {App} app @param {Parts["every"]} every @param {Texts} texts @param {number | null} query @param {Float32Array | null} weights @returns {ArrayLike<number> | null}
 */
function ribbonWeights(app, every, { queries, keys }, query, weights) {
  const { layer, head } = app.store.get();
  if (hasExactCells(app)) {
    const cells = every.layer(layer);
    return cells && cells.complete === 1 && cells.rows === queries.total && cells.columns === keys.total ? headCells(cells, head) : null;
  }
  const cells = new Float32Array(queries.total * keys.total);
  if (query !== null && weights) cells.set(weights, query * keys.total);
  return cells;
}

/** A long text as running prose, and beside it bars of what a word looks at and of what looks at it. @param {Parts} parts @param {Look} look @param {boolean} isRead @param {boolean} isPointing */
function drawReading({ element, find, search, readings, links, lookers, column, bands }, { state, side, texts: { queries, keys }, query, key, weights, sinks, isPair, isHidden }, isRead, isPointing) {
  element.toggleAttribute("data-read", isRead);
  find.hidden = !isRead;
  if (!isRead) search.element.hidden = true;
  const common = { query, key, signed: side.signed, merge: state.merge, isHidden };
  const contents = !isRead ? [] : !isPair ? [{ ...common, items: queries, axis: /** @type {const} */ ("both"), weights, sinks }]
    : [{ ...common, items: queries, axis: /** @type {const} */ ("query"), weights: null, sinks: new Set() }, { ...common, items: keys, axis: /** @type {const} */ ("key"), weights, sinks }];
  readings.forEach((reading, at) => reading.show(contents[at] ?? null));
  search.setItems(keys);
  links.show(weights && query !== null && isRead ? { title: trParts("What {token} attends to", { token: quoted(queries.labels[query]) }), hue: "key", weights, items: keys, sinks, picked: key, isHidden } : null);
  if (!isPointing) column.request(isRead && key !== null ? key : null);
  const received = column.weights?.cell === 1 && isRead && key !== null && key < keys.total ? column.weights.weights : null;
  lookers.show(received && key !== null ? { title: trParts("What attends to {token}", { token: quoted(keys.labels[key]) }), hue: "query", weights: received, items: queries, sinks: new Set(), picked: query } : null);
  const scale = weights ? bandScale(weights, sinks) : 1;
  bands.hidden = !isRead || scale >= bandFloor;
  bands.textContent = tr("The largest weight is {scale}: the colours of the text are fractions of it.", { scale: percentText(scale) });
}

/** @param {Items} items @returns {boolean} whether it is short, and without newlines */
function isOneLine({ labels, specials, breaks }) {
  return labels.length - specials.size <= maxLineWords && !breaks?.size && !labels.some((label) => label.includes("\n"));
}
