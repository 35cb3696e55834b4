// The row of one word in several matrices as circles, and the calculation of a dot product, term under term.

import { el, svgEl, tokenText } from "../dom.js";
import { wordWidth } from "./arcs.js";
import { lessonNumber } from "./numbers.js";
import { digitsOf, largestOf, matrixOf, valueAt } from "./reply.js";
/** @import { PictureActions, PictureBody } from "./pictures.js" */
/** @import { Cell, Lesson, Rule } from "./reply.js" */

/**
 * The radius of a number's circle: its area grows with the number.
 * @param {number} value @param {number} largest @param {number} most @returns {number}
 */
export const circleRadius = (value, largest, most) => (Number.isFinite(value) && largest > 0 ? Math.sqrt(Math.min(1, Math.abs(value) / largest)) * most : 0);

/** Heights of a row's parts, in pixels, and the most that a circle has as its radius. */
const heights = { label: 20, names: 18, circles: 54, radius: 14 };

/** @param {PictureActions} actions @returns {PictureBody} */
export function makeRows(actions) {
  const words = el("div", { class: "lesson-rows-words", role: "group" });
  const picture = svgEl("svg", { class: "lesson-rows", role: "img" });
  /** @type {Element[]} */
  let circles = [];
  let built = "";

  return {
    element: el("div", {}, words, el("div", { class: "lesson-scroll" }, picture)),
    update(lesson, shown, query, covered) {
      const matrices = shown.matrices.map((id) => matrixOf(lesson, id));
      const { room } = actions.place();
      const most = Math.max(...matrices.map(({ columns }) => columns.length));
      const cell = Math.max(44, Math.min(92, Math.floor((room - 8) / most)));
      words.setAttribute("aria-label", shown.title);
      words.replaceChildren(...lesson.request.tokens.map((/** @type {string} */ token, /** @type {number} */ at) => el("button", { type: "button",
        class: `lesson-rows-word${at === query ? " lesson-word-asks" : ""}`, "aria-pressed": String(at === query), text: tokenText(token),
        on: { click: () => actions.choose(at) } })));
      const largest = Math.max(...matrices.map(largestOf));
      let y = 0;
      const place = matrices.map((matrix, at) => {
        const names = at && matrices[at - 1].columns.join("\n") === matrix.columns.join("\n") ? null : matrix.columns;
        const top = y;
        y += heights.label + (names ? heights.names : 0) + heights.circles;
        return { names, top };
      });
      const width = Math.max(most * cell + 8, ...shown.labels.map((text) => wordWidth(text) * 16 + 8));
      picture.setAttribute("viewBox", `0 0 ${width} ${y}`);
      picture.setAttribute("width", String(width));
      picture.setAttribute("height", String(y));
      picture.setAttribute("aria-label", `${shown.title}: ${tokenText(lesson.request.tokens[query])}`);
      const hides = (/** @type {number} */ at) => covered && shown.covered?.includes(matrices[at].id);
      const key = JSON.stringify([matrices.map(({ id, columns }) => [id, columns]), shown.labels, cell, matrices.map((_, at) => hides(at))]);
      if (key !== built) {
        built = key;
        circles = [];
        picture.replaceChildren(...matrices.flatMap((matrix, at) => {
          const { names, top } = place[at];
          return [
            svgEl("text", { class: "lesson-rows-label", x: 2, y: top + 16, text: tokenText(shown.labels[at]) }),
            ...(names ?? []).map((name, column) => svgEl("text", { class: "lesson-share", x: (column + 0.5) * cell, y: top + heights.label + 12, "text-anchor": "middle", ...fittedName(name, cell) })),
            ...matrix.columns.flatMap(() => {
              const pair = [svgEl("circle"), svgEl("text", { class: "lesson-share", "text-anchor": "middle" })];
              circles.push(...pair);
              return pair;
            }),
          ];
        }));
      }
      let which = 0;
      matrices.forEach((matrix, at) => {
        const middle = place[at].top + heights.label + (place[at].names ? heights.names : 0) + heights.radius + 2;
        const role = matrix.id === "q" ? " lesson-circle-asks" : matrix.id === "k" ? "" : " lesson-circle-ink";
        matrix.columns.forEach((_, column) => {
          const value = valueAt(lesson, { of: matrix.id, row: Math.min(query, matrix.rows.length - 1), column, slice: null }), isHidden = hides(at);
          const [circle, text] = circles.slice(which, which + 2), x = (column + 0.5) * cell;
          which += 2;
          circle.setAttribute("class", `lesson-circle${role}${value < 0 ? " lesson-ring" : ""}`);
          circle.setAttribute("cx", x.toFixed(1));
          circle.setAttribute("cy", middle.toFixed(1));
          /** @type {SVGElement} */ (circle).style.setProperty("r", `${isHidden ? 0 : Math.max(1, circleRadius(value, largest, heights.radius)).toFixed(2)}px`);
          text.setAttribute("x", x.toFixed(1));
          text.setAttribute("y", (isHidden ? middle + 5 : middle + heights.radius + 14).toFixed(1));
          text.textContent = isHidden ? "?" : lessonNumber(value, digitsOf(matrix, column));
        });
      });
    },
  };
}

/** A name that fits a column: narrower letters, or the beginning of it. @param {string} name @param {number} width @returns {{text: string, textLength?: number, lengthAdjust?: string}} */
function fittedName(name, width) {
  const shown = [...tokenText(name)], size = 14, most = width - 4;
  if (wordWidth(shown.join("")) * size <= most) return { text: shown.join("") };
  const isCut = wordWidth(shown.join("")) * size > most * 1.3;
  while (isCut && shown.length > 1 && wordWidth(shown.join("")) * size > most * 1.15) shown.pop();
  return { text: isCut ? `${shown.join("")}\u2026` : shown.join(""), textLength: most, lengthAdjust: "spacingAndGlyphs" };
}

/** Terms of a product that are drawn, at most. */
const mostTerms = 8;

/**
 * A dot product: the numbers of both sides as circles under each other, their products, and the sum. Null if the rule is no dot product, or a long one.
 * @param {Lesson} lesson @param {Rule} rule
 * @param {Cell[][]} terms  of both operands
 * @param {string} result @returns {Element | null}
 */
export function makeProduct(lesson, rule, terms, result) {
  const [left, right] = terms;
  if (rule.op !== "dot" || left.length > mostTerms || left.length !== right.length) return null;
  const numbers = [left, right].map((side) => side.map((cell) => valueAt(lesson, cell)));
  if (numbers.flat().some(Number.isNaN)) return null;
  const largest = Math.max(...numbers.flat().map(Math.abs)), names = [left, right].map((side) => sideName(lesson, side));
  const first = Math.min(104, Math.max(34, ...names.map(({ fixed }) => wordWidth(fixed) * 18 + 14))), cell = 64;
  const width = first + left.length * cell + 4, middle = (/** @type {number} */ m) => first + (m + 0.5) * cell;
  const side = (/** @type {number} */ which, /** @type {number} */ y, /** @type {string} */ kind) => [
    svgEl("text", { class: `lesson-product-name${which ? " lesson-is-key" : " lesson-word-asks"}`, x: 0, y: y + 5, ...fittedName(names[which].fixed, first) }),
    ...numbers[which].flatMap((value, m) => [
      svgEl("circle", { class: `lesson-circle ${kind}${value < 0 ? " lesson-ring" : ""}`, cx: middle(m) - 12, cy: y, r: Math.max(1, circleRadius(value, largest, 13)).toFixed(2) }),
      svgEl("text", { class: "lesson-share", x: middle(m) + 4, y: y + 5, text: lessonNumber(value) })]),
  ];
  return svgEl("svg", { class: "lesson-product-drawing", viewBox: `0 0 ${width} 152`, "aria-hidden": "true",
    // It shrinks a little to fit a phone, and scrolls if that is not enough.
    style: { width: "100%", "min-width": `${Math.min(width, Math.max(280, width * 0.75))}px`, "max-width": `${width}px` } },
    names[0].moving.map((name, m) => svgEl("text", { class: "lesson-share", x: middle(m), y: 13, "text-anchor": "middle", ...fittedName(name, cell) })),
    side(0, 36, "lesson-circle-asks"), side(1, 78, ""),
    left.map((_, m) => svgEl("text", { class: "lesson-share", x: middle(m) - 12, y: 61, "text-anchor": "middle", text: "\u00d7" })),
    svgEl("line", { class: "lesson-rule", x1: 0, x2: width, y1: 98, y2: 98 }),
    left.map((_, m) => svgEl("text", { class: "lesson-product-term", x: middle(m), y: 118, "text-anchor": "middle", text: lessonNumber(numbers[0][m] * numbers[1][m]) })),
    left.slice(1).map((_, m) => svgEl("text", { class: "lesson-share", x: first + (m + 1) * cell, y: 118, "text-anchor": "middle", text: "+" })),
    svgEl("text", { class: "lesson-product-sum", x: 0, y: 145, text: `= ${result}` }));
}

/** What is the same in all terms of a side, and what moves. @param {Lesson} lesson @param {Cell[]} side @returns {{fixed: string, moving: string[]}} */
function sideName(lesson, side) {
  const matrix = matrixOf(lesson, side[0].of), isRow = side.every(({ row }) => row === side[0].row);
  return isRow ? { fixed: tokenText(matrix.rows[side[0].row]), moving: side.map(({ column }) => matrix.columns[column]) }
    : { fixed: tokenText(matrix.columns[side[0].column]), moving: side.map(({ row }) => matrix.rows[row]) };
}
