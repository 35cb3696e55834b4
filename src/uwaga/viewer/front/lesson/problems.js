// The problems and remedies under each step: those of the step as drawings of what was measured, all others folded.

import { el, svgEl } from "../dom.js";
import { tr } from "../languages.js";
import { sentenceText } from "./numbers.js";

/** @typedef {ReturnType<typeof import("./reply.js").ledgerAt>} LessonLedger */

const size = { width: 110, height: 48 };

/** @returns {{element: HTMLElement, update: (problems: LessonLedger, isAsking: boolean) => void}} */
export function makeLedger() {
  const here = el("ul", { class: "lesson-ledger-list" }), others = el("ul", { class: "lesson-ledger-list" });
  const count = el("summary");
  const rest = el("details", { class: "lesson-ledger-rest" }, count, others);
  const element = el("section", { class: "lesson-ledger", "aria-label": tr("Problems and remedies") },
    el("h3", { text: tr("Problems and remedies") }), here, rest);
  return {
    element,
    update(problems, isAsking) {
      const isHere = (/** @type {LessonLedger[number]} */ problem) => problem.here && !isAsking;
      const otherProblems = problems.filter((problem) => !isHere(problem));
      element.hidden = !problems.length;
      here.replaceChildren(...problems.filter(isHere).map(itemOf));
      others.replaceChildren(...otherProblems.map(itemOf));
      rest.hidden = !otherProblems.length;
      count.textContent = tr("Known so far: {count}, removed: {removed}", { count: otherProblems.length, removed: otherProblems.filter(({ solved }) => solved).length });
    },
  };
}

/** @param {LessonLedger[number]} problem @returns {HTMLElement} */
function itemOf({ id, title, text, solved, numbers }) {
  return el("li", { class: solved ? "lesson-solved" : "lesson-open-problem", "data-problem": id }, drawingOf(id, numbers),
    el("strong", { text: title }), " ", el("span", { class: "lesson-state", text: solved ? tr("removed") : tr("open") }), el("p", {}, sentenceText(text)));
}

/**
 * What was measured, as a drawing: bars, a curve, lines that cross, arrows in two directions, points.
 * @param {string} id @param {number[]} numbers @returns {Element}
 */
function drawingOf(id, numbers) {
  const draw = drawings[id] ?? barsOf;
  const { width, height } = size;
  return svgEl("svg", { class: "lesson-problem-drawing", viewBox: `0 0 ${width} ${height}`, width, height, "aria-hidden": "true" }, draw(numbers));
}

/** @param {string} d @param {number} [wide] @returns {Element} */
const line = (d, wide = 2) => svgEl("path", { d, "stroke-width": wide });

/** @param {number[]} numbers @returns {Element[]} */
function barsOf(numbers) {
  const most = Math.max(...numbers.map(Math.abs), 1e-9), pitch = Math.min(22, 96 / numbers.length);
  return numbers.map((value, at) => line(`M${8 + (at + 0.5) * pitch} 46V${(46 - Math.max(1, 40 * Math.abs(value) / most)).toFixed(1)}`, pitch * 0.55));
}

/** @type {{[id: string]: (numbers: number[]) => Element[]}} */
const drawings = {
  learned(numbers) {
    const most = Math.max(...numbers, 1e-9), step = 92 / Math.max(1, numbers.length - 1);
    return [line("M8 4V44H104", 1), line(numbers.map((value, at) => `${at ? "L" : "M"}${(10 + at * step).toFixed(1)} ${(42 - 32 * value / most).toFixed(1)}`).join(""), 3)];
  },
  // What the longest vector takes of a row, before and after it is made longer: the whole line is the row.
  long: (numbers) => numbers.flatMap((value, at) => [line(`M6 ${16 + at * 20}H104`, 1), line(`M6 ${16 + at * 20}H${(6 + 98 * Math.min(1, value)).toFixed(1)}`, 6)]),
  order: ([apart]) => (apart ? [10, 25, 40] : [10, 25, 40]).map((y, at) => line(apart ? `M8 ${y}H104` : `M8 ${y}C54 ${y} 54 ${[25, 10, 40][at]} 104 ${[25, 10, 40][at]}`)),
  symmetric([there = 0, back = 0]) {
    const most = Math.max(Math.abs(there), Math.abs(back), 1e-9), wide = (/** @type {number} */ value) => 1 + 5 * Math.abs(value) / most;
    return [line("M8 16H98", wide(there)), line("M92 9L101 16L92 23"), line("M14 36H104", wide(back)), line("M20 29L11 36L20 43")];
  },
  wide: (numbers) => barsOf(numbers.map((value) => Math.sqrt(Math.abs(value)))),
  one: ([count = 1]) => Array.from({ length: Math.min(4, count) }, (_, at) => line(`M${12 + at * 12} 44C${12 + at * 12} ${6 + at * 6} ${96 - at * 6} ${6 + at * 6} ${96 - at * 6} 44`, 3)),
  later: ([share = 0]) => [line("M30 4V44H70", 1), svgEl("path", { class: "lesson-problem-fill", "fill-opacity": Math.min(1, share * 1.6).toFixed(2), d: "M30 4H70V44Z" }), line("M30 4L70 44", 1)],
  // A table: a point for each of its numbers.
  cost([rows = 1, columns = rows]) {
    const step = 40 / Math.max(5, rows, columns);
    return Array.from({ length: rows * columns }, (_, at) => svgEl("circle", { class: "lesson-problem-fill", cx: 8 + (at % columns + 0.5) * step, cy: 4 + (Math.floor(at / columns) + 0.5) * step, r: Math.min(4, step * 0.36) }));
  },
};
