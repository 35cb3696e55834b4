// Explore: what one word looks at, as a sentence, as arcs over the text or beside it, and as a row of the map; and every head as a drawing.

import { bandFloor, bandScale } from "../colours.js";
import { el } from "../dom.js";
import { percentText } from "../format.js";
import { tr, trParts } from "../languages.js";
import { mapView } from "../map/view.js";
import { makeHeadBar } from "../shell/header.js";
import { menuButton } from "../controls.js";
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
import { stageWords } from "./arcs.js";
import { filmLinks, filmText, hasFilm, layerShares, leastLink, makeLayerFilm, meanOfHeads } from "./film.js";
import { makeRibbons, mostRibbons } from "./ribbons.js";
import { makeStage, wantsNoMotion } from "./stage.js";
import { makeWall } from "./wall.js";
import { makeWhy } from "./why.js";
import { askDistinctive, linkStory, sinkNames } from "./distinctive.js";
/** @import { App, Items, State } from "../types.js" */
/** @import { DistinctiveHead, DistinctiveHeads } from "./distinctive.js" */

/** Milliseconds of a run after which the page says that it computes. */
const sayComputingAfter = 300;
/** Milliseconds in which arcs go over into those of another head. */
const headTime = 600, filmTime = 850, holdTime = 700, flowTime = 1400;
/** Milliseconds of a word that is written. */
const writeTime = 900;

/**
 * @param {App} app
 * @returns {ReturnType<typeof mapView>}
 */
export function exploreView(app) {
  const { store } = app;
  const map = mapView(app);
  const box = makeTextBox(app), predictions = makePredictions(app), changes = makeChanges(app), swap = makeSwap(app), why = makeWhy(app);
  const where = el("p", { class: "uwaga-sub uwaga-headline-note" });
  const headline = el("h2", { class: "uwaga-headline", "aria-live": "polite" });
  const story = el("p", { class: "uwaga-sub" });
  const evidence = el("details", { class: "uwaga-evidence", hidden: true }, el("summary", { text: tr("Why this name") }), el("p"));
  const unknown = el("p", { class: "uwaga-sub uwaga-unknown-note", hidden: true });
  const bands = el("p", { class: "uwaga-sub", hidden: true });
  const pick = (/** @type {number} */ item) => {
    if (store.get().query === item) return swap.edit();
    store.set({ query: item, key: null });
  };
  const stage = makeStage({ pick, point, pickKey: (key) => store.set({ key }) });
  const ribbons = makeRibbons({ pick: (item) => store.set({ query: item, key: null }), point, pickKey: (key) => store.set({ key }) });
  const readings = [0, 1].map(() => makeReading({
    pick: (axis, item) => store.set(axis === "key" ? { key: item } : { query: item, ...(store.get().query === item ? {} : { key: null }) }),
    pickKey: (key) => store.set({ key }),
    point: (axis, item) => (axis === "key" ? map.point(-1, item) : map.point(item, -1)),
  }));
  const search = makeSearchBox((range) => reading().find(range)), find = el("button", { type: "button", class: "uwaga-pill", text: tr("Find a word"), "aria-expanded": "false", on: { click: () => openSearch(search.element.hidden) } });
  search.element.hidden = true;
  const film = makeLayerFilm(() => draw());
  const write = el("button", { type: "button", class: "uwaga-pill", hidden: true, on: { click: () => (writing === undefined ? writeFrom(0) : stopWriting()) } });
  const links = makeLinks((key) => store.set({ key })), lookers = makeLinks((query) => store.set({ query }));
  const every = makeEveryHead(app, redraw);
  const wall = makeWall(app, every, (layer, head) => store.set({ layer, head, view: { x: 0, y: 0, scale: 0 } }));
  const moved = makeMoved(app, redraw);
  const headMenu = changes.controls && menuButton(tr("This head"), changes.controls).element;
  const top = el("div", { class: "uwaga-top" },
    el("div", {}, where, headline, story, unknown, evidence),
    el("div", { class: "uwaga-row" }, makeHeadBar(app), find, headMenu, box.button));
  const widen = el("button", { type: "button", class: "uwaga-link", on: { click: () => store.set({ wide: !store.get().wide }) } });
  const mapPart = el("div", { class: "uwaga-map-part" }, el("div", { class: "uwaga-top" }, el("h2", { text: tr("Every word at once") }), widen),
    el("p", { class: "uwaga-sub" }, el("span", { class: "uwaga-if-light", text: tr("Each row is a word; darker means it looks there more.") }),
      el("span", { class: "uwaga-if-dark", text: tr("Each row is a word; brighter means it looks there more.") })), map.element, !app.about.python && predictions.element);
  // After a change: where the weight went, and what came of it.
  const after = app.about.python ? el("div", { class: "uwaga-after" }, moved.flow, predictions.element) : null;
  const element = el("section", { class: "uwaga-explore", "aria-label": tr("Explore") }, el("div", { class: "uwaga-explore-page" },
    top, box.element, search.element, stage.element, ribbons.element, el("div", { class: "uwaga-top uwaga-under" }, film.element, write, why.button, changes.cut, swap.element), why.element, after,
    el("div", { class: "uwaga-low" }, el("div", { class: "uwaga-read-part" }, readings.map((one) => one.element), bands),
      el("div", { class: "uwaga-aside" }, el("div", { class: "uwaga-low-side" }, mapPart, links.element, lookers.element)), el("div", { class: "uwaga-low-side uwaga-heads-part" }, moved.element, wall.element)), changes.bar));
  const row = new WeightsReader(app, "row", redraw), column = new WeightsReader(app, "column", redraw);
  /** @type {{queries: Items, keys: Items, name: string} | null} */
  let texts = null;
  /** @type {DistinctiveHeads | null} */
  let distinctive = null;
  let asked = new AbortController();
  let askedFor = "", drawnHead = "", pointed = -1;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let computing;
  let shown = false, isRead = false, isQueued = false;
  // After a change the arcs begin as they were, and flow into what they are.
  let flows = Boolean(app.about.python) && store.get().side !== "0" && !wantsNoMotion();
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let flowing;
  let flowEnded = false;
  /** The last word that is written so far; -1: all are there. */
  let written = -1, mostSeen = 0;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let writing;
  // The page opens on the most telling head, unless the URL or a click has named another one.
  let opens = app.isFresh && isUntouched();

  function isUntouched() {
    const { kind, layer, head, query } = store.get(), { start } = app.about;
    return query === null && kind === start?.kind && layer === start.layer && head === start.head;
  }

  /** Shows the arcs of the word under the pointer; -1: of the picked one. @param {number} item */
  function point(item) {
    map.point(item, -1);
    if (writing !== undefined || item === pointed || (item >= 0 && !every.row(item))) return;
    pointed = item;
    holdHeight(top, pointed >= 0);
    draw(true);
  }

  /** One word after the other comes with its ribbons. @param {number} item */
  function writeFrom(item) {
    if (!texts || item >= texts.queries.total) return stopWriting();
    written = pointed = item;
    writing = setTimeout(() => writeFrom(document.hidden ? item : item + 1), writeTime);
    draw();
  }
  function stopWriting() {
    clearTimeout(writing);
    writing = undefined;
    if (written < 0) return;
    written = pointed = -1;
    draw();
  }

  /** The text that is looked at. */
  function reading() {
    return readings[1].element.hidden ? readings[0] : readings[1];
  }

  /** @param {boolean} on */
  function openSearch(on) {
    search.element.hidden = !on;
    find.setAttribute("aria-expanded", String(on));
    if (on) search.focus();
    else reading().find(null);
  }
  const removeCommands = /** @type {[string, string, string, () => void][]} */ ([["next", tr("Next word that it looks at"), "n", () => reading().step(1)],
    ["before", tr("Previous word that it looks at"), "p", () => reading().step(-1)], ["find", tr("Find a word"), "f", () => openSearch(true)]])
    .map(([id, title, key, run]) => app.commands.add({ id: `read.${id}`, title, keys: [key], group: tr("Long texts"), when: () => shown && isRead, run }));
  removeCommands.push(app.commands.add({ id: "map.wide", title: tr("Larger map"), keys: ["m"], group: tr("Map"), when: () => shown, run: () => widen.click() }));

  /** @param {DistinctiveHead} one */
  function openDistinctive({ kind, layer, head, link }) {
    opens = false;
    store.set({ kind, layer, head, query: link.query, key: link.key, view: { x: 0, y: 0, scale: 0 } });
  }

  /** Which texts the state is of. */
  function textsName() {
    const { side: id, kind, merge, specials } = store.get();
    return JSON.stringify([id, app.side().kinds[kind], merge, specials]);
  }

  async function load() {
    const { side: id, kind } = store.get(), axes = app.side().kinds[kind], name = textsName();
    if (texts?.name === name) return;
    try {
      const [queries, keys] = await Promise.all([app.items(id, axes.queries), app.items(id, axes.keys)]);
      if (name !== textsName()) return;
      texts = { queries, keys, name };
      redraw();
    } catch {
      // The client reports the error.
    }
  }

  async function loadDistinctive() {
    const name = textsName();
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
      app.provisional.end();
      redraw();
    } catch {
      if (!signal.aborted) askedFor = "";
    }
  }

  /** What is known of the heads; its links are items of the texts that it was asked for. */
  const heads = () => (askedFor === textsName() ? distinctive : null);
  const ownHead = () => {
    const { kind, layer, head } = store.get();
    return heads()?.all.find((one) => one.kind === kind && one.layer === layer && one.head === head);
  };

  /** Something is always picked: without a query it is the head's most telling link. */
  function pickStrongest() {
    const { query } = store.get(), own = ownHead();
    if (query === null && own && !opens) store.set({ query: own.link.query, key: own.link.key });
  }

  function refresh() {
    if (!shown) return;
    void load();
    void loadDistinctive();
    pickStrongest();
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
    // Items of another text than the one that is shown now say nothing of it.
    if (!shown || (texts && texts.name !== textsName())) return;
    const state = store.get(), { kind } = state, known = texts, side = app.side(), axes = side.kinds[kind];
    const query = pointed >= 0 ? pointed : state.query, key = pointed >= 0 ? null : state.key;
    // A saved page may hold means of many words here: they are no weights between two words.
    const isExact = row.weights?.cell === 1, own = ownHead();
    const weights = query === null || !known ? null : every.row(query) ?? (query === state.query && isExact ? row.weights?.weights ?? null : null);
    const inQueries = known && query !== null && query < known.queries.total ? query : null;
    if (!known || inQueries === null) {
      headline.replaceChildren(side.text_title);
      where.textContent = known ? tr("Pick a word to see what it attends to.") : "";
      evidence.hidden = true;
      story.textContent = "";
      links.show(null);
    }
    if (!isPointing) predictions.show(known);
    const isWide = state.wide || state.compare !== "one";
    element.toggleAttribute("data-wide", isWide);
    widen.textContent = isWide ? tr("Smaller map") : tr("Larger map");
    widen.hidden = state.compare !== "one";
    unknown.textContent = unknownText(side, [axes.queries, axes.keys]);
    unknown.hidden = !unknown.textContent;
    if (!known) return;
    const atRest = sinksOf(known.keys, kind), sinks = state.colour.hideSink ? atRest : new Set(), one = axes.queries === axes.keys, isLine = one && isOneLine(known.queries);
    const shownWeights = inQueries === null ? null : weights;
    const best = shownWeights ? strongestItems(shownWeights, sinks.size + 1).find((item) => !sinks.has(item)) ?? null : null;
    const isHidden = hiddenOutside(inQueries === null ? [0, known.keys.total] : seenKeys(app, known.queries, known.keys, inQueries));
    const was = inQueries === null || state.side !== "1" ? null : moved.row("0", inQueries), isHeld = flows && was !== null, cut = inQueries !== null && state.side === "1" ? moved.cut(known.queries, known.keys, inQueries) : new Set();
    if (!isPointing) {
      changes.show(known, best);
      if (pointed < 0) why.show(known, inQueries, state.key ?? best, shownWeights, sinks);
      swap.show(one ? known.queries : null, state.query);
    }
    if (inQueries !== null) {
      headline.replaceChildren(...headlineOf(known, inQueries, key, shownWeights, { sinks: atRest, signed: side.signed, strongest: own?.link, isCounted: one && !isLine, isHidden,
        cut: !isHeld && (key === null || cut.has(key)) ? cut : undefined }));
      where.textContent = whereText(app, own, heads()?.rests.get(`${state.layer} ${state.head}`));
      const at = key ?? best;
      story.replaceChildren([restText(shownWeights, sinks, known.keys), at !== null && at === best ? linkStory({ query: inQueries, key: at, weight: 0 }, known.queries, known.keys, kind) : "",
        !one ? !hasExactCells(app) ? "" : tr("Every word sends out a ribbon of the same width, 100%; what many look at grows wide.") : shownWeights && stage.element.hidden ? "" : tr("A wide arc is a big share of this word’s attention; the numbers under the words add up to 100%."),
        row.weights && !isExact && !shownWeights ? meansText(row.weights.cell) : ""].filter(Boolean).join(" "));
      evidence.hidden = !own?.evidence;
      /** @type {HTMLElement} */ (evidence.lastElementChild).textContent = own?.evidence ?? "";
    }
    const canStage = isLine && !side.signed, layer = canStage ? film.layer() : null, filmed = layer === null ? null : every.layer(layer), reel = filmed?.complete === 1 && filmed.rows === known.queries.total ? filmed : null;
    if (isHeld && flowing === undefined) flowing = setTimeout(() => { flows = false; draw(); }, holdTime);
    const mean = reel && meanOfHeads(reel);
    if (reel && mean && layer !== null) {
      where.textContent = [side.model, tr("layer {layer}, mean of {count} heads", { layer, count: reel.heads })].join(" \u00b7 ");
      headline.textContent = filmText(layer, layerShares(mean, known.queries, atRest), sinkNames(known.keys, kind));
      story.textContent = tr("Arcs are the three widest links of each word to other words, from {least} on.", { least: percentText(leastLink) });
      evidence.hidden = true;
    }
    const isStaged = canStage
      && stage.show({ items: known.queries, query: inQueries, key, weights: isHeld ? was : shownWeights, isHidden, sinks, before: isHeld ? null : was, cut: isHeld ? new Set() : cut, ...(reel && mean && { links: filmLinks(mean, reel.rows, reel.columns, atRest) }) },
        { time: isHeld ? 0 : mean ? filmTime : flowing !== undefined && !flowEnded ? flowTime : timeOf(state), sameKeys: Boolean(app.about.python) });
    if (flowing !== undefined && !flows) flowEnded = true;
    film.element.hidden = !isStaged || !hasFilm(app);
    film.setLayers(shownLayers(app).map((each) => each.layer));
    wall.light(film.element.hidden ? null : layer);
    if (!isStaged) stage.hide();
    if (film.element.hidden) film.stop();
    const cells = !one && !side.signed && !holdsPassages(known.keys) && Math.max(known.queries.total, known.keys.total) <= mostRibbons ? ribbonWeights(known, inQueries, shownWeights) : null;
    const isRibboned = cells !== null;
    if (isRibboned) ribbons.show({ ...known, cells, query: inQueries, key, sinks, isKnown: hasExactCells(app) || shownWeights !== null, last: written < 0 ? known.queries.total : written, middle: ribbonMiddle(known, cells, atRest) });
    else ribbons.hide();
    write.hidden = !isRibboned || !hasExactCells(app);
    write.textContent = writing === undefined ? ["▶", tr("Watch it write")].join(" ") : tr("■ Stop");
    if (write.hidden) stopWriting();
    isRead = !isStaged && !isRibboned;
    element.toggleAttribute("data-read", isRead);
    find.hidden = !isRead;
    if (!isRead) search.element.hidden = true;
    const common = { query: inQueries, key, signed: side.signed, merge: state.merge, isHidden };
    const contents = !isRead ? [] : one ? [{ ...common, items: known.queries, axis: /** @type {const} */ ("both"), weights: shownWeights, sinks }]
      : [{ ...common, items: known.queries, axis: /** @type {const} */ ("query"), weights: null, sinks: new Set() }, { ...common, items: known.keys, axis: /** @type {const} */ ("key"), weights: shownWeights, sinks }];
    readings.forEach((each, at) => each.show(contents[at] ?? null));
    search.setItems(known.keys);
    const what = shownWeights && inQueries !== null && isRead;
    links.show(what ? { title: trParts("What {token} attends to", { token: quoted(known.queries.labels[inQueries]) }), hue: "key", weights: shownWeights, items: known.keys, sinks, picked: key, isHidden } : null);
    if (!isPointing) column.request(isRead && key !== null ? key : null);
    const received = column.weights?.cell === 1 && isRead && key !== null && key < known.keys.total ? column.weights.weights : null;
    lookers.show(received && key !== null ? { title: trParts("What attends to {token}", { token: quoted(known.keys.labels[key]) }), hue: "query", weights: received, items: known.queries, sinks: new Set(), picked: inQueries } : null);
    const scale = shownWeights ? bandScale(shownWeights, sinks) : 1;
    bands.hidden = !isRead || scale >= bandFloor;
    bands.textContent = tr("The largest weight is {scale}: the colours of the text are fractions of it.", { scale: percentText(scale) });
    shrinkLong(headline);
    if (isPointing) return;
    wall.show(heads(), known);
    moved.show(known, inQueries, atRest);
  }

  /**
   * The weights of the open head between two texts; of longer ones those of the picked word alone, as others are not known.
   * @param {{queries: Items, keys: Items}} known @param {number | null} query @param {Float32Array | null} weights @returns {ArrayLike<number> | null}
   */
  function ribbonWeights({ queries, keys }, query, weights) {
    const { layer, head } = store.get();
    if (hasExactCells(app)) {
      const cells = every.layer(layer);
      return cells && cells.complete === 1 && cells.rows === queries.total && cells.columns === keys.total ? headCells(cells, head) : null;
    }
    const cells = new Float32Array(queries.total * keys.total);
    if (query !== null && weights) cells.set(weights, query * keys.total);
    return cells;
  }

  /**
   * What is in the middle of rows that do not fit: the picked word, which stays there while others are pointed at, and what it looks at most.
   * @param {{queries: Items, keys: Items}} known @param {ArrayLike<number>} cells @param {ReadonlySet<number>} sinks
   */
  function ribbonMiddle({ queries, keys }, cells, sinks) {
    const { query: picked, key } = store.get(), query = Math.min(written < 0 ? picked ?? 0 : written, queries.total - 1);
    const row = Array.from({ length: keys.total }, (_, at) => (sinks.has(at) ? 0 : cells[query * keys.total + at]));
    // Of a longer text the row of the picked word is not known while another is pointed at.
    if (row.some((weight) => weight > 0)) mostSeen = strongestItems(row, 1)[0];
    return { query, key: key ?? Math.min(mostSeen, keys.total - 1) };
  }

  /** Arcs of another head take their time. @param {State} state */
  function timeOf({ kind, layer, head }) {
    const name = `${kind} ${layer} ${head}`, time = name === drawnHead ? undefined : headTime;
    drawnHead = name;
    return time;
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
    store.subscribe(["side", "kind", "layer", "head", "merge", "specials", "pooling", "query", "key", "colour", "dark", "compare", "wide"], () => {
      pointed = -1;
      holdHeight(top, false);
      if (shown) refresh();
    }),
  ];

  return {
    ...map,
    element,
    show() {
      shown = true;
      map.show();
      refresh();
    },
    hide() {
      shown = false;
      film.stop();
      stopWriting();
      every.stop();
      moved.stop();
      map.hide();
    },
    dispose() {
      asked.abort();
      clearTimeout(computing);
      row.cancel();
      column.cancel();
      removeCommands.forEach((remove) => remove());
      clearTimeout(flowing);
      every.stop();
      moved.stop();
      sizes.disconnect();
      unsubscribe.forEach((end) => end());
      shown = false;
      film.stop();
      stopWriting();
      stage.dispose();
      box.dispose();
      predictions.dispose();
      changes.dispose();
      why.dispose();
      map.dispose();
    },
  };
}

/** @param {Items} items @returns {boolean} whether it is short, and without newlines */
function isOneLine({ labels, specials, breaks }) {
  return labels.length - specials.size <= stageWords && !breaks?.size && !labels.some((label) => label.includes("\n"));
}
