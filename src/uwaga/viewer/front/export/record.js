// A canvas' 2D context that keeps what is drawn as items of a scene, so that a file shows what the page shows.

/** @import { SceneItem } from "../types.js" */

/** @typedef {{left: number, top: number, right: number, bottom: number}} Clip */

const anywhere = { left: -Infinity, top: -Infinity, right: Infinity, bottom: Infinity };
const anchors = /** @type {const} */ ({ left: "start", center: "middle", right: "end", start: "start", end: "end" });

/**
 * What the map and the small maps use of a context.
 * @param {CanvasRenderingContext2D} measuring  measures texts
 * @returns {CanvasRenderingContext2D & {items: SceneItem[]}}
 */
export function recordingContext(measuring) {
  /** @type {Map<CanvasImageSource, ImageData>} one call for each canvas: reading it in parts is slow */
  const read = new Map();
  /** @type {Clip[]} */
  const saved = [];
  /** @type {[number, number][]} */
  let path = [];
  let clip = anywhere, box = anywhere, turned = /** @type {[number, number] | null} */ (null);
  const recorded = {
    items: /** @type {SceneItem[]} */ ([]),
    font: measuring.font, fillStyle: "", strokeStyle: "", lineWidth: 1, textAlign: /** @type {keyof typeof anchors} */ ("left"), textBaseline: "",
    measureText(/** @type {string} */ text) {
      measuring.font = recorded.font;
      return measuring.measureText(text);
    },
    save: () => void saved.push(clip),
    restore: () => { clip = saved.pop() ?? anywhere; },
    beginPath: () => { path = []; },
    rect: (/** @type {number} */ x, /** @type {number} */ y, /** @type {number} */ w, /** @type {number} */ h) => { box = { left: x, top: y, right: x + w, bottom: y + h }; },
    clip: () => { clip = box; },
    moveTo: (/** @type {number} */ x, /** @type {number} */ y) => void path.push([x, y]),
    lineTo: (/** @type {number} */ x, /** @type {number} */ y) => void path.push([x, y]),
    /** The lines are separate: each goes from one point to the next. */
    stroke() {
      for (let at = 0; at + 1 < path.length; at += 2) {
        recorded.items.push({ kind: "line", x1: path[at][0], y1: path[at][1], x2: path[at + 1][0], y2: path[at + 1][1], stroke: recorded.strokeStyle, width: recorded.lineWidth, opacity: 1 });
      }
    },
    fillRect(/** @type {number} */ x, /** @type {number} */ y, /** @type {number} */ w, /** @type {number} */ h) {
      const left = Math.max(x, clip.left), top = Math.max(y, clip.top), right = Math.min(x + w, clip.right), bottom = Math.min(y + h, clip.bottom);
      if (right > left && bottom > top) recorded.items.push({ kind: "rect", x: left, y: top, w: right - left, h: bottom - top, fill: recorded.fillStyle });
    },
    strokeRect: (/** @type {number} */ x, /** @type {number} */ y, /** @type {number} */ w, /** @type {number} */ h) =>
      void recorded.items.push({ kind: "rect", x, y, w, h, fill: "none", stroke: recorded.strokeStyle }),
    /** The ratio is 1, and only a rotation by 90 degrees to the left is recorded. */
    setTransform(/** @type {number} */ a, /** @type {number} */ _b, /** @type {number} */ _c, /** @type {number} */ _d, /** @type {number} */ e, /** @type {number} */ f) {
      turned = a ? null : [e, f];
    },
    fillText(/** @type {string} */ text, /** @type {number} */ x, /** @type {number} */ y) {
      if (x < clip.left || x > clip.right || y < clip.top || y > clip.bottom) return;
      // Texts are drawn around their middle, items of a scene stand on a line.
      const size = parseFloat(/([\d.]+)px/.exec(recorded.font)?.[1] ?? "12"), drop = size * 0.35;
      recorded.items.push({ kind: "text", text, size, anchor: anchors[recorded.textAlign], fill: recorded.fillStyle, ...(turned ? { x: turned[0] + drop, y: turned[1], rotate: -90 } : { x, y: y + drop }) });
    },
    drawImage(/** @type {HTMLCanvasElement} */ canvas, /** @type {number} */ left, /** @type {number} */ top, /** @type {number} */ columns, /** @type {number} */ rows, /** @type {number} */ x, /** @type {number} */ y, /** @type {number} */ w, /** @type {number} */ h) {
      const image = read.get(canvas) ?? /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d")).getImageData(0, 0, canvas.width, canvas.height);
      read.set(canvas, image);
      const { data, width } = image, pixels = new Uint8ClampedArray(4 * columns * rows);
      for (let row = 0; row < rows; row++) {
        const from = 4 * ((top + row) * width + left);
        pixels.set(data.subarray(from, from + 4 * columns), 4 * row * columns);
      }
      recorded.items.push({ kind: "image", x, y, w, h, pixels, columns, rows });
    },
  };
  return /** @type {any} */ (recorded);
}
