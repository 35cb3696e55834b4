import assert from "node:assert/strict";
import { test } from "node:test";
import { lessonWithNumber, lessonWithSetting, lessonWithTokens, lessonWords } from "../../lesson/edits.js";

const question = () => ({
  ask: "lesson", tokens: ["a", "pen", "a"], x: [[1, 2], [3, 4], [5, 6]],
  settings: { wq: [[1, 0], [0, 1]], heads: 2, order: [2, 1, 0], payload: [[1], [2], [3]], length: 2, window: 1 },
});

test("a number goes into X or into the setting that it stands in, and what was there stays as it was", () => {
  const before = question();
  assert.equal(lessonWithNumber(before, "x", 1, 0, 7).x[1][0], 7);
  assert.equal(lessonWithNumber(before, "wq", 0, 1, -7).settings.wq[0][1], -7);
  assert.equal(lessonWithSetting(before, "heads", 1).settings.heads, 1);
  assert.deepEqual(before, question());
});

test("words that stay keep their rows, each its own, and new ones get their own vectors", () => {
  const next = lessonWithTokens(question(), ["the", "a", "pen", "a", "a"]);
  assert.deepEqual(next.x, [null, [1, 2], [3, 4], [5, 6], [5, 6]]);
});

test("another number of tokens leaves out what was said of each", () => {
  assert.deepEqual(Object.keys(lessonWithTokens(question(), ["a"]).settings), ["wq", "heads", "window"]);
  assert.deepEqual(Object.keys(lessonWithTokens(question(), ["a", "b", "c"]).settings), ["wq", "heads", "payload", "window"]);
  assert.deepEqual(lessonWithTokens(question(), ["a", "pen", "a"]).settings, question().settings);
});

test("a sentence is words with spaces between", () => {
  assert.deepEqual(lessonWords("  this\u00a0is  a pen . ", 12), { words: ["this", "is", "a", "pen", "."] });
  assert.deepEqual(lessonWords(" ", 12), { wrong: "A sentence needs at least one word." });
  assert.deepEqual(lessonWords("a b c", 2), { wrong: "The lesson takes at most 2 words; these are 3." });
  assert.deepEqual(lessonWords("x".repeat(65), 2), { wrong: `\u201c${"x".repeat(20)}\u2026\u201d is longer than 64 characters.` });
});
