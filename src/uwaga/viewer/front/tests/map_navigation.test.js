import assert from "node:assert/strict";
import { test } from "node:test";
import { mapGutters, mapLayout, mapMinimapBox } from "../map/layout.js";
import { mapNavigation } from "../map/navigation.js";
import { initialState, makeStore } from "../store.js";

function open({ queries = 1000, keys = 1000, panels = 1 } = {}) {
  const store = makeStore(initialState());
  const gutters = { title: 0, left: 50, top: 40 };
  const boxes = mapLayout(panels * 562 - 12, 541, panels, gutters);
  const scenery = {
    panels: boxes.map((plot) => ({ plot, gutters, sizes: { queries, keys }, minimap: mapMinimapBox(plot, { queries, keys }) })),
    sizes: { queries, keys }, view: { x: 0, y: 0, scale: 0 }, fit: true, query: -1, key: -1,
    pickedQuery: null, pickedKey: null, ratio: 1, style: null, live: true,
  };
  const navigation = mapNavigation({ scenery, store, moved() {}, pointed() {} });
  store.subscribe(["query", "key"], ({ query, key }) => Object.assign(scenery, { pickedQuery: query, pickedKey: key }));
  navigation.settle();
  return { store, scenery, navigation };
}

test("the pointer's place is the cell under it; beside the plot it is a query or a key alone", () => {
  const { scenery, navigation } = open({ queries: 10, keys: 10 });
  assert.equal(scenery.view.scale, 49.9);
  navigation.hover(50 + 49.9 * 3 + 1, 40 + 49.9 * 7 + 1);
  assert.deepEqual([scenery.query, scenery.key], [7, 3]);
  navigation.hover(10, 40 + 49.9 * 7 + 1);
  assert.deepEqual([scenery.query, scenery.key], [7, -1]);
  navigation.hover(60, 10);
  assert.deepEqual([scenery.query, scenery.key], [-1, 0]);
  navigation.leave();
  assert.deepEqual([scenery.query, scenery.key], [-1, -1]);
});

test("panels are locked: the same place in each is the same pair", () => {
  const { scenery, navigation } = open({ panels: 2 });
  const [left, right] = scenery.panels.map(({ plot }) => plot);
  assert.deepEqual([left.w, left.h], [right.w, right.h]);
  navigation.zoom(10, right.x + 100, right.y + 50);
  navigation.hover(right.x + 100, right.y + 50);
  const there = [scenery.query, scenery.key];
  navigation.hover(left.x + 100, left.y + 50);
  assert.deepEqual([scenery.query, scenery.key], there);
});

test("a click picks, the same click again lets go", () => {
  const { store, navigation } = open({ queries: 10, keys: 10 });
  navigation.click(50 + 49.9 * 3 + 1, 40 + 49.9 * 7 + 1);
  assert.deepEqual([store.get().query, store.get().key], [7, 3]);
  navigation.click(10, 41);
  assert.deepEqual([store.get().query, store.get().key], [0, 3]);
  navigation.click(50 + 49.9 * 3 + 1, 41);
  assert.deepEqual([store.get().query, store.get().key], [null, null]);
});

test("keys go from cell to cell and take the view with them", () => {
  const { scenery, navigation } = open();
  navigation.zoomMiddle(40);
  const [query, key] = navigation.start();
  assert.ok(Math.abs(query - 500) <= 1 && Math.abs(key - 500) <= 1);
  navigation.step(0, 1);
  assert.deepEqual([scenery.query, scenery.key], [query, key + 1]);
  while (scenery.key < 800) navigation.step(0, 1);
  assert.ok(scenery.view.x + scenery.panels[0].plot.w / scenery.view.scale > 800);
  navigation.go(Infinity, 0);
  assert.deepEqual([scenery.query, scenery.key, scenery.view.x], [999, 0, 0]);
});

test("a step over cells too small to see is as long as can be seen", () => {
  const { scenery, navigation } = open({ queries: 100_000, keys: 100_000 });
  const [, key] = navigation.start();
  navigation.step(0, 1);
  assert.ok((scenery.key - key) * scenery.view.scale >= 3.9);
});

test("Enter picks where the keys are", () => {
  const { store, navigation } = open();
  navigation.go(12, 34);
  navigation.pickCursor();
  assert.deepEqual([store.get().query, store.get().key], [12, 34]);
});

test("a drag on the small map moves the window there", () => {
  const { scenery, navigation } = open();
  navigation.zoomMiddle(8);
  const box = scenery.panels[0].minimap;
  assert.ok(navigation.grab(box.x + box.w - 1, box.y + box.h - 1));
  assert.ok(scenery.view.x > 800 && scenery.view.y > 800);
  navigation.drag(box.x, box.y);
  assert.deepEqual([scenery.view.x, scenery.view.y], [0, 0]);
  navigation.fit();
  assert.ok(!navigation.grab(box.x + 5, box.y + 5), "there is no small map while all is in view");
});

test("panels stand beside each other where they can be read, and below each other where not", () => {
  const gutters = mapGutters(40, 30, 500, 500, 12, true);
  const across = mapLayout(1200, 600, 3, gutters);
  assert.equal(new Set(across.map(({ y }) => y)).size, 1);
  const down = mapLayout(340, 900, 2, gutters);
  assert.equal(new Set(down.map(({ x }) => x)).size, 1);
  assert.ok(down[0].y + down[0].h <= down[1].y - gutters.top - gutters.title);
});

test("no small map of what would be a line, or in a window that it would hide", () => {
  const plot = { x: 0, y: 0, w: 500, h: 400 };
  assert.equal(mapMinimapBox(plot, { queries: 10, keys: 100_000 }), null);
  assert.equal(mapMinimapBox({ x: 0, y: 0, w: 90, h: 90 }, { queries: 10, keys: 10 }), null);
  assert.deepEqual(mapMinimapBox(plot, { queries: 100, keys: 200 }), { x: 372, y: 332, w: 120, h: 60 });
});
