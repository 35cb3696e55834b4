// The calculation as one drawing that stays through all steps: X, then Q, K and V, scores, weights, output and heads. Each box is
// the real matrix; boxes of later steps are outlines, and lines join a picked number with the numbers that it comes from.

import { el, svgEl, tokenText } from "../dom.js";
import { pressable } from "./arcs.js";
import { formulaText } from "./numbers.js";
import { cellKey, hasCell, largestOf, matrixName, matrixOf, valueAt } from "./reply.js";
/** @import { Cell, Lesson } from "./reply.js" */

/** @typedef {{slot: string, id: string, label: string, role: string, x: number, y: number, cell: number, rows: number, columns: number, stacked: boolean}} Box */

const drawingHeight = 220, labelHeight = 18, gap = 34, edge = 8;
const mostHeads = 2; // further heads that are drawn: the first is the calculation of the six steps

/** The boxes from left to right, by column: slot, matrix, label. @type {[string, string, string][][]} */
const boxColumns = [
  [["x", "x", "X"]],
  [["q", "q", "Q"], ["k", "k", "K"], ["v", "v", "V"]],
  [["scores", "scores", "Q K\u1d40"]],
  [["scaled", "scaled", "Q K\u1d40 / \u221ad"]],
  [["weights", "weights", "A"]],
  [["output", "output", "Z\u2081 = A V"]],
];
const arrowEnds = [
  ["x", "q"], ["x", "k"], ["x", "v"], ["q", "scores"], ["k", "scores"], ["scores", "scaled"], ["scaled", "weights"], ["weights", "output"],
  ["v", "output"], ["output", "layer"], ["x", "head2"], ["x", "head3"], ["head2", "layer"], ["head3", "layer"],
];
const roles = { q: "query", k: "key", v: "value" };

/**
 * The matrices in the boxes of a step that differ from those of the calculation; "": nothing.
 * @type {{[step: string]: {[slot: string]: [string, string]}}}
 */
export const ownBoxes = {
  crude: { scores: ["crude_scores", "X X\u1d40"], output: ["crude", "X X\u1d40 X"] },
  alike: { scores: ["crude_scores", "X X\u1d40"], output: ["crude_by_features", "X (X\u1d40 X)"] },
  linear: { scaled: ["", ""], weights: ["", ""], output: ["linear_output", "(Q K\u1d40) V"] },
  masks: { scaled: ["causal_scores", "Q K\u1d40 / \u221ad"], weights: ["causal_weights", "A"], output: ["causal_output", "A V"] },
  database: { v: ["payload", "V"], output: ["payload_output", "A V"] },
  past: { v: ["payload", "V"], scaled: ["own_scores", "Q K\u1d40"], weights: ["own_weights", "A"], output: ["own_payload", "A V"] },
  learning: { x: ["learn_x", "X"], ...boxesOfHead("learn_", "raw", "weights"), head2: ["", ""], head3: ["", ""], layer: ["", ""] },
  positions: { x: ["x_placed", "X + P"] },
  encoder: { x: ["first", "X"], ...boxesOfHead("block1_head1_", "raw", "weights"), ...boxesOfOthers("block1_") },
  stack: { x: ["first", "X"], ...boxesOfHead("block2_head1_", "raw", "weights"), ...boxesOfOthers("block2_") },
  decoder: { x: ["written", "X"], ...boxesOfHead("decoder_cross_head1_", "raw", "weights"), ...boxesOfOthers("decoder_cross_") },
};

/** @param {string} before @param {string} scores @param {string} weights @returns {{[slot: string]: [string, string]}} */
function boxesOfHead(before, scores, weights) {
  return {
    q: [`${before}q`, "Q"], k: [`${before}k`, "K"], v: [`${before}v`, "V"], scores: [before + scores, "Q K\u1d40"],
    scaled: [`${before}scaled`, "Q K\u1d40 / \u221ad"], weights: [before + weights, "A"], output: [`${before}output`, "A V"],
  };
}

/** @param {string} before @returns {{[slot: string]: [string, string]}} */
function boxesOfOthers(before) {
  return {
    head2: [`${before}head2_weights`, "A\u2082"], head3: [`${before}head3_weights`, "A\u2083"],
    layer: [`${before}attended`, "Z W_O"],
  };
}

/**
 * The boxes of a step, with the matrix that stands in each, and their places.
 * @param {Lesson} lesson @param {number} step @returns {Box[]}
 */
export function boxesOf(lesson, step) {
  const { id, sections } = lesson.steps[step];
  const overrides = ownBoxes[id] ?? {};
  const tokens = lesson.request.tokens.length;
  const cell = Math.max(4, Math.min(12, Math.floor((drawingHeight - 3 * (labelHeight + 4)) / (3 * tokens))));
  const count = Math.min(mostHeads, [2, 3].filter((head) => lesson.matrices.has(`head${head}_weights`)).length);
  const heads = /** @type {[string, string, string][]} */ (Array.from({ length: count },
    (_, head) => [`head${head + 2}`, `head${head + 2}_weights`, `A${"\u2082\u2083"[head]}`]));
  /** @type {Box[]} */
  const boxes = [];
  let x = edge;
  for (const column of [...boxColumns, heads, [["layer", "layer_output", "Z W_O"]]]) {
    let widest = 0;
    const placed = column.map(([slot, usual, label]) => {
      const [named, name] = overrides[slot] ?? [usual, label];
      const found = named === "first" ? sections[0].matrices[0] : named;
      const matrix = lesson.matrices.get(found);
      const rows = Math.min(matrix?.rows.length ?? tokens, 12), columns = Math.min(matrix?.columns.length ?? tokens, 16);
      return { slot, id: matrix ? found : "", label: matrix ? name : label, role: /** @type {any} */ (roles)[slot] ?? "", x, y: 0, cell, rows, columns,
        stacked: column.length > 1 };
    });
    const total = placed.reduce((sum, box) => sum + box.rows * cell + labelHeight, 0);
    const space = (drawingHeight - total) / (placed.length + 1);
    let y = space;
    for (const box of placed) {
      box.y = y + labelHeight;
      y += box.rows * cell + labelHeight + space;
      widest = Math.max(widest, box.columns * cell, 7 * (box.label.length + (box.stacked ? 6 : 0)));
    }
    boxes.push(...placed);
    x += widest + gap;
  }
  return boxes;
}

/**
 * Whether the box's matrix belongs to the step, to an earlier or to a later one.
 * @param {Lesson} lesson @param {number} step @param {string} id @returns {"here" | "past" | "coming"}
 */
export function boxState(lesson, step, id) {
  const shows = (/** @type {number} */ at) => lesson.steps[at].sections.some((section) => section.matrices.includes(id));
  if (id && shows(step)) return "here";
  const first = lesson.steps.findIndex((_, at) => shows(at));
  return id && first >= 0 && first < step ? "past" : "coming";
}

/**
 * @param {{open: (id: string) => void}} actions  goes to a matrix, in its step
 * @returns {{element: HTMLElement, update: (lesson: Lesson, step: number, query: number, covered: string[]) => void,
 *   showSelection: (cell: Cell | null, sources: Cell[]) => void}}
 */
export function makePipeline(actions) {
  const lines = svgEl("g", { class: "lesson-joins" });
  const boxesLayer = svgEl("g", {}), arrows = svgEl("g", {});
  const picture = svgEl("svg", { class: "lesson-pipeline-drawing", role: "group" }, arrows, boxesLayer, lines);
  const element = el("div", { class: "lesson-pipeline" }, picture);
  /** @type {Box[]} */
  let boxes = [];
  /** @type {Lesson | null} */
  let shown = null;

  /** @param {Lesson} lesson @param {number} step @param {number} query @param {string[]} covered */
  function update(lesson, step, query, covered) {
    shown = lesson;
    boxes = boxesOf(lesson, step);
    const width = Math.max(...boxes.map((box) => box.x + box.columns * box.cell)) + edge;
    picture.setAttribute("viewBox", `0 0 ${width} ${drawingHeight}`);
    picture.setAttribute("width", String(width));
    picture.setAttribute("height", String(drawingHeight));
    picture.setAttribute("aria-label", lesson.steps[step].title);
    const states = new Map(boxes.map((box) => [box.slot, boxState(lesson, step, box.id)]));
    boxesLayer.replaceChildren(...boxes.map((box) => boxElement(lesson, box, states.get(box.slot) ?? "coming", query, covered, actions.open)));
    arrows.replaceChildren(...arrowEnds.flatMap(([from, to]) => {
      const start = boxes.find(({ slot }) => slot === from), end = boxes.find(({ slot }) => slot === to);
      return start && end ? [arrowElement(start, end, states.get(from) === "coming" || states.get(to) === "coming")] : [];
    }));
    lines.replaceChildren();
    const current = boxes.find((box) => states.get(box.slot) === "here");
    if (current && element.scrollWidth > element.clientWidth) element.scrollLeft = current.x - element.clientWidth / 3;
  }

  /** @param {Cell} cell @returns {{x: number, y: number, size: number}[]} */
  const placesOf = (cell) => boxes.filter((box) => box.id === cell.of && cell.row < box.rows && cell.column < box.columns)
    .map((box) => ({ x: box.x + cell.column * box.cell, y: box.y + cell.row * box.cell, size: box.cell }));

  return {
    element, update,
    showSelection(cell, sources) {
      if (!shown) return;
      const [end] = cell ? placesOf(cell) : [];
      const starts = sources.flatMap(placesOf);
      const middle = (/** @type {{x: number, y: number, size: number}} */ { x, y, size }) => [x + size / 2, y + size / 2];
      const outline = (/** @type {{x: number, y: number, size: number}} */ { x, y, size }, /** @type {string} */ name) =>
        svgEl("rect", { class: name, x: x + 0.5, y: y + 0.5, width: size - 1, height: size - 1 });
      lines.replaceChildren(
        ...(end ? starts.map((start) => {
          const [x1, y1] = middle(start), [x2, y2] = middle(end);
          return svgEl("path", { class: "lesson-join", d: `M${x1} ${y1}C${(x1 + x2) / 2} ${y1} ${(x1 + x2) / 2} ${y2} ${x2} ${y2}` });
        }) : []),
        ...starts.map((start) => outline(start, "lesson-joined-source")),
        ...(end ? [outline(end, "lesson-joined")] : []),
      );
    },
  };
}

/**
 * @param {Lesson} lesson @param {Box} box @param {"here" | "past" | "coming"} state @param {number} query
 * @param {string[]} covered  matrices that would tell an answer
 * @param {(id: string) => void} open @returns {SVGElement}
 */
function boxElement(lesson, box, state, query, covered, open) {
  const { x, y, cell, rows, columns } = box;
  const frame = svgEl("rect", { class: "lesson-box-frame", x, y, width: columns * cell, height: rows * cell });
  const label = svgEl("text", { x, y: y - 5 }, box.label);
  const kind = `lesson-box lesson-box-${state}`;
  if (state === "coming") return svgEl("g", { class: kind, "data-slot": box.slot }, frame, label);
  const matrix = matrixOf(lesson, box.id);
  const shape = `${matrix.rows.length} \u00d7 ${matrix.columns.length}`;
  const isCovered = covered.includes(box.id);
  return svgEl("g", {
    class: kind, "data-slot": box.slot, "data-box": box.id, "aria-label": `${tokenText(matrix.title)}, ${shape}`, ...pressable(() => open(box.id)),
  },
  svgEl("title", {}, `${tokenText(matrix.title)}, ${shape}`),
  box.role ? svgEl("rect", { class: `lesson-role lesson-role-${box.role}`, x: x - 6, y, width: 4, height: rows * cell }) : null,
  isCovered ? svgEl("text", { class: "lesson-box-asked", x: x + columns * cell / 2, y: y + rows * cell / 2 + 6, "text-anchor": "middle" }, "?")
    : matrixCells(lesson, { ...box, slice: matrix.sliced ? query : null }),
  frame, label,
  svgEl("text", { class: "lesson-shape", x: box.stacked ? x + 9 * box.label.length + 3 : x, y: box.stacked ? y - 5 : y + rows * cell + 12 }, shape));
}

/**
 * The numbers of a matrix as filled squares, by sign and size.
 * @param {Lesson} lesson
 * @param {{id: string, x: number, y: number, cell: number, rows: number, columns: number, slice: number | null}} place
 * @returns {SVGElement[]}
 */
function matrixCells(lesson, { id, x, y, cell, rows, columns, slice }) {
  const matrix = matrixOf(lesson, id);
  const at = (/** @type {number} */ row, /** @type {number} */ column) => valueAt(lesson, { of: id, row, column, slice });
  const largest = matrix.shade === "share" || matrix.shade === "bits" ? 1 : largestOf(matrix);
  const found = [];
  for (let row = 0; row < rows; row++) {
    for (let column = 0; column < columns; column++) {
      const value = at(row, column), heat = Math.min(1, Math.abs(value) / (largest || 1));
      if (!(heat > 0)) continue;
      found.push(svgEl("rect", { class: value < 0 ? "lesson-square lesson-negative" : "lesson-square",
        x: x + column * cell, y: y + row * cell, width: cell - 0.5, height: cell - 0.5, "fill-opacity": (0.15 + 0.85 * heat).toFixed(3) }));
    }
  }
  return found;
}

/**
 * A small copy of a matrix, with some of its numbers outlined.
 * @param {Lesson} lesson @param {string} id @param {Cell[]} marked @returns {HTMLElement}
 */
export function makeMatrixCopy(lesson, id, marked) {
  const matrix = matrixOf(lesson, id);
  const cell = 10, rows = Math.min(matrix.rows.length, 16), columns = Math.min(matrix.columns.length, 16);
  const keys = new Set(marked.filter((one) => hasCell(lesson, one)).map(cellKey));
  const picture = svgEl("svg", { width: columns * cell + 2, height: rows * cell + 2, "aria-hidden": "true" },
    matrixCells(lesson, { id, x: 1, y: 1, cell, rows, columns, slice: marked[0]?.slice ?? null }),
    svgEl("rect", { class: "lesson-box-frame", x: 1, y: 1, width: columns * cell, height: rows * cell }),
    marked.filter((one) => keys.has(cellKey(one)) && one.row < rows && one.column < columns).map((one) => svgEl("rect", {
      class: "lesson-joined-source", x: 1.5 + one.column * cell, y: 1.5 + one.row * cell, width: cell - 1, height: cell - 1 })));
  return el("figure", { class: "lesson-copy" }, picture,
    el("figcaption", {}, formulaText(`${tokenText(matrixName(matrix))} ${matrix.rows.length} \u00d7 ${matrix.columns.length}`)));
}

/** @param {Box} from @param {Box} to @param {boolean} isComing @returns {SVGElement} */
function arrowElement(from, to, isComing) {
  const x1 = from.x + from.columns * from.cell + 2, x2 = to.x - (to.role ? 9 : 3);
  const y1 = from.y + from.rows * from.cell / 2;
  const y2 = to.y + to.rows * to.cell / 2 + (from.role === "query" ? -6 : from.role === "key" ? 6 : from.role === "value" ? 10 : 0);
  // Further heads have queries, keys and values of their own: they branch from X, and their lines pass under the first head.
  const bend = to.slot.startsWith("head") ? `C${x1 + 24} ${drawingHeight - 1} ${x1 + 40} ${drawingHeight - 1} ${x1 + 90} ${drawingHeight - 1}L${x2 - 60} ${drawingHeight - 1}C${x2 - 24} ${drawingHeight - 1} ${x2 - 24} ${y2} ${x2} ${y2}`
    : from.role === "value" ? `C${x1 + (x2 - x1) * 0.35} ${drawingHeight - 4} ${x2 - 30} ${drawingHeight - 4} ${x2} ${y2}`
    : `C${(x1 + x2) / 2} ${y1} ${(x1 + x2) / 2} ${y2} ${x2} ${y2}`;
  return svgEl("path", { class: `lesson-arrow${isComing ? " lesson-left-out" : ""}`, d: `M${x1} ${y1}${bend}` });
}
