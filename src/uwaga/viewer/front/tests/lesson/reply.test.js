import assert from "node:assert/strict";
import { test } from "node:test";
import { sentenceOf, withNumber, withSetting, withText } from "../../lesson/reply.js";
import { inputText, lessonNumber, parseNumber } from "../../lesson/numbers.js";

const request = () => ({
  request: "lesson", tokens: ["a", "pen", "a"], x: [[1, 2], [3, 4], [5, 6]],
  settings: { wq: [[1, 0], [0, 1]], heads: 2, order: [2, 1, 0], payload: [[1], [2], [3]], length: 2, window: 1 },
});

test("an edited number changes a copy of X or of a setting, not the original", () => {
  const before = request();
  assert.equal(withNumber(before, "x", 1, 0, 7).x[1][0], 7);
  assert.equal(withNumber(before, "wq", 0, 1, -7).settings.wq[0][1], -7);
  assert.equal(withSetting(before, "heads", 1).settings.heads, 1);
  assert.deepEqual(before, request());
});

test("another sentence keeps the vectors and removes the settings per token", () => {
  const next = withText(request(), "a pencil.");
  assert.equal(next.text, "a pencil.");
  assert.deepEqual([next.tokens, next.x], [request().tokens, request().x]);
  assert.deepEqual(Object.keys(next.settings), ["wq", "heads", "window"]);
  assert.deepEqual(withNumber(next, "payload", 0, 0, 7), next);
});

test("the sentence is shown as it was written", () => {
  assert.equal(sentenceOf({ ...request(), text: "a pen\u3002" }), "a pen\u3002");
  assert.equal(sentenceOf(request()), "a pen a");
});

const range = { least: -1000, most: 1000 };

test("numbers have the digits of their table, a minus sign, and a dash where they are hidden", () => {
  const cases = [[0.625, 2, "0.63"], [-0.625, 2, "\u22120.63"], [0, 2, "0.00"], [-0, 2, "0.00"],
    [NaN, 2, "\u2013"], [3, 0, "3"], [12345.6, 2, "12,346"]];
  for (const [value, digits, text] of cases) assert.equal(lessonNumber(value, digits), text);
});

test("a number too small for its digits is not shown as zero", () => {
  assert.equal(lessonNumber(0.004, 2), "4\u00d710\u207b\u00b3");
  assert.equal(lessonNumber(-2.4e-8, 2), "\u22122\u00d710\u207b\u2078");
  assert.equal(lessonNumber(1e10, 2), "1.00\u00d710\u00b9\u2070");
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
  assert.deepEqual(parseNumber("1001", range), { error: "1001 is not between \u22121,000 and 1,000." });
  assert.deepEqual(parseNumber("1.5", { least: 0, most: 12, whole: true }), { error: "\u201c1.5\u201d is not a whole number." });
  assert.deepEqual(parseNumber("", { least: 0, most: 12, whole: true }), { error: "This field is empty; it needs a whole number." });
});
