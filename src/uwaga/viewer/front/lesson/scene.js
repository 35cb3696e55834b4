// A step's matrices as a scene, for files.

import { tokenText } from "../dom.js";
import { lessonNumber } from "./numbers.js";
import { digitsOf, heatOf, largestOf, matrixOf, valueAt } from "./reply.js";
/** @import { Scene, SceneItem } from "../types.js" */
/** @import { Lesson, Matrix } from "./reply.js" */

const cellSize = { width: 62, height: 22 };
const fullWidth = 1000, gap = 28, nameWidth = 90;

/** @typedef {{background: string, text: string, muted: string, line: string, more: string, less: string}} SceneColours */

/**
 * @param {Lesson} lesson @param {number} step @param {number} query
 * @param {HTMLElement} element  whose theme colours are used
 * @returns {Scene}
 */
export function lessonScene(lesson, step, query, element) {
  const style = getComputedStyle(element), colour = (/** @type {string} */ name, /** @type {string} */ otherwise) => style.getPropertyValue(name).trim() || otherwise;
  const colours = {
    background: colour("--bg", "#ffffff"), text: colour("--text", "#1a2230"), muted: colour("--muted", "#566171"),
    line: colour("--line", "#d8dee7"), more: colour("--key", "#1f5fa8"), less: colour("--query", "#b85219"),
  };
  const { title, sections } = lesson.steps[step];
  /** @type {SceneItem[]} */
  const items = [{ kind: "text", x: gap, y: gap + 8, text: title, size: 18, anchor: "start", fill: colours.text }];
  let x = gap, y = gap + 30, tallest = 0, widest = 0;
  for (const id of new Set(sections.flatMap((section) => section.matrices))) {
    const matrix = matrixOf(lesson, id);
    const width = nameWidth + matrix.columns.length * cellSize.width, height = (matrix.rows.length + 2) * cellSize.height;
    if (x > gap && x + width > fullWidth) { x = gap; y += tallest + gap; tallest = 0; }
    items.push(...tableItems(lesson, matrix, query, x, y, colours));
    x += width + gap;
    widest = Math.max(widest, x);
    tallest = Math.max(tallest, height);
  }
  return { width: Math.max(widest, 2 * gap + 300), height: y + tallest + gap, background: colours.background, items };
}

/**
 * @param {Lesson} lesson @param {Matrix} matrix @param {number} query @param {number} left @param {number} top
 * @param {SceneColours} colours @returns {SceneItem[]}
 */
function tableItems(lesson, matrix, query, left, top, colours) {
  const { width, height } = cellSize;
  const text = (/** @type {number} */ x, /** @type {number} */ y, /** @type {string} */ words,
    /** @type {"start" | "middle" | "end"} */ anchor, fill = colours.text) =>
    /** @type {SceneItem} */ ({ kind: "text", x, y, text: words, size: 12, anchor, fill });
  const heading = matrix.sliced ? `${matrix.title} (${lesson.request.tokens[query]})` : matrix.title;
  const items = [text(left, top + 14, tokenText(heading), "start")];
  matrix.columns.forEach((name, column) =>
    items.push(text(left + nameWidth + (column + 1) * width - 6, top + height + 15, shortened(name, 9), "end", colours.muted)));
  const largest = largestOf(matrix);
  matrix.rows.forEach((name, row) => {
    const y = top + (row + 2) * height;
    items.push(text(left + nameWidth - 8, y + 15, shortened(name, 12), "end", colours.muted));
    matrix.columns.forEach((_, column) => {
      const x = left + nameWidth + column * width;
      const value = valueAt(lesson, { of: matrix.id, row, column, slice: matrix.sliced ? query : null });
      const heat = heatOf(matrix, value, largest);
      const fill = mixed(colours.background, heat < 0 ? colours.less : colours.more, Math.min(1, Math.abs(heat)) * 0.5);
      items.push({ kind: "rect", x, y, w: width, h: height, fill, stroke: colours.line });
      items.push(text(x + width - 6, y + 15, lessonNumber(value, digitsOf(matrix, column)), "end"));
    });
  });
  return items;
}

/** @param {string} name @param {number} most @returns {string} */
function shortened(name, most) {
  const shown = [...tokenText(name)];
  return shown.length > most ? `${shown.slice(0, most - 1).join("")}\u2026` : shown.join("");
}

/** @param {string} from @param {string} to  both #rrggbb @param {number} share @returns {string} */
function mixed(from, to, share) {
  const parts = [from, to].map((colour) =>
    /^#([0-9a-f]{2})([0-9a-f]{2})([0-9a-f]{2})$/i.exec(colour)?.slice(1).map((part) => parseInt(part, 16)));
  const [first, second] = parts;
  if (!first || !second) return from;
  return `#${first.map((part, n) => Math.round(part + share * (second[n] - part)).toString(16).padStart(2, "0")).join("")}`;
}
