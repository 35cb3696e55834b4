// The panel that says where a number came from, as far back as one asks.

import { el, tokenText } from "../dom.js";
import { lessonDigits, lessonHas, lessonMatrix, lessonValue } from "./reply.js";
import { lessonCalculation, lessonSaying } from "./resolve.js";
import { lessonNumber } from "./numbers.js";

/** @typedef {import("./reply.js").Lesson} Lesson */
/** @typedef {import("./reply.js").LessonCell} LessonCell */

/**
 * "scores[this, pen]", as one names a cell.
 * @param {Lesson} lesson
 * @param {LessonCell} cell
 * @returns {string}
 */
export function lessonCellName(lesson, cell) {
  const matrix = lessonMatrix(lesson, cell.of);
  const title = tokenText(matrix.title.split(",")[0]);
  const query = matrix.sliced && cell.slice !== null ? `, query ${tokenText(lesson.question.tokens[cell.slice])}` : "";
  return `${title} [${tokenText(matrix.rows[cell.row])}, ${tokenText(matrix.columns[cell.column])}${query}]`;
}

/**
 * @param {{follow: (cell: LessonCell) => void, back: () => void, close: () => void, go: (step: number) => void,
 *   near: (cell: LessonCell | null) => void}} actions
 * @returns {{element: HTMLElement, show: (lesson: Lesson, chain: LessonCell[], step: number) => void, heading: HTMLElement}}
 */
export function lessonExplanation(actions) {
  const heading = el("h3", { class: "lesson-explained", tabindex: "-1" });
  const back = el("button",
    { type: "button", text: "\u2190 Back", title: "To the number before (Backspace)", on: { click: actions.back } });
  const close = el("button",
    { type: "button", text: "\u00d7", "aria-label": "Mark no number", title: "Mark no number (Escape)", on: { click: actions.close } });
  const trail = el("ol", { class: "lesson-trail", "aria-label": "Numbers followed so far" });
  const body = el("div", { class: "lesson-why" });
  const element = el("aside", { class: "lesson-explanation", "aria-label": "Where this number comes from" },
    el("div", { class: "lesson-explanation-head" }, heading, el("div", { class: "lesson-explanation-buttons" }, back, close)), trail, body);

  /** @param {Lesson} lesson @param {LessonCell[]} chain @param {number} step */
  function show(lesson, chain, step) {
    const known = chain.filter((cell) => lessonHas(lesson, cell));
    const cell = known.at(-1);
    element.classList.toggle("lesson-idle", !cell);
    back.disabled = known.length < 2;
    close.hidden = back.hidden = !cell;
    trail.hidden = known.length < 2;
    trail.replaceChildren(...known.slice(0, -1).map((one) => el("li", { text: explainShort(lesson, one) })));
    if (!cell) {
      heading.textContent = "Where a number comes from";
      body.replaceChildren(el("p",
        { text: "Click a number, or move to it with the arrow keys and press Enter: here its calculation is written out, "
          + "and every number in it can be followed on." }));
      return;
    }
    const matrix = lessonMatrix(lesson, cell.of);
    const value = lessonValue(lesson, cell);
    heading.textContent = `${lessonCellName(lesson, cell)} = ${Number.isNaN(value) ? "hidden" : explainNumber(matrix, cell, value, 3)}`;
    const pieces = lessonCalculation(lesson, cell);
    const said = lessonSaying(lesson, cell);
    body.replaceChildren(
      el("p", { class: "lesson-formula", text: matrix.formula }),
      ...(pieces.length ? [el("p", { class: "lesson-calculation" }, "= ", pieces.map((piece) => explainPiece(lesson, piece, actions)),
        Number.isNaN(value) ? null : ` = ${explainNumber(matrix, cell, value, 3)}`)] : []),
      ...(said ? [el("p", { text: tokenText(said) })] : []),
      ...explainPlace(lesson, cell, step, actions),
    );
  }
  return { element, heading, show };
}

/**
 * @param {import("./reply.js").LessonMatrix} matrix
 * @param {LessonCell} cell
 * @param {number} value
 * @param {number} least  digits behind the point, but for counts and bits
 * @returns {string}
 */
function explainNumber(matrix, cell, value, least) {
  const digits = lessonDigits(matrix, cell.column);
  return lessonNumber(value, digits && Math.max(least, digits));
}

/** @param {Lesson} lesson @param {LessonCell} cell @returns {string} */
function explainShort(lesson, cell) {
  const value = lessonValue(lesson, cell);
  return `${lessonCellName(lesson, cell)} = ${explainNumber(lessonMatrix(lesson, cell.of), cell, value, 2)}`;
}

/**
 * @param {Lesson} lesson
 * @param {import("./resolve.js").LessonPiece} piece
 * @param {{follow: (cell: LessonCell) => void, near: (cell: LessonCell | null) => void}} actions
 * @returns {Node | string}
 */
function explainPiece(lesson, piece, actions) {
  if (typeof piece === "string") return piece;
  const { cell } = piece;
  const value = lessonValue(lesson, cell);
  const name = lessonCellName(lesson, cell);
  const text = explainNumber(lessonMatrix(lesson, cell.of), cell, value, 2);
  return el("button", {
    type: "button", class: "lesson-number", text: value < 0 ? `(${text})` : text, title: name, "aria-label": `${text}, ${name}`,
    on: {
      click: () => actions.follow(cell),
      pointerenter: () => actions.near(cell), pointerleave: () => actions.near(null),
      focus: () => actions.near(cell), blur: () => actions.near(null),
    },
  });
}

/**
 * Where the number stands, if not on this page.
 * @param {Lesson} lesson
 * @param {LessonCell} cell
 * @param {number} step
 * @param {{go: (step: number) => void}} actions
 * @returns {HTMLElement[]}
 */
function explainPlace(lesson, cell, step, actions) {
  const stands = (/** @type {number} */ at) => lesson.steps[at].sections.some((section) => section.matrices.includes(cell.of));
  if (stands(step)) return [];
  const at = lesson.steps.findIndex((_, place) => stands(place));
  if (at < 0) return [];
  return [el("p", {}, el("button",
    { type: "button", text: `Show it in its step: ${lesson.steps[at].title}`, on: { click: () => actions.go(at) } }))];
}
