import assert from "node:assert/strict";
import { test } from "node:test";
import { cutsOfHead, hatchLines } from "../../map/overlay.js";

const items = { labels: ["a", "b", "c", "d"], noSpaceBefore: [0, 0, 0, 0], specials: new Set(), spans: Int32Array.of(0, 1, 1, 3, 3, 4, 4, 5), total: 4 };
const at = { kind: "encoder", layer: 1, head: 2 };
const link = (/** @type {number[] | null} */ queries, /** @type {number[] | null} */ keys) => ({ ...at, queries, keys });
const edits = (/** @type {any[]} */ ...scores) => ({ heads: [], scores, weights: [] });

test("cut tokens are the items that hold them, as runs; null means all; other heads have none", () => {
  assert.deepEqual(cutsOfHead(edits(link([2], [0, 1])), at, items, items), [{ queries: [1, 2], keys: [0, 2] }]);
  assert.deepEqual(cutsOfHead(edits(link([0, 4], null)), at, items, items), [{ queries: [0, 1], keys: [0, 4] }, { queries: [3, 4], keys: [0, 4] }]);
  assert.deepEqual(cutsOfHead(edits(link([2], [0])), { ...at, head: 0 }, items, items), []);
  assert.deepEqual(cutsOfHead(null, at, items, items), []);
});

test("hatching stays inside the cut cells that are in view, at 45 degrees", () => {
  const panel = /** @type {any} */ ({ plot: { x: 100, y: 50, w: 80, h: 80 }, sizes: { queries: 4, keys: 4 }, cuts: [{ queries: [1, 2], keys: [2, 4] }] });
  const lines = hatchLines(panel, { x: 1, y: 0, scale: 30 });
  assert.ok(lines.length > 5);
  for (const [x1, y1, x2, y2] of lines) {
    assert.ok(x1 >= 130 && x2 <= 180 && Math.min(y1, y2) >= 80 && Math.max(y1, y2) <= 110);
    assert.ok(Math.abs(x2 - x1 - (y1 - y2)) < 1e-9);
  }
  assert.deepEqual(hatchLines(panel, { x: 0, y: 2, scale: 30 }), []);
});
