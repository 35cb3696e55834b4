// Pictures to show around: a title over every exported picture, and a picture of the picked link, as arcs over its sentence.

import { arcCurve, arcsOfWord, maxLineWords } from "../explore/arcs.js";
import { askOpenHead } from "../explore/distinctive.js";
import { headlineOf } from "../explore/headline.js";
import { ribbonBars, ribbonCells, ribbonColumns } from "../explore/ribbons.js";
import { isRightToLeft, tokenText, wordText } from "../dom.js";
import { headText, percentText } from "../format.js";
import { tr, trN } from "../languages.js";
import { countEdits } from "../typing/session.js";
import { hiddenOutside, seenKeys, sinksOf, strongestItems } from "../weights.js";
import { textWidth } from "./canvas.js";
/** @import { Arc } from "../explore/arcs.js" */
/** @import { Bar, Column } from "../explore/ribbons.js" */
/** @import { App, Items, Scene, SceneItem } from "../types.js" */

const titleSize = 16;
const titleHeight = 52;
const titleMargin = 16;
/** Mean width of a letter relative to its size. */
const letterWidth = 0.5;

/**
 * The scene under two lines: model, layer and head; and the text.
 * @param {Scene} scene @param {{title: string, text: string, ink: string, muted: string}} words @returns {Scene}
 */
export function titledScene(scene, { title, text, ink, muted }) {
  const room = scene.width - 2 * titleMargin;
  /** @type {SceneItem[]} */
  const lines = [
    { kind: "text", x: titleMargin, y: 22, text: fittingText(title, titleSize, room), size: titleSize, anchor: "start", fill: ink },
    { kind: "text", x: titleMargin, y: 42, text: fittingText(text, 13, room), size: 13, anchor: "start", fill: muted },
  ];
  return { ...scene, height: scene.height + titleHeight, items: [...lines, ...scene.items.map(loweredItem)] };
}

/** @param {SceneItem} item @returns {SceneItem} */
function loweredItem(item) {
  if (item.kind === "line") return { ...item, y1: item.y1 + titleHeight, y2: item.y2 + titleHeight };
  if (item.kind !== "path") return { ...item, y: item.y + titleHeight };
  return { ...item, d: item.d.map(([name, ...at]) => [name, ...at.map((number, i) => (i % 2 ? Number(number) + titleHeight : number))]) };
}

/**
 * @param {string} text @param {number} size @param {number} room  pixels
 * @returns {string} the text, or as much of it as fits and an ellipsis
 */
export function fittingText(text, size, room) {
  const letters = [...text], most = Math.max(1, Math.floor(room / (size * letterWidth)));
  return letters.length <= most ? text : `${letters.slice(0, most - 1).join("").trimEnd()}\u2026`;
}

/** The command that opens this head and this word. @param {App} app @param {string} word */
function shareCommand(app, word) {
  const { kind, layer, head } = app.store.get(), of = app.side().maps.some((one) => one.kind !== kind) ? `${kind}/` : "";
  const text = app.about.typed?.text ?? app.side().text_title, quoted = (/** @type {string} */ one) => (/^[\w.-]+$/u.test(one) ? one : `"${one.replace(/["\\$\x60]/g, "\\$&")}"`);
  return app.about.typing ? `${app.about.typing.command.replace("TEXT", quoted(text))} --head ${of}${layer}.${head} --pick ${quoted(word)}` : "";
}

// The picture to share: the sentence, its arcs, one number.

/** @type {{[theme: string]: {bg: string, ink: string, muted: string, line: string, edge: string, from: string, middle: string, to: string}}} */
const palettes = {
  light: { bg: "#fbfaf6", ink: "#1b1d22", muted: "#5f6168", line: "#dedbd1", edge: "#8a877d", from: "#c43e0a", middle: "#953695", to: "#1556b0" },
  dark: { bg: "#101319", ink: "#eceae4", muted: "#a3a6ae", line: "#2b303a", edge: "#6e7480", from: "#ff9757", middle: "#e390dd", to: "#79b4ff" },
};
const margin = 68, wholeBar = 60, leastShown = 0.015, colourSteps = 32, letterSize = 50, smallestLetters = 20;
/** Letters of the longest word of two rows. */
const mostRibbonLetters = 12;

/**
 * The picked link of the current head, or its most informative one: 1200 x 630, or a square of 1080.
 * @param {App} app @param {boolean} [isSquare] @returns {Promise<{scene: Scene, alt: string}>}
 */
export async function shareScene(app, isSquare = false) {
  const { side: id, kind, layer, head, query: pickedQuery, key: pickedKey } = app.store.get(), side = app.side(), axes = side.kinds[kind];
  const [queries, keys] = await Promise.all([app.items(id, axes.queries), app.items(id, axes.keys)]), sinks = sinksOf(keys, kind);
  const { sentence: does, link: strongest } = await askOpenHead(app, keys), query = pickedQuery ?? strongest?.query ?? 0;
  const row = app.host.has({ request: "row", ...app.where(), query })
    ? /** @type {Float32Array} */ ((await app.client.ask({ request: "row", ...app.where(), query }, { priority: 6 })).arrays[0].data) : null;
  const shownLink = strongest?.query === query ? strongest : null; // in a saved page there may be no other exact weight
  const best = row ? strongestItems(row, sinks.size + 1).find((item) => !sinks.has(item)) : shownLink?.key;
  // Of a link that is cut nothing can be told: what the word looks at instead is, beside itself.
  const isCut = pickedKey !== null && row !== null && !row[pickedKey], instead = isCut ? strongestItems(row, sinks.size + 2).find((item) => !sinks.has(item) && (queries !== keys || item !== query)) : pickedKey;
  const key = instead ?? best ?? 0, weight = row ? row[key] : shownLink?.key === key ? shownLink.weight : NaN;
  const [width, height] = isSquare ? [1080, 1080] : [1200, 630], paint = palettes[app.theme()];
  const [from, to] = [tokenText(queries.labels[query] ?? ""), tokenText(keys.labels[key] ?? "")], space = width - 2 * margin, foot = height - 74;
  const base = isSquare ? height - 340 : height - 178, rise = width * (isSquare ? 0.45 : 0.32);
  /** @type {SceneItem[]} */
  const items = !row || side.signed ? [] : queries === keys ? sentenceItems(queries, query, key, row, { width, base, rise, paint }) : ribbonItems({ queries, keys }, query, key, row, { width, top: isSquare ? 250 : 90, base: base + (isSquare ? 0 : 40), paint, sinks });
  if (!items.length) {
    const pair = `${from} \u2192 ${to}`, size = Math.max(40, Math.min(96, space / (Math.max(1, [...pair].length) * letterWidth)));
    items.push({ kind: "text", x: margin, y: height * 0.36, text: fittingText(pair, size, space), size, anchor: "start", serif: true, fill: paint.ink },
      { kind: "text", x: margin, y: height * 0.36 + 130, text: percentText(weight), size: 110, anchor: "start", fill: paint.from },
      { kind: "text", x: margin, y: height * 0.36 + 190, text: fittingText(does, 28, space), size: 28, anchor: "start", fill: paint.muted },
      { kind: "text", x: margin, y: foot - 34, text: fittingText(side.text_title, 26, space), size: 26, anchor: "start", fill: paint.ink });
  }
  const rest = row ? [...sinks].reduce((sum, sink) => sum + (row[sink] || 0), 0) : 0;
  const isChanged = Boolean(app.about.python) && id !== "0", changes = countEdits(app.about.typed?.edits);
  const where = [[side.model, headText(kind, layer, head)].filter(Boolean).join(", "), isChanged && changes ? trN("{count} change", "{count} changes", changes) : "", rest > 0 ? tr("{rest} at rest", { rest: percentText(rest) }) : ""].filter(Boolean).join(" \u00b7 ");
  items.push(...footItems({ width, height, paint, where, command: isChanged ? app.about.python ?? "" : shareCommand(app, queries.labels[query] ?? "") }));
  const headline = headlineOf({ queries, keys }, query, key, row ?? null, { sinks, signed: side.signed, strongest: strongest ?? undefined, isCounted: false, isHidden: hiddenOutside(seenKeys(app, queries, keys, query)) });
  return { scene: { width, height, background: paint.bg, items }, alt: headline.map((part) => (typeof part === "string" ? part : part.textContent)).join("") };
}

/**
 * The words of a picture on one line; null if there are too many.
 * @param {Items} words @param {ReadonlySet<number>} keep  special tokens that are shown too
 * @param {number} width
 * @returns {{shown: number[], centres: number[], size: number} | null}
 */
function sentencePlaces({ labels, specials, noSpaceBefore }, keep, width) {
  const shown = labels.flatMap((_, item) => (specials.has(item) && !keep.has(item) ? [] : [item]));
  if (labels.length - specials.size > maxLineWords) return null;
  const widths = shown.map((item, at) => textWidth(labels[item], letterSize, true) + (at && !noSpaceBefore[item] ? letterSize * 0.27 : 0)), total = widths.reduce((sum, one) => sum + one, 0);
  const size = Math.min(letterSize, (letterSize * (width - 2 * margin)) / total), scale = size / letterSize;
  if (size < smallestLetters) return null;
  const isReversed = isRightToLeft(labels);
  let at = (width - total * scale) / 2;
  return { shown, size, centres: shown.map((item, i) => {
    const wordWidth = textWidth(labels[item], letterSize, true) * scale, left = at + widths[i] * scale - wordWidth;
    at += widths[i] * scale;
    return isReversed ? width - left - wordWidth / 2 : left + wordWidth / 2;
  }) };
}

/** @param {Arc} arc @param {number} base @param {{[name: string]: string}} paint @returns {SceneItem[]} */
function arcItems(arc, base, paint) {
  if (arc.isSelf) return [{ kind: "rect", x: arc.from - arc.width / 2, y: base - 26, w: arc.width, h: 26, fill: paint.from }];
  return shadedCurve(arcCurve(arc).map(([along, above]) => [along, base - above]), arc.width, paint);
}

/**
 * A curve whose colour goes over from one end to the other.
 * @param {number[][]} points  four @param {number} width @param {{[name: string]: string}} colours
 * @returns {SceneItem[]}
 */
function shadedCurve(points, width, colours) {
  const rounded = (/** @type {number} */ number) => Number(number.toFixed(2));
  return Array.from({ length: colourSteps }, (_, step) => {
    // Parts overlap, so that no seam shows between two colours.
    const [start, ...ends] = curvePart(points, step / colourSteps, Math.min(1, (step + 1.15) / colourSteps)).map((point) => point.map(rounded));
    return { kind: "path", d: [["M", ...start], ["C", ...ends.flat()]], stroke: mixedColour(colours, (step + 0.5) / colourSteps), width: rounded(width), opacity: 1 };
  });
}

/**
 * The words on one line, and the arcs of one over them; empty if there are too many words.
 * @param {Items} words @param {number} query @param {number} key @param {ArrayLike<number>} weights
 * @param {{width: number, base: number, rise: number, paint: {[name: string]: string}}} place  rise: of the highest arc, at most
 * @returns {SceneItem[]}
 */
export function sentenceItems(words, query, key, weights, { width, base, rise, paint }) {
  const places = sentencePlaces(words, new Set([query, key]), width);
  if (!places) return [];
  const { shown, centres, size } = places, arcs = arcsOfWord(shown.map((item) => weights[item]), shown.indexOf(query), centres, { height: Math.min(base - 90, rise), scale: wholeBar });
  return [...arcs.filter((arc) => arc.weight >= leastShown).sort((one, other) => one.weight - other.weight).flatMap((arc) => [...arcItems(arc, base, paint),
    ...(!arc.isSelf && arc.weight >= 0.08 && shown[arc.key] === key ? [/** @type {SceneItem} */ ({ kind: "text", serif: true, x: (arc.from + arc.to) / 2, y: base - arc.rise + arc.width / 2 + 66, text: percentText(arc.weight), size: 60, anchor: "middle", fill: paint.ink })] : [])]),
  ...shown.map((item, at) => /** @type {SceneItem} */ ({ kind: "text", serif: true, x: centres[at], y: base + 60, text: tokenText(words.labels[item]), size, anchor: "middle",
    fill: item === query ? paint.from : item === key ? paint.to : weights[item] >= 0.02 ? paint.ink : paint.muted }))];
}

/**
 * Two rows of words, and the ribbons of one of the lower row to what it looks at; of longer rows what is around both, the rest in a fold at each end.
 * @param {{queries: Items, keys: Items}} texts @param {number} query @param {number} key @param {ArrayLike<number>} weights  of the query
 * @param {{width: number, top: number, base: number, paint: {[name: string]: string}, sinks: ReadonlySet<number>}} place
 * @returns {SceneItem[]}
 */
export function ribbonItems({ queries, keys }, query, key, weights, { width, top, base, paint, sinks }) {
  const space = width - 2 * margin, below = ribbonColumns(queries.total, query, space), above = ribbonColumns(keys.total, key, space);
  if (Math.max(...[queries, keys].flatMap(({ labels }) => labels.map((label) => label.length))) > mostRibbonLetters) return [];
  const queryColumn = { first: 0, stop: 1, isFold: false }, shares = ribbonCells(weights, 0, [queryColumn], above);
  const asking = below.findIndex(({ first, isFold }) => !isFold && first === query), cells = new Float64Array(below.length * above.length);
  cells.set(shares, asking * above.length);
  const bars = ribbonBars(cells, below.length, above.length, space), size = (/** @type {number} */ columns) => Math.max(14, Math.min(letterSize, (space / columns) * 0.6));
  const centre = (/** @type {Items} */ items, /** @type {Bar} */ { start, width: wide }) => (isRightToLeft(items.labels) ? width - margin - start - wide / 2 : margin + start + wide / 2);
  const [high, low] = [top + 90, base - 40], name = (/** @type {Items} */ items, /** @type {Column} */ { first, stop, isFold }) => (isFold ? `+${stop - first}` : wordText(items, first));
  const middle = centre(queries, bars.queries[asking]), wide = bars.full;
  let at = -wide / 2;
  /** @type {SceneItem[]} */
  const ribbons = [];
  above.forEach((column, to) => {
    const from = middle + (isRightToLeft(queries.labels) ? -1 : 1) * (at + (shares[to] * wide) / 2), end = centre(keys, bars.keys[to]), half = (low + high) / 2;
    at += shares[to] * wide;
    if (shares[to] < leastShown) return;
    const rests = column.isFold || sinks.has(column.first), colours = rests ? { from: paint.edge, middle: paint.edge, to: paint.edge } : paint;
    ribbons.push(...shadedCurve([[from, low], [from, half], [end, half], [end, high]], shares[to] * wide, colours));
  });
  const told = above.findIndex(({ first, isFold }) => !isFold && first === key), end = told < 0 ? middle : centre(keys, bars.keys[told]), isLeft = Math.max(middle, end) + wide > width - 260;
  const words = (/** @type {Items} */ items, /** @type {Column[]} */ columns, /** @type {Bar[]} */ places, /** @type {number} */ y, /** @type {(at: number) => string} */ fill) =>
    columns.map((column, i) => /** @type {SceneItem} */ ({ kind: "text", x: centre(items, places[i]), y, text: name(items, column), ...(column.isFold || items.specials.has(column.first) ? { size: 15 } : { size: size(columns.length), serif: true }), anchor: "middle", fill: fill(i) }));
  return [...ribbons,
    { kind: "text", serif: true, x: isLeft ? Math.min(middle, end) - wide : Math.max(middle, end) + wide, y: (low + high) / 2 + 20, text: percentText(weights[key]), size: 60, anchor: isLeft ? "end" : "start", fill: paint.ink },
    ...words(keys, above, bars.keys, top + 70, (i) => (i === told ? paint.to : shares[i] >= 0.02 ? paint.ink : paint.muted)),
    ...words(queries, below, bars.queries, base + 20, (i) => (i === asking ? paint.from : paint.muted))];
}

/**
 * The foot of a picture: name, what it is of, command.
 * @param {{width: number, height: number, paint: {[name: string]: string}, where: string, command?: string}} what
 * @returns {SceneItem[]}
 */
function footItems({ width, height, paint, where, command = "" }) {
  const foot = height - 74, space = width - 2 * margin;
  return [{ kind: "line", x1: margin, y1: foot, x2: width - margin, y2: foot, stroke: paint.line, width: 1, opacity: 1 },
    { kind: "text", serif: true, x: margin, y: foot + 40, text: "uwaga", size: 26, anchor: "start", fill: paint.ink },
    ...[where, command].map((text, line) => /** @type {SceneItem} */ ({ kind: "text", x: margin + 96, y: foot + (command ? 30 + 24 * line : 40), ...fitted(text, space - 96), anchor: "start", fill: paint.muted }))];
}

/** A line of the foot, whose letters are smaller where that makes it fit: a command without its end is none. @param {string} text @param {number} room  pixels */
function fitted(text, room) {
  const size = Math.max(12, Math.min(16, Math.floor((10 * room) / (Math.max(1, [...text].length) * 0.51)) / 10));
  return { text: fittingText(text, size, room), size };
}

/**
 * A part of a cubic curve (de Casteljau), from one share of it to another.
 * @param {number[][]} points @param {number} first @param {number} last
 * @returns {number[][]} its four points
 */
function curvePart(points, first, last) {
  const at = (/** @type {number[]} */ shares) => shares.reduce((/** @type {number[][]} */ left, share) =>
    left.slice(1).map((one, i) => one.map((value, axis) => left[i][axis] * (1 - share) + value * share)), points)[0];
  return [[first, first, first], [first, first, last], [first, last, last], [last, last, last]].map(at);
}

/** @param {{[name: string]: string}} paint @param {number} part  from the word that looks, 0, to the one that is looked at, 1 @returns {string} */
function mixedColour({ from, middle, to }, part) {
  const [one, other, share] = part < 0.5 ? [from, middle, 2 * part] : [middle, to, 2 * part - 1];
  const channel = (/** @type {string} */ colour, /** @type {number} */ at) => parseInt(colour.slice(1 + 2 * at, 3 + 2 * at), 16);
  return `#${[0, 1, 2].map((at) => Math.round(channel(one, at) * (1 - share) + channel(other, at) * share).toString(16).padStart(2, "0")).join("")}`;
}
