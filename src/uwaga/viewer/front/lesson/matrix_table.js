// A matrix as a table: numbers whose calculation can be followed, or inputs that the user may edit.

import { el, openAround, tokenText } from "../dom.js";
import { tr } from "../languages.js";
import { formulaText, inputText, lessonNumber, parseNumber, sentenceText } from "./numbers.js";
import { cellKey, digitsOf, hasCell, heatOf, largestOf, matrixOf, valueAt } from "./reply.js";
/** @import { Cell, Lesson, Matrix } from "./reply.js" */

/**
 * @typedef {object} MatrixActions
 * @property {(cell: Cell) => void} select
 * @property {(field: string, row: number, column: number, value: number) => void} write
 * @property {(text: string) => void} say
 */
/**
 * @typedef {object} MatrixTable
 * @property {HTMLElement} element
 * @property {string} id
 * @property {(lesson: Lesson, slice: number) => void} update
 * @property {(selected: Cell | null, sources: Set<string>) => void} showSelection
 * @property {(covered: boolean) => void} cover  whether numbers are shown as question marks
 * @property {(cell: Cell) => void} reveal  scrolls to a cell and focuses it
 */

/**
 * @param {Lesson} lesson @param {string} id
 * @param {number} slice  the query of a sliced matrix
 * @param {MatrixActions} actions @returns {MatrixTable}
 */
export function makeMatrixTable(lesson, id, slice, actions) {
  const matrix = matrixOf(lesson, id);
  const editable = matrix.field !== null;
  const caption = el("figcaption", { class: "lesson-caption", id: `lesson-caption-${++tableCount}` });
  const error = el("p", { class: "lesson-error", role: "alert", hidden: true });
  const heads = matrix.columns.map(() => el("th", { scope: "col" }));
  const sides = matrix.rows.map(() => el("th", { scope: "row" }));
  const cells = matrix.rows.map((_, row) => matrix.columns.map((__, column) => makeCell(id, row, column, editable)));
  const table = el("table", { class: `lesson-table lesson-shade-${matrix.shade}`, role: "grid", "data-matrix": id, "aria-readonly": String(!editable), "aria-labelledby": caption.id },
    el("thead", {}, el("tr", {}, el("td", { class: "lesson-corner" }), heads)),
    el("tbody", {}, cells.map((line, row) => el("tr", {}, sides[row], line.map((cell) => cell.place)))),
  );
  const note = el("p", { class: "lesson-note" }), product = el("p", { class: "lesson-product" });
  const element = el("figure", { class: "lesson-matrix" }, caption, el("div", { class: "lesson-scroll" }, table), product, error, note);

  let shown = lesson;
  let at = slice;
  let isCovered = false;
  let tabStop = { row: 0, column: 0 };
  /** @type {Map<string, string>} */
  const inputErrors = new Map();

  /** @param {number} row @param {number} column @returns {Cell} */
  const cellAt = (row, column) => ({ of: id, row, column, slice: matrixOf(shown, id).sliced ? at : null });

  /** @param {number} row @param {number} column */
  function moveTabStop(row, column) {
    cells[tabStop.row][tabStop.column].target.tabIndex = -1;
    tabStop = { row, column };
    cells[row][column].target.tabIndex = 0;
  }

  /** @param {number} row @param {number} column @param {boolean} [move] */
  function select(row, column, move = false) {
    moveTabStop(row, column);
    if (move) cells[row][column].target.focus();
    actions.select(cellAt(row, column));
  }

  /** @param {number} row @param {number} column @param {HTMLInputElement} input */
  function read(row, column, input) {
    const most = shown.limits.number;
    const found = parseNumber(input.value, { least: -most, most });
    const key = `${row}/${column}`;
    input.setAttribute("aria-invalid", String("error" in found));
    if ("error" in found) inputErrors.set(key, found.error);
    else inputErrors.delete(key);
    const first = inputErrors.values().next();
    error.hidden = !!first.done;
    error.textContent = first.done ? "" : tr("{value} The numbers below are those of the last valid input.", { value: first.value });
    if ("value" in found && matrix.field) actions.write(matrix.field, row, column, found.value);
  }

  /** @param {KeyboardEvent} event @param {number} row @param {number} column */
  function key(event, row, column) {
    const target = cells[row][column].target;
    const input = target instanceof HTMLInputElement ? target : null;
    const last = { row: cells.length - 1, column: cells[0].length - 1 };
    if (event.altKey || event.metaKey) return;
    const atStart = !input || (input.selectionStart === 0 && input.selectionEnd === 0);
    const atEnd = !input || (input.selectionStart === input.value.length && input.selectionEnd === input.value.length);
    const whole = !!input && input.selectionStart === 0 && input.selectionEnd === input.value.length;
    /** @type {{[key: string]: [number, number] | null}} */
    const moves = {
      ArrowUp: [row - 1, column], ArrowDown: [row + 1, column],
      ArrowLeft: atStart || whole ? [row, column - 1] : null, ArrowRight: atEnd || whole ? [row, column + 1] : null,
      Home: event.ctrlKey ? [0, 0] : input ? null : [row, 0],
      End: event.ctrlKey ? [last.row, last.column] : input ? null : [row, last.column],
      Enter: input ? [Math.min(row + 1, last.row), column] : [row, column],
    };
    if (event.key === " " && !input) moves[" "] = [row, column];
    const to = moves[event.key];
    if (!to) return;
    event.preventDefault();
    event.stopPropagation();
    if (to[0] < 0 || to[1] < 0 || to[0] > last.row || to[1] > last.column) return;
    const next = cells[to[0]][to[1]].target;
    if (event.key === "Enter" || event.key === " ") select(to[0], to[1], true);
    else { moveTabStop(to[0], to[1]); next.focus(); }
    if (next instanceof HTMLInputElement) next.select();
  }

  cells.forEach((line, row) => line.forEach(({ target }, column) => {
    target.tabIndex = row === 0 && column === 0 ? 0 : -1;
    target.addEventListener("keydown", (event) => key(/** @type {KeyboardEvent} */ (event), row, column));
    target.addEventListener("click", () => select(row, column));
    if (target instanceof HTMLInputElement) {
      target.addEventListener("input", () => read(row, column, target));
      target.addEventListener("focus", () => { if (!cells[row][column].place.classList.contains("lesson-selected")) select(row, column); });
    }
  }));

  /** @param {Lesson} next @param {number} query */
  function update(next, query) {
    shown = next;
    at = query;
    const now = matrixOf(next, id);
    caption.replaceChildren(el("strong", {}, sentenceText(now.title)), " ", el("span", { class: "lesson-formula" }, formulaText(now.formula)));
    note.replaceChildren(...sentenceText(now.note));
    note.hidden = !now.note;
    product.textContent = now.product;
    product.hidden = !now.product || isCovered;
    now.columns.forEach((name, column) => { heads[column].textContent = tokenText(name); });
    const isOfTokens = now.rows.length === next.request.tokens.length && now.rows.every((name, row) => name === next.request.tokens[row]);
    now.rows.forEach((name, row) => {
      sides[row].textContent = tokenText(name);
      sides[row].parentElement?.classList.toggle("lesson-row-asks", isOfTokens && row === query);
    });
    const largest = largestOf(now);
    cells.forEach((line, row) => line.forEach((cell, column) => {
      const value = valueAt(next, cellAt(row, column));
      fillCell(cell, now, value, largest, `${tokenText(now.rows[row])}, ${tokenText(now.columns[column])}`, inputErrors.has(`${row}/${column}`));
      if (isCovered && cell.target === cell.place) coverCell(cell.place, `${tokenText(now.rows[row])}, ${tokenText(now.columns[column])}`);
    }));
  }
  update(lesson, slice);

  return {
    element, id, update,
    cover(covered) {
      if (covered === isCovered) return;
      isCovered = covered;
      update(shown, at);
    },
    showSelection(selected, sources) {
      cells.forEach((line, row) => line.forEach(({ place, target }, column) => {
        const cell = cellAt(row, column), name = cellKey(cell);
        const isSelected = !!selected && cellKey(selected) === name;
        place.classList.toggle("lesson-selected", isSelected);
        place.classList.toggle("lesson-source", sources.has(name));
        if (target === place) target.setAttribute("aria-selected", String(isSelected));
      }));
    },
    reveal(cell) {
      if (!hasCell(shown, cell)) return;
      moveTabStop(cell.row, cell.column);
      openAround(element);
      cells[cell.row][cell.column].target.focus();
    },
  };
}

let tableCount = 0;

/** @typedef {{place: HTMLElement, target: HTMLElement}} TableCell  the td, and the element in it that takes the focus */

// One cell of a matrix.

/** @param {string} id  of the matrix @param {number} row @param {number} column @param {boolean} editable @returns {TableCell} */
function makeCell(id, row, column, editable) {
  const props = { role: "gridcell", class: "lesson-cell", "data-row": row, "data-column": column };
  if (!editable) {
    const place = el("td", props, el("span", { class: "lesson-cell-number" }));
    return { place, target: place };
  }
  const input = el("input", { type: "text", name: `${id}/${row}/${column}`, inputmode: "decimal", autocomplete: "off", size: 5 });
  return { place: el("td", { ...props, class: "lesson-cell lesson-editable" }, input), target: input };
}

/**
 * @param {TableCell} cell @param {Matrix} matrix @param {number} value @param {number} largest @param {string} name
 * @param {boolean} isInvalid  the input does not hold a valid number
 */
function fillCell({ place, target }, matrix, value, largest, name, isInvalid) {
  const heat = heatOf(matrix, value, largest);
  // The area of the circle grows with the number.
  place.style.setProperty("--lesson-size", Math.sqrt(Math.min(1, Math.abs(heat) || 0)).toFixed(3));
  place.classList.toggle("lesson-negative", heat < 0);
  place.classList.toggle("lesson-hidden-number", Number.isNaN(value));
  if (target instanceof HTMLInputElement) {
    target.setAttribute("aria-label", name);
    // An input with the focus keeps the text as typed.
    if (!isInvalid && target !== target.ownerDocument.activeElement) target.value = inputText(value);
    else if (!isInvalid && Math.fround(Number(target.value.replace("\u2212", "-").replace(",", "."))) !== value)
      target.value = inputText(value);
    return;
  }
  const text = lessonNumber(value, digitsOf(matrix, Number(place.dataset.column)));
  showCellText(target, text);
  place.classList.remove("lesson-covered");
  target.setAttribute("aria-label", `${name}: ${Number.isNaN(value) ? tr("hidden") : text}`);
}

/** @param {HTMLElement} place @param {string} text */
function showCellText(place, text) {
  /** @type {Element} */ (place.firstElementChild).textContent = text;
}

/** @param {HTMLElement} place @param {string} name */
function coverCell(place, name) {
  showCellText(place, "?");
  place.style.setProperty("--lesson-size", "0");
  place.classList.add("lesson-covered");
  place.classList.remove("lesson-negative", "lesson-hidden-number");
  place.setAttribute("aria-label", tr("{name}: not shown yet", { name }));
}
