import assert from "node:assert/strict";
import { test } from "node:test";
import { lessonWithNumber, lessonWithSetting, lessonWithTokens, parseSentence } from "../../lesson/reply.js";
import { inputText, lessonNumber, parseNumber } from "../../lesson/numbers.js";

const question = () => ({
  ask: "lesson", tokens: ["a", "pen", "a"], x: [[1, 2], [3, 4], [5, 6]],
  settings: { wq: [[1, 0], [0, 1]], heads: 2, order: [2, 1, 0], payload: [[1], [2], [3]], length: 2, window: 1 },
});

test("an edited number changes a copy of X or of a setting, not the original", () => {
  const before = question();
  assert.equal(lessonWithNumber(before, "x", 1, 0, 7).x[1][0], 7);
  assert.equal(lessonWithNumber(before, "wq", 0, 1, -7).settings.wq[0][1], -7);
  assert.equal(lessonWithSetting(before, "heads", 1).settings.heads, 1);
  assert.deepEqual(before, question());
});

test("words that stay keep their own rows, and new words get their own vectors", () => {
  const next = lessonWithTokens(question(), ["the", "a", "pen", "a", "a"]);
  assert.deepEqual(next.x, [null, [1, 2], [3, 4], [5, 6], [5, 6]]);
});

test("another number of tokens removes the settings per token", () => {
  assert.deepEqual(Object.keys(lessonWithTokens(question(), ["a"]).settings), ["wq", "heads", "window"]);
  assert.deepEqual(Object.keys(lessonWithTokens(question(), ["a", "b", "c"]).settings), ["wq", "heads", "payload", "window"]);
  assert.deepEqual(lessonWithTokens(question(), ["a", "pen", "a"]).settings, question().settings);
});

test("a sentence is split into words at spaces", () => {
  assert.deepEqual(parseSentence("  this\u00a0is  a pen . ", 12), { words: ["this", "is", "a", "pen", "."] });
  assert.deepEqual(parseSentence(" ", 12), { error: "A sentence needs at least one word." });
  assert.deepEqual(parseSentence("a b c", 2), { error: "The lesson takes at most 2 words; these are 3." });
  assert.deepEqual(parseSentence("x".repeat(65), 2), { error: `\u201c${"x".repeat(20)}\u2026\u201d is longer than 64 characters.` });
});

const range = { least: -1000, most: 1000 };

test("numbers have the digits of their table, a minus sign, and a dash where they are hidden", () => {
  const cases = [[0.625, 2, "0.63"], [-0.625, 2, "\u22120.63"], [0, 2, "0.00"], [-0, 2, "0.00"],
    [NaN, 2, "\u2013"], [3, 0, "3"], [12345.6, 2, "12,346"]];
  for (const [value, digits, text] of cases) assert.equal(lessonNumber(value, digits), text);
});

test("a number too small for its digits is not shown as zero", () => {
  assert.equal(lessonNumber(0.004, 2), "4e\u22123");
  assert.equal(lessonNumber(-2.4e-8, 2), "\u22122e\u22128");
  assert.equal(lessonNumber(1e10, 2), "1.00e10");
});

test("a float32 is shown as it was typed", () => {
  assert.equal(inputText(Math.fround(0.1)), "0.1");
  assert.equal(inputText(Math.fround(-1234.5)), "-1234.5");
  assert.equal(inputText(0), "0");
});

test("typed numbers are parsed with a comma or a point", () => {
  for (const [text, value] of [["1", 1], [" -0.5 ", -0.5], ["\u22122", -2], ["0,25", 0.25], [".5", 0.5], ["1e2", 100], ["3.", 3]]) {
    assert.deepEqual(parseNumber(text, range), { value });
  }
});

test("errors of typed input", () => {
  assert.deepEqual(parseNumber("", range), { error: "This field is empty; it needs a number." });
  assert.deepEqual(parseNumber("two", range), { error: "\u201ctwo\u201d is not a number." });
  assert.deepEqual(parseNumber("0x10", range), { error: "\u201c0x10\u201d is not a number." });
  assert.deepEqual(parseNumber("Infinity", range), { error: "\u201cInfinity\u201d is not a number." });
  assert.deepEqual(parseNumber("1001", range), { error: "1001 is not between \u22121000 and 1000." });
  assert.deepEqual(parseNumber("1.5", { least: 0, most: 12, whole: true }), { error: "1.5 is not a whole number." });
  assert.deepEqual(parseNumber("", { least: 0, most: 12, whole: true }), { error: "This field is empty; it needs a whole number." });
});
