// The lesson's reply as the views read it, and edits of its request.

/** @import { Reply, Request } from "../types.js" */

/**
 * @typedef {{op: string, from: Reference[], over?: number, times?: number, say?: string, rules?: Rule[], width?: number,
 *   base?: number, eps?: number}} Rule
 */
/** @typedef {string | number | {[key: string]: any}} Index */
/** @typedef {{of: string, row: Index, column: Index, slice?: Index}} Reference */
/**
 * @typedef {object} Matrix
 * @property {string} id
 * @property {string} title
 * @property {string} formula
 * @property {string[]} rows
 * @property {string[]} columns
 * @property {boolean} sliced  one matrix per query
 * @property {Rule} source
 * @property {string | null} field  the request's field that an edit changes; null: read-only
 * @property {"none" | "signed" | "share" | "bits"} shade
 * @property {number} digits
 * @property {string} note
 * @property {string} product  the shapes of the two matrices that it is the product of
 * @property {Float32Array | Float64Array} data
 */
/**
 * @typedef {{title: string, matrix: string, lines: number[], description: string, x_title: string, y_title: string, log_x: boolean,
 *   log_y: boolean}} Chart
 */
/** @typedef {{text: string, cells: [string, number, number][]}} Finding */
/**
 * @typedef {object} Section
 * @property {string} title
 * @property {boolean} folded
 * @property {string[]} text
 * @property {"" | "matrix" | "token"} form
 * @property {string[]} matrices
 * @property {Chart[]} charts
 * @property {Finding[]} findings
 * @property {string[]} controls
 * @property {boolean} told  shown only behind the question
 * @property {Picture[]} pictures
 */
/** @typedef {{kind: string, title: string, description: string, matrices: string[], labels: string[], sizes: [number, number][]}} Picture */
/** @typedef {{id: string, title: string, text: string, solved: boolean, numbers: number[]}} Problem  as a step has measured it */
/** @typedef {{statistic: string, sense: "largest" | "smallest", why: string}} Head */
/**
 * @typedef {{id: string, title: string, number: string, text: string[], told: string[], pictures: Picture[], ledger: Problem[], code: string, head: Head | null,
 *   drawing: Drawing | null, question: Question | null, sections: Section[]}} Step
 */
/**
 * @typedef {{text: string, choices: string[], answers: number[], why: string, covers: string[], cells: [string, number, number][],
 *   about_sizes: boolean, tap: string, token: number}} Question  tap: the matrix whose columns are the choices, or ""; token: the one that it is about
 */
/** @typedef {{id: string, label: string, step: string, x: number, y: number, width: number, height: number, shape: string}} Part */
/**
 * @typedef {{title: string, parts: Part[], arrows: [string, string][], bypasses: [string, string][], repeated: [string, string][],
 *   models: {name: string, without: string[], text: string}[]}}
 *   Drawing
 */
/** @typedef {{tokens: number, width: number, heads: number, sentences: number, number: number, steps: number,
 *   rate: number}} Limits */
/** @typedef {{request: Request, limits: Limits, steps: Step[], matrices: Map<string, Matrix>}} Lesson */
/** @typedef {{of: string, row: number, column: number, slice: number | null}} Cell  the address of one number */

/** @param {Reply} reply @returns {Lesson} */
export function readLesson(reply) {
  const { request, limits, steps, matrices } = reply.meta;
  /** @type {Map<string, Matrix>} */
  const byId = new Map();
  for (const [id, facts] of Object.entries(matrices)) {
    byId.set(id, { ...facts, data: /** @type {Float32Array} */ (reply.arrays[facts.array].data) });
  }
  return { request, limits, steps, matrices: byId };
}

/**
 * The problems known at a step, each as it was measured last, and whether that was at this step.
 * @param {Lesson} lesson @param {number} step @returns {(Problem & {here: boolean})[]}
 */
export function ledgerAt(lesson, step) {
  /** @type {Map<string, Problem & {here: boolean}>} */
  const byId = new Map();
  for (let at = 0; at <= step; at++) for (const problem of lesson.steps[at].ledger) byId.set(problem.id, { ...problem, here: at === step });
  return [...byId.values()];
}

/** The token that a step opens with: that of its question, or the first. @param {Lesson} lesson @param {number} step @returns {number} */
export const openingToken = (lesson, step) => lesson.steps[step].question?.token ?? 0;

/** @param {Lesson} lesson @param {string} id @returns {Matrix} */
export function matrixOf(lesson, id) {
  const matrix = lesson.matrices.get(id);
  if (!matrix) throw new Error(`lesson: unknown matrix ${id}`);
  return matrix;
}

/** Its title; of "X, the tokens" the symbol. @param {Matrix} matrix @returns {string} */
export const matrixName = ({ title }) => title.replace(/^([A-Z])[,\uff0c\u3001].*$/u, "$1");

/** The number of a cell; NaN: masked. @param {Lesson} lesson @param {Cell} cell @returns {number} */
export function valueAt(lesson, cell) {
  const matrix = matrixOf(lesson, cell.of);
  const { rows, columns } = matrix;
  return matrix.data[((cell.slice ?? 0) * rows.length + cell.row) * columns.length + cell.column];
}

/** Decimals of a column: 0 if all of it are integers. @param {Matrix} matrix @param {number} column @returns {number} */
export function digitsOf(matrix, column) {
  if (matrix.shade !== "none") return matrix.digits;
  return matrix.rows.every((_, row) => Number.isInteger(matrix.data[row * matrix.columns.length + column])) ? 0 : matrix.digits;
}

/** The largest size of a matrix' numbers. @param {Matrix} matrix @returns {number} */
export function largestOf({ data }) {
  let largest = 0;
  for (const value of data) if (Math.abs(value) > largest) largest = Math.abs(value);
  return largest;
}

/** How strongly a number is coloured, from -1 to 1. @param {Matrix} matrix @param {number} value @param {number} largest  of the matrix */
export function heatOf({ shade }, value, largest) {
  return shade === "none" || Number.isNaN(value) ? 0 : shade === "signed" ? value / (largest || 1) : value;
}

/** @param {Cell} cell @returns {string} */
export function cellKey(cell) {
  return `${cell.of}/${cell.slice ?? ""}/${cell.row}/${cell.column}`;
}

/** Whether the cell exists: with fewer tokens it may not. @param {Lesson} lesson @param {Cell} cell @returns {boolean} */
export function hasCell(lesson, cell) {
  const matrix = lesson.matrices.get(cell.of);
  return !!matrix && cell.row < matrix.rows.length && cell.column < matrix.columns.length
    && (!matrix.sliced || (cell.slice ?? 0) * matrix.rows.length * matrix.columns.length < matrix.data.length);
}

// Edits of the request: each returns a changed copy.

/** Settings per token, which are invalid for other tokens. */
const perTokenSettings = ["order", "payload", "length"];

/**
 * @param {Request} request
 * @param {string} field  "x" or the name of a setting
 * @param {number} row @param {number} column @param {number} value @returns {Request}
 */
export function withNumber(request, field, row, column, value) {
  const next = structuredClone(request);
  const matrix = field === "x" ? next.x : next.settings[field];
  // The payload of a sentence that was just replaced is no longer there.
  if (matrix) matrix[row][column] = value;
  return next;
}

/** @param {Request} request @param {string} name @param {unknown} value @returns {Request} */
export function withSetting(request, name, value) {
  const next = structuredClone(request);
  next.settings[name] = value;
  return next;
}

/**
 * Another sentence, which the host splits into words; words that stay keep their vectors.
 * @param {Request} request @param {string} text @returns {Request}
 */
export function withText(request, text) {
  const next = structuredClone(request);
  next.text = text;
  for (const name of perTokenSettings) delete next.settings[name];
  return next;
}

/** @param {Request} request @returns {string} the sentence as it was written, or its tokens with spaces between them */
export function sentenceOf(request) {
  return request.text ?? request.tokens.join(" ");
}
