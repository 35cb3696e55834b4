// Where a number comes from: the rule of its cell as a calculation, and the panel that writes it out.

import { el, tokenText } from "../dom.js";
import { decimalText, splitMessage, tr } from "../languages.js";
import { formulaText, lessonNumber, sentenceText } from "./numbers.js";
import { makeMatrixCopy } from "./pipeline.js";
import { makePlay } from "./play.js";
import { makeProduct } from "./rows.js";
import { digitsOf, hasCell, matrixOf, matrixName, valueAt } from "./reply.js";
import { ruleOf, sourcesOf, termsOf } from "./rules.js";
/** @import { Cell, Lesson, Matrix, Rule } from "./reply.js" */

/** @typedef {string | {cell: Cell}} CalculationPart  text, or a link to a number */

/**
 * The calculation of a number with its operands; empty if a text explains it instead (ruleText).
 * @param {Lesson} lesson @param {Cell} cell @returns {CalculationPart[]}
 */
export function calculationOf(lesson, cell) {
  const rule = ruleOf(lesson, cell);
  const write = writers[rule.op];
  if (!write) throw new Error(`lesson: unknown rule ${rule.op}`);
  return write(termsOf(rule, cell), rule, lesson);
}

/** @param {CalculationPart[][]} parts @param {string} between @returns {CalculationPart[]} */
function joinParts(parts, between) {
  return parts.flatMap((part, at) => (at ? [between, ...part] : part));
}

/** @param {Cell} cell @returns {CalculationPart[]} */
const cellPart = (cell) => [{ cell }];

/** @type {{[op: string]: (terms: Cell[][], rule: Rule, lesson: Lesson) => CalculationPart[]}} */
const writers = {
  typed: () => [],
  given: () => [],
  code: () => [],
  dot: ([left, right]) => joinParts(left.map((cell, m) => [{ cell }, " \u00b7 ", { cell: right[m] }]), " + "),
  copy: ([of]) => cellPart(of[0]),
  scaled: ([of], rule) => [{ cell: of[0] }, ` \u00b7 ${rule.say}`],
  product: ([left, right]) => [{ cell: left[0] }, " \u00b7 ", { cell: right[0] }],
  plus: ([left, right]) => [{ cell: left[0] }, " + ", { cell: right[0] }],
  minus: ([left, right]) => [{ cell: left[0] }, " \u2212 ", { cell: right[0] }],
  rest: ([part, whole]) => ["1 \u2212 ", { cell: part[0] }, " / ", { cell: whole[0] }],
  total: ([of]) => joinParts(of.map(cellPart), " + "),
  mean: ([of]) => ["(", ...joinParts(of.map(cellPart), " + "), `) / ${of.length}`],
  variance: ([of, mean]) => ["(", ...joinParts(of.map((cell) => ["(", { cell }, " \u2212 ", { cell: mean[0] }, ")\u00b2"]), " + "), `) / ${of.length}`],
  normalized: ([value, mean, variance], rule) =>
    ["(", { cell: value[0] }, " \u2212 ", { cell: mean[0] }, ") / \u221a(", { cell: variance[0] }, ` + ${decimalText(rule.eps ?? 0, 5)})`],
  relu: ([of]) => ["max(0, ", { cell: of[0] }, ")"],
  negative_log: ([of]) => ["\u2212log(", { cell: of[0] }, ")"],
  moved: ([of, gradient], rule) => [{ cell: of[0] }, ` \u2212 ${rule.times} \u00b7 `, { cell: gradient[0] }],
  length: ([of]) => ["\u221a(", ...joinParts(of.map((cell) => [{ cell }, "\u00b2"]), " + "), ")"],
  exponential([value, row], _rule, lesson) {
    const values = row.map((cell) => valueAt(lesson, cell));
    const largest = row[values.indexOf(Math.max(...values))];
    return ["exp(", { cell: value[0] }, " \u2212 ", { cell: largest }, ")"];
  },
  share: ([value, row]) => [{ cell: value[0] }, " / (", ...joinParts(row.map(cellPart), " + "), ")"],
  softmax([value, row], _rule, lesson) {
    const seen = row.filter((cell) => !Number.isNaN(valueAt(lesson, cell)));
    if (Number.isNaN(valueAt(lesson, value[0]))) return withCells(tr("0, since {number} is hidden"), { number: value[0] });
    const sum = joinParts(seen.map((cell) => ["exp(", { cell }, ")"]), " + ");
    return ["exp(", { cell: value[0] }, ") / (", ...sum, ")"];
  },
  masked: ([of, bit], _rule, lesson) => valueAt(lesson, bit[0])
    ? withCells(tr("{number}, visible: {bit}"), { number: of[0], bit: bit[0] })
    : withCells(tr("hidden: {bit}, whatever {number} is"), { number: of[0], bit: bit[0] }),
};

/** A message whose values are cells. @param {string} message @param {{[name: string]: Cell}} cells @returns {CalculationPart[]} */
function withCells(message, cells) {
  return splitMessage(message).flatMap(({ text, name }) => /** @type {CalculationPart[]} */ (name ? [{ cell: cells[name] }] : text ? [text] : []));
}

/** The text that explains a number without a calculation. @param {Lesson} lesson @param {Cell} cell @returns {string} */
export function ruleText(lesson, cell) {
  const rule = ruleOf(lesson, cell);
  if (rule.op === "typed") return tr("This number is typed in; it is not computed.");
  if (rule.op === "given") return rule.say ?? "";
  if (rule.op !== "code") return "";
  const pair = Math.floor(cell.column / 2), wave = cell.column % 2 ? "cos" : "sin";
  return tr("{wave}(p / {base}^({value}/{width})) at position p = {row}", { wave, base: String(rule.base), value: 2 * pair, width: rule.width, row: cell.row });
}

/**
 * The parts of a calculation by terms: each begins behind a plus.
 * @param {CalculationPart[]} parts @returns {CalculationPart[][]}
 */
export function splitTerms(parts) {
  /** @type {CalculationPart[][]} */
  const terms = [[]];
  for (const part of parts) {
    if (part === " + ") terms.push([part]);
    else terms[terms.length - 1].push(part);
  }
  return terms;
}

// The explanation, under the matrix of the selected number: its calculation, and the chain of numbers followed so far.

/** The name of a cell, such as "scores [this, pen]". @param {Lesson} lesson @param {Cell} cell @returns {string} */
export function cellName(lesson, cell) {
  const matrix = matrixOf(lesson, cell.of);
  const title = tokenText(matrixName(matrix));
  const query = matrix.sliced && cell.slice !== null ? tr("query {token}", { token: tokenText(lesson.request.tokens[cell.slice]) }) : "";
  return `${title} [${[matrix.rows[cell.row], matrix.columns[cell.column]].map(tokenText).join(", ")}${query && `, ${query}`}]`;
}

/**
 * @param {{follow: (cell: Cell) => void, back: () => void, close: () => void, go: (step: number) => void,
 *   mark: (cells: Cell[] | null) => void, isNarrow: () => boolean}} actions  mark: other numbers than the sources; null: the sources
 * @returns {{element: HTMLElement, show: (lesson: Lesson, chain: Cell[], step: number) => void, heading: HTMLElement}}
 */
export function makeExplanation(actions) {
  const heading = el("h3", { class: "lesson-explained", tabindex: "-1" });
  const back = el("button",
    { type: "button", text: tr("← Back"), title: tr("To the previous number (Backspace)"), on: { click: actions.back } });
  const close = el("button",
    { type: "button", text: "\u00d7", "aria-label": tr("Unmark the number"), title: tr("Unmark the number (Escape)"), on: { click: actions.close } });
  const trail = el("ol", { class: "lesson-trail", "aria-label": tr("Numbers followed so far") });
  const body = el("div", { class: "lesson-why" });
  const element = el("section", { class: "lesson-explanation", "aria-label": tr("Where a number comes from") },
    el("div", { class: "lesson-explanation-head" }, heading, el("div", { class: "lesson-explanation-buttons" }, back, close)), trail, body);

  /** @type {{element: HTMLElement, stop: () => void} | null} */
  let player = null;

  /** @param {Lesson} lesson @param {Cell[]} chain @param {number} step */
  function show(lesson, chain, step) {
    player?.stop();
    player = null;
    const cells = chain.filter((cell) => hasCell(lesson, cell));
    const cell = cells.at(-1);
    element.classList.toggle("lesson-idle", !cell);
    back.disabled = cells.length < 2;
    close.hidden = back.hidden = !cell;
    trail.hidden = cells.length < 2;
    trail.replaceChildren(...cells.slice(0, -1).map((one) => el("li", {}, formulaText(`${cellName(lesson, one)} = ${cellNumber(matrixOf(lesson, one.of), one, valueAt(lesson, one), 2)}`))));
    if (!cell) {
      heading.textContent = tr("Where a number comes from");
      body.replaceChildren(el("p",
        { text: tr("Click a number, or move to it with the arrow keys and press Enter: here its calculation is written out, and every number in it can be followed on.") }));
      return;
    }
    const matrix = matrixOf(lesson, cell.of);
    const value = valueAt(lesson, cell);
    heading.replaceChildren(...formulaText(`${cellName(lesson, cell)} = ${Number.isNaN(value) ? tr("hidden") : cellNumber(matrix, cell, value, 3)}`));
    const parts = calculationOf(lesson, cell);
    const ruleWords = ruleText(lesson, cell);
    const terms = splitTerms(parts).map((term) => ({
      element: el("span", { class: "lesson-term" }, term.map((piece, at) => partElement(lesson, piece, isBracketed(term, at), actions))),
      cells: term.flatMap((piece) => (typeof piece === "string" ? [] : [piece.cell])),
    }));
    const result = el("span", { class: "lesson-term", text: Number.isNaN(value) ? "" : ` = ${cellNumber(matrix, cell, value, 3)}` });
    if (terms.length > 1) player = makePlay({ terms, result, mark: actions.mark });
    const written = [parts.length ? el("p", { class: "lesson-calculation" }, "= ", terms.map((term) => term.element), result) : null, player?.element];
    const rule = ruleOf(lesson, cell);
    const product = Number.isNaN(value) ? null : makeProduct(lesson, rule, termsOf(rule, cell), cellNumber(matrix, cell, value, 2));
    body.replaceChildren(...[
      el("p", { class: "lesson-formula" }, formulaText(matrix.formula)),
      ...(product ? [el("div", { class: "lesson-scroll" }, product)] : []),
      ...(product ? [el("details", { class: "lesson-folded", open: !actions.isNarrow() }, el("summary", { text: tr("Term by term") }), written)] : written),
      ...(ruleWords ? [el("p", {}, sentenceText(ruleWords))] : []),
      ...copiesOfSources(lesson, cell, step),
      ...stepLink(lesson, cell, step, actions),
    ].filter((part) => !!part));
  }
  return { element, heading, show };
}

/**
 * @param {Matrix} matrix @param {Cell} cell @param {number} value
 * @param {number} least  decimals, except for counts and bits, which have none
 * @returns {string}
 */
function cellNumber(matrix, cell, value, least) {
  const digits = digitsOf(matrix, cell.column);
  return lessonNumber(value, digits && Math.max(least, digits));
}

/**
 * An operand has more digits than the result, so that the calculation comes out as it is written; zeros at its end say nothing.
 * @param {string} text @returns {string}
 */
export function operandText(text) {
  const point = decimalText(0.5, 1)[1], [whole, decimals] = text.split(point);
  return decimals ? `${whole}${point}${decimals.replace(/^(\d\d\d*?)0+$/, "$1")}` : text;
}

/**
 * Whether a number of a calculation is alone in brackets already, as in exp(x).
 * @param {CalculationPart[]} parts @param {number} at @returns {boolean}
 */
function isBracketed(parts, at) {
  const before = parts[at - 1], after = parts[at + 1];
  return typeof before === "string" && before.endsWith("(") && !(typeof after === "string" && after.startsWith("\u00b2"));
}

/**
 * @param {Lesson} lesson @param {CalculationPart} piece @param {boolean} isInBrackets
 * @param {{follow: (cell: Cell) => void, mark: (cells: Cell[] | null) => void}} actions @returns {Node | string}
 */
function partElement(lesson, piece, isInBrackets, actions) {
  if (typeof piece === "string") return piece;
  const { cell } = piece;
  const value = valueAt(lesson, cell);
  const name = cellName(lesson, cell);
  const text = operandText(cellNumber(matrixOf(lesson, cell.of), cell, value, 4));
  return el("button", {
    type: "button", class: "lesson-number", text: value < 0 && !isInBrackets ? `(${text})` : text, title: name, "aria-label": `${text}, ${name}`,
    on: {
      click: () => actions.follow(cell),
      pointerenter: () => actions.mark([cell]), pointerleave: () => actions.mark(null),
      focus: () => actions.mark([cell]), blur: () => actions.mark(null),
    },
  });
}

/** Whether a step has the matrix on its page. @param {Lesson} lesson @param {number} step @param {string} id @returns {boolean} */
export const stepShows = (lesson, step, id) => lesson.steps[step].sections.some((section) => section.matrices.includes(id));

/**
 * Small copies of the matrices of other steps that the number comes from.
 * @param {Lesson} lesson @param {Cell} cell @param {number} step @returns {HTMLElement[]}
 */
function copiesOfSources(lesson, cell, step) {
  const sources = sourcesOf(lesson, cell);
  const elsewhere = [...new Set(sources.map(({ of }) => of))].filter((id) => !stepShows(lesson, step, id));
  return elsewhere.length ? [el("div", { class: "lesson-copies" },
    elsewhere.map((id) => makeMatrixCopy(lesson, id, sources.filter(({ of }) => of === id))))] : [];
}

/**
 * A link to the step that shows the number, if it is another one.
 * @param {Lesson} lesson @param {Cell} cell @param {number} step @param {{go: (step: number) => void}} actions
 * @returns {HTMLElement[]}
 */
function stepLink(lesson, cell, step, actions) {
  if (stepShows(lesson, step, cell.of)) return [];
  const at = lesson.steps.findIndex((_, place) => stepShows(lesson, place, cell.of));
  if (at < 0) return [];
  return [el("p", {}, el("button",
    { type: "button", on: { click: () => actions.go(at) } }, formulaText(tr("Show it in its step: {title}", { title: lesson.steps[at].title }))))];
}
