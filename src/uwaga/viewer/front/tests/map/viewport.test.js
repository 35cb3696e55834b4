import assert from "node:assert/strict";
import { test } from "node:test";
import { panelBoxes, panelGutters } from "../../map/panels.js";
import {
  clampView, isWholeMap, itemsInView, makeNavigation, maxScale, revealCell, wholeMapScale, zoomViewAt,
} from "../../map/viewport.js";
import { initialState, makeStore } from "../../store.js";

function open({ queries = 1000, keys = 1000, panels = 1 } = {}) {
  const store = makeStore(initialState());
  const gutters = { title: 0, left: 50, top: 40 };
  const boxes = panelBoxes(panels * 562 - 12, 541, panels, gutters);
  const display = {
    panels: boxes.map((plot) => ({ plot, gutters, sizes: { queries, keys } })),
    sizes: { queries, keys }, view: { x: 0, y: 0, scale: 0 }, fit: true, query: -1, key: -1,
    selectedQuery: null, selectedKey: null, ratio: 1, style: null, live: true,
  };
  const navigation = makeNavigation({ display, store, moved() {}, pointed() {} });
  store.subscribe(["query", "key"], ({ query, key }) => Object.assign(display, { selectedQuery: query, selectedKey: key }));
  navigation.applyView();
  return { store, display, navigation };
}

test("hit testing: a cell in the plot; a query or a key alone beside it", () => {
  const { display, navigation } = open({ queries: 10, keys: 10 });
  assert.equal(display.view.scale, 49.9);
  navigation.hover(50 + 49.9 * 3 + 1, 40 + 49.9 * 7 + 1);
  assert.deepEqual([display.query, display.key], [7, 3]);
  navigation.hover(10, 40 + 49.9 * 7 + 1);
  assert.deepEqual([display.query, display.key], [7, -1]);
  navigation.hover(60, 10);
  assert.deepEqual([display.query, display.key], [-1, 0]);
  navigation.leave();
  assert.deepEqual([display.query, display.key], [-1, -1]);
});

test("panels show the same range: the same place in each is the same pair", () => {
  const { display, navigation } = open({ panels: 2 });
  const [left, right] = display.panels.map(({ plot }) => plot);
  assert.deepEqual([left.w, left.h], [right.w, right.h]);
  navigation.zoom(10, right.x + 100, right.y + 50);
  navigation.hover(right.x + 100, right.y + 50);
  const there = [display.query, display.key];
  navigation.hover(left.x + 100, left.y + 50);
  assert.deepEqual([display.query, display.key], there);
});

test("a click selects, the same click again deselects", () => {
  const { store, navigation } = open({ queries: 10, keys: 10 });
  navigation.click(50 + 49.9 * 3 + 1, 40 + 49.9 * 7 + 1);
  assert.deepEqual([store.get().query, store.get().key], [7, 3]);
  navigation.click(10, 41);
  assert.deepEqual([store.get().query, store.get().key], [0, 3]);
  navigation.click(50 + 49.9 * 3 + 1, 41);
  assert.deepEqual([store.get().query, store.get().key], [null, null]);
});

test("arrow keys move from cell to cell and scroll the view", () => {
  const { display, navigation } = open();
  navigation.zoomMiddle(40);
  const [query, key] = navigation.start();
  assert.ok(Math.abs(query - 500) <= 1 && Math.abs(key - 500) <= 1);
  navigation.step(0, 1);
  assert.deepEqual([display.query, display.key], [query, key + 1]);
  while (display.key < 800) navigation.step(0, 1);
  assert.ok(display.view.x + display.panels[0].plot.w / display.view.scale > 800);
  navigation.go(Infinity, 0);
  assert.deepEqual([display.query, display.key, display.view.x], [999, 0, 0]);
});

test("with cells below a visible size, a key step covers several cells", () => {
  const { display, navigation } = open({ queries: 100_000, keys: 100_000 });
  const [, key] = navigation.start();
  navigation.step(0, 1);
  assert.ok((display.key - key) * display.view.scale >= 3.9);
});

test("Enter selects the cell of the keyboard cursor", () => {
  const { store, navigation } = open();
  navigation.go(12, 34);
  navigation.selectCursor();
  assert.deepEqual([store.get().query, store.get().key], [12, 34]);
});

test("panels are side by side in a wide window, and below each other in a narrow one", () => {
  const gutters = panelGutters(40, 30, 500, 500, 12, true);
  const across = panelBoxes(1200, 600, 3, gutters);
  assert.equal(new Set(across.map(({ y }) => y)).size, 1);
  const down = panelBoxes(340, 900, 2, gutters);
  assert.equal(new Set(down.map(({ x }) => x)).size, 1);
  assert.ok(down[0].y + down[0].h <= down[1].y - gutters.top - gutters.title);
});

const sizes = { queries: 1000, keys: 2000 };
const plot = { w: 500, h: 400 };

test("a view without a scale shows the whole map", () => {
  const view = { x: 5, y: 5, scale: 0 };
  clampView(view, sizes, plot);
  assert.deepEqual(view, { x: 0, y: 0, scale: 0.25 });
  assert.ok(isWholeMap(view, sizes, plot));
});

test("the cells of few tokens have a maximum size", () => {
  assert.equal(wholeMapScale({ queries: 4, keys: 4 }, { w: 2000, h: 2000 }), 112);
});

test("zooming keeps the point under the pointer", () => {
  const view = { x: 0, y: 0, scale: 0.25 };
  zoomViewAt(view, 8, 200, 100, sizes, plot);
  assert.equal(view.scale, 2);
  assert.equal(view.x + 200 / view.scale, 800);
  assert.equal(view.y + 100 / view.scale, 400);
});

test("zoom is limited by the whole map and the largest cell size", () => {
  const view = { x: 300, y: 300, scale: 2 };
  zoomViewAt(view, 1e9, 10, 10, sizes, plot);
  assert.equal(view.scale, maxScale);
  zoomViewAt(view, 1e-9, 10, 10, sizes, plot);
  assert.ok(isWholeMap(view, sizes, plot));
  assert.deepEqual([view.x, view.y], [0, 0]);
});

test("the viewport stays on the map, and an axis that fits starts at 0", () => {
  const view = { x: 5000, y: -3, scale: 1 };
  clampView(view, sizes, plot);
  assert.deepEqual([view.x, view.y], [1500, 0]);
  const thin = { x: 10, y: 4, scale: 2 };
  clampView(thin, { queries: 10, keys: 2000 }, plot);
  assert.deepEqual([thin.x, thin.y], [10, 0]);
});

test("at the largest zoom, items of a hundred thousand are distinct", () => {
  const large = { queries: 100_000, keys: 100_000 };
  const view = { x: 0, y: 0, scale: 0 };
  clampView(view, large, plot);
  for (let i = 0; i < 60; i++) zoomViewAt(view, 1.4, 499.5, 399.5, large, plot);
  assert.equal(view.scale, maxScale);
  const [, , first, last] = itemsInView(view, large, plot);
  assert.ok(last - first <= Math.ceil(500 / maxScale) + 1 && last <= 100_000);
});

test("an item out of view is scrolled into view by the smallest move", () => {
  const view = { x: 100, y: 100, scale: 1 };
  revealCell(view, 300, 150, sizes, plot);
  assert.deepEqual([view.x, view.y], [100, 100]);
  revealCell(view, 300, 700, sizes, plot);
  assert.deepEqual([view.x, view.y], [203, 100]);
  revealCell(view, 0, 0, sizes, plot);
  assert.deepEqual([view.x, view.y], [0, 0]);
});

test("the visible block is clipped to the map", () => {
  assert.deepEqual(itemsInView({ x: 1900, y: 0.5, scale: 1 }, sizes, plot), [0, 401, 1900, 2000]);
});
