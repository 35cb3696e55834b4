import assert from "node:assert/strict";
import { test } from "node:test";
import { itemsOfTokens, rangeText, SpanList, tokensOfItems } from "../../text/spans.js";
import { searchIndex, searchItems } from "../../text/search.js";

const tokens = { spans: Int32Array.of(0, 1, 1, 2, 2, 3, 3, 4, 4, 5), total: 5,
  labels: ["[CLS]", "un", "seen", "cat", "[SEP]"], noSpaceBefore: [0, 0, 1, 0, 0] };
const words = { spans: Int32Array.of(1, 3, 3, 4), total: 2, labels: ["unseen", "cat"], noSpaceBefore: [0, 0] }; // special tokens hidden

test("a range of items is a range of tokens, and back", () => {
  assert.deepEqual(tokensOfItems(words, [0, 2]), [1, 4]);
  assert.deepEqual(itemsOfTokens(tokens, [1, 4]), [1, 4]);
  assert.deepEqual(itemsOfTokens(words, [2, 3]), [0, 1]);
  assert.deepEqual(itemsOfTokens(words, [0, 5]), [0, 2]);
});

test("a range of hidden tokens alone is null", () => {
  assert.equal(itemsOfTokens(words, [0, 1]), null);
  assert.equal(itemsOfTokens(words, [4, 5]), null);
});

test("a range is named by its text, with an ellipsis in the middle of a long one", () => {
  assert.equal(rangeText(tokens, [0, 4]), "[CLS] unseen cat");
  const long = { labels: Array.from({ length: 100 }, (_, i) => `w${i}`), noSpaceBefore: Array(100).fill(0) };
  const name = rangeText(long, [0, 100]);
  assert.ok(name.startsWith("w0 w1") && name.endsWith("w98 w99") && name.includes("\u2026") && name.length < 50, name);
});

test("spans are stored as token ranges: they survive merging and hiding, and can be removed", () => {
  const spanList = new SpanList();
  spanList.put("both", tokens, [2, 4], true);
  spanList.put("both", tokens, [0, 1], true);
  assert.deepEqual(spanList.on("both", words).map(({ range }) => range), [[0, 2]]);
  assert.deepEqual(spanList.on("both", tokens).map(({ range }) => range), [[2, 4], [0, 1]]);
  spanList.remove(spanList.spans[0].id);
  assert.deepEqual(spanList.on("both", tokens).map(({ range }) => range), [[0, 1]]);
});

test("extending a span keeps one span; duplicates are dropped; at most sixteen are kept", () => {
  const spanList = new SpanList();
  spanList.put("both", tokens, [0, 1], true);
  spanList.put("both", tokens, [0, 3], false);
  spanList.put("both", tokens, [0, 3], true);
  assert.deepEqual(spanList.on("both", tokens).map(({ range }) => range), [[0, 3]]);
  const many = { spans: Int32Array.from({ length: 100 }, (_, i) => Math.ceil(i / 2)), total: 50 };
  for (let i = 0; i < 30; i++) spanList.put("both", many, [i, i + 1], true);
  assert.equal(spanList.spans.length, 16);
});

const index = searchIndex(["The", "un", "seen", "cat", ",", "the", "CAT"], [0, 0, 1, 0, 1, 0, 0]);

test("search finds words across subwords and tokens, ignoring case", () => {
  assert.deepEqual(searchItems(index, "UNSEEN"), [[1, 3]]);
  assert.deepEqual(searchItems(index, "the"), [[0, 1], [5, 6]]);
  assert.deepEqual(searchItems(index, "cat, the"), [[3, 6]]);
  assert.deepEqual(searchItems(index, "dog"), []);
  assert.deepEqual(searchItems(index, "  "), []);
});

test("# and a number searches for a position", () => {
  assert.deepEqual(searchItems(index, "#3"), [[3, 4]]);
  assert.deepEqual(searchItems(index, "#7"), []);
});

test("letters whose lower case is longer keep the offsets right", () => {
  const turkish = searchIndex(["\u0130\u0130\u0130", "x"], [0, 0]);
  assert.deepEqual(searchItems(turkish, "x"), [[1, 2]]);
});

test("the number of matches is limited", () => {
  assert.equal(searchItems(searchIndex(Array(100).fill("a"), Array(100).fill(0)), "a", 10).length, 10);
});
