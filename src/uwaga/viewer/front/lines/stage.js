// The middle of the figure: lines and boxes on a canvas, and the same as a scene for files.
import { tokenText } from "../dom.js";
import { stripColour } from "../text/colour.js";
import { manyHeads } from "./gather.js";
import { drawBoxes, drawLines, placeLines } from "./canvas.js";

/** @typedef {import("../types.js").Scene} Scene */
/** @typedef {import("../types.js").SceneItem} SceneItem */
/** @typedef {import("./column.js").LineColumn} LineColumn */
/** @typedef {ReturnType<typeof import("./frame.js").linesFrame>} LinesFrame */

/**
 * @typedef {object} LinePicture
 * @property {import("./gather.js").Line[]} lines
 * @property {number} high  the weight of a full line
 * @property {number[]} heads
 * @property {{axis: "query" | "key", item: number} | null} only
 * @property {(weight: number) => number} opacity
 * @property {(head: number) => string} hue  "": the page's own
 * @property {LineColumn} query
 * @property {LineColumn} key
 * @property {boolean} all
 */

const stageBoxMost = 9; // pixels

/**
 * @param {LinePicture} picture
 * @param {number} width  pixels between the columns
 * @param {string} accent
 * @param {string} muted
 */
export function stageLayout(picture, width, accent, muted) {
  const count = picture.heads.length;
  // Boxes stand beside the tokens that a single one is joined with; lines of all tokens have the whole room.
  const size = picture.all && count && picture.only ? Math.min(stageBoxMost, Math.max(1, (width * 0.22) / count)) : 0;
  const lane = size * count + (size ? 6 : 0);
  const colour = (/** @type {number} */ head) => (head === manyHeads ? muted : picture.hue(head) || accent);
  const lines = placeLines(picture.lines, {
    left: (item) => picture.query.middle(item), right: (item) => picture.key.middle(item), x1: lane, x2: width - lane,
    height: picture.query.window.height, colour, opacity: picture.opacity, away: picture.only ? 0.7 : 0.2,
  });
  return { lines, lane, boxes: stageBoxes(picture, size, width, colour) };
}

/**
 * Beside each token that a single one is joined with: a box for each head.
 * @param {LinePicture} picture
 * @param {number} size
 * @param {number} width
 * @param {(head: number) => string} colour
 */
function stageBoxes({ lines, heads, only, opacity, query, key }, size, width, colour) {
  if (!size || !only) return [];
  /** @type {Map<number, number[]>} */
  const weights = new Map();
  for (const line of lines) {
    const other = only.axis === "query" ? line.key : line.query;
    if (other === -1 || other === Infinity) continue;
    const row = weights.get(other) ?? heads.map(() => 0);
    row[heads.indexOf(line.head)] = line.weight;
    weights.set(other, row);
  }
  const colours = heads.map(colour);
  const [own, others] = only.axis === "query" ? [query, key] : [key, query];
  const x = (/** @type {LineColumn} */ column) => (column.axis === "query" ? 0 : width - size * heads.length);
  return [{ x: x(own), y: own.middle(only.item), size, colours, opacities: heads.map(() => 1) },
    ...[...weights].map(([item, row]) => ({ x: x(others), y: others.middle(item), size, colours, opacities: row.map(opacity) }))];
}

/** @param {LinePicture} picture @param {LinesFrame} frame */
export function drawLineStage(picture, { canvas, stage }) {
  const ratio = canvas.ownerDocument.defaultView?.devicePixelRatio ?? 1;
  const [width, height] = [canvas.clientWidth, canvas.clientHeight];
  const [columns, rows] = [Math.round(width * ratio), Math.round(height * ratio)];
  const context = canvas.getContext("2d");
  if (!context || columns < 1 || rows < 1) return;
  if (canvas.width !== columns || canvas.height !== rows) [canvas.width, canvas.height] = [columns, rows];
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  const { lines, boxes } = stageLayout(picture, width, stripColour(stage, "--accent"), stripColour(stage, "--muted"));
  drawLines(context, lines, picture.only ? 2 : 1.5);
  for (const group of boxes) drawBoxes(context, group);
}

/** @param {LinePicture} picture @param {LinesFrame} frame @returns {Scene} */
export function lineScene(picture, { canvas, stage, titles }) {
  const [left, middle, height] = [picture.query.list.clientWidth, canvas.clientWidth, stage.clientHeight];
  const [margin, head] = [12, 28];
  const { lines, boxes } = stageLayout(picture, middle, stripColour(stage, "--accent"), stripColour(stage, "--muted"));
  /** @type {SceneItem[]} */
  const items = lines.filter(({ opacity }) => opacity > 0).map((line) => ({
    kind: "path", d: stageDashes(line, margin + left, head), stroke: line.colour, width: picture.only ? 2 : 1.5,
    opacity: Math.round(line.opacity * 1000) / 1000,
  }));
  for (const { x, y, size, colours, opacities } of boxes) {
    colours.forEach((colour, i) =>
      items.push({ kind: "line", x1: margin + left + x + (i + 0.5) * size, x2: margin + left + x + (i + 0.5) * size,
      y1: head + y - size, y2: head + y + size, stroke: colour, width: Math.max(1, size - 1), opacity: opacities[i] }));
  }
  const [text, muted] = [stripColour(stage, "--text"), stripColour(stage, "--muted")];
  const size = parseFloat(getComputedStyle(stage).fontSize) || 14;
  for (const [column, x, anchor, title] of /** @type {const} */ ([[picture.query, margin + left - 8, "end", titles.query],
    [picture.key, margin + left + middle + 8, "start", titles.key]])) {
    items.push({ kind: "text", x, y: head - 12, text: title.textContent ?? "", size: size * 0.85, anchor, fill: muted });
    const [first, last] = column.range();
    for (let item = first; item < last; item++) {
      items.push({ kind: "text", x, y: head + column.middle(item) + size * 0.35,
        text: stageShort(tokenText(column.items.labels[item])), size, anchor, fill: text });
    }
  }
  return { width: 2 * margin + left + middle + picture.key.list.clientWidth, height: head + height + margin,
    background: stripColour(stage, "--bg"), items };
}

/**
 * A line as a path: whole, or in dashes where its other end is not in view.
 * @param {import("./canvas.js").DrawnLine} line
 * @param {number} left
 * @param {number} top
 * @returns {(string | number)[][]}
 */
function stageDashes({ x1, y1, x2, y2, away }, left, top) {
  const pieces = away ? Math.max(1, Math.round(Math.hypot(x2 - x1, y2 - y1) / 8)) : 1;
  const at = (/** @type {number} */ part) => [left + x1 + (x2 - x1) * part, top + y1 + (y2 - y1) * part];
  return Array.from({ length: pieces }, (_, i) => [["M", ...at(i / pieces)], ["L", ...at((i + (away ? 0.5 : 1)) / pieces)]]).flat();
}

/** @param {string} text @returns {string} what fits beside the lines */
function stageShort(text) {
  return text.length > 28 ? `${text.slice(0, 27)}\u2026` : text;
}
