// Lines on a canvas: many at once, in a few strokes of the same colour and opacity.
import { lineAway } from "./gather.js";

/** @typedef {import("./gather.js").Line} Line */

/**
 * @typedef {object} DrawnLine
 * @property {number} x1
 * @property {number} y1
 * @property {number} x2
 * @property {number} y2
 * @property {string} colour
 * @property {number} opacity  in [0, 1]
 * @property {boolean} away  its other end is not in view
 */

const linesSteps = 24; // opacities that can be told apart

/**
 * Lines with their places.
 * @param {Line[]} lines
 * @param {object} how
 * @param {(query: number) => number} how.left  pixels from the top
 * @param {(key: number) => number} how.right
 * @param {number} how.x1
 * @param {number} how.x2
 * @param {number} how.height
 * @param {(head: number) => string} how.colour
 * @param {(weight: number) => number} how.opacity
 * @param {number} how.away  times the opacity of lines whose other end is not in view: each stands for many
 * @returns {DrawnLine[]} the faintest first, so that the strong ones lie on top
 */
export function placeLines(lines, { left, right, x1, x2, height, colour, opacity, away }) {
  const place = (/** @type {number} */ item, /** @type {(item: number) => number} */ of) =>
    item === -1 ? 0 : item === Infinity ? height : of(item);
  return lines.map(({ head, query, key, weight }) => ({
    x1, y1: place(query, left), x2, y2: place(key, right), colour: colour(head),
    opacity: opacity(weight) * (lineAway({ query, key }) ? away : 1), away: lineAway({ query, key }),
  })).sort((one, other) => one.opacity - other.opacity);
}

/**
 * @param {CanvasRenderingContext2D} context  in CSS pixels
 * @param {DrawnLine[]} lines  sorted by opacity
 * @param {number} width  pixels of a line
 */
export function drawLines(context, lines, width) {
  context.lineWidth = width;
  /** @type {Map<string, DrawnLine[]>} */
  const strokes = new Map();
  for (const line of lines) {
    const step = Math.ceil(line.opacity * linesSteps);
    if (step < 1) continue;
    const name = `${step} ${line.colour} ${line.away}`;
    const stroke = strokes.get(name);
    if (stroke) stroke.push(line);
    else strokes.set(name, [line]);
  }
  for (const [name, group] of strokes) {
    context.globalAlpha = Number(name.split(" ")[0]) / linesSteps;
    context.strokeStyle = group[0].colour;
    context.setLineDash(group[0].away ? [3, 3] : []);
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
 * Boxes beside a token, one for each head, as deep as its weight.
 * @param {CanvasRenderingContext2D} context
 * @param {{x: number, y: number, size: number, colours: string[], opacities: number[]}} boxes  x: the left of the first; y: the middle
 */
export function drawBoxes(context, { x, y, size, colours, opacities }) {
  colours.forEach((colour, i) => {
    context.globalAlpha = opacities[i];
    context.fillStyle = colour;
    context.fillRect(x + i * size, y - size, Math.max(1, size - 1), 2 * size);
  });
  context.globalAlpha = 1;
}
