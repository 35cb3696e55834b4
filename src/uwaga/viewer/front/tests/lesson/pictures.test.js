import assert from "node:assert/strict";
import { test } from "node:test";
import { ribbonSpans } from "../../lesson/arcs.js";
import { circleRadius } from "../../lesson/rows.js";

test("the ribbons of a word are as wide as its shares, beside each other on one bar", () => {
  const [first, itself, last] = ribbonSpans([0.5, 0.25, 0.25], 100);
  assert.deepEqual([first.to, itself.to, last.to], [0, 1, 2]);
  assert.deepEqual([first.width, itself.width, last.width], [50, 25, 25]);
  // The word's share of itself stands between them: the bar is the whole, from -50 to 50.
  assert.deepEqual([first.start, itself.start, last.start], [-25, 12.5, 37.5]);
});

test("hidden and negative numbers have no ribbon", () => {
  assert.deepEqual(ribbonSpans([NaN, -1, 2], 40).map(({ width }) => width), [0, 0, 40]);
  assert.deepEqual(ribbonSpans([0, 0], 40).map(({ width }) => width), [0, 0]);
});

test("the area of a circle grows with its number, whatever its sign", () => {
  assert.equal(circleRadius(4, 4, 10), 10);
  assert.equal(circleRadius(-1, 4, 10), 5);
  assert.equal(circleRadius(NaN, 4, 10), 0);
  assert.equal(circleRadius(1, 0, 10), 0);
});
