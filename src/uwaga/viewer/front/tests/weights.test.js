import assert from "node:assert/strict";
import { test } from "node:test";
import { makeClient } from "../client.js";
import { lineWeights, seenKeys, sinkColumns, sinksOf, strongestItems } from "../weights.js";

const where = { side: "0", kind: "encoder", layer: 0, head: 0, merge: "tokens", specials: "show" };
const weight = (query, key) => (1 + ((query * 31 + key * 17) % 11)) / 1000;

/** The app of a saved page of a map of `size` tokens, with one mass tile at `level`. */
function savedApp(size, level) {
  const cells = Math.ceil(size / 2 ** level), data = new Float32Array(cells * cells);
  for (let i = 0; i < size; i++) for (let j = 0; j < size; j++) data[(i >> level) * cells + (j >> level)] += weight(i, j);
  for (let r = 0; r < cells; r++) {
    const queries = Math.min(size, (r + 1) * 2 ** level) - r * 2 ** level;
    for (let c = 0; c < cells; c++) data[r * cells + c] /= queries;
  }
  const host = {
    mode: "saved", download() {},
    has: (request) => request.request === "tile" && request.level === level && request.pooling === "sum",
    ask: async () => ({ meta: { complete: 1 }, arrays: [{ data, shape: [cells, cells] }] }),
  };
  return { host, client: makeClient(host) };
}

const read = (which, app, item, size) => new Promise((resolve) => {
  lineWeights(app, which, item, { where, sizes: { queries: size, keys: size }, signal: new AbortController().signal, onWeights: resolve });
});

test("a saved page with exact weights gives exact rows and columns", async () => {
  const app = savedApp(20, 0);
  const row = await read("row", app, 3, 20), column = await read("column", app, 5, 20);
  assert.equal(row.cell, 1);
  assert.deepEqual([...row.weights], Array.from({ length: 20 }, (_, key) => Math.fround(weight(3, key))));
  assert.deepEqual([...column.weights], Array.from({ length: 20 }, (_, query) => Math.fround(weight(query, 5))));
});

test("a saved page with coarse cells gives means, marked as such, which preserve the sum of a row", async () => {
  const app = savedApp(21, 2);
  const row = await read("row", app, 20, 21);
  assert.equal(row.cell, 4);
  const sum = Array.from({ length: 21 }, (_, key) => weight(20, key)).reduce((a, b) => a + b);
  assert.ok(Math.abs(row.weights.reduce((a, b) => a + b) - sum) < 1e-5); // the last cell has one query: itself
});

test("a saved page without weights gives null", async () => {
  const app = savedApp(20, 0);
  app.host.has = () => false;
  assert.equal(await read("row", app, 3, 20), null);
});

test("a live host gets requests for a row, and for a column until it is complete", async () => {
  const asked = [];
  let turn = 0;
  const host = { mode: "served", has: () => true, download() {}, ask: async (request) => {
    asked.push(request);
    turn += 1;
    return { meta: request.request === "column" ? { complete: turn / 3 } : {}, arrays: [{ data: Float32Array.of(1, NaN), shape: [2] }] };
  } };
  const app = { host, client: makeClient(host, { wait: async () => {} }) }, heard = [];
  await lineWeights(app, "column", 1,
    { where, sizes: { queries: 2, keys: 2 }, signal: new AbortController().signal, onWeights: ({ cell }) => heard.push(cell) });
  assert.deepEqual(heard, [1, 1, 1]);
  assert.deepEqual(asked[0], { request: "column", ...where, key: 1 });
});

test("sinks are the special tokens, and the first token under a causal mask; a cell that contains one is left out", () => {
  const items = { labels: ["[CLS]", "a", "b", "[SEP]"], noSpaceBefore: [], specials: new Set([0, 3]), spans: new Int32Array(8), total: 4 };
  assert.deepEqual([...sinksOf(items, "encoder")], [0, 3]);
  assert.deepEqual([...sinksOf({ ...items, specials: new Set() }, "encoder")], []);
  assert.deepEqual([...sinksOf({ ...items, specials: new Set() }, "decoder")], [0]);
  // Where the first token is left out, the first word that is shown is a word like others.
  assert.deepEqual([...sinksOf({ ...items, specials: new Set(), spans: Int32Array.of(1, 2, 2, 3, 3, 4, 4, 5) }, "decoder")], []);
  assert.deepEqual([...sinkColumns(new Set([0, 3]), 4, (at) => at)], [1, 0, 0, 1]);
  assert.deepEqual([...sinkColumns(new Set([5]), 2, (at) => 4 + at * 2)], [1, 0]); // cells of two items from item 4 on
  assert.equal(sinkColumns(new Set([3]), 2, (at) => 4 + at * 2), null);
});

test("sorted by weight, ties by position, without unknown weights", () => {
  assert.deepEqual(strongestItems([0.1, NaN, 0.3, 0.3, 0, -0.2], 4), [2, 3, 5, 0]);
  assert.deepEqual(strongestItems([], 4), []);
  const many = Float32Array.from({ length: 5000 }, (_, i) => ((i * 7919) % 5000) / 5000);
  const best = strongestItems(many, 20);
  assert.deepEqual(best, [...many.keys()].sort((a, b) => many[b] - many[a]).slice(0, 20));
});

test("a word of several tokens is hidden where none of them may be seen", () => {
  const items = { spans: Int32Array.of(0, 1, 1, 3, 3, 4, 4, 6), total: 4 }, seen = (sees, query) => seenKeys({ store: { get: () => ({ kind: "decoder", layer: 0 }) }, side: () => ({ maps: [{ kind: "decoder", layer: 0, sees }] }) }, items, items, query);
  assert.deepEqual([0, 1, 2, 3].map((query) => seen([null, 0], query)), [[0, 1], [0, 2], [0, 3], [0, 4]]);
  assert.deepEqual([0, 1, 2, 3].map((query) => seen([1, 1], query)), [[0, 2], [0, 3], [1, 4], [2, 4]]);
  assert.deepEqual(seen(null, 2), [0, 4]);
});
