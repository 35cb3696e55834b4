// Weights over a picture: one colour over grey, so that no colour of the picture looks like a weight. And what is said of them.

import { strongestItems } from "../weights.js";
/** @import { PatchGrid, WireArray } from "../types.js" */

/** @typedef {{weights: ArrayLike<number>, itself: number, near: number, far: number, outside: number, best: number, largest: number}} Shares */

/** What the largest weight leaves of the picture is 1 - opacity; weight^strength is seen evenly. */
const opacity = 0.9, strength = 0.72;
/** Black and white of the picture, by theme. */
const greys = { light: [0.35, 1], dark: [0.03, 0.6] };

/** @param {number} width @param {number} height @param {(at: number) => number[]} colour  red, green, blue, opacity of a pixel, 0 to 255 */
function painted(width, height, colour) {
  const canvas = Object.assign(document.createElement("canvas"), { width, height }), image = new ImageData(width, height);
  for (let at = 0; at < width * height; at++) image.data.set(colour(at), 4 * at);
  canvas.getContext("2d")?.putImageData(image, 0, 0);
  return canvas;
}

/** The picture in the greys of a theme. @param {WireArray} pixels  (height, width) @param {"light" | "dark"} theme */
export function greyPicture({ data, shape: [height, width] }, theme) {
  const [black, white] = greys[theme];
  return painted(width, height, (at) => Array(3).fill(255 * black + (white - black) * data[at]).concat(255));
}

/**
 * Draws a picture and the weights of its patches over it.
 * @param {HTMLCanvasElement} canvas @param {HTMLCanvasElement} picture @param {PatchGrid} grid
 * @param {ArrayLike<number>} weights  of all tokens; NaN: not known yet
 * @param {number} scale  the weight of the full colour
 * @param {string} colour  as #rrggbb
 */
export function drawOverlay(canvas, picture, { rows, columns, first }, weights, scale, colour) {
  const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d")), hue = [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
  const cells = painted(columns, rows, (at) => [...hue, 255 * opacity * Math.min(1, weights[first + at] / scale) ** strength || 0]);
  for (const image of [picture, cells]) {
    context.imageSmoothingEnabled = image === picture;
    context.drawImage(image, 0, 0, canvas.width, canvas.height);
  }
}

/** @param {PatchGrid} grid @param {number} item @returns {[number, number] | null} row and column; null: no patch */
export function patchOf({ rows, columns, first }, item) {
  const at = item - first;
  return at < 0 || at >= rows * columns ? null : [Math.floor(at / columns), at % columns];
}

/**
 * Where the weights of a token are: on itself, on the patches around it, on other patches, on tokens that are no patch; the item of the largest,
 * and the largest of a patch.
 * @param {PatchGrid} grid @param {ArrayLike<number>} weights @param {number} item @returns {Shares}
 */
export function weightShares(grid, weights, item) {
  const center = patchOf(grid, item), shares = { weights, itself: 0, near: 0, far: 0, outside: 0, best: strongestItems(weights, 1)[0] ?? item, largest: 0 };
  for (let at = 0; at < weights.length; at++) {
    const weight = weights[at] || 0, patch = patchOf(grid, at);
    if (patch) shares.largest = Math.max(shares.largest, weight);
    const distance = center && patch ? Math.max(Math.abs(center[0] - patch[0]), Math.abs(center[1] - patch[1])) : 2;
    shares[!patch ? "outside" : distance > 1 ? "far" : distance ? "near" : "itself"] += weight;
  }
  return shares;
}
