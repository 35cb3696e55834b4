import assert from "node:assert/strict";
import { test } from "node:test";
import { filmLinks, layerShares, meanOfHeads } from "../../explore/film.js";

test("a layer is the mean of its heads, and shares add up to one", () => {
  const cells = { data: Float32Array.of(1, 0, 0, 0, 1, 0, 0.5, 0.5, 0, 0, 0, 1, 0, 1, 0, 1, 0, 0), heads: 2, rows: 3, columns: 3, complete: 1 }, mean = meanOfHeads(cells);
  assert.deepEqual([...mean], [0.5, 0, 0.5, 0, 1, 0, 0.75, 0.25, 0]);
  const { near, far, rest } = layerShares(mean, 3, 3, new Set([0]));
  assert.ok(Math.abs(near + far + rest - 1) < 1e-6);
  assert.ok(Math.abs(rest - 1.25 / 3) < 1e-6);
});

test("three links of each word, none to itself or to rest", () => {
  const mean = [0, 0.3, 0.3, 0.2, 0.2, 0.02, 0.9, 0.08, 0, 0, 0, 0, 0, 0, 1, 0.5, 0.1, 0.1, 0.2, 0.1, 0, 0, 0, 0, 0];
  const links = filmLinks(mean, 5, 5, new Set([4]));
  assert.deepEqual(links.map(({ query, key }) => [query, key]), [[0, 1], [0, 2], [0, 3], [1, 2], [3, 0], [3, 1], [3, 2]]);
});
