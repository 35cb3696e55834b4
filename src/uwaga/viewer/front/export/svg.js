// A scene as an SVG file: shapes as shapes, text as text, images as PNG data.

import { pixelCanvas } from "./canvas.js";
/** @import { Scene, SceneItem } from "../types.js" */

/** @param {Scene} scene @param {string} [title]  text alternative for screen readers @returns {string} */
export function svgFile({ width, height, background, items }, title = "") {
  const size = `width="${rounded(width)}" height="${rounded(height)}" viewBox="0 0 ${rounded(width)} ${rounded(height)}"`;
  return [
    '<?xml version="1.0" encoding="UTF-8"?>',
    `<svg xmlns="http://www.w3.org/2000/svg" ${size} font-family="Helvetica, Arial, sans-serif">`,
    title && `<title>${escaped(title)}</title>`,
    background && `<rect width="100%" height="100%"${paint("fill", background)}/>`,
    ...items.map(element),
    "</svg>\n",
  ].filter(Boolean).join("\n");
}

/** @param {SceneItem} item @returns {string} */
function element(item) {
  const n = rounded, box = (/** @type {{x: number, y: number, w: number, h: number}} */ { x, y, w, h }) => `x="${n(x)}" y="${n(y)}" width="${n(w)}" height="${n(h)}"`;
  if (item.kind === "rect") return `<rect ${box(item)}${paint("fill", item.fill)}${item.stroke ? paint("stroke", item.stroke) : ""}/>`;
  if (item.kind === "line") return `<line x1="${n(item.x1)}" y1="${n(item.y1)}" x2="${n(item.x2)}" y2="${n(item.y2)}"${stroke(item)}/>`;
  if (item.kind === "path") {
    const d = item.d.map(([letter, ...numbers]) => `${letter}${numbers.map((number) => n(Number(number))).join(" ")}`).join("");
    return `<path d="${escaped(d)}"${paint("fill", item.fill)}${stroke(item)}/>`;
  }
  if (item.kind === "image") return `<image ${box(item)} preserveAspectRatio="none" image-rendering="pixelated" href="${pixelCanvas(item).toDataURL()}"/>`;
  const { x, y, size, text, rotate, serif, anchor = "start", fill } = item;
  const family = serif ? ' font-family="Palatino, &quot;Noto Serif&quot;, Georgia, serif"' : "", turn = rotate ? ` transform="rotate(${n(rotate)} ${n(x)} ${n(y)})"` : "";
  return `<text x="${n(x)}" y="${n(y)}" font-size="${n(size)}" text-anchor="${anchor}"${family}${paint("fill", fill)} xml:space="preserve"${turn}>${escaped(text)}</text>`;
}

/** @param {{stroke: string, width?: number, opacity?: number}} item @returns {string} */
function stroke({ stroke: colour, width = 1, opacity = 1 }) {
  return `${paint("stroke", colour, opacity)} stroke-width="${rounded(width)}"`;
}

/**
 * A colour attribute as of SVG 1.1: six hexadecimal digits, and a separate opacity.
 * @param {"fill" | "stroke"} name @param {string | undefined} colour @param {number} [opacity]
 */
function paint(name, colour, opacity = 1) {
  const parts = parseColour(colour);
  if (!parts) return ` ${name}="none"`;
  const digits = [parts.r, parts.g, parts.b].map((part) => Math.round(part * 255).toString(16).padStart(2, "0")).join("");
  const alpha = Math.round(parts.a * opacity * 10_000) / 10_000;
  return ` ${name}="#${digits}"${alpha < 1 ? ` ${name}-opacity="${alpha}"` : ""}`;
}

/** @param {number} value @returns {string} to a thousandth of a pixel */
function rounded(value) {
  return Number.isFinite(value) ? String(Math.round(value * 1000) / 1000 || 0) : "0";
}

/**
 * Escapes text for an element or attribute of XML 1.0. Characters that XML does not allow (most controls, lone surrogates) become
 * U+FFFD.
 * @param {string} text
 */
export function escaped(text) {
  const held = text.replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f\ufffe\uffff]|\p{Surrogate}/gu, "\ufffd");
  return held.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;").replace(/"/g, "&quot;")
    .replace(/[\t\n\r]/g, (character) => `&#${character.charCodeAt(0)};`);
}

/**
 * The parts of a CSS colour, each in [0, 1]: hexadecimal, rgb(), rgba() or color(srgb ...), which is what computed styles give.
 * @param {string | undefined} text  undefined, "", "none" and "transparent" give null
 * @throws {Error} for any other syntax
 */
export function parseColour(text) {
  const name = (text ?? "").trim().toLowerCase();
  if (["", "none", "transparent"].includes(name)) return null;
  const hex = /^#([0-9a-f]{3,4}|[0-9a-f]{6}|[0-9a-f]{8})$/.exec(name), call = /^(?:rgba?|color)\(\s*(srgb\s+)?([^)]*)\)$/.exec(name);
  if (!hex && !call) throw new Error(`cannot read the colour ${JSON.stringify(text)}`);
  const part = (/** @type {string} */ written, full = 1) => Math.min(1, Math.max(0, parseFloat(written) / (written.endsWith("%") ? 100 : full) || 0));
  if (hex) {
    const pairs = hex[1].length < 6 ? [...hex[1]].map((digit) => digit + digit) : hex[1].match(/../g) ?? [];
    const [r, g, b, a = 1] = pairs.map((pair) => parseInt(pair, 16) / 255);
    return { r, g, b, a };
  }
  const [, isUnit, written] = /** @type {RegExpExecArray} */ (call), [r = "", g = "", b = "", a = "1"] = written.split(/[\s,/]+/).filter(Boolean);
  const [red, green, blue] = [r, g, b].map((one) => part(one, isUnit ? 1 : 255));
  return { r: red, g: green, b: blue, a: part(a) };
}
