import assert from "node:assert/strict";
import { test } from "node:test";
import { flowBands, flowOf } from "../../typing/flow.js";

/** A row in which the first key is cut, and the others are divided again. @param {number[]} before */
const without = (before) => before.map((weight, at) => (at ? weight / (1 - before[0]) : 0));
const sum = (values) => values.reduce((all, one) => all + one, 0);

test("what a cut loses is what others gain, by one factor", () => {
  const before = [0.6, 0.1, 0.05, 0.25], { lost, faded, gains, rest, others, factor } = flowOf(before, without(before), new Set([0]));
  assert.deepEqual(gains.map(({ key }) => key), [3, 1, 2]);
  assert.ok(Math.abs(lost - 0.6) < 1e-12 && Math.abs(factor - 2.5) < 1e-12 && faded === 0 && others === 0 && rest === 0);
  assert.ok(Math.abs(sum(gains.map(({ gain }) => gain)) - lost) < 1e-12);
});

test("words beyond the sixth are one band, and a seventh alone is no others", () => {
  const many = (count) => [0.4, ...Array.from({ length: count }, (_, i) => (0.6 * (count - i)) / ((count * (count + 1)) / 2))];
  for (const [count, shown, others] of [[7, 7, 0], [8, 6, 2], [40, 6, 34]]) {
    const before = many(count), flow = flowOf(before, without(before), new Set([0]));
    assert.deepEqual([flow.gains.length, flow.others], [shown, others]);
    assert.ok(Math.abs(sum(flow.gains.map(({ gain }) => gain)) + flow.rest - flow.lost) < 1e-12);
  }
});

test("where layers before are changed too, no factor is told, and what faded flows along", () => {
  const flow = flowOf([0.5, 0.3, 0.2], [0, 0.2, 0.8], new Set([0]));
  assert.equal(flow.factor, null);
  assert.deepEqual([flow.lost, flow.faded, flow.gains[0].gain].map((one) => one.toFixed(3)), ["0.500", "0.100", "0.600"]);
  assert.equal(flowOf([1, 0], [0, 0], new Set([0])).factor, null);
});

test("bands are as wide as their shares, the left ones side by side, the right ones in rows for a word", () => {
  const { height, left, right, rows } = flowBands([0.5, 0.1], [0.55, 0.04, 0.01]);
  assert.deepEqual(left.map(({ width }) => width.toFixed(3)), ["110.000", "22.000"]);
  assert.ok(Math.abs(left[0].start + left[0].width - left[1].start) < 1e-9);
  assert.ok(Math.abs(left[0].start + left[1].start + left[1].width - height) < 1e-9);
  assert.deepEqual(rows.map((row) => row.toFixed(3)), ["125.000", "28.000", "28.000"]);
  right.forEach(({ start, width }, i) => assert.ok(Math.abs(start + width / 2 - (sum(rows.slice(0, i)) + rows[i] / 2)) < 1e-9));
});
