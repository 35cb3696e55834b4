// A long text as running prose: what the picked word looks at carries its share, arcs run in the margin, and what holds little is folded.

import { bandOf, bandScale } from "../colours.js";
import { el, isModified, isRightToLeft, itemOf, linkGradient, movingMouse, svgEl, tokenText, uniqueName, unknownClass, wordText } from "../dom.js";
import { arcsOfWord, pathOfArc } from "../explore/arcs.js";
import { countText, percentText } from "../format.js";
import { tr, trN } from "../languages.js";
import { foldedText, leastWritten, paragraphsOf, sumOf } from "./folds.js";
/** @import { Items, Range } from "../types.js" */

/** @typedef {"both" | "query" | "key"} ReadAxis  what the words of the text are */

/**
 * @typedef {object} ReadContent
 * @property {Items} items
 * @property {ReadAxis} axis
 * @property {number | null} query  the word that looks, if it is in this text
 * @property {number | null} key  the picked word that is looked at
 * @property {Float32Array | null} weights  on these items; null: none, or not known yet
 * @property {ReadonlySet<number>} sinks
 * @property {(key: number) => boolean} isHidden  from the query
 * @property {boolean} signed  a difference
 * @property {"tokens" | "words"} merge
 */

/** Pixels of a bar that is 100 %, and of margins. */
const marginScale = 30, marginFar = 200, wideMargin = 200, narrowMargin = 44, narrowReading = 620;
/** The least weight that is not 0.0 %. */
const leastShown = 0.0005;
/** Items of a fold that one click opens. */
const openedAtOnce = 400;

/** @param {{pick: (axis: ReadAxis, item: number) => void, pickKey: (item: number) => void, point: (axis: ReadAxis, item: number) => void}} act  point: -1 for none */
export function makeReading({ pick, pickKey, point }) {
  const prefix = uniqueName();
  const gradients = svgEl("defs"), lines = svgEl("g"), bar = svgEl("path", { class: "uwaga-arc-bar" });
  const margin = svgEl("svg", { class: "uwaga-arcs uwaga-margin", "aria-hidden": "true" }, gradients, lines, bar), body = el("div");
  const element = el("div", { class: "uwaga-reading", tabindex: 0, role: "group", "aria-label": tr("The text: each word shows what it looks at"), hidden: true, on: { keydown,
    click: (/** @type {Event} */ event) => { const item = itemOf(event); if (item >= 0 && shown) pick(shown.axis, item); },
    pointermove: movingMouse((item) => { if (shown) point(shown.axis, item); }),
    pointerleave: () => { if (shown) point(shown.axis, -1); } } }, margin, body);
  /** @type {ReadContent | null} */
  let shown = null;
  /** @type {Range[]} */
  let paragraphs = [];
  /** @type {Set<number>} */
  const opened = new Set();
  /** @type {Range | null} */
  let found = null;
  /** What was drawn last. @type {unknown[]} */
  let drawnOf = [];
  /** By a key. */
  let isAsked = false;

  const wordOf = (/** @type {number | null} */ item) => (item === null ? null : /** @type {HTMLElement | null} */ (body.querySelector(`[data-item="${item}"]`)));

  /** @param {KeyboardEvent} event */
  function keydown(event) {
    const turn = element.dir === "rtl" ? -1 : 1, by = { ArrowRight: turn, ArrowLeft: -turn, ArrowDown: 0, ArrowUp: 0 }[event.key];
    if (by === undefined || !shown || event.target !== element || isModified(event)) return;
    event.preventDefault();
    event.stopPropagation();
    const { axis, query, key, items } = shown, selected = axis === "key" || event.shiftKey ? key ?? query : query, from = selected ?? Number(/** @type {HTMLElement | null} */ (body.querySelector("[data-item]"))?.dataset.item ?? 0);
    const to = by ? Math.min(items.total - 1, Math.max(0, from + by)) : lineStep(from, event.key === "ArrowDown" ? 1 : -1);
    isAsked = true;
    if (axis === "key" || (event.shiftKey && axis === "both")) pickKey(to);
    else if (to !== query) pick(axis, to);
    isAsked = false;
  }

  /** The word above or below. @param {number} from @param {1 | -1} way */
  function lineStep(from, way) {
    const old = wordOf(from)?.getBoundingClientRect();
    if (!old) return from;
    let best = from, least = Infinity;
    for (const word of /** @type {NodeListOf<HTMLElement>} */ (body.querySelectorAll("[data-item]"))) {
      const place = word.getBoundingClientRect(), down = (place.bottom - old.bottom) * way;
      const far = down < old.height / 2 ? Infinity : down * 50 + Math.abs(place.left + place.width / 2 - old.left - old.width / 2);
      if (far < least) [best, least] = [Number(word.dataset.item), far];
    }
    return best;
  }

  /** @param {Range} range  a strip */
  function open([first, end]) {
    for (const [start, stop] of paragraphs) if (start >= first && stop <= end && start - first < openedAtOnce) opened.add(start);
    draw();
    element.focus({ preventScroll: true });
  }

  /** @param {Range} range @param {ReadContent} content @param {number} least @param {number} scale */
  function paragraph([first, end], { items, axis, query, key, weights, sinks, signed }, least, scale) {
    const text = el("p");
    let written = 0;
    for (let item = first; item < end; item++) {
      const special = items.specials.has(item), rests = special || sinks.has(item), weight = weights ? weights[item] : NaN, isStated = Math.abs(weight) >= (rests ? leastShown : least);
      const before = item > first ? items.breaks?.get(item) ?? 0 : 0;
      for (let line = 0; line < Math.min(before, 2); line++) text.append(el("br")); // a blank line stays, of several one
      if (item > first && !before && !items.noSpaceBefore[item]) text.append(" ");
      if (isStated) written += weight;
      const share = isStated ? `${signed && weight > 0 ? "+" : ""}${percentText(weight).replace("%", "")}` : "";
      const parts = special ? [wordText(items, item)] : items.labels[item].split("\n");
      parts.forEach((part, at) => {
        if (at) text.append(el("br"));
        if (part === "" && parts.length > 1) return;
        const isLast = !parts.slice(at + 1).some(Boolean);
        text.append(el("span", { "data-item": item, "data-band": isStated && !rests ? bandOf(weight, scale) || 1 : null,
          class: ["uwaga-word", special && "uwaga-word-special", unknownClass(items, item), item === query && axis !== "key" && "uwaga-word-picked", item === key && axis !== "query" && "uwaga-word-marked",
            found && item >= found[0] && item < found[1] && "uwaga-word-found"].filter(Boolean).join(" ") }, special ? part : proseText(part), share && isLast && el("sup", { text: share })));
      });
    }
    const rest = weights ? sumOf(weights, [first, end]) - written : 0;
    if (weights && Math.abs(rest) >= leastShown) text.append(" ", el("small", { class: "uwaga-rest", dir: "auto", text: tr("{share} in other words", { share: percentText(rest) }) }));
    return text;
  }

  /** @param {Range} range @param {ReadContent} content */
  function strip([first, end], { weights, sinks, merge, isHidden }) {
    const count = end - first, foldTitle = merge === "words" ? trN("{count} word folded", "{count} words folded", count, { count: countText(count) }) : trN("{count} token folded", "{count} tokens folded", count, { count: countText(count) });
    const held = weights ? sumOf(weights, [first, end], sinks) : 0, rest = weights ? sumOf(weights, [first, end]) - held : 0;
    return el("button", { type: "button", class: "uwaga-fold", "data-first": first, "data-end": end, on: { click: () => open([first, end]) } },
      el("bdi", { text: [foldTitle, weights && (isHidden(first) && isHidden(end - 1) ? tr("masked") : percentText(held)), Math.abs(rest) >= leastShown && tr("{rest} at rest", { rest: percentText(rest) })].filter(Boolean).join(" \u00b7 ") }));
  }

  function draw() {
    if (!shown) return;
    const { items, axis, query, key, weights, sinks, signed, merge } = shown, now = [items, axis, query, key, weights, sinks.size, signed, merge, opened.size, found];
    if (now.every((one, at) => one === drawnOf[at])) return place();
    const isFound = found !== null && found !== drawnOf[9], isMoved = isFound || (drawnOf.length > 0 && (query !== drawnOf[2] || key !== drawnOf[3])), had = element.contains(document.activeElement) && element !== document.activeElement;
    drawnOf = now;
    const content = shown, least = weights ? leastWritten(weights, sinks) : 1, scale = weights ? bandScale(weights, sinks) : 1;
    const parts = foldedText(paragraphs, { weights, sinks, keep: [axis === "key" ? null : query, axis === "query" ? null : key, found?.[0] ?? null], opened, fills: axis !== "query" });
    element.dir = isRightToLeft(items.labels) ? "rtl" : "ltr";
    element.toggleAttribute("data-margin", axis === "both" && !signed);
    body.replaceChildren(...parts.map(({ range, isOpen }) => (isOpen ? paragraph(range, content, least, scale) : strip(range, content))));
    if (had) element.focus({ preventScroll: true });
    place();
    // Below the map a click there must not carry it away.
    if (isMoved && (isAsked || isFound || isBeside())) reveal(wordOf(isFound && found ? found[0] : key !== null && axis !== "query" ? key : query));
  }

  /** The arcs in the margin, from the line of the word that looks to the lines of what it looks at. */
  function place() {
    if (!shown || !element.clientWidth) return;
    const { axis, query, weights, sinks, signed, items } = shown, least = weights ? leastWritten(weights, sinks) : 1;
    const words = axis !== "both" || signed || !weights || query === null ? [] : /** @type {HTMLElement[]} */ ([...body.querySelectorAll("[data-item]")])
      .filter((word) => Number(word.dataset.item) === query || Math.abs(weights[Number(word.dataset.item)]) >= least);
    const isReversed = element.dir === "rtl", box = element.getBoundingClientRect(), wide = element.clientWidth > narrowReading ? wideMargin : narrowMargin;
    /** @type {Map<number, number>} */
    const lineOf = new Map();
    for (const word of words) {
      const { left, right, top, height } = word.getBoundingClientRect(), along = ((isReversed ? box.right - right : left - box.left) - wide) / Math.max(1, box.width - wide);
      // Words of one line are at different heights of it, in their order.
      if (!lineOf.has(Number(word.dataset.item))) lineOf.set(Number(word.dataset.item), top - box.top + height * (0.3 + 0.4 * along));
    }
    const order = [...lineOf.keys()], centres = order.map((item) => lineOf.get(item) ?? 0), edge = wide - 14, scale = marginScale * (wide === wideMargin ? 1 : 0.6);
    const at = (/** @type {number} */ along, /** @type {number} */ above) => `${(isReversed ? element.clientWidth - edge + above : edge - above).toFixed(1)} ${along.toFixed(1)}`;
    const arcs = query === null || !weights || !lineOf.has(query) ? [] : arcsOfWord(order.map((item) => weights[item]), order.indexOf(query), centres, { height: edge - 6, scale, far: marginFar })
      .filter(({ isSelf }) => !isSelf).sort((one, other) => one.weight - other.weight);
    margin.setAttribute("height", String(body.offsetHeight));
    gradients.replaceChildren(...arcs.map(({ from, to }, i) => linkGradient(`${prefix}-${i}`, { x1: 0, x2: 0, y1: from, y2: to + 0.01 })));
    lines.replaceChildren(...arcs.map((arc, i) => {
      const key = order[arc.key], isSink = sinks.has(key) || items.specials.has(key);
      return svgEl("path", { class: `uwaga-arc${isSink ? " uwaga-arc-sink" : ""}`, "data-key": key, d: pathOfArc(arc, at), stroke: isSink ? null : `url(#${prefix}-${i})`, "stroke-width": arc.width.toFixed(2), on: { click: () => pickKey(key) } });
    }));
    const middle = query === null ? undefined : lineOf.get(query);
    bar.setAttribute("d", middle === undefined || !arcs.length ? "" : `M${at(middle - scale / 2, -3)}L${at(middle + scale / 2, -3)}`);
  }

  function isBeside() {
    const page = element.closest(".uwaga-low");
    return page !== null && getComputedStyle(page).gridTemplateColumns.split(" ").length > 1;
  }

  /** @param {HTMLElement | null} word */
  function reveal(word) {
    const scroller = element.closest(".uwaga-explore");
    if (!word || !scroller) return;
    const box = scroller.getBoundingClientRect(), { top, bottom } = word.getBoundingClientRect();
    if (top < box.top + 40 || bottom > box.bottom - 40) scroller.scrollTop += top - box.top - box.height / 3;
  }

  return {
    element, place,
    /** @param {ReadContent | null} content  null: hidden */
    show(content) {
      element.hidden = content === null;
      if (!content) {
        shown = null;
        drawnOf = [];
        return body.replaceChildren();
      }
      if (shown?.items !== content.items) {
        paragraphs = paragraphsOf(content.items);
        opened.clear();
        found = null;
      }
      shown = content;
      draw();
    },
    /** Shows what was found, which may be folded. @param {Range | null} range */
    find(range) {
      found = range;
      draw();
    },
    /** The next thing that the word looks at, in the order of the text, or the one before. @param {1 | -1} way */
    step(way) {
      if (!shown?.weights) return;
      const { weights, sinks, query, key } = shown, least = leastWritten(weights, sinks), all = Array.from(weights.keys()).filter((item) => !sinks.has(item) && Math.abs(weights[item]) >= least);
      const from = key ?? query ?? -1, next = way > 0 ? all.find((item) => item > from) ?? all[0] : all.findLast((item) => item < from) ?? all[all.length - 1];
      isAsked = true;
      if (next !== undefined) pickKey(next);
      isAsked = false;
    },
  };
}

/** @param {string} label @returns {string} spaces as they are, other invisible characters made visible */
function proseText(label) {
  return label.trim() === "" ? label || tokenText(label) : label.split(" ").map((part) => (part === "" ? "" : tokenText(part))).join(" ");
}
