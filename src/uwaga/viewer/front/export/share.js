// Pictures to show around: a title over every exported picture, and a picture of the picked link, 1200 x 630.

import { overviewPixels, overviewScaleMax } from "../overview/drawing.js";
import { askOpenHead } from "../explore/distinctive.js";
import { tokenText } from "../dom.js";
import { headText, percentText } from "../format.js";
import { tr } from "../languages.js";
import { strongestItems } from "../strongest_list.js";
import { sinkColumns, sinksOf } from "../weights.js";

/** @typedef {import("../types.js").App} App */
/** @typedef {import("../types.js").Scene} Scene */
/** @typedef {import("../types.js").SceneItem} SceneItem */

const titleSize = 16;
const titleHeight = 52;
const titleMargin = 16;
/** Mean width of a letter relative to its size. */
const letterWidth = 0.5;

/**
 * The scene under two lines: model, layer and head; and the text.
 * @param {Scene} scene
 * @param {{title: string, text: string, ink: string, muted: string}} words
 * @returns {Scene}
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

// The picture to share: always light.

const shareWidth = 1200, shareHeight = 630, shareMargin = 56, shareMap = 460;
const shareColours = { bg: "#ffffff", ink: "#1a2230", muted: "#566171", line: "#d8dee7", query: "#b4480f" };
const maxShareLabels = 16;

/**
 * The picked link of the current head, or its strongest one, beside its map.
 * @param {App} app
 * @returns {Promise<Scene>}
 */
export async function shareScene(app) {
  const { side: id, kind, layer, head, pooling, merge, specials, query: pickedQuery, key: pickedKey, colour } = app.store.get();
  const side = app.side(), axes = side.kinds[kind];
  const [queries, keys, overview] = await Promise.all([app.items(id, axes.queries), app.items(id, axes.keys),
    app.client.ask({ request: "overview", side: id, kind, layer, pooling, merge, specials }, { priority: 6 })]);
  const [, rows, columns] = overview.arrays[0].shape;
  const cells = /** @type {Float32Array} */ (overview.arrays[0].data).subarray(head * rows * columns, (head + 1) * rows * columns);
  const sinks = sinkColumns(sinksOf(keys, kind), columns, (at) => Math.floor((at * keys.total) / columns));
  const { sentence: does, link: strongest } = await askOpenHead(app, keys), query = pickedQuery ?? strongest?.query ?? 0;
  const row = app.host.has({ request: "row", ...app.where(), query })
    ? /** @type {Float32Array} */ ((await app.client.ask({ request: "row", ...app.where(), query }, { priority: 6 })).arrays[0].data) : null;
  const known = strongest?.query === query ? strongest : null; // in a saved page there may be no other exact weight
  const best = row ? strongestItems(row, sinksOf(keys, kind).size + 1).find((item) => !sinksOf(keys, kind).has(item)) : known?.key;
  const key = pickedKey ?? best ?? 0, weight = row ? row[key] : known?.key === key ? known.weight : NaN;

  const { bg, ink, muted, line, query: orange } = shareColours;
  const labelled = rows <= maxShareLabels && columns <= maxShareLabels && rows === queries.total && columns === keys.total;
  const room = labelled ? 96 : 0, left = shareMargin + room, top = shareMargin + room, size = shareMap - room;
  const cell = Math.min(size / rows, size / columns), width = cell * columns, height = cell * rows;
  const small = { data: cells, heads: 1, rows, columns };
  const high = overviewScaleMax(small, sinks);
  /** @type {SceneItem[]} */
  const items = [{ kind: "image", x: left, y: top, w: width, h: height, columns, rows,
    pixels: overviewPixels(small, { colour: { ...colour, low: 0, high: null, log: false, threshold: 0 }, signed: side.signed, theme: "light", hidden: sinks }, () => high) },
  { kind: "rect", x: left, y: top, w: width, h: height, fill: "none", stroke: line }];
  const [x, y] = [left + Math.floor((key * columns) / keys.total) * cell, top + Math.floor((query * rows) / queries.total) * cell];
  for (const grow of [0, 1, 2]) items.push({ kind: "rect", x: x - grow, y: y - grow, w: cell + 2 * grow, h: cell + 2 * grow, fill: "none", stroke: orange });
  if (labelled) {
    const fits = Math.min(18, cell * 0.8);
    queries.labels.forEach((label, i) => items.push({ kind: "text", x: left - 8, y: top + (i + 0.5) * cell + fits * 0.35, size: fits, anchor: "end",
      text: fittingText(tokenText(label), fits, room - 8), fill: i === query ? orange : muted }));
    keys.labels.forEach((label, i) => items.push({ kind: "text", x: left + (i + 0.5) * cell + fits * 0.35, y: top - 8, size: fits, anchor: "start", rotate: -90,
      text: fittingText(tokenText(label), fits, room - 8), fill: i === key ? "#1f5fa8" : muted }));
  }
  const at = shareMargin + shareMap + shareMargin, space = shareWidth - at - shareMargin;
  const pair = `${tokenText(queries.labels[query] ?? "")} \u2192 ${tokenText(keys.labels[key] ?? "")}`;
  const pairSize = Math.max(40, Math.min(64, space / (Math.max(1, [...pair].length) * letterWidth)));
  const sentence = does || (key === best ? tr("“{labels}” looks mostly there", { labels: tokenText(queries.labels[query] ?? "") }) : "");
  const where = [headText(kind, layer, head), side.model, "uwaga"].filter(Boolean).join(" \u00b7 ");
  items.push(
    { kind: "text", x: at, y: 190, text: fittingText(pair, pairSize, space), size: pairSize, anchor: "start", fill: ink },
    { kind: "text", x: at, y: 310, text: percentText(weight), size: 96, anchor: "start", fill: orange },
    { kind: "text", x: at, y: 380, text: fittingText(sentence, 28, space), size: 28, anchor: "start", fill: muted },
    { kind: "text", x: shareMargin, y: 562, text: fittingText(side.text_title, 26, shareWidth - 2 * shareMargin), size: 26, anchor: "start", fill: ink },
    { kind: "text", x: shareMargin, y: 598, text: fittingText(where, 22, shareWidth - 2 * shareMargin), size: 22, anchor: "start", fill: muted });
  return { width: shareWidth, height: shareHeight, background: bg, items };
}
