import assert from "node:assert/strict";
import { test } from "node:test";
import { cutKeys, movedLinks } from "../../typing/moved.js";

test("the link that moved most of each head", () => {
  const cells = (...data) => ({ data: Float32Array.from(data), heads: 2, rows: 2, columns: 2, complete: 1 });
  const moved = movedLinks(cells(1, 0, 0.5, 0.5, 1, 0, 0.25, 0.75), cells(1, 0, 0.25, 0.75, 0, 1, 0.25, 0.75));
  assert.deepEqual(moved.map(({ head, query, key, before, after }) => [head, query, key, before, after]), [[1, 0, 0, 1, 0], [0, 1, 0, 0.5, 0.25]]);
});

test("a word's link is cut if all its tokens are", () => {
  const items = /** @type {any} */ ({ total: 3, spans: Int32Array.of(0, 1, 1, 3, 3, 4) }), place = { kind: "encoder", layer: 1, head: 2 };
  const edits = /** @type {any} */ ({ heads: [], weights: [], scores: [{ ...place, queries: [3], keys: [1, 2] }, { ...place, queries: null, keys: [0] }] });
  assert.deepEqual([...cutKeys(edits.scores, place, items, items, 2)], [0, 1]);
  assert.deepEqual([...cutKeys(edits.scores, place, items, items, 1)], [0]);
  assert.deepEqual([...cutKeys(edits.scores, { ...place, head: 0 }, items, items, 2)], []);
});
