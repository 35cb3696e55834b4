import assert from "node:assert/strict";
import { test } from "node:test";
import { dotScale, mostMovedFigures } from "../../typing/dots.js";

const figure = (before, after, name = "") => ({ name, before, after });

test("large moves are shown on the whole scale", () => {
  const one = figure(0.25, 0.75), { span, place } = dotScale([one, figure(0.5, 0.51)]);
  assert.deepEqual([span, place(one.before, one), place(one.after, one)], [1, 0.25, 0.75]);
  assert.deepEqual(dotScale([figure(0.5, 0.5)]).span, 1);
});

test("small moves are shown around where each was, all by one scale", () => {
  for (const most of [0.029, 0.0101, 0.00136, 4e-5]) {
    const figures = [figure(0.7, 0.7 - most), figure(0.1, 0.1 + most / 2)], { span, place } = dotScale(figures);
    assert.ok([1, 2, 5].includes(Number((span / 10 ** Math.floor(Math.log10(span) + 1e-9)).toFixed(6))), String(span));
    const [one, other] = figures.map((figure) => [place(figure.before, figure), place(figure.after, figure)]);
    assert.equal(one[0], 0.5);
    assert.ok(one[1] >= 0.05 && one[1] < 0.4);
    assert.ok(Math.abs(2 * (other[1] - 0.5) - (0.5 - one[1])) < 1e-9);
  }
});

test("what fell and what rose most, unless it is too little", () => {
  const figures = [figure(0.5, 0.4, "a"), figure(0.2, 0.3, "b"), figure(0.1, 0.1, "c")];
  assert.deepEqual(Object.values(mostMovedFigures(figures, 0.01)).map((one) => one.name), ["a", "b"]);
  assert.deepEqual(mostMovedFigures(figures.slice(2), 0.01), { fell: null, rose: null });
  assert.deepEqual(mostMovedFigures(figures.slice(0, 1), 0.01).rose, null);
  assert.deepEqual(mostMovedFigures([], 0.01), { fell: null, rose: null });
});
