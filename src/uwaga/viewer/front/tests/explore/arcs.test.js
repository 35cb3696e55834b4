import assert from "node:assert/strict";
import { test } from "node:test";
import { arcScale, arcsOfWord, headArcs, pathOfArc } from "../../explore/arcs.js";

const centres = [0, 100, 200, 300, 400];

test("arcs leave from one bar that is 100 %, as wide as their weights, and do not cross", () => {
  const weights = [0.4, 0.1, 0.2, 0, 0.3], arcs = arcsOfWord(weights, 2, centres, { height: 236 });
  assert.deepEqual(arcs.map(({ key }) => key), [2, 1, 0, 4]);
  for (const { key, width } of arcs) assert.ok(Math.abs(width - weights[key] * arcScale) < 1e-9);
  const left = Math.min(...arcs.map(({ from, width }) => from - width / 2)), right = Math.max(...arcs.map(({ from, width }) => from + width / 2));
  assert.ok(Math.abs(left - (200 - arcScale / 2)) < 1e-9 && Math.abs(right - (200 + arcScale / 2)) < 1e-9);
  const rises = Object.fromEntries(arcs.map(({ key, rise }) => [key, rise]));
  assert.ok(rises[0] > rises[1] && rises[4] > rises[1]);
});

test("a small weight is a hairline, a smaller one is not drawn, and a word itself is a stub", () => {
  const arcs = arcsOfWord([0.01, 0.003, 0.987], 2, centres, { height: 236 });
  assert.deepEqual(arcs.map(({ key, isSelf }) => [key, isSelf]), [[2, true], [0, false]]);
  assert.equal(arcs[1].width, 0.8);
  const at = (along, above) => `${along} ${above}`;
  assert.match(pathOfArc(arcs[0], at), /z$/);
  assert.match(pathOfArc(arcs[1], at), /^M[^C]+C[^C]+ 0 0$/);
});

test("a head's drawing leaves out what is at rest and what is below a tenth", () => {
  const cells = [0.9, 0.05, 0.05, 0.2, 0.7, 0.1, 0, 0, 1], size = { width: 60, height: 34 };
  assert.equal(headArcs(cells, 3, 3, new Set(), size).length, 5);
  assert.equal(headArcs(cells, 3, 3, new Set([0]), size).length, 3);
  assert.equal(headArcs([NaN, NaN], 1, 2, new Set(), size).length, 0);
});
