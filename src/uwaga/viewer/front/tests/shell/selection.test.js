import assert from "node:assert/strict";
import { test } from "node:test";
import { itemOfToken, renumberedItem } from "../../shell/selection.js";
import { nearestHead, stackSize, withDistinctTitles } from "../../shell/app.js";

const items = (...spans) => ({ labels: [], noSpaceBefore: [], specials: new Set(), spans: Int32Array.from(spans.flat()), total: spans.length });
const tokens = items([0, 1], [1, 2], [2, 3], [3, 4], [4, 5]);
const words = items([1, 3], [3, 4]); // without the special tokens at both ends

test("the item that contains a token, or the next one", () => {
  assert.deepEqual([0, 1, 2, 3, 4].map((token) => itemOfToken(words.spans, token)), [0, 0, 0, 1, null]);
});

test("a selected item keeps its text when items change", () => {
  assert.equal(renumberedItem(2, tokens, words), 0);
  assert.equal(renumberedItem(1, words, tokens), 3);
  assert.equal(renumberedItem(4, tokens, words), null);
  assert.equal(renumberedItem(null, tokens, words), null);
});

test("the nearest existing head of a side", () => {
  const side = { maps: [{ kind: "encoder", layer: 2, heads: 4 }, { kind: "encoder", layer: 5, heads: 2 },
    { kind: "decoder", layer: 0, heads: 1 }] };
  assert.deepEqual(nearestHead(side, "encoder", 9, 7), { kind: "encoder", layer: 5, head: 1 });
  assert.deepEqual(nearestHead(side, "cross", 2, 1), { kind: "encoder", layer: 2, head: 1 });
});

test("items of an axis", () => {
  const side = { stacks: { encoder: { tokens: 10, words: 7, specials: 2 } } };
  assert.deepEqual([["tokens", "show"], ["words", "show"], ["tokens", "hide"],
    ["words", "hide"]].map(([merge, specials]) => stackSize(side, "encoder", merge, specials)), [10, 7, 8, 5]);
});

test("two sides have different titles", () => {
  const titles = (...sides) =>
    withDistinctTitles(sides.map(([title, model], at) => ({ id: ["0", "1", "difference"][at], title, model }))).map(({ title }) => title);
  assert.deepEqual(titles(["a", "m"], ["b", "m"], ["a minus b", "m"]), ["a", "b", "difference"]);
  assert.deepEqual(titles(["a", "m"], ["a", "n"], ["a", "m minus n"]), ["m", "n", "difference"]);
  assert.deepEqual(titles(["a", "m"], ["a", "m"]), ["first: a", "second: a"]);
  assert.deepEqual(titles(["a", "m"]), ["a"]);
  // Of texts that begin alike, what differs is shown.
  assert.deepEqual(titles(["the animal was tired", "m"], ["the animal was wide", "m"]),
    ["\u2026 tired", "\u2026 wide"]);
  assert.deepEqual(titles(["a", "transformer-small"], ["a", "transformer-small-2"]),
    ["first: transformer-small", "second: transformer-small-2"]);
});
