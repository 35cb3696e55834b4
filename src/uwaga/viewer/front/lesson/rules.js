// The rules of the reply's matrices (lessons/matrix.py writes them): the cells that a number comes from, and its value in a saved page.

import { matrixOf, valueAt } from "./reply.js";
/** @import { Request } from "../types.js" */
/** @import { Cell, Index, Lesson, Matrix, Rule } from "./reply.js" */

/** @param {Index} index @param {Cell} cell @param {number} m @returns {number} */
export function resolvedIndex(index, cell, m) {
  if (typeof index === "number") return index;
  if (index === "i") return cell.row;
  if (index === "j") return cell.column;
  if (index === "c") return cell.slice ?? 0;
  if (index === "m") return m;
  if (typeof index === "object" && "add" in index) return index.add + resolvedIndex(index.to, cell, m);
  if (typeof index === "object" && "pick" in index) return index.pick[resolvedIndex(index.by, cell, m)];
  throw new Error(`lesson: invalid index ${JSON.stringify(index)}`);
}

/** The rule of a cell: of its column if each column has its own. @param {Lesson} lesson @param {Cell} cell @returns {Rule} */
export function ruleOf(lesson, cell) {
  const rule = matrixOf(lesson, cell.of).source;
  return rule.op === "columns" && rule.rules ? rule.rules[cell.column] : rule;
}

/** The cells of each of a rule's references, for m = 0, 1, ... if it depends on m. @param {Rule} rule @param {Cell} cell @returns {Cell[][]} */
export function termsOf(rule, cell) {
  return rule.from.map((reference) => {
    const runs = JSON.stringify(reference).includes('"m"');
    return Array.from({ length: runs ? rule.over ?? 1 : 1 }, (_, m) => ({
      of: reference.of,
      row: resolvedIndex(reference.row, cell, m),
      column: resolvedIndex(reference.column, cell, m),
      slice: reference.slice === undefined ? null : resolvedIndex(reference.slice, cell, m),
    }));
  });
}

/** All cells that a number was computed from, each once. @param {Lesson} lesson @param {Cell} cell @returns {Cell[]} */
export function sourcesOf(lesson, cell) {
  return [...new Map(termsOf(ruleOf(lesson, cell), cell).flat().map((term) => [JSON.stringify(term), term])).values()];
}

/** @param {number[]} values @returns {number} */
const sum = (values) => values.reduce((total, value) => total + value, 0);

/** The number that a rule gives, from the values of its references. @type {{[op: string]: undefined | ((values: number[][], rule: Rule) => number)}} */
const operations = {
  dot: ([left, right]) => sum(left.map((value, m) => value * right[m])),
  copy: ([[value]]) => value,
  scaled: ([[value]], { times = 1 }) => value * times,
  product: ([[left], [right]]) => left * right,
  plus: ([[left], [right]]) => left + right,
  minus: ([[left], [right]]) => left - right,
  rest: ([[part], [whole]]) => 1 - part / whole,
  total: ([values]) => sum(values),
  mean: ([values]) => sum(values) / values.length,
  variance: ([values, [mean]]) => sum(values.map((value) => (value - mean) ** 2)) / values.length,
  normalized: ([[value], [mean], [variance]], { eps = 0 }) => (value - mean) / Math.sqrt(variance + eps),
  relu: ([[value]]) => Math.max(0, value),
  negative_log: ([[value]]) => -Math.log(value),
  moved: ([[value], [gradient]], { times = 1 }) => value - times * gradient,
  length: ([values]) => Math.sqrt(sum(values.map((value) => value * value))),
  exponential: ([[value], row]) => Math.exp(value - Math.max(...row)),
  share: ([[value], row]) => value / sum(row),
  softmax([[value], row]) {
    const seen = row.filter((score) => !Number.isNaN(score)), largest = Math.max(...seen);
    return Number.isNaN(value) ? 0 : Math.exp(value - largest) / sum(seen.map((score) => Math.exp(score - largest)));
  },
  masked: ([[value], [bit]]) => (bit ? value : NaN),
};

// Without a rule, and computed by Python from these inputs: other orders, a hard look-up, batches.
const inputs = ["x", "wq", "wk", "wv", "wo"], measured = ["without_shuffled", "with_order", "with_shuffled", "hard_weights", "hardening", "packed", "padded"];

/**
 * The lesson with other typed numbers. What follows from them without a rule is left out: some matrices, and texts about numbers.
 * @param {Lesson} lesson  as Python computed it @param {Request} request  the same, but for its numbers @returns {Lesson}
 */
export function recomputed(lesson, request) {
  const numbers = (/** @type {Request} */ of, /** @type {string} */ field) => (field === "x" ? of.x : of.settings[field]);
  const changes = inputs.some((field) => JSON.stringify(numbers(request, field)) !== JSON.stringify(numbers(lesson.request, field)));
  const unknown = new Set(changes ? measured : []);
  /** @type {Map<string, Matrix>} */
  const matrices = new Map(), result = { ...lesson, request, matrices };

  /** @param {string} id */
  function compute(id) {
    if (matrices.has(id)) return;
    const matrix = matrixOf(lesson, id), { field, rows, columns, source, sliced } = matrix, rules = source.rules ?? [source];
    const data = field ? Float32Array.from(numbers(request, field).flat()) : Float64Array.from(matrix.data);
    matrices.set(id, { ...matrix, data });
    for (const { of } of rules.flatMap(({ from }) => from)) {
      compute(of);
      if (unknown.has(of)) unknown.add(id);
    }
    const size = rows.length * columns.length;
    // A column may be computed from columns before it.
    for (let column = 0; column < columns.length; column++) {
      const rule = rules[source.rules ? column : 0], operation = operations[rule.op];
      for (let at = column; operation && at < data.length; at += columns.length) {
        const cell = { of: id, slice: sliced ? Math.floor(at / size) : null, row: Math.floor(at % size / columns.length), column };
        data[at] = operation(termsOf(rule, cell).map((terms) => terms.map((term) => valueAt(result, term))), rule);
      }
    }
  }
  for (const id of lesson.matrices.keys()) compute(id);
  for (const id of unknown) matrices.delete(id);
  /** @template {{matrices: string[]}} Shown @param {Shown[]} shown @returns {Shown[]} */
  const withMatrices = (shown) => shown.filter((one) => one.matrices.every((id) => matrices.has(id)));
  result.steps = lesson.steps.map((step) => ({ ...step, question: null, told: [], ledger: [], pictures: withMatrices(step.pictures),
    sections: step.sections.map((section) => ({ ...section, findings: [], pictures: withMatrices(section.pictures),
      charts: section.charts.filter(({ matrix }) => matrices.has(matrix)), matrices: section.matrices.filter((id) => matrices.has(id)) }))
      .filter(({ matrices: tables, pictures, charts }, at) => tables.length || pictures.length || charts.length || !step.sections[at].matrices.length) }));
  return result;
}
