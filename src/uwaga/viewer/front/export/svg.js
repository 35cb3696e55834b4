// A scene as an SVG file: shapes as shapes, text as text, images as PNG data.

import { parseColour } from "../colours.js";
import { base64, pngFile } from "./png.js";

/** @typedef {import("../types.js").Scene} Scene */
/** @typedef {import("../types.js").SceneItem} SceneItem */

/**
 * @param {Scene} scene
 * @param {string} [title]  text alternative for screen readers
 * @returns {Promise<string>}
 */
export async function svgFile(scene, title = "") {
  return svgOf(scene, title, await svgItems(scene.items));
}

/** @param {SceneItem[]} items @returns {Promise<string[]>} their elements */
export async function svgItems(items) {
  return Promise.all(items.map(svgItem));
}

/**
 * @param {Scene} scene  its items are left out
 * @param {string} title @param {string[]} elements
 */
export function svgOf({ width, height, background }, title, elements) {
  const parts = [
    '<?xml version="1.0" encoding="UTF-8"?>\n',
    `<svg xmlns="http://www.w3.org/2000/svg" width="${svgNumber(width)}" height="${svgNumber(height)}" `,
    `viewBox="0 0 ${svgNumber(width)} ${svgNumber(height)}" font-family="Helvetica, Arial, sans-serif">\n`,
    title ? `<title>${svgEscape(title)}</title>\n` : "",
    background ? `<rect width="100%" height="100%"${svgPaint("fill", background)}/>\n` : "",
  ];
  return [...parts, elements.join("\n"), "\n</svg>\n"].join("");
}

/** @param {SceneItem} item @returns {Promise<string>} */
async function svgItem(item) {
  const n = svgNumber;
  if (item.kind === "rect") {
    const paint = svgPaint("fill", item.fill) + (item.stroke ? svgPaint("stroke", item.stroke) : "");
    return `<rect x="${n(item.x)}" y="${n(item.y)}" width="${n(item.w)}" height="${n(item.h)}"${paint}/>`;
  }
  if (item.kind === "line") {
    return `<line x1="${n(item.x1)}" y1="${n(item.y1)}" x2="${n(item.x2)}" y2="${n(item.y2)}"${svgStroke(item)}/>`;
  }
  if (item.kind === "path") {
    const d = item.d.map(([letter, ...numbers]) => `${letter}${numbers.map((number) => n(Number(number))).join(" ")}`).join("");
    return `<path d="${svgEscape(d)}"${svgPaint("fill", item.fill)}${svgStroke(item)}/>`;
  }
  if (item.kind === "text") return svgText(item);
  const png = base64(await pngFile(item.pixels, item.columns, item.rows));
  return `<image x="${n(item.x)}" y="${n(item.y)}" width="${n(item.w)}" height="${n(item.h)}" ` +
    `preserveAspectRatio="none" image-rendering="pixelated" href="data:image/png;base64,${png}"/>`;
}

/** @param {Extract<SceneItem, {kind: "text"}>} item @returns {string} */
function svgText(item) {
  const { x, y, size, text, rotate, serif } = item;
  const turn = rotate ? ` transform="rotate(${svgNumber(rotate)} ${svgNumber(x)} ${svgNumber(y)})"` : "";
  return `<text x="${svgNumber(x)}" y="${svgNumber(y)}" font-size="${svgNumber(size)}" text-anchor="${item.anchor ?? "start"}"` +
    `${serif ? ' font-family="Palatino, &quot;Noto Serif&quot;, Georgia, serif"' : ""}${svgPaint("fill", item.fill)} xml:space="preserve"${turn}>${svgEscape(text)}</text>`;
}

/** @param {{stroke: string, width?: number, opacity?: number}} item @returns {string} */
function svgStroke({ stroke, width = 1, opacity = 1 }) {
  return `${svgPaint("stroke", stroke, opacity)} stroke-width="${svgNumber(width)}"`;
}

/**
 * A colour attribute as of SVG 1.1: six hexadecimal digits, and a separate opacity.
 * @param {"fill" | "stroke"} name
 * @param {string | undefined} colour
 * @param {number} [opacity]
 * @returns {string}
 */
function svgPaint(name, colour, opacity = 1) {
  const parts = parseColour(colour);
  if (!parts) return ` ${name}="none"`;
  const digits = [parts.r, parts.g, parts.b].map((part) => Math.round(part * 255).toString(16).padStart(2, "0")).join("");
  const alpha = Math.round(parts.a * opacity * 10_000) / 10_000;
  return ` ${name}="#${digits}"${alpha < 1 ? ` ${name}-opacity="${alpha}"` : ""}`;
}

/**
 * A number rounded to a thousandth of a pixel.
 * @param {number} value
 * @returns {string}
 */
function svgNumber(value) {
  return Number.isFinite(value) ? String(Math.round(value * 1000) / 1000 || 0) : "0";
}

/**
 * Escapes text for an element or attribute of XML 1.0. Characters that XML does not allow (most controls, lone surrogates) become
 * U+FFFD.
 * @param {string} text
 * @returns {string}
 */
export function svgEscape(text) {
  const held = text.replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f\ufffe\uffff]|\p{Surrogate}/gu, "\ufffd");
  return held.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;").replace(/"/g, "&quot;")
    .replace(/[\t\n\r]/g, (character) => `&#${character.charCodeAt(0)};`);
}
