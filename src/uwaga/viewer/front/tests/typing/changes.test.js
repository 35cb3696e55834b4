import assert from "node:assert/strict";
import { test } from "node:test";
import { headFactor, withHead, withLink } from "../../typing/changes.js";
import { placesOf } from "../../typing/predictions.js";
import { noEdits } from "../../typing/session.js";

const at = { kind: "encoder", layer: 1, head: 2 };
/** @param {string[]} labels @returns {any} */
const items = (labels) => ({ labels, total: labels.length, spans: Int32Array.from(labels.flatMap((_, i) => [i, i + 1])), noSpaceBefore: [], specials: new Set() });

test("a head has one factor", () => {
  const off = withHead(noEdits(), at, 0);
  assert.equal(headFactor(off, at), 0);
  assert.equal(headFactor(off, { ...at, head: 3 }), null);
  assert.deepEqual(withHead(off, at, 2).heads, [{ ...at, value: 2 }]);
  assert.deepEqual(withHead(off, at, null), noEdits());
});

test("a link is cut, and mended by cutting it again", () => {
  const cut = withLink(noEdits(), at, [3], [1, 2]);
  assert.deepEqual(cut.scores, [{ ...at, queries: [3], keys: [1, 2] }]);
  assert.deepEqual(withLink(cut, at, [3], [1, 2]), noEdits());
  assert.equal(withLink(cut, at, [2], [1]).scores.length, 2);
});

test("a writer predicts after the picked word and at the end", () => {
  const info = { kind: "next", tokens: 4 };
  assert.deepEqual(placesOf(info, items(["a", "b", "c", "d"]), 1).map(({ position, title }) => [position, title]), [[1, "What follows"], [3, "What comes next"]]);
  assert.deepEqual(placesOf(info, items(["a", "b", "c", "d"]), 3).map(({ position }) => position), [3]);
  assert.deepEqual(placesOf(info, items(["b", "c", "d", "\u2026"]), 1, true).map(({ position, title }) => [position, title]),
    [[1, "In place of"], [3, "What comes next"]]);
  assert.deepEqual(placesOf(info, null, null).map(({ position }) => position), [3]);
});

test("masks come before the picked word", () => {
  const info = { kind: "masked", tokens: 4 };
  assert.deepEqual(placesOf(info, items(["a", "[MASK]", "c", "[MASK]"]), 0).map(({ position }) => position), [1]);
  assert.deepEqual(placesOf(info, items(["a", "[MASK]", "c", "[MASK]"]), 3).map(({ position }) => position), [3]);
  assert.deepEqual(placesOf(info, items(["a", "b", "c", "d"]), 2).map(({ position, word }) => [position, word]), [[2, "c"]]);
  assert.deepEqual(placesOf(info, items(["a", "b", "c", "d"]), null), []);
});
