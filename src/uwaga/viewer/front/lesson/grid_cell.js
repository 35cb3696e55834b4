// One cell of a matrix in the lesson.

import { el } from "../dom.js";
import { lessonDigits } from "./reply.js";
import { lessonNumber, lessonTyped } from "./numbers.js";

/** @typedef {import("./grid.js").GridCell} GridCell */

/** @param {number} row @param {number} column @param {boolean} typed @returns {GridCell} */
export function gridCell(row, column, typed) {
  const props = { role: "gridcell", class: "lesson-cell", "data-row": row, "data-column": column };
  if (!typed) {
    const place = el("td", props);
    return { place, target: place };
  }
  const input = el("input", { type: "text", inputmode: "decimal", autocomplete: "off", size: 5 });
  return { place: el("td", { ...props, class: "lesson-cell lesson-typed" }, input), target: input };
}

/**
 * @param {GridCell} cell
 * @param {import("./reply.js").LessonMatrix} matrix
 * @param {number} value
 * @param {number} largest
 * @param {string} name
 * @param {boolean} readOnly
 * @param {boolean} mistaken  what stands in it is no number yet
 */
export function gridFill({ place, target }, matrix, value, largest, name, readOnly, mistaken) {
  const heat = matrix.shade === "none" || Number.isNaN(value) ? 0 : matrix.shade === "signed" ? value / largest : value;
  place.style.setProperty("--lesson-heat", String(Math.min(1, Math.abs(heat) || 0)));
  place.classList.toggle("lesson-negative", heat < 0);
  place.classList.toggle("lesson-hidden-number", Number.isNaN(value));
  if (target instanceof HTMLInputElement) {
    target.readOnly = readOnly;
    target.setAttribute("aria-label", name);
    // What is being typed stays as it is typed.
    if (!mistaken && target !== target.ownerDocument.activeElement) target.value = lessonTyped(value);
    else if (!mistaken && Math.fround(Number(target.value.replace("\u2212", "-").replace(",", "."))) !== value)
      target.value = lessonTyped(value);
    return;
  }
  const text = lessonNumber(value, lessonDigits(matrix, Number(place.dataset.column)));
  target.textContent = text;
  target.setAttribute("aria-label", `${name}: ${Number.isNaN(value) ? "hidden" : text}`);
}

/** @param {Float32Array} data @returns {number} */
export function gridLargest(data) {
  let largest = 0;
  for (const value of data) if (Math.abs(value) > largest) largest = Math.abs(value);
  return largest || 1;
}
