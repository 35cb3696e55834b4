// A scene drawn into a canvas, for PNG files.

import { tr } from "../languages.js";
/** @import { Scene, SceneItem } from "../types.js" */

const canvasFont = "Helvetica, Arial, sans-serif", canvasSerif = '"Iowan Old Style", "Palatino Linotype", Palatino, P052, "Noto Serif", Georgia, serif';
const maxSide = 16384; // pixels; larger canvases are blank in some browsers
const maxArea = 64 * 1024 * 1024;

/**
 * @param {Scene} scene
 * @param {number} [scale] pixels per CSS pixel, less if the canvas would be too large
 * @returns {Promise<{blob: Blob, scale: number}>} the PNG and its scale
 */
export async function scenePng(scene, scale = 2) {
  const fits = fittingScale(scene.width, scene.height, scale);
  const canvas = document.createElement("canvas");
  canvas.width = Math.max(1, Math.floor(scene.width * fits));
  canvas.height = Math.max(1, Math.floor(scene.height * fits));
  paintScene(paintContext(canvas), scene, fits);
  const blob = await new Promise((/** @type {(blob: Blob | null) => void} */ resolve) => canvas.toBlob(resolve, "image/png"));
  if (!blob) throw new Error(tr("The browser could not encode the PNG."));
  return { blob, scale: fits };
}

/** @param {CanvasRenderingContext2D} context @param {Scene} scene @param {number} scale  pixels of a CSS pixel */
function paintScene(context, scene, scale) {
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.fillStyle = scene.background;
  context.fillRect(0, 0, scene.width, scene.height);
  for (const item of scene.items) paintItem(context, item);
}

/**
 * @param {number} width @param {number} height
 * @param {number} scale  the preferred scale
 * @returns {number} the largest scale up to that which fits a canvas
 */
export function fittingScale(width, height, scale) {
  const side = maxSide / Math.max(width, height, 1);
  return Math.min(scale, side, Math.sqrt(maxArea / Math.max(width * height, 1)));
}

/** @param {string} text @param {number} size @param {boolean} [serif] @returns {number} pixels of the text in the font of files */
export function textWidth(text, size, serif = false) {
  const context = typeof document === "undefined" ? null : document.createElement("canvas").getContext("2d");
  if (!context) return text.length * size * 0.5;
  context.font = `${size}px ${serif ? canvasSerif : canvasFont}`;
  return context.measureText(text).width;
}

/** @param {HTMLCanvasElement} canvas @returns {CanvasRenderingContext2D} */
function paintContext(canvas) {
  const context = canvas.getContext("2d", { willReadFrequently: true });
  if (!context) throw new Error(tr("The browser has no 2D canvas."));
  return context;
}

/** @param {CanvasRenderingContext2D} context @param {SceneItem} item */
function paintItem(context, item) {
  context.save();
  if (item.kind === "rect") {
    context.fillStyle = item.fill;
    if (item.fill && item.fill !== "none") context.fillRect(item.x, item.y, item.w, item.h);
    context.strokeStyle = item.stroke ?? "";
    if (item.stroke) context.strokeRect(item.x, item.y, item.w, item.h);
  } else if (item.kind === "line") {
    paintPath(context, { ...item, d: [["M", item.x1, item.y1], ["L", item.x2, item.y2]] });
  } else if (item.kind === "path") paintPath(context, item);
  else if (item.kind === "text") paintText(context, item);
  else paintImage(context, item);
  context.restore();
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {{d: (string | number)[][], stroke: string, width: number, opacity: number, fill?: string}} item
 */
function paintPath(context, { d, stroke, width, opacity, fill }) {
  const path = new Path2D(d.map(([letter, ...numbers]) => `${letter}${numbers.join(" ")}`).join(""));
  if (fill && fill !== "none") {
    context.fillStyle = fill;
    context.fill(path);
  }
  context.globalAlpha = opacity;
  context.lineWidth = width;
  context.strokeStyle = stroke;
  if (stroke && stroke !== "none" && width > 0) context.stroke(path);
}

/** @param {CanvasRenderingContext2D} context @param {Extract<SceneItem, {kind: "text"}>} item */
function paintText(context, { x, y, text, size, anchor, fill, rotate, serif }) {
  context.translate(x, y);
  context.rotate(((rotate ?? 0) * Math.PI) / 180);
  context.font = `${size}px ${serif ? canvasSerif : canvasFont}`;
  context.textAlign = anchor === "middle" ? "center" : anchor === "end" ? "right" : "left";
  context.fillStyle = fill;
  context.fillText(text, 0, 0);
}

/** @param {CanvasRenderingContext2D} context @param {Extract<SceneItem, {kind: "image"}>} item */
function paintImage(context, { x, y, w, h, ...pixels }) {
  if (pixels.columns < 1 || pixels.rows < 1) return;
  context.imageSmoothingEnabled = false;
  context.drawImage(pixelCanvas(pixels), x, y, w, h);
}

/** @param {{pixels: Uint8ClampedArray, columns: number, rows: number}} image  RGBA, the first row on top */
export function pixelCanvas({ pixels, columns, rows }) {
  const canvas = document.createElement("canvas");
  canvas.width = columns;
  canvas.height = rows;
  if (columns && rows) paintContext(canvas).putImageData(new ImageData(new Uint8ClampedArray(pixels), columns, rows), 0, 0);
  return canvas;
}
