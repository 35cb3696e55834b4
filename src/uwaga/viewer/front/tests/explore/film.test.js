import assert from "node:assert/strict";
import { test } from "node:test";
import { filmLinks, layerShares, meanOfHeads } from "../../explore/film.js";

test("a layer is the mean of its heads, and the shares of its words add up to one", () => {
  const cells = { data: Float32Array.of(1, 0, 0, 0, 1, 0, 0.5, 0.5, 0, 0, 0, 1, 0, 1, 0, 1, 0, 0), heads: 2, rows: 3, columns: 3, complete: 1 }, mean = meanOfHeads(cells);
  assert.deepEqual([...mean], [0.5, 0, 0.5, 0, 1, 0, 0.75, 0.25, 0]);
  const items = { total: 3, specials: new Set([0]) }, { near, far, self, rest } = layerShares(mean, items, new Set([0]));
  // Words are the rows 1 and 2: the row of a special token is no word's, and a word is not its own neighbour.
  [near, far, self, rest].forEach((share, at) => assert.ok(Math.abs(share - [0.125, 0, 0.5, 0.375][at]) < 1e-6, `${share}`));
});

test("three links of each word, none to itself or to rest", () => {
  const mean = [0, 0.3, 0.3, 0.2, 0.2, 0.02, 0.9, 0.08, 0, 0, 0, 0, 0, 0, 1, 0.5, 0.1, 0.1, 0.2, 0.1, 0, 0, 0, 0, 0];
  const links = filmLinks(mean, 5, 5, new Set([4]));
  assert.deepEqual(links.map(({ query, key }) => [query, key]), [[0, 1], [0, 2], [0, 3], [1, 2], [3, 0], [3, 1], [3, 2]]);
});
