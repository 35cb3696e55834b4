import assert from "node:assert/strict";
import { test } from "node:test";
import { foldedText, leastWritten, paragraphsOf, sumOf } from "../../text/folds.js";

const sentence = "The animal did not cross the street because it was too tired .".split(" ");
const itemsOf = (labels, breaks = []) => ({ labels, noSpaceBefore: labels.map(() => 0), specials: new Set(), breaks: new Map(breaks), spans: new Int32Array(0), total: labels.length });
const none = new Set();
const folded = (paragraphs, what) => foldedText(paragraphs, { weights: null, sinks: none, keep: [], opened: none, ...what });
const many = (count) => Array.from({ length: count }, (_, i) => sentence[i % sentence.length]);

test("a paragraph ends at a blank line; a long one at the end of a sentence, and nothing is lost", () => {
  assert.deepEqual(paragraphsOf(itemsOf(many(26), [[13, 2]])), [[0, 13], [13, 26]]);
  assert.deepEqual(paragraphsOf(itemsOf(["a\n\n", "b", "\n\n", "c"])), [[0, 1], [1, 3], [3, 4]]);
  const ranges = paragraphsOf(itemsOf(many(5000)));
  assert.ok(ranges.every(([first, end], at) => end - first <= 120 + 24 && first === (at ? ranges[at - 1][1] : 0)));
  assert.ok(ranges.slice(0, -1).every(([, end]) => sentence[(end - 1) % sentence.length] === "."));
  assert.equal(ranges.at(-1)[1], 5000);
  assert.equal(paragraphsOf(itemsOf(Array(1000).fill("word"))).every(([first, end]) => end - first <= 144), true);
  assert.deepEqual(paragraphsOf(itemsOf([])), []);
});

test("passages are paragraphs themselves", () => {
  assert.deepEqual(paragraphsOf(itemsOf(Array(3).fill("A whole sentence of a soft database."))), [[0, 1], [1, 2], [2, 3]]);
});

test("what holds 98 % is open, what is picked too, and all parts together are the text", () => {
  const paragraphs = paragraphsOf(itemsOf(many(5000))), weights = new Float32Array(5000).fill(0.02 / 5000);
  weights[1000] = 0.5;
  weights[3000] = 0.45;
  weights[0] = 0.03; // at rest
  const parts = folded(paragraphs, { weights, sinks: new Set([0]), keep: [4000, null] });
  const open = parts.filter(({ isOpen }) => isOpen).map(({ range }) => range);
  assert.equal(open.length, 3);
  for (const item of [1000, 3000, 4000]) assert.ok(open.some(([first, end]) => item >= first && item < end));
  assert.deepEqual(parts.map(({ range }) => range[0]), [0, ...parts.slice(0, -1).map(({ range }) => range[1])]);
  const sum = parts.reduce((all, { range }) => all + sumOf(weights, range), 0);
  assert.ok(Math.abs(sum - weights.reduce((all, one) => all + one, 0)) < 1e-9);
});

test("a head that looks everywhere does not open the whole text", () => {
  const paragraphs = paragraphsOf(itemsOf(many(20000))), weights = new Float32Array(20000).fill(1 / 20000);
  const count = folded(paragraphs, { weights }).filter(({ isOpen }) => isOpen).reduce((sum, { range: [first, end] }) => sum + end - first, 0);
  assert.ok(count > 500 && count <= 900, String(count));
});

test("a short text is never folded, and a reader's strips stay open", () => {
  const weights = new Float32Array(78);
  weights[5] = 1;
  assert.ok(folded(paragraphsOf(itemsOf(many(78), [[39, 2]])), { weights }).every(({ isOpen }) => isOpen));
  const paragraphs = paragraphsOf(itemsOf(many(400)));
  const long = new Float32Array(400);
  long[5] = 1;
  assert.deepEqual(folded(paragraphs, { weights: long }).map(({ isOpen }) => isOpen), [true, false]);
  assert.equal(folded(paragraphs, { weights: long, opened: new Set([paragraphs[1][0]]) })[1].isOpen, true);
});

test("without weights the beginning is open, or what follows the picked word; of a question only its surroundings", () => {
  const paragraphs = paragraphsOf(itemsOf(many(5000)));
  assert.deepEqual(folded(paragraphs, {}).map(({ range, isOpen }) => [range[0], isOpen]), [...[0, 1, 2, 3, 4, 5, 6].map((at) => [117 * at, true]), [819, false]]);
  const openFolds = folded(paragraphs, { keep: [2500], fills: false }).filter(({ isOpen }) => isOpen);
  assert.equal(openFolds.length, 1);
});

test("words of 1 % carry their share, of a broad head those of an eighth of the largest", () => {
  assert.equal(leastWritten([0.5, 0.1], none), 0.01);
  assert.equal(leastWritten([0.9, 0.008], new Set([0])), 0.001);
});
