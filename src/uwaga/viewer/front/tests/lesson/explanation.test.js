import assert from "node:assert/strict";
import { test } from "node:test";
import { cellKey, hasCell, matrixName, valueAt } from "../../lesson/reply.js";
import { calculationOf, cellName, ruleText, operandText } from "../../lesson/explanation.js";
import { resolvedIndex, ruleOf, sourcesOf } from "../../lesson/rules.js";
import { everyCell, keptLesson } from "./saved_reply.js";

const lesson = keptLesson();
const cell = (of, row, column, slice = null) => ({ of, row, column, slice });
const keys = (cells) => cells.map(cellKey);

test("indices are numbers, the cell's own, m, sums of these and entries of a list", () => {
  const here = cell("q", 3, 5, 7);
  assert.deepEqual([4, "i", "j", "c", "m"].map((index) => resolvedIndex(index, here, 9)), [4, 3, 5, 7, 9]);
  assert.equal(resolvedIndex({ add: 2, to: "j" }, here, 0), 7);
  assert.equal(resolvedIndex({ pick: [9, 8, 7, 6], by: "i" }, here, 0), 6);
  assert.throws(() => resolvedIndex("k", here, 0), { message: 'lesson: invalid index "k"' });
});

test("the sources of a score are a row of Q and a row of K", () => {
  assert.deepEqual(keys(sourcesOf(lesson, cell("scores", 0, 1))), [
    "q//0/0", "q//0/1", "k//1/0", "k//1/1",
  ]);
});

test("the sources of a query of the second head are a row of X and a column of its W_Q", () => {
  assert.deepEqual(keys(sourcesOf(lesson, cell("head2_q", 1, 1))), ["x//1/0", "x//1/1", "x//1/2", "x//1/3", "heads_wq//0/3", "heads_wq//1/3", "heads_wq//2/3", "heads_wq//3/3"]);
});

test("the source of a number of the shuffled output is the row of its token", () => {
  assert.deepEqual(keys(sourcesOf(lesson, cell("crude_shuffled", 0, 2))), ["crude//2/2"]);
});

test("where columns have their own rules, a cell has the rule of its column", () => {
  assert.deepEqual(["total", "copy", "product", "product", "rest"],
    [0, 1, 2, 3, 4].map((column) => ruleOf(lesson, cell("work", 0, column)).op));
  assert.deepEqual(keys(sourcesOf(lesson, cell("joined", 1, 3))), ["head2_output//1/0"]);
});

test("the source of a number in a table of one query is that query", () => {
  assert.deepEqual(keys(sourcesOf(lesson, cell("weighted", 1, 0, 2))), ["weights//2/1", "v//1/0"]);
  assert.deepEqual(keys(sourcesOf(lesson, cell("output_token", 0, 3, 1))), ["weighted/1/0/3", "weighted/1/1/3", "weighted/1/2/3"]);
});

test("every source of every number exists", () => {
  for (const address of everyCell(lesson)) for (const source of sourcesOf(lesson, address)) assert.ok(hasCell(lesson, source),
    cellKey(source));
});

test("a matrix is named by its title, or by the symbol that it begins with", () => {
  const names = (...ids) => ids.map((id) => matrixName(lesson.matrices.get(id)));
  assert.deepEqual(names("x", "scores", "scaled", "centred", "learn_ds", "feature_products"),
    ["X", "Scores Q K\u1d40", "Scores, scaled", "Centred X", "dS, through softmax", "X\u1d40 X, features with features"]);
  assert.deepEqual(["X\uff0c\u8bcd\u5143", "Q\u3001\u30c8\u30fc\u30af\u30f3"].map((title) => matrixName({ title })), ["X", "Q"]);
});

test("no two matrices of an explanation read alike", () => {
  const inTables = new Set(lesson.steps.flatMap(({ sections }) => sections.flatMap(({ matrices }) => matrices)));
  for (const address of everyCell(lesson)) {
    if (!inTables.has(address.of)) continue;
    const title = (one) => cellName(lesson, one).split(" [")[0];
    const all = [address, ...sourcesOf(lesson, address)];
    const titles = new Map(all.map((one) => [one.of, title(one)]));
    assert.equal(new Set(titles.values()).size, titles.size, [...titles].join("; "));
  }
});

test("every calculation evaluates to its number", () => {
  let read = 0;
  for (const address of everyCell(lesson)) {
    const pieces = calculationOf(lesson, address);
    const value = valueAt(lesson, address);
    if (!pieces.length) {
      assert.notEqual(ruleText(lesson, address), "", cellKey(address));
      continue;
    }
    const written = pieces.map((piece) => (typeof piece === "string" ? piece : `(${valueAt(lesson, piece.cell)})`)).join("");
    const expected = valueOf(written);
    read += 1;
    if (Number.isNaN(expected)) assert.ok(Number.isNaN(value), `${cellKey(address)}: ${written}`);
    else assert.ok(Math.abs(value - expected) <= 1e-4 * (1 + Math.abs(expected)), `${cellKey(address)} ${value}: ${written}`);
  }
  assert.ok(read > 500, String(read));
});

test("operands have up to four decimals, and at least two", () => {
  for (const [text, short] of [["0.0530", "0.053"], ["1.0000", "1.00"], ["\u22120.5000", "\u22120.50"], ["0.1234", "0.1234"],
    ["12", "12"], ["100", "100"], ["2e\u22128", "2e\u22128"]]) assert.equal(operandText(text), short);
});

test("hidden scores are explained as hidden, and have the weight zero", () => {
  const hidden = cell("causal_scores", 0, 1);
  assert.ok(Number.isNaN(valueAt(lesson, hidden)));
  assert.deepEqual(calculationOf(lesson, hidden),
    ["hidden: ", { cell: cell("causal_bits", 0, 1) }, ", whatever ", { cell: cell("scaled", 0, 1) }, " is"]);
  assert.deepEqual(calculationOf(lesson, cell("causal_weights", 0, 1)), ["0, since ", { cell: hidden }, " is hidden"]);
});

test("inputs, measurements and position codes are explained by text", () => {
  assert.equal(ruleText(lesson, cell("x", 0, 0)), "This number is typed in; it is not computed.");
  assert.equal(ruleText(lesson, cell("codes", 2, 3)), "cos(p / 10000^(2/4)) at position p = 2");
  assert.match(ruleText(lesson, cell("variance", 0, 1)), /^Measured over 65,536 pairs of random vectors, seed 0\.$/);
});

/** @param {string} written @returns {number} */
function valueOf(written) {
  if (written.startsWith("0, since")) return 0;
  if (written.startsWith("hidden")) return NaN;
  const code = written.replace(/, visible: .*$/, "").replace("4 bytes, in millions",
    "4e-6").replaceAll("\u00b7", "*").replaceAll("\u2212", "-")
    .replaceAll("\u00b2", "**2").replaceAll("exp(", "Math.exp(").replaceAll("max(", "Math.max(").replaceAll("log(", "Math.log(").replace(/\u221a(\d+)/g,
      "Math.sqrt($1)").replaceAll("\u221a(", "Math.sqrt(");
  return new Function(`return ${code}`)();
}
