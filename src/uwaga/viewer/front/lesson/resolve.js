// From a number to what it came from: the rules of a reply's matrices, for one cell. Python's lesson/sources.py writes them.

import { lessonMatrix, lessonValue } from "./reply.js";

/** @typedef {import("./reply.js").Lesson} Lesson */
/** @typedef {import("./reply.js").LessonCell} LessonCell */
/** @typedef {import("./reply.js").LessonRule} LessonRule */
/** @typedef {import("./reply.js").LessonReference} LessonReference */
/** @typedef {string | {cell: LessonCell}} LessonPiece  text, or a number that can be followed */

/**
 * @param {import("./reply.js").LessonIndex} index
 * @param {LessonCell} cell
 * @param {number} m
 * @returns {number}
 */
export function lessonIndex(index, cell, m) {
  if (typeof index === "number") return index;
  if (index === "i") return cell.row;
  if (index === "j") return cell.column;
  if (index === "c") return cell.slice ?? 0;
  if (index === "m") return m;
  if (typeof index === "object" && "add" in index) return index.add + lessonIndex(index.to, cell, m);
  if (typeof index === "object" && "pick" in index) return index.pick[lessonIndex(index.by, cell, m)];
  throw new Error(`lesson: ${JSON.stringify(index)} is no index`);
}

/**
 * The rule of a cell: where each column has its own, that column's.
 * @param {Lesson} lesson
 * @param {LessonCell} cell
 * @returns {LessonRule}
 */
export function lessonRule(lesson, cell) {
  const rule = lessonMatrix(lesson, cell.of).source;
  return rule.op === "columns" && rule.rules ? rule.rules[cell.column] : rule;
}

/**
 * The cells that one of a rule's references names, for m = 0, 1, ... where it runs over m.
 * @param {LessonRule} rule
 * @param {number} which
 * @param {LessonCell} cell
 * @returns {LessonCell[]}
 */
function lessonTerms(rule, which, cell) {
  const reference = rule.from[which];
  const runs = JSON.stringify(reference).includes('"m"');
  return Array.from({ length: runs ? rule.over ?? 1 : 1 }, (_, m) => ({
    of: reference.of,
    row: lessonIndex(reference.row, cell, m),
    column: lessonIndex(reference.column, cell, m),
    slice: reference.slice === undefined ? null : lessonIndex(reference.slice, cell, m),
  }));
}

/**
 * All cells that a number came from, each once.
 * @param {Lesson} lesson
 * @param {LessonCell} cell
 * @returns {LessonCell[]}
 */
export function lessonSources(lesson, cell) {
  const rule = lessonRule(lesson, cell);
  /** @type {Map<string, LessonCell>} */
  const found = new Map();
  rule.from.forEach((_, which) => {
    for (const term of lessonTerms(rule, which, cell)) found.set(JSON.stringify(term), term);
  });
  return [...found.values()];
}

/**
 * The calculation of a number, written out with its numbers; nothing where words explain it (lessonSaying).
 * @param {Lesson} lesson
 * @param {LessonCell} cell
 * @returns {LessonPiece[]}
 */
export function lessonCalculation(lesson, cell) {
  const rule = lessonRule(lesson, cell);
  const write = lessonWriters[rule.op];
  if (!write) throw new Error(`lesson: there is no rule ${rule.op}`);
  return write(rule.from.map((_, which) => lessonTerms(rule, which, cell)), rule, lesson);
}

/** @param {LessonPiece[][]} parts @param {string} between @returns {LessonPiece[]} */
function lessonJoin(parts, between) {
  return parts.flatMap((part, at) => (at ? [between, ...part] : part));
}

/** @param {LessonCell} cell @returns {LessonPiece[]} */
const lessonOne = (cell) => [{ cell }];

/** @param {Lesson} lesson @param {LessonCell[]} cells @returns {LessonCell[]} */
const lessonSeen = (lesson, cells) => cells.filter((cell) => !Number.isNaN(lessonValue(lesson, cell)));

/** @type {{[op: string]: (terms: LessonCell[][], rule: LessonRule, lesson: Lesson) => LessonPiece[]}} */
const lessonWriters = {
  typed: () => [],
  given: () => [],
  code: () => [],
  dot: ([left, right]) => lessonJoin(left.map((cell, m) => [{ cell }, " \u00b7 ", { cell: right[m] }]), " + "),
  copy: ([of]) => lessonOne(of[0]),
  scaled: ([of], rule) => [{ cell: of[0] }, ` \u00b7 ${rule.say}`],
  product: ([left, right]) => [{ cell: left[0] }, " \u00b7 ", { cell: right[0] }],
  plus: ([left, right]) => [{ cell: left[0] }, " + ", { cell: right[0] }],
  minus: ([left, right]) => [{ cell: left[0] }, " \u2212 ", { cell: right[0] }],
  rest: ([part, whole]) => ["1 \u2212 ", { cell: part[0] }, " / ", { cell: whole[0] }],
  total: ([of]) => lessonJoin(of.map(lessonOne), " + "),
  length: ([of]) => ["\u221a(", ...lessonJoin(of.map((cell) => [{ cell }, "\u00b2"]), " + "), ")"],
  exponential([own, row], _rule, lesson) {
    const values = row.map((cell) => lessonValue(lesson, cell));
    const largest = row[values.indexOf(Math.max(...values))];
    return ["exp(", { cell: own[0] }, " \u2212 ", { cell: largest }, ")"];
  },
  share: ([own, row]) => [{ cell: own[0] }, " / (", ...lessonJoin(row.map(lessonOne), " + "), ")"],
  softmax([own, row], _rule, lesson) {
    const seen = lessonSeen(lesson, row);
    if (Number.isNaN(lessonValue(lesson, own[0]))) return ["0, since ", { cell: own[0] }, " is hidden"];
    const sum = lessonJoin(seen.map((cell) => ["exp(", { cell }, ")"]), " + ");
    return ["exp(", { cell: own[0] }, ") / (", ...sum, ")"];
  },
  masked: ([of, bit], _rule, lesson) => lessonValue(lesson, bit[0])
    ? [{ cell: of[0] }, ", visible: ", { cell: bit[0] }]
    : ["hidden: ", { cell: bit[0] }, ", whatever ", { cell: of[0] }, " is"],
};

/**
 * What explains a number that no calculation does: the rule's own words.
 * @param {Lesson} lesson
 * @param {LessonCell} cell
 * @returns {string}
 */
export function lessonSaying(lesson, cell) {
  const rule = lessonRule(lesson, cell);
  if (rule.op === "typed") return "This number is typed in: nothing stands behind it.";
  if (rule.op === "given") return rule.say ?? "";
  if (rule.op !== "code") return "";
  const pair = Math.floor(cell.column / 2), wave = cell.column % 2 ? "cos" : "sin";
  return `${wave}(p / ${rule.base}^(${2 * pair}/${rule.width})) at place p = ${cell.row}`;
}
