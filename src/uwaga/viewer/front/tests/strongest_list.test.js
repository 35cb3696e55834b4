import assert from "node:assert/strict";
import { test } from "node:test";
import { makeShading } from "../colours.js";
import { listsPassages, strongestItems, strongestPassages } from "../strongest_list.js";
import { minimapRows } from "../text/minimap.js";
import { weightText } from "../format.js";

const colour = { log: false, low: 0, high: null, threshold: 0 };

test("the shade is proportional to the weight, and 1 at the largest", () => {
  const shade = makeShading([0.1, 0.4, 0, NaN, 0.2], colour);
  assert.equal(shade.high, 0.4);
  assert.deepEqual([0, 1, 2, 3, 4].map((item) => shade.of(item)), [0.25, 1, 0, 0, 0.5]);
});

test("sinks have no shade and are left out of the scale", () => {
  const shade = makeShading([0.9, 0.1, 0.05], colour, new Set([0]));
  assert.deepEqual([0, 1, 2].map((item) => shade.of(item)), [0, 1, 0.5]);
});

test("weights below the threshold have no shade; the logarithmic scale has four decades", () => {
  assert.equal(makeShading([0.9, 0.1], { ...colour, threshold: 0.2 }).of(1), 0);
  const shade = makeShading([1, 0.01, 1e-5], { ...colour, log: true });
  assert.ok(Math.abs(shade.of(1) - 0.5) < 1e-9);
  assert.equal(shade.of(2), 0);
});

test("differences keep their sign", () => {
  const shade = makeShading([-0.4, 0.2], colour);
  assert.deepEqual([shade.of(0), shade.of(1)], [-1, 0.5]);
});

test("sorted by weight, ties by position, without unknown weights", () => {
  assert.deepEqual(strongestItems([0.1, NaN, 0.3, 0.3, 0, -0.2], 4), [2, 3, 5, 0]);
  assert.deepEqual(strongestItems([], 4), []);
  const many = Float32Array.from({ length: 5000 }, (_, i) => ((i * 7919) % 5000) / 5000);
  const best = strongestItems(many, 20);
  assert.deepEqual(best, [...many.keys()].sort((a, b) => many[b] - many[a]).slice(0, 20));
});

test("the strip sums the weights of a text that is longer than itself", () => {
  const weights = Float32Array.from({ length: 1000 }, (_, i) => (i === 777 ? 0.5 : 0.0005));
  const starts = Int32Array.from({ length: 101 }, (_, line) => 10 * line);
  const { mass, shades } = minimapRows(weights, makeShading(weights, colour).of, starts, 50);
  assert.ok(Math.abs(mass.reduce((sum, part) => sum + part) - weights.reduce((sum, part) => sum + part)) < 1e-4);
  assert.equal(shades[38], 1);
  assert.ok(shades[10] < 0.01);
});

test("in a strip with more rows than lines, the tokens of a line are below each other", () => {
  const { shades } = minimapRows([0.2, 0.8], makeShading([0.2, 0.8], colour).of, Int32Array.of(0, 2), 4);
  assert.deepEqual([...shades], [0.25, 0.25, 1, 1]);
});

test("weights are shown with six digits", () => {
  assert.equal(weightText(0.123456789), "0.123457");
  assert.equal(weightText(0.000012345678), "1.23457\u00d710\u207b\u2075");
  assert.equal(weightText(0), "0");
  assert.equal(weightText(NaN), "not known yet");
});

test("passages have 17 items around their largest weight and do not overlap; the rest is not listed", () => {
  const weights = new Float32Array(400);
  weights[100] = 0.3;
  weights[104] = 0.1;
  weights[300] = 0.35;
  weights[399] = 0.05;
  weights[10] = NaN;
  const found = strongestPassages(weights, 5).map(({ first, stop, peak, mass }) => [first, stop, peak, Number(mass.toFixed(3))]);
  assert.deepEqual(found, [[92, 109, 100, 0.4], [292, 309, 300, 0.35], [391, 400, 399, 0.05]]);
  assert.equal(strongestPassages(new Float32Array(50), 3).length, 0);
});

test("passages of a difference are those that change most, with their signed sum", () => {
  const weights = new Float32Array(100);
  weights[50] = -0.4;
  weights[52] = 0.1;
  assert.deepEqual(strongestPassages(weights, 1).map(({ peak, mass }) => [peak, Number(mass.toFixed(3))]), [[50, -0.3]]);
});

test("a long text is listed by passages, unless its items are passages", () => {
  const items = (count, label) => ({ total: count, labels: Array(count).fill(label) });
  assert.equal(listsPassages(items(255, "word")), false);
  assert.equal(listsPassages(items(256, "word")), true);
  assert.equal(listsPassages(items(716, "A whole sentence of a soft database.")), false);
});
