// The minimap beside a text: where the weight is in the whole document, what is in view. A click goes there.

import { el } from "../dom.js";

/** @typedef {import("../colours.js").Shading} Shading */

/** @typedef {{weights: ArrayLike<number>, shade: Shading, colour: string, negative: string}} MinimapLayer */

/**
 * @typedef {object} Minimap
 * @property {HTMLElement} element
 * @property {(layers: MinimapLayer[], starts: Int32Array, marks: {line: number, colour: string}[]) => void} draw
 * @property {(top: number, height: number) => void} view  what is in view, in parts of the document
 */

const minMinimapShade = 0.02; // fainter rows would draw a line along the whole minimap

/**
 * @param {string} label
 * @param {(part: number) => void} onJump  part of the document, 0 to 1
 * @returns {Minimap}
 */
export function makeMinimap(label, onJump) {
  const canvas = el("canvas", { class: "uwaga-text-minimap-canvas", "aria-hidden": "true" });
  const frame = el("div", { class: "uwaga-text-minimap-view" });
  const element = el("div", { class: "uwaga-text-minimap", role: "scrollbar", tabindex: 0, "aria-label": label,
    "aria-orientation": "vertical", "aria-valuemin": 0, "aria-valuemax": 100, "aria-valuenow": 0 }, canvas, frame);
  const jump = (/** @type {PointerEvent} */ event) => {
    const box = element.getBoundingClientRect();
    onJump(Math.min(1, Math.max(0, (event.clientY - box.top) / Math.max(1, box.height))));
  };
  element.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    element.setPointerCapture(event.pointerId);
    jump(event);
  });
  element.addEventListener("pointermove", (event) => {
    if (event.buttons & 1 && element.hasPointerCapture(event.pointerId)) jump(event);
  });
  let seen = { top: 0, height: 1 };
  element.addEventListener("keydown", (event) => {
    const step = { ArrowUp: -0.1, ArrowDown: 0.1, PageUp: -1, PageDown: 1 }[event.key];
    const end = { Home: 0, End: 1 }[event.key];
    if (step === undefined && end === undefined) return;
    event.preventDefault();
    event.stopPropagation();
    onJump(Math.min(1, Math.max(0, end ?? seen.top + seen.height * (0.5 + (step ?? 0)))));
  });
  return {
    element,
    draw: (layers, starts, marks) => drawMinimap(canvas, element, layers, starts, marks),
    view(top, height) {
      seen = { top, height };
      frame.style.setProperty("top", `${100 * top}%`);
      frame.style.setProperty("height", `${Math.max(1, 100 * Math.min(1, height))}%`);
      element.setAttribute("aria-valuenow", String(Math.round(100 * top)));
    },
  };
}

/**
 * A bar per row of pixels: its length is the row's mass, its opacity the row's largest shade.
 * @param {HTMLCanvasElement} canvas
 * @param {HTMLElement} element
 * @param {MinimapLayer[]} layers
 * @param {Int32Array} starts
 * @param {{line: number, colour: string}[]} marks
 */
function drawMinimap(canvas, element, layers, starts, marks) {
  const ratio = canvas.ownerDocument.defaultView?.devicePixelRatio ?? 1;
  const [width, height] = [element.clientWidth * ratio, element.clientHeight * ratio].map(Math.floor);
  const context = canvas.getContext("2d");
  if (!context || width < 1 || height < 1) return;
  if (canvas.width !== width || canvas.height !== height) [canvas.width, canvas.height] = [width, height];
  context.clearRect(0, 0, width, height);
  const lane = width / Math.max(1, layers.length);
  layers.forEach((layer, index) => drawMinimapLane(context, layer, starts, { left: index * lane, width: lane, height }));
  context.globalAlpha = 1;
  for (const { line, colour } of marks) {
    context.fillStyle = colour;
    const y = (line / Math.max(1, starts.length - 1)) * height;
    context.fillRect(0, Math.min(height - 2 * ratio, y), width, 2 * ratio);
  }
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {MinimapLayer} layer
 * @param {Int32Array} starts
 * @param {{left: number, width: number, height: number}} lane
 */
function drawMinimapLane(context, { weights, shade, colour, negative }, starts, { left, width, height }) {
  const { mass, shades } = minimapRows(weights, shade.of, starts, height);
  const most = mass.reduce((largest, sum) => Math.max(largest, Math.abs(sum)), 0);
  for (let row = 0; row < height; row++) {
    if (Math.abs(shades[row]) < minMinimapShade) continue;
    context.fillStyle = shades[row] < 0 ? negative : colour;
    // A minimal opacity, so that a single token remains visible.
    context.globalAlpha = 0.25 + 0.75 * Math.abs(shades[row]);
    context.fillRect(left, row, Math.max(3, (Math.abs(mass[row]) / most) * width), 2);
  }
}

/**
 * The mass and the largest shade of each pixel row of the minimap.
 * @param {ArrayLike<number>} weights
 * @param {(item: number) => number} shade
 * @param {Int32Array} starts  the first item of each line of text, then their number
 * @param {number} rows
 * @returns {{mass: Float32Array, shades: Float32Array}} masses are sums over known weights
 */
export function minimapRows(weights, shade, starts, rows) {
  const mass = new Float32Array(rows);
  const shades = new Float32Array(rows);
  const lines = starts.length - 1;
  for (let line = 0; line < lines; line++) {
    const count = starts[line + 1] - starts[line];
    for (let k = 0; k < count; k++) {
      const item = starts[line] + k;
      const part = shade(item);
      if (part === 0) continue;
      // The items of a line share its height, so that also a short text shows where in a line the weight is.
      const first = Math.min(rows - 1, Math.floor(((line + k / count) / lines) * rows));
      const last = Math.max(first + 1, Math.floor(((line + (k + 1) / count) / lines) * rows));
      for (let row = first; row < last; row++) {
        mass[row] += weights[item];
        if (Math.abs(part) > Math.abs(shades[row])) shades[row] = part;
      }
    }
  }
  return { mass, shades };
}
