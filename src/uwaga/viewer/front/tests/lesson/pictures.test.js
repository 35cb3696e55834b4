import assert from "node:assert/strict";
import { test } from "node:test";
import { arcsOf } from "../../lesson/arcs.js";
import { circleRadius } from "../../lesson/rows.js";

test("the arcs of a word are as wide as its shares, beside each other on one bar", () => {
  const arcs = arcsOf([0.5, 0.25, 0.25], 1);
  assert.deepEqual(arcs.map(({ to }) => to), [0, 2]);
  assert.equal(arcs[0].width, 2 * arcs[1].width);
  // The word's own share stands between them: the bar is the whole.
  assert.equal(arcs[1].start - arcs[1].width / 2 - (arcs[0].start + arcs[0].width / 2), arcs[1].width);
});

test("hidden and negative numbers have no arc", () => {
  assert.deepEqual(arcsOf([NaN, -1, 2], 0).map(({ to }) => to), [2]);
  assert.deepEqual(arcsOf([0, 0], 0), []);
});

test("the area of a circle grows with its number, whatever its sign", () => {
  assert.equal(circleRadius(4, 4, 10), 10);
  assert.equal(circleRadius(-1, 4, 10), 5);
  assert.equal(circleRadius(NaN, 4, 10), 0);
  assert.equal(circleRadius(1, 0, 10), 0);
});
