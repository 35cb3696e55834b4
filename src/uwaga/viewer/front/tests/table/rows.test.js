import assert from "node:assert/strict";
import { test } from "node:test";
import { nextOrder, sortedRows, rangesOf, rowsOf, textOf, rowsInView } from "../../table/rows.js";

const maps = [{ side: "0", kind: "encoder", layer: 0, heads: 2 }, { side: "0", kind: "encoder", layer: 1, heads: 2 },
  { side: "0", kind: "cross", layer: 0, heads: 1 }];
const statistics = { "encoder 0": { columns: { entropy: [2, 0.5], sink: [null, 0.1] }, sampled: null },
  "cross 0": { columns: { entropy: [1], sink: [0.1] }, sampled: 128 } };
const rows = rowsOf(maps, (side, kind, layer) => statistics[`${kind} ${layer}`]);
const names = (sorted) => sorted.map(({ kind, layer, head }) => `${kind[0]}${layer}${head}`);

test("one row per head, also before any reply", () => {
  assert.deepEqual(names(rows), ["e00", "e01", "e10", "e11", "c00"]);
  assert.deepEqual(rows.map((row) => row.isLoaded), [true, true, false, false, true]);
});

test("missing values are sorted last in both directions; ties by layer and head", () => {
  assert.deepEqual(names(sortedRows(rows, { name: "entropy", falling: false })), ["e01", "c00", "e00", "e10", "e11"]);
  assert.deepEqual(names(sortedRows(rows, { name: "entropy", falling: true })), ["e00", "c00", "e01", "e10", "e11"]);
  assert.deepEqual(names(sortedRows(rows, { name: "sink", falling: true })), ["e01", "c00", "e00", "e10", "e11"]);
  assert.deepEqual(names(sortedRows(rows, { name: "kind", falling: true })), ["c00", "e00", "e01", "e10", "e11"]);
  assert.deepEqual(names(sortedRows(rows, { name: "head", falling: true })), ["e01", "e11", "e00", "e10", "c00"]);
});

test("the first click sorts statistics descending and names ascending; the next one reverses", () => {
  const entropy = { name: "entropy", statistic: true }, layer = { name: "layer", statistic: false };
  const first = nextOrder({ name: "layer", falling: false }, entropy);
  assert.deepEqual([first, nextOrder(first, entropy), nextOrder(first, layer)],
    [{ name: "entropy", falling: true }, { name: "entropy", falling: false }, { name: "layer", falling: false }]);
});

test("bars of proportions are on a fixed scale, others range from zero to the column's extremes", () => {
  assert.deepEqual(rangesOf(rows, ["entropy", "sink"]), { entropy: [0, 2], sink: [0, 1] });
  const signed = rows.map((row) => ({ ...row, values: { ...row.values, sink: -0.1 } }));
  assert.deepEqual(rangesOf(signed, ["sink"]), { sink: [-1, 1] });
  assert.deepEqual(rangesOf([{ values: { distance: -0.5 } }, { values: { distance: 0.25 } }], ["distance"]), { distance: [-0.5, 0.25] });
});

test("as text: full precision, empty where unknown, and whether values are sampled", () => {
  assert.equal(textOf(rows.slice(0, 2), ["entropy", "sink"], false, ","),
    "kind,layer,head,entropy,sink\nencoder,0,0,2,\nencoder,0,1,0.5,0.1\n");
  assert.equal(textOf(rows.slice(4), ["sink"], true, "\t"),
    "side\tkind\tlayer\thead\tsink\tsampled_queries\n0\tcross\t0\t0\t0.1\t128\n");
});

test("of many rows, only those in view are in the DOM", () => {
  assert.deepEqual(rowsInView(0, 600, 30, 3072), [0, 32]);
  assert.deepEqual(rowsInView(30_000, 600, 30, 3072), [988, 1032]);
  assert.deepEqual(rowsInView(0, 600, 30, 5), [0, 5]);
});
