import assert from "node:assert/strict";
import { test } from "node:test";
import { mapCells, mapLastLevel, mapLevelFor, mapPlan, mapTileRange, mapTopLevel } from "../map/pyramid.js";
import { mapFitScale } from "../map/viewport.js";

const always = () => true;
const large = { queries: 100_000, keys: 100_000 };
const plot = { w: 700, h: 600 };
const name = (wish) => `${wish.level}/${wish.row}/${wish.column}`;

test("the top level is the finest that holds the map in one tile", () => {
  assert.equal(mapTopLevel({ queries: 4, keys: 4 }), 0);
  assert.equal(mapTopLevel({ queries: 256, keys: 12 }), 0);
  assert.equal(mapTopLevel({ queries: 257, keys: 12 }), 1);
  assert.equal(mapTopLevel(large), 9);
  assert.equal(mapCells(100_000, 9), 196);
  assert.equal(mapLastLevel(large), 17);
});

test("no cell is smaller than a pixel of the device, and none twice as large as it has to be", () => {
  for (const ratio of [1, 1.5, 2, 3]) {
    for (let scale = 0.01; scale < 0.9; scale *= 1.13) {
      const level = mapLevelFor(scale, ratio, 20);
      assert.ok(2 ** level * scale * ratio > 0.98, `${scale} ${ratio}`);
      assert.ok(level === 0 || 2 ** level * scale * ratio < 2.01, `${scale} ${ratio}`);
    }
  }
  assert.equal(mapLevelFor(40, 1, 9), 0);
  assert.equal(mapLevelFor(1e-9, 1, 9), 9);
});

test("a window asks for the tiles it touches and no others", () => {
  const view = { x: 250, y: 600, scale: 1 };
  assert.deepEqual([...mapTileRange(view, plot, large, 0)], [2, 5, 0, 4]);
  assert.deepEqual([...mapTileRange(view, plot, { queries: 700, keys: 700 }, 0)], [2, 3, 0, 3]);
  assert.deepEqual([...mapTileRange(view, plot, { queries: 10, keys: 700 }, 0)], [1, 1, 0, 3]);
});

test("the whole map comes first, then the middle of the window, then outwards", () => {
  const plan = mapPlan({ x: 50_000, y: 50_000, scale: 1 }, { w: 1280, h: 1280 }, large, 1, always);
  assert.equal(name(plan[0]), "9/0/0");
  const priorities = plan.map((wish) => wish.priority).filter((priority) => priority > 20);
  assert.deepEqual(priorities, [...priorities].sort((left, right) => right - left));
  assert.equal(name(plan[1]), "0/197/197");
  const inView = plan.filter(({ level, priority }) => level === 0 && priority > 20);
  assert.equal(inView.length, 36);
  assert.equal(plan.filter(({ priority }) => priority < 20).length, 28);
});

test("a map that fits one tile asks for one tile", () => {
  const sizes = { queries: 96, keys: 96 };
  const plan = mapPlan({ x: 0, y: 0, scale: mapFitScale(sizes, plot) }, plot, sizes, 2, always);
  assert.deepEqual(plan.map(name), ["0/0/0"]);
});

test("what a saved page lacks is asked for as the finest level above that it has", () => {
  const held = new Set(["3/0/0", "1/1/1"]);
  const offered = (level, row, column) => held.has(`${level}/${row}/${column}`);
  const sizes = { queries: 1024, keys: 1024 };
  const plan = mapPlan({ x: 512, y: 512, scale: 1 }, { w: 500, h: 500 }, sizes, 1, offered);
  assert.deepEqual(plan.map(name), ["3/0/0", "1/1/1"]);
  assert.deepEqual(mapPlan({ x: 0, y: 0, scale: 1 }, plot, sizes, 1, () => false), []);
});

test("queries and keys of different lengths", () => {
  const sizes = { queries: 300, keys: 5000 };
  assert.equal(mapTopLevel(sizes), 5);
  const plan = mapPlan({ x: 0, y: 0, scale: 1 }, plot, sizes, 1, always);
  assert.ok(plan.some((wish) => name(wish) === "0/1/2"));
  assert.ok(plan.every(({ level, row, column }) => row * 256 * 2 ** level < 300 && column * 256 * 2 ** level < 5000));
});

test("tiles further out than the window are only asked for where they are exact, and cheap", () => {
  const plan = mapPlan({ x: 20_000, y: 20_000, scale: 0.25 }, plot, large, 1, always);
  assert.ok(plan.every(({ priority }) => priority > 20));
});
