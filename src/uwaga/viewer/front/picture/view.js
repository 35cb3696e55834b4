// Picture: where a patch looks, or what looks at it, over the picture: in the mean of the heads or in one, every head small beside it.

import { isComplete } from "../client.js";
import { segmentedControl } from "../controls.js";
import { el, isModified, wordText } from "../dom.js";
import { holdHeight, lookOf, lookParts, shrinkLong } from "../explore/headline.js";
import { headText, percentText } from "../format.js";
import { tr, trParts } from "../languages.js";
import { makeRequestSet } from "../requests.js";
import { goTo, layersOf } from "../shell/head_navigation.js";
import { makeHeadBar } from "../shell/header.js";
import { drawOverlay, greyPicture, patchOf, weightShares } from "./overlay.js";
/** @import { App, Items, PictureInfo, View, WireArray } from "../types.js" */

/** Tokens outside of the picture that are named beside it; the widest distance of the patches that a saved page holds. */
const mostNamed = 60, widestStride = 32;
/** Device pixels of a small picture. */
const smallWidth = 224;
/** @type {{[key: string]: [number, number]}} rows and columns that an arrow key goes */
const arrowSteps = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] };

/** @param {App} app @returns {View} */
export function pictureView(app) {
  const { store } = app, { width, height, grids } = /** @type {PictureInfo} */ (app.about.picture);
  const [where, story, legend, headNote] = Array.from({ length: 4 }, () => el("p", { class: "uwaga-sub" }));
  const headline = el("h2", { class: "uwaga-headline", "aria-live": "polite" }), canvas = el("canvas", { "aria-hidden": "true" });
  const marks = ["asks", "asked"].map((role) => el("i", { class: "uwaga-patch-mark", "data-role": role }));
  const frame = el("div", { class: "uwaga-photo", tabindex: 0, role: "application", "aria-label": tr("The picture: arrow keys move the patch, Esc returns"), style: { "--uwaga-aspect": width / height },
    on: { keydown, pointermove, pointerdown: pointermove, pointerleave: () => point(-1), click, focus: () => { before = picked(); } } }, canvas, marks);
  const direction = segmentedControl(tr("Direction"), [{ name: "row", title: tr("Looks at") }, { name: "column", title: tr("Is looked at by") }], (name) => pick(picked(), name));
  const [tokens, layers, headButtons] = [["uwaga-chips", tr("Tokens that are no patch")], ["uwaga-dots", tr("Layers")], ["uwaga-patch-heads", tr("All heads")]].map(([name, label]) =>
    el("div", { class: name, role: "group", "aria-label": label, on: { keydown: stepInGroup } }));
  const top = el("div", { class: "uwaga-top" }, el("div", {}, where, headline, story), el("div", { class: "uwaga-row" }, makeHeadBar(app), direction.element));
  const element = el("section", { class: "uwaga-explore uwaga-picture", "aria-label": tr("Picture") }, el("div", { class: "uwaga-explore-page" },
    top,
    el("div", { class: "uwaga-picture-row" }, el("div", {}, frame, legend),
      el("div", { class: "uwaga-low-side" }, tokens, el("div", {}, el("h2", { text: tr("Layers") }), layers),
        el("div", {}, el("h2", { text: tr("All heads") }), el("p", { class: "uwaga-sub", text: tr("The same, as each head sees it. Click one, and the picture follows.") }), headButtons, headNote)))));
  const requests = makeRequestSet(app, 6, draw);
  /** @type {{pixels: WireArray, items: Items} | null} */
  let loaded = null;
  /** @type {{[theme: string]: HTMLCanvasElement}} */
  const pictures = {};
  let shown = false, pointed = -1, before = 0, madeFor = "";

  const grid = () => grids[store.get().kind];
  const axis = () => (store.get().query === null && store.get().key !== null ? "column" : "row");
  const ask = (/** @type {number} */ item, of = axis()) => {
    const { side, kind, layer } = store.get();
    return { request: "heads", side, kind, layer, axis: of, item };
  };
  const middle = () => grid().first + (grid().rows >> 1) * grid().columns + (grid().columns >> 1);
  /** The picked item; by default the class token of an encoder, else the patch in the middle. */
  const picked = () => store.get().query ?? store.get().key ?? (grid().first && store.get().kind === "encoder" ? 0 : middle());
  const pick = (/** @type {number} */ item, /** @type {string} */ of = axis()) => {
    pointed = -1;
    holdHeight(top, false);
    store.set(of === "row" ? { query: item, key: null } : { query: null, key: item });
  };

  /** The token of a patch that there are weights of: a saved page may hold every second or fourth one. @param {number} row @param {number} column @param {string} [of]  the axis @returns {number} -1: none */
  function tokenAt(row, column, of = axis()) {
    const { rows, columns, first } = grid();
    if (row < 0 || column < 0 || row >= rows || column >= columns) return -1;
    for (let stride = 1; stride <= widestStride; stride *= 2) {
      const at = first + (row - (row % stride)) * columns + column - (column % stride);
      if (app.host.has(ask(at, of))) return at;
    }
    return -1;
  }
  function held(/** @type {number} */ item, of = axis()) {
    const patch = patchOf(grid(), item);
    return patch ? tokenAt(...patch, of) : app.host.has(ask(item, of)) ? item : -1;
  }

  /** @param {MouseEvent} event */
  function tokenUnder({ clientX, clientY }) {
    const { left, top, width: wide, height: high } = frame.getBoundingClientRect(), { rows, columns } = grid();
    return tokenAt(Math.floor(((clientY - top) / high) * rows), Math.floor(((clientX - left) / wide) * columns));
  }
  /** @param {number} item  -1: none */
  function point(item) {
    if (item === pointed) return;
    pointed = item;
    holdHeight(top, item >= 0);
    draw();
  }
  /** @param {PointerEvent} event */
  function pointermove(event) { point(tokenUnder(event)); }
  /** @param {MouseEvent} event */
  function click(event) {
    const item = tokenUnder(event);
    if (item >= 0) pick(before = item);
  }

  /** @param {KeyboardEvent} event */
  function keydown(event) {
    const by = arrowSteps[event.key];
    if (isModified(event, true) || !(by || event.key === "Escape")) return;
    event.preventDefault();
    event.stopPropagation();
    if (!by) return pointed >= 0 ? point(-1) : pick(before);
    const now = pointed >= 0 ? pointed : picked(), from = patchOf(grid(), now);
    if (!from) return pick(held(middle()));
    for (let far = 1, to = now; to >= 0 && far <= widestStride; far++) {
      to = tokenAt(from[0] + far * by[0], from[1] + far * by[1]);
      if (to >= 0 && to !== now) return pick(to);
    }
  }

  /** Arrow keys go from button to button. @param {KeyboardEvent} event */
  function stepInGroup(event) {
    const by = arrowSteps[event.key], group = /** @type {HTMLElement} */ (event.currentTarget), buttons = [...group.querySelectorAll("button")];
    if (!by || isModified(event, true)) return;
    event.preventDefault();
    event.stopPropagation();
    const to = buttons[buttons.findIndex((button) => button === event.target) + by[0] + by[1]];
    to?.focus();
    to?.click();
  }
  /** Presses one button of a group; Tab reaches that button alone. @param {HTMLElement} group @param {number} at */
  function press(group, at) {
    group.querySelectorAll("button").forEach((button, i) => {
      button.setAttribute("aria-pressed", String(i === at));
      button.tabIndex = i === Math.max(at, 0) ? 0 : -1;
    });
  }

  function draw() {
    if (!shown || !loaded || !grid()) return;
    const { kind, layer, head, mean } = store.get(), { items, pixels } = loaded, item = held(pointed >= 0 ? pointed : picked()), isRow = axis() === "row";
    direction.show(axis());
    direction.element.querySelectorAll("button").forEach((button, at) => { button.disabled = held(picked(), at ? "column" : "row") < 0; });
    mark(isRow ? 0 : 1, item);
    for (const part of [canvas, story, legend, tokens, headButtons, headNote]) part.hidden = item < 0;
    if (item < 0) return void headline.replaceChildren(tr("This is not in the saved page."));
    requests.request([ask(item)]);
    const reply = app.client.peek(ask(item));
    // Until an answer is there, what was drawn before stays.
    if (!reply || !isComplete(reply)) return;
    const [count, total] = reply.arrays[0].shape, heads = Array.from({ length: count }, (_, at) => reply.arrays[0].data.subarray(at * total, (at + 1) * total));
    const all = [Float64Array.from(heads[0], (_, at) => heads.reduce((sum, weights) => sum + weights[at], 0) / count), ...heads].map((weights) => weightShares(grid(), weights, item));
    const now = all[mean ? 0 : head + 1] ?? all[0], { weights, best } = now, largest = Math.max(...all.map((one) => one.largest));
    where.textContent = [app.side().model, mean ? tr("layer {layer}, mean of {count} heads", { layer, count }) : headText(kind, layer, head)].join(" \u00b7 ");
    const named = (/** @type {number} */ at, /** @type {boolean} */ asks) =>
      el("bdi", { class: asks ? "uwaga-asks" : "uwaga-asked", text: patchOf(grid(), at) ? tr("patch {patch}", { patch: items.labels[at] }) : wordText(items, at) });
    const values = { from: named(item, isRow), to: named(best, !isRow), weight: percentText(weights[best]) };
    const look = isRow ? lookOf(weights, { keys: items, sinks: items.specials }) : null, isSpecial = (/** @type {number} */ at) => items.specials.has(at);
    headline.replaceChildren(...(look ? lookParts(look, { weights, from: values.from, name: (at) => named(at, false), isSpecial, isPicture: true }) : trParts("{from} gets most from {to}: {weight}", values)));
    shrinkLong(headline);
    const shares = Object.fromEntries(["itself", "near", "far", "outside"].map((name) => [name, percentText(/** @type {any} */ (now)[name])]));
    story.textContent = !isRow ? tr("All tokens together give it {total}; the mean over all tokens is 100%.", { total: percentText(now.itself + now.near + now.far + now.outside) })
      : patchOf(grid(), item) ? tr("{itself} on itself, {near} on the patches around it, {far} on other patches, {outside} on tokens that are no patch.", shares)
        : tr("{far} on patches, {outside} on tokens that are no patch.", shares);
    mark(isRow ? 1 : 0, best === item ? -1 : best);
    if (madeFor !== `${kind} ${count} ${total}`) {
      madeFor = `${kind} ${count} ${total}`;
      layers.replaceChildren(...layersOf(app.side(), kind).map((one) => el("button", { type: "button", text: one, "aria-label": tr("layer {layer}", { layer: one }), on: { click: () => goTo.layer(app, one) } })));
      tokens.replaceChildren(...items.labels.flatMap((_, at) => (patchOf(grid(), at) ? [] : [el("button", { type: "button", "data-item": at, on: { click: () => pick(before = at) } },
        el("bdi", { text: wordText(items, at) }), el("b"), el("i"))])).slice(0, mostNamed));
      headButtons.replaceChildren(...all.map((_, at) => el("button", { type: "button", on: { click: () => store.set(at ? { head: at - 1, mean: false } : { mean: true }) } },
        el("canvas", { width: smallWidth, height: Math.round((smallWidth * height) / width) }), at ? String(at - 1) : tr("mean"), el("i"))));
    }
    press(layers, layersOf(app.side(), kind).indexOf(layer));
    press(headButtons, mean ? 0 : head + 1);
    const chips = [...tokens.querySelectorAll("button")];
    press(tokens, chips.findIndex((button) => Number(button.dataset.item) === item));
    for (const button of chips) {
      const share = weights[Number(button.dataset.item)];
      /** @type {HTMLElement} */ (button.children[1]).textContent = percentText(share);
      /** @type {HTMLElement} */ (button.children[2]).style.width = `${100 * Math.min(1, share)}%`;
    }
    const colour = getComputedStyle(app.root).getPropertyValue(isRow ? "--key" : "--query").trim(), picture = pictures[app.theme()] ??= greyPicture(pixels, app.theme());
    const wide = Math.round(frame.clientWidth * window.devicePixelRatio);
    if (canvas.width !== wide) Object.assign(canvas, { width: wide, height: Math.round((wide * height) / width) });
    drawOverlay(canvas, picture, grid(), weights, now.largest || 1, colour);
    legend.textContent = tr("The fullest colour is {weight}.", { weight: percentText(now.largest) });
    headButtons.querySelectorAll("button").forEach((button, at) => {
      drawOverlay(/** @type {HTMLCanvasElement} */ (button.children[0]), picture, grid(), all[at].weights, largest || 1, colour);
      /** @type {HTMLElement} */ (button.children[1]).style.width = `${100 * Math.min(1, all[at].outside)}%`;
      button.setAttribute("aria-label", at ? headText(kind, layer, at - 1) : tr("mean of the heads"));
    });
    headNote.textContent = tr("The fullest colour is {weight}; the line beneath is the share of tokens that are no patch.", { weight: percentText(largest) });
  }

  /** @param {number} which @param {number} item */
  function mark(which, item) {
    const { rows, columns } = grid(), patch = patchOf(grid(), item), { style } = marks[which];
    marks[which].hidden = !patch;
    if (patch) Object.assign(style, { left: `${(100 * (patch[1] + 0.5)) / columns}%`, top: `${(100 * (patch[0] + 0.5)) / rows}%`, width: `${100 / columns}%`, height: `${100 / rows}%` });
  }

  async function refresh() {
    if (!shown) return;
    // Patches are tokens: no words are merged, none is hidden.
    const { maps } = app.side(), last = maps.filter((one) => grids[one.kind]).at(-1);
    store.set({ merge: "tokens", specials: "show", ...(last && !grid() ? { kind: last.kind, layer: last.layer, head: 0, query: null, key: null } : {}) });
    const { side, kind } = store.get();
    try {
      const [{ arrays: [pixels] }, items] = await Promise.all([app.client.ask({ request: "picture" }, { priority: 5 }), app.items(side, kind)]);
      if (kind === store.get().kind) loaded = { pixels, items };
      draw();
    } catch {
      // The client reports the error.
    }
  }

  const sizes = new ResizeObserver(draw);
  sizes.observe(frame);
  const unsubscribe = [
    store.subscribe(["side", "kind", "merge", "specials"], () => void refresh()),
    store.subscribe(["layer", "head", "mean", "query", "key", "dark"], (_, changed) => {
      // A key that goes to another head shows that head.
      if (shown && changed.has("head") && !changed.has("layer") && !changed.has("kind")) store.set({ mean: false });
      draw();
    }),
  ];
  return {
    element,
    show() { shown = true; void refresh(); },
    hide() { shown = false; requests.stop(); },
    dispose() {
      requests.stop();
      sizes.disconnect();
      unsubscribe.forEach((end) => end());
    },
  };
}
