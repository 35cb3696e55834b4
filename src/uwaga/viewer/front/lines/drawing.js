// Lines and head boxes on the canvas between the columns, and the same as a scene for files.

import { themeColour } from "../colours.js";
import { tokenText } from "../dom.js";
import { isOffscreen, manyHeads, strongestShare } from "./weights.js";

/** @typedef {import("../types.js").Scene} Scene */
/** @typedef {import("../types.js").SceneItem} SceneItem */
/** @typedef {import("./columns.js").LineColumn} LineColumn */
/** @typedef {import("./weights.js").Line} Line */

/** @typedef {ReturnType<typeof import("./view.js").makeLinesElements>} LinesElements */

/**
 * @typedef {object} LinesFigure
 * @property {import("./weights.js").Line[]} lines
 * @property {number} high  the weight of an opaque line
 * @property {number[]} heads
 * @property {{axis: "query" | "key", item: number} | null} only
 * @property {(weight: number) => number} opacity
 * @property {(head: number) => string} hue  "": the theme's accent colour
 * @property {LineColumn} query
 * @property {LineColumn} key
 * @property {boolean} all
 */

const maxBoxSize = 9; // pixels

/**
 * @param {LinesFigure} figure
 * @param {number} width  pixels between the columns
 * @param {string} accent
 * @param {string} muted
 */
export function layoutLines(figure, width, accent, muted) {
  const count = figure.heads.length;
  // Head boxes are drawn only for a single token; lines of all tokens use the whole width.
  const size = figure.all && count && figure.only ? Math.min(maxBoxSize, Math.max(1, (width * 0.22) / count)) : 0;
  const lane = size * count + (size ? 6 : 0);
  const colour = (/** @type {number} */ head) => (head === manyHeads ? muted : figure.hue(head) || accent);
  const lines = placeLines(strongestShare(figure.lines, shownShare), {
    left: (item) => figure.query.middle(item), right: (item) => figure.key.middle(item), x1: lane, x2: width - lane,
    height: figure.query.window.height, colour, opacity: figure.opacity, offscreen: figure.only ? 0.7 : 0.2,
  });
  return { lines, lane, boxes: headBoxes(figure, size, width, colour) };
}

/**
 * Boxes beside the single token and beside each token that it has a line to: one per head.
 * @param {LinesFigure} figure
 * @param {number} size
 * @param {number} width
 * @param {(head: number) => string} colour
 */
function headBoxes({ lines, heads, only, opacity, query, key }, size, width, colour) {
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

/** @param {LinesFigure} figure @param {LinesElements} elements */
export function drawLinesCanvas(figure, { canvas, stage }) {
  const ratio = canvas.ownerDocument.defaultView?.devicePixelRatio ?? 1;
  const [width, height] = [canvas.clientWidth, canvas.clientHeight];
  const [columns, rows] = [Math.round(width * ratio), Math.round(height * ratio)];
  const context = canvas.getContext("2d");
  if (!context || columns < 1 || rows < 1) return;
  if (canvas.width !== columns || canvas.height !== rows) [canvas.width, canvas.height] = [columns, rows];
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  const { lines, boxes } = layoutLines(figure, width, themeColour(stage, "--key"), themeColour(stage, "--muted"));
  drawLines(context, lines);
  for (const group of boxes) drawBoxes(context, group);
}

/** @param {LinesFigure} figure @param {LinesElements} elements @returns {Scene} */
export function lineScene(figure, { canvas, stage, titles }) {
  const [left, middle, height] = [figure.query.list.clientWidth, canvas.clientWidth, stage.clientHeight];
  const [margin, head] = [12, 28];
  const { lines, boxes } = layoutLines(figure, middle, themeColour(stage, "--key"), themeColour(stage, "--muted"));
  /** @type {SceneItem[]} */
  const items = lines.filter(({ opacity }) => opacity > 0).map((line) => ({
    kind: "path", d: dashedPath(line, margin + left, head), stroke: line.colour, width: line.width,
    opacity: Math.round(line.opacity * 1000) / 1000,
  }));
  for (const { x, y, size, colours, opacities } of boxes) {
    colours.forEach((colour, i) =>
      items.push({ kind: "line", x1: margin + left + x + (i + 0.5) * size, x2: margin + left + x + (i + 0.5) * size,
      y1: head + y - size, y2: head + y + size, stroke: colour, width: Math.max(1, size - 1), opacity: opacities[i] }));
  }
  const [text, muted] = [themeColour(stage, "--text"), themeColour(stage, "--muted")];
  const size = parseFloat(getComputedStyle(stage).fontSize) || 14;
  for (const [column, x, anchor, title] of /** @type {const} */ ([[figure.query, margin + left - 8, "end", titles.query],
    [figure.key, margin + left + middle + 8, "start", titles.key]])) {
    items.push({ kind: "text", x, y: head - 12, text: title.textContent ?? "", size: size * 0.85, anchor, fill: muted });
    const [first, last] = column.range();
    for (let item = first; item < last; item++) {
      items.push({ kind: "text", x, y: head + column.middle(item) + size * 0.35,
        text: shortLabel(tokenText(column.items.labels[item])), size, anchor, fill: text });
    }
  }
  return { width: 2 * margin + left + middle + figure.key.list.clientWidth, height: head + height + margin,
    background: themeColour(stage, "--bg"), items };
}

/**
 * A line as a path: dashed if one end is not in view.
 * @param {DrawnLine} line
 * @param {number} left
 * @param {number} top
 * @returns {(string | number)[][]}
 */
function dashedPath({ x1, y1, x2, y2, offscreen }, left, top) {
  const dashes = offscreen ? Math.max(1, Math.round(Math.hypot(x2 - x1, y2 - y1) / 8)) : 1;
  const at = (/** @type {number} */ part) => [left + x1 + (x2 - x1) * part, top + y1 + (y2 - y1) * part];
  return Array.from({ length: dashes }, (_, i) => [["M", ...at(i / dashes)], ["L", ...at((i + (offscreen ? 0.5 : 1)) / dashes)]]).flat();
}

/** @param {string} text @returns {string} the text, shortened to 28 characters */
function shortLabel(text) {
  return text.length > 28 ? `${text.slice(0, 27)}\u2026` : text;
}

// Lines are batched into few strokes of the same colour and opacity.

/**
 * @typedef {object} DrawnLine
 * @property {number} x1
 * @property {number} y1
 * @property {number} x2
 * @property {number} y2
 * @property {string} colour
 * @property {number} opacity  in [0, 1]
 * @property {number} width  pixels
 * @property {boolean} offscreen  one end is not in view
 */

const opacitySteps = 24; // distinct opacities
const leastOpacity = 0.5; // of a line that is drawn at all
/** The lines that make up this share of a row are drawn; the list has all. */
const shownShare = 0.8;

/**
 * Lines with their end points.
 * @param {Line[]} lines
 * @param {object} how
 * @param {(query: number) => number} how.left  pixels from the top
 * @param {(key: number) => number} how.right
 * @param {number} how.x1
 * @param {number} how.x2
 * @param {number} how.height
 * @param {(head: number) => string} how.colour
 * @param {(weight: number) => number} how.opacity
 * @param {number} how.offscreen  factor on the opacity of lines that leave the view: each stands for many
 * @returns {DrawnLine[]} faintest first, so that strong ones are drawn on top
 */
export function placeLines(lines, { left, right, x1, x2, height, colour, opacity, offscreen }) {
  const place = (/** @type {number} */ item, /** @type {(item: number) => number} */ of) =>
    item === -1 ? 0 : item === Infinity ? height : of(item);
  return lines.map(({ head, query, key, weight }) => ({
    x1, y1: place(query, left), x2, y2: place(key, right), colour: colour(head),
    opacity: isOffscreen({ query, key }) ? opacity(weight) * offscreen : opacity(weight) > 0 ? Math.max(leastOpacity, opacity(weight)) : 0,
    width: lineWidth(weight), offscreen: isOffscreen({ query, key }),
  })).sort((one, other) => one.opacity - other.opacity);
}

/** @param {number} weight @returns {number} pixels: 1 to 6, by the root, in halves so that lines share a stroke */
function lineWidth(weight) {
  return Math.round(2 * (1 + 5 * Math.sqrt(Math.min(1, Math.abs(weight))))) / 2;
}

/**
 * @param {CanvasRenderingContext2D} context  in CSS pixels
 * @param {DrawnLine[]} lines  sorted by opacity
 */
export function drawLines(context, lines) {
  /** @type {Map<string, DrawnLine[]>} */
  const strokes = new Map();
  for (const line of lines) {
    const step = Math.ceil(line.opacity * opacitySteps);
    if (step < 1) continue;
    const name = `${step} ${line.colour} ${line.offscreen} ${line.width}`;
    const stroke = strokes.get(name);
    if (stroke) stroke.push(line);
    else strokes.set(name, [line]);
  }
  for (const [name, group] of strokes) {
    context.globalAlpha = Number(name.split(" ")[0]) / opacitySteps;
    context.strokeStyle = group[0].colour;
    context.lineWidth = group[0].width;
    context.setLineDash(group[0].offscreen ? [3, 3] : []);
    context.beginPath();
    for (const { x1, y1, x2, y2 } of group) {
      context.moveTo(x1, y1);
      context.lineTo(x2, y2);
    }
    context.stroke();
  }
  context.setLineDash([]);
  context.globalAlpha = 1;
}

/**
 * Boxes beside a token, one per head, with the opacity of its weight.
 * @param {CanvasRenderingContext2D} context
 * @param {{x: number, y: number, size: number, colours: string[], opacities: number[]}} boxes  x: the left of the first; y: the middle
 */
function drawBoxes(context, { x, y, size, colours, opacities }) {
  colours.forEach((colour, i) => {
    context.globalAlpha = opacities[i];
    context.fillStyle = colour;
    context.fillRect(x + i * size, y - size, Math.max(1, size - 1), 2 * size);
  });
  context.globalAlpha = 1;
}

// A distinct colour per head.

/**
 * Hues spread over the colour circle, far apart for neighbouring heads.
 * @param {number} head
 * @param {number} heads
 * @param {"light" | "dark"} theme
 * @returns {string} #rrggbb
 */
export function headColour(head, heads, theme) {
  // Neighbouring heads are about a third of the circle apart; the steps are coprime so that all hues are distinct.
  const steps = Math.max(1, heads);
  const stride = Math.max(1, Math.round(steps / 3));
  const place = (head * nextCoprime(stride, steps)) % steps;
  return hslToHex((360 * place) / steps + 24, theme === "dark" ? 0.75 : 0.72, theme === "dark" ? 0.66 : 0.42);
}

/** @param {number} stride @param {number} steps @returns {number} the next number that is coprime to steps */
function nextCoprime(stride, steps) {
  const divisor = (/** @type {number} */ a, /** @type {number} */ b) => { while (b) [a, b] = [b, a % b]; return a; };
  let number = stride;
  while (divisor(number, steps) !== 1) number++;
  return number;
}

/** @param {number} hue degrees @param {number} saturation @param {number} lightness @returns {string} */
function hslToHex(hue, saturation, lightness) {
  const reach = saturation * Math.min(lightness, 1 - lightness);
  const part = (/** @type {number} */ n) => {
    const k = (n + hue / 30) % 12;
    const value = lightness - reach * Math.max(-1, Math.min(k - 3, 9 - k, 1));
    return Math.round(255 * value).toString(16).padStart(2, "0");
  };
  return `#${part(0)}${part(8)}${part(4)}`;
}
