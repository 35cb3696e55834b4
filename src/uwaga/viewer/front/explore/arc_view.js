// The text as the largest thing on the page, and over it the arcs of one word to the words that it looks at.

import { arcPairs, arcScale, arcsOfLinks, arcsOfWord, mixedArcs, pathOfArc } from "./arcs.js";
import { el, isModified, isRightToLeft, itemOf, linkGradient, movingMouse, svgEl, uniqueName, unknownClass, wordText } from "../dom.js";
import { percentText } from "../format.js";
import { tr } from "../languages.js";
import { isEqual } from "../store.js";
/** @import { Items } from "../types.js" */
/** @import { Arc, DrawnArc } from "./arcs.js" */

/**
 * @typedef {object} ArcContent
 * @property {Items} items
 * @property {number | null} query  the word whose arcs are shown
 * @property {number | null} key  the word that is picked beside it
 * @property {ArrayLike<number> | null} weights  of the query
 * @property {ReadonlySet<number>} sinks
 * @property {(key: number) => boolean} isHidden  from the query
 * @property {ArrayLike<number> | null} [before]  the weights before a change of the model
 * @property {ReadonlySet<number>} [cut]  keys whose links are cut
 * @property {{query: number, key: number, weight: number}[]} [links]  shown in place of the arcs of one word
 */

const arcViewHeight = 236, largestLetters = 50, smallestLetters = 22, narrowWidth = 620, columnLetters = 26, rowHeight = 36, fittedSizes = 5;
const labelled = 0.08, largeLabel = 0.24, dimBelow = 0.01;
const hoverTime = 320;

/** @returns {boolean} whether the reader wants no motion */
export function wantsNoMotion() {
  return typeof matchMedia === "function" && matchMedia("(prefers-reduced-motion: reduce)").matches;
}

/** Pixels of a share that stands on its arc: width and height. */
const largeShare = [72, 30], smallShare = [40, 18];

/** @typedef {{text: Element, share: string, weight: number, x: number, y: number, size: number[]}} ArcShare */

/** The shares that stand apart from every larger one; the others stand under their words alone. @param {ArcShare[]} shares @returns {ArcShare[]} */
function apartShares(shares) {
  /** @type {ArcShare[]} */
  const kept = [];
  for (const one of [...shares].sort((a, b) => b.weight - a.weight)) {
    const isApart = (/** @type {ArcShare} */ other) => Math.abs(one.x - other.x) > (one.size[0] + other.size[0]) / 2 || Math.abs(one.y - other.y) > (one.size[1] + other.size[1]) / 2;
    if (kept.every(isApart)) kept.push(one);
  }
  return kept;
}

/** A word as a button, with room for its share. @param {Items} items @param {number} item @param {{[event: string]: () => void}} [on] */
export function wordButton(items, item, on = {}) {
  return el("button", { type: "button", "data-item": item, on,
    class: `uwaga-stage-word${items.specials.has(item) ? " uwaga-stage-special" : ""}${item && items.noSpaceBefore[item] ? " uwaga-stage-tight" : ""}` },
  el("bdi", { class: unknownClass(items, item) || null, text: wordText(items, item) }), el("span", { class: "uwaga-visually-hidden" }), el("small"));
}

/**
 * @param {{pick: (item: number) => void, point: (item: number) => void, pickKey: (key: number) => void}} act  point: -1 when nothing is pointed at
 */
export function makeArcView({ pick, point, pickKey }) {
  const prefix = uniqueName();
  const gradients = svgEl("defs"), lines = svgEl("g"), texts = svgEl("g"), bar = svgEl("path", { class: "uwaga-arc-bar" });
  const picture = svgEl("svg", { class: "uwaga-arcs", "aria-hidden": "true" }, gradients, lines, bar, texts);
  const words = el("div", { class: "uwaga-words", role: "group", "aria-label": tr("The text: each word shows what it looks at"), on: {
    // The arrow keys have picked the word that Enter presses: only a click asks for another word in its place.
    keydown, click: (/** @type {MouseEvent} */ event) => { const item = itemOf(event); if (item >= 0 && (event.detail || item !== shown?.query)) pick(item); },
    pointermove: movingMouse(point), pointerleave: () => point(-1) } });
  const element = el("div", { class: "uwaga-stage", hidden: true }, picture, words);
  /** @type {ArcContent | null} */
  let shown = null;
  /** @type {HTMLButtonElement[]} */
  let buttons = [];
  let measured = "", labels = "", isColumn = false, isReversed = false, base = 0;
  /** @type {number[]} */
  let centres = [];
  /** @type {DrawnArc[]} */
  let drawn = [];
  /** Where they go. @type {Arc[]} */
  let goal = [];
  let frame = 0;

  /** @param {KeyboardEvent} event */
  function keydown(event) {
    const forward = isReversed && !isColumn ? "ArrowLeft" : "ArrowRight", back = isReversed && !isColumn ? "ArrowRight" : "ArrowLeft";
    const by = { [forward]: 1, ArrowDown: 1, [back]: -1, ArrowUp: -1 }[event.key], at = itemOf(event);
    if (by === undefined || at < 0 || isModified(event)) return;
    event.preventDefault();
    event.stopPropagation();
    if (event.shiftKey) {
      const from = shown?.key ?? shown?.query ?? at;
      return pickKey((from + by + buttons.length) % buttons.length);
    }
    const to = (at + by + buttons.length) % buttons.length;
    buttons[to].focus();
    pick(to);
  }

  /** @param {Items} items */
  function setWords(items) {
    isReversed = isRightToLeft(items.labels);
    words.dir = isReversed ? "rtl" : "ltr";
    buttons = items.labels.map((_, item) => wordButton(items, item));
    words.replaceChildren(...buttons);
    labels = items.labels.join("\n");
  }

  /** Sizes and places of the words. @returns {boolean} whether they fit on one line, in letters that can be read */
  function measure() {
    const width = element.clientWidth, name = `${width} ${labels}`;
    if (!width || name === measured) return measured !== "" && !measured.endsWith(" no");
    isColumn = width <= narrowWidth;
    element.dataset.column = isColumn ? "" : "no";
    let size = isColumn ? columnLetters : largestLetters;
    const fits = () => {
      words.style.setProperty("--uwaga-letters", `${size}px`);
      return isColumn || words.offsetWidth <= width - 8;
    };
    // Numbers do not shrink with the letters: a second size may be needed.
    for (let tries = 0; !fits() && tries < fittedSizes; tries++) size = Math.floor((size * (width - 8)) / words.offsetWidth * 2) / 2;
    if (!fits() || (!isColumn && size < smallestLetters)) { measured = `${name} no`; return false; }
    measured = name;
    place();
    return true;
  }

  function place() {
    const box = element.getBoundingClientRect();
    const places = buttons.map((button) => /** @type {Element} */ (button.firstElementChild).getBoundingClientRect());
    centres = places.map(({ left, top, width, height }) => (isColumn ? top - box.top + height / 2 : left - box.left + width / 2));
    const widest = Math.max(...places.map(({ width }) => width));
    words.style.setProperty("--uwaga-widest", `${Math.ceil(widest)}px`);
    base = isColumn ? widest + 66 : arcViewHeight + 30;
    picture.setAttribute("height", String(isColumn ? rowHeight * buttons.length : base));
    picture.setAttribute("width", String(box.width));
  }

  const room = () => ({ height: isColumn ? Math.max(40, element.clientWidth - base - 30) : arcViewHeight,
    scale: arcScale * (isColumn ? 0.62 : element.clientWidth < 1000 ? 0.7 : 1), far: isColumn ? 260 : undefined });

  /** A point as text. @param {number} along @param {number} above */
  const at = (along, above) => {
    const up = isColumn && isReversed ? element.clientWidth - base - above : base + above;
    return isColumn ? `${up.toFixed(1)} ${along.toFixed(1)}` : `${along.toFixed(1)} ${(base - above).toFixed(1)}`;
  };

  /** @param {number} time  milliseconds; 0: at once @param {boolean} sameKeys  arcs go over into those to the same words, else into those of their rank */
  function move(time, sameKeys) {
    const { query, weights, links, cut } = /** @type {ArcContent} */ (shown);
    const next = links ? arcsOfLinks(links, centres, room()) : query === null || !weights ? [] : arcsOfWord(weights, query, centres, { ...room(), cut });
    // More has arrived of something else: arcs on their way go on.
    if (isEqual(next, goal)) return draw();
    goal = next;
    const all = arcPairs(drawn, next, sameKeys && !links);
    const began = performance.now();
    cancelAnimationFrame(frame);
    const step = (/** @type {number} */ now) => {
      const part = time ? Math.min(1, Math.max(0, now - began) / time) : 1;
      drawn = mixedArcs(all, part);
      draw();
      if (part < 1) frame = requestAnimationFrame(step);
    };
    step(began);
  }

  function draw() {
    const { query, sinks, key: picked, cut, links } = /** @type {ArcContent} */ (shown), count = drawn.length;
    while (lines.childElementCount < count) {
      const number = lines.childElementCount;
      gradients.append(linkGradient(`${prefix}-${number}`));
      lines.append(svgEl("path", { on: { click: (/** @type {Event} */ event) => pickKey(Number(/** @type {SVGElement} */ (event.currentTarget).dataset.key)) } }));
      texts.append(svgEl("text"));
    }
    /** @type {ArcShare[]} */
    const shares = [];
    for (let i = 0; i < lines.childElementCount; i++) {
      const line = /** @type {SVGPathElement} */ (lines.children[i]), text = texts.children[i], arc = drawn[i];
      line.style.setProperty("display", arc ? "" : "none");
      text.textContent = "";
      if (!arc) continue;
      const gradient = gradients.children[i], [x1, y1] = at(arc.from, 0).split(" "), [x2, y2] = at(arc.to + 0.01, 0).split(" ");
      for (const [name, value] of [["x1", isColumn ? "0" : x1], ["x2", isColumn ? "0" : x2], ["y1", isColumn ? y1 : "0"], ["y2", isColumn ? y2 : "0"]]) gradient.setAttribute(name, value);
      line.setAttribute("class", `uwaga-arc${arc.isSelf ? " uwaga-arc-self" : sinks.has(arc.key) ? " uwaga-arc-sink" : ""}${arc.key === picked ? " uwaga-arc-picked" : ""}${cut?.has(arc.key) ? " uwaga-arc-cut" : ""}`);
      line.dataset.key = String(arc.key);
      line.setAttribute("d", pathOfArc(arc, at));
      line.setAttribute("stroke", arc.isSelf || sinks.has(arc.key) ? "" : `url(#${prefix}-${i})`);
      line.setAttribute("stroke-width", arc.width.toFixed(2));
      line.setAttribute("opacity", (arc.opacity * (arc.weight > 0.05 ? 1 : 0.75)).toFixed(2));
      if (links || arc.opacity < 0.5 || arc.isSelf || sinks.has(arc.key) || arc.weight < labelled) continue;
      const isLarge = arc.weight >= largeLabel, above = arc.rise - arc.width / 2 - (isColumn ? 10 : isLarge ? 42 : 20);
      if (isColumn && above < 62) continue;
      const [x, y] = at((arc.from + arc.to) / 2, above).split(" ");
      text.setAttribute("x", x);
      text.setAttribute("y", isColumn ? String(Number(y) + (isLarge ? 9 : 5)) : y);
      text.setAttribute("class", isLarge ? "uwaga-arc-large" : "");
      shares.push({ text, share: percentText(arc.weight), weight: arc.weight, x: Number(x), y: Number(y), size: isLarge ? largeShare : smallShare });
    }
    for (const { text, share } of apartShares(shares)) text.textContent = share;
    const half = room().scale / 2, middle = query === null ? 0 : centres[query];
    bar.setAttribute("d", query === null || links ? "" : `M${at(middle - half, -1)}L${at(middle + half, -1)}`);
  }

  function paint() {
    const { key, sinks, before, links, cut, isHidden } = /** @type {ArcContent} */ (shown), query = links ? null : shown?.query ?? null, weights = links ? null : shown?.weights;
    const most = weights ? buttons.reduce((best, _, item) => (sinks.has(item) || item === query || (best >= 0 && weights[item] <= weights[best]) ? best : item), -1) : -1;
    buttons.forEach((button, item) => {
      const weight = weights ? weights[item] : NaN, masked = weights && isHidden(item) ? tr("masked") : "", share = masked || (Number.isNaN(weight) ? "" : percentText(weight));
      const gain = before && weights ? Math.round(1000 * (weights[item] - before[item])) / 10 : 0;
      button.tabIndex = item === (query ?? 0) ? 0 : -1;
      button.setAttribute("aria-pressed", String(item === query));
      /** @type {Element} */ (button.children[1]).textContent = masked ? `, ${masked}` : share ? ", " : "";
      const role = links ? "" : item === query ? "asks" : item === (key !== null && key !== query && !cut?.has(key) ? key : most) ? "asked" : weight < dimBelow ? "dim" : "";
      button.dataset.role = role;
      const number = /** @type {Element} */ (button.lastElementChild);
      number.replaceChildren(cut?.has(item) ? tr("cut") : masked ? el("span", { title: masked, text: "\u2013" }) : share.replace("%", ""), ...(Math.abs(gain) >= 5 ? [el("i", { text: `${gain > 0 ? "+" : "\u2212"}${percentText(Math.abs(gain) / 100).replace("%", "")}` })] : []));
    });
  }

  return {
    element,
    /**
     * @param {ArcContent} content @param {{time?: number, sameKeys?: boolean}} [how]
     * @returns {boolean} false: the text does not fit, and is not shown
     */
    show(content, { time = hoverTime, sameKeys = false } = {}) {
      const isNew = shown?.items !== content.items;
      shown = content;
      element.hidden = false;
      if (isNew) { setWords(content.items); measured = ""; }
      const before = measured;
      element.hidden = !measure();
      if (element.hidden) return false;
      paint();
      move(measured !== before && !isNew ? 0 : wantsNoMotion() ? 0 : time, sameKeys);
      return true;
    },
    hide() {
      element.hidden = true;
      measured = "";
    },
    /** The words, for the keyboard. */
    focus: () => buttons[shown?.query ?? 0]?.focus(),
    dispose: () => cancelAnimationFrame(frame),
  };
}
