import assert from "node:assert/strict";
import { test } from "node:test";
import { mapBlock, mapClamp, mapFitScale, mapIsFit, mapReveal, mapScaleMost, mapZoomAt } from "../map/viewport.js";

const sizes = { queries: 1000, keys: 2000 };
const plot = { w: 500, h: 400 };

test("a view without a scale shows the whole map", () => {
  const view = { x: 5, y: 5, scale: 0 };
  mapClamp(view, sizes, plot);
  assert.deepEqual(view, { x: 0, y: 0, scale: 0.25 });
  assert.ok(mapIsFit(view, sizes, plot));
});

test("few tokens do not fill a large window", () => {
  assert.equal(mapFitScale({ queries: 4, keys: 4 }, { w: 2000, h: 2000 }), 112);
});

test("zooming leaves what is under the pointer where it is", () => {
  const view = { x: 0, y: 0, scale: 0.25 };
  mapZoomAt(view, 8, 200, 100, sizes, plot);
  assert.equal(view.scale, 2);
  assert.equal(view.x + 200 / view.scale, 800);
  assert.equal(view.y + 100 / view.scale, 400);
});

test("no zoom goes beyond the whole map or the largest cell", () => {
  const view = { x: 300, y: 300, scale: 2 };
  mapZoomAt(view, 1e9, 10, 10, sizes, plot);
  assert.equal(view.scale, mapScaleMost);
  mapZoomAt(view, 1e-9, 10, 10, sizes, plot);
  assert.ok(mapIsFit(view, sizes, plot));
  assert.deepEqual([view.x, view.y], [0, 0]);
});

test("the window stays on the map, and a side that fits stands at its beginning", () => {
  const view = { x: 5000, y: -3, scale: 1 };
  mapClamp(view, sizes, plot);
  assert.deepEqual([view.x, view.y], [1500, 0]);
  const thin = { x: 10, y: 4, scale: 2 };
  mapClamp(thin, { queries: 10, keys: 2000 }, plot);
  assert.deepEqual([thin.x, thin.y], [10, 0]);
});

test("a hundred thousand items keep every item apart at the largest zoom", () => {
  const large = { queries: 100_000, keys: 100_000 };
  const view = { x: 0, y: 0, scale: 0 };
  mapClamp(view, large, plot);
  for (let i = 0; i < 60; i++) mapZoomAt(view, 1.4, 499.5, 399.5, large, plot);
  assert.equal(view.scale, mapScaleMost);
  const [, , first, last] = mapBlock(view, large, plot);
  assert.ok(last - first <= Math.ceil(500 / mapScaleMost) + 1 && last <= 100_000);
});

test("an item out of view is brought in by the least move", () => {
  const view = { x: 100, y: 100, scale: 1 };
  mapReveal(view, 300, 150, sizes, plot);
  assert.deepEqual([view.x, view.y], [100, 100]);
  mapReveal(view, 300, 700, sizes, plot);
  assert.deepEqual([view.x, view.y], [203, 100]);
  mapReveal(view, 0, 0, sizes, plot);
  assert.deepEqual([view.x, view.y], [0, 0]);
});

test("the block in view is cut at the map's ends", () => {
  assert.deepEqual(mapBlock({ x: 1900, y: 0.5, scale: 1 }, sizes, plot), [0, 401, 1900, 2000]);
});
