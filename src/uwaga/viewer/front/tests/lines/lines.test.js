import assert from "node:assert/strict";
import { test } from "node:test";
import { makeClient } from "../../client.js";
import { drawLines, placeLines } from "../../lines/drawing.js";
import { collectLines, isOffscreen, manyHeads, strongestLines, strongestShare } from "../../lines/weights.js";
import { headColour } from "../../lines/drawing.js";
import { OffscreenMass } from "../../lines/weights.js";
import { LineWeights } from "../../lines/weights.js";
import { layoutLines } from "../../lines/drawing.js";
import { windowClamp, windowItems, windowMiddle, windowReveal } from "../../lines/columns.js";

const where = { side: "0", kind: "encoder", layer: 0, head: 0, merge: "tokens", specials: "show" };
const weight = (query, key) => (1 + ((query * 31 + key * 17) % 11)) / 4096;

test("the items in a column's viewport are those whose centre is in it", () => {
  const window = { offset: 25, height: 100, row: 20, total: 50 };
  assert.deepEqual(windowItems(window), [1, 6]);
  assert.equal(windowMiddle(window, 1), 5);
  assert.deepEqual(windowItems({ ...window, offset: 0, total: 2 }), [0, 2]);
  assert.deepEqual(windowItems({ ...window, total: 0 }), [0, 0]);
});

test("scrolling stays within the items, and shows an item by the smallest move", () => {
  const window = { offset: 0, height: 100, row: 20, total: 50 };
  assert.equal(windowClamp({ ...window, offset: -5 }), 0);
  assert.equal(windowClamp({ ...window, offset: 5000 }), 900);
  assert.equal(windowClamp({ ...window, total: 2, offset: 10 }), 0);
  assert.equal(windowReveal(window, 3), 0);
  assert.equal(windowReveal(window, 5), 20);
  assert.equal(windowReveal({ ...window, offset: 200 }, 8), 160);
  assert.equal(windowReveal(window, 40), 750);
});

const gather = (rest = {}) => collectLines({
  heads: [0, 1], rows: [2, 4], columns: [0, 3], weight: (head, query, key) => (head === 0 ? query / 10 + key / 100 : NaN), offscreenMass: () => 0,
  threshold: 0, only: null, sinks: new Set(), ...rest,
});

test("there is a line for every known weight of at least the threshold", () => {
  const { lines, high } = gather();
  assert.equal(lines.length, 6);
  assert.ok(Math.abs(high - 0.32) < 1e-9);
  assert.deepEqual(gather({ threshold: 0.3 }).lines.map(({ query, key }) => [query, key]), [[3, 0], [3, 1], [3, 2]]);
  assert.equal(gather({ sinks: new Set([0]) }).lines.length, 4);
});

test("a selected token has only its own lines; one out of view has none", () => {
  assert.deepEqual(gather({ only: { axis: "query", item: 3 } }).lines.map(({ query }) => query), [3, 3, 3]);
  assert.deepEqual(gather({ only: { axis: "key", item: 1 } }).lines.map(({ query, key }) => [query, key]), [[2, 1], [3, 1]]);
  assert.equal(gather({ only: { axis: "query", item: 9 } }).lines.length, 0);
});

test("keys out of view are one line to the edge, with the sum of their weights", () => {
  const offscreenMass = (axis, head, item, end) => (axis === "query" && head === 0 && end === "after" ? 0.5 : 0);
  const offscreen = gather({ offscreenMass, heads: [0] }).lines.filter(isOffscreen);
  assert.deepEqual(offscreen,
    [{ head: manyHeads, query: 2, key: Infinity, weight: 0.5 }, { head: manyHeads, query: 3, key: Infinity, weight: 0.5 }]);
  assert.equal(gather({ offscreenMass }).lines.filter(isOffscreen)[0].weight, 0.25); // the mean over both heads
  assert.deepEqual(gather({ offscreenMass, only: { axis: "query", item: 3 } }).lines.filter(isOffscreen),
    [{ head: 0, query: 3, key: Infinity, weight: 0.5 }]);
  const [placed] = placeLines([offscreen[0]], { left: (item) => item * 10, right: () => 0, x1: 5, x2: 95, height: 300, colour: () => "#123456",
    opacity: (amount) => amount, offscreen: 0.5 });
  assert.deepEqual(placed, { x1: 5, y1: 20, x2: 95, y2: 300, colour: "#123456", opacity: 0.25, width: 4.5, offscreen: true });
});

test("lines are sorted by weight, largest first", () => {
  assert.deepEqual(strongestLines(gather().lines, 2).map(({ query, key }) => [query, key]), [[3, 2], [3, 1]]);
});

test("many lines are drawn with few strokes", () => {
  let strokes = 0, segments = 0;
  const context = { beginPath() {}, moveTo() {}, lineTo: () => (segments += 1), stroke: () => (strokes += 1), setLineDash() {} };
  const lines = Array.from({ length: 5000 },
    (_, i) => ({ x1: 0, y1: i, x2: 1, y2: i, colour: i % 2 ? "#f00" : "#00f", opacity: (i % 100) / 100, width: 1, offscreen: false }));
  drawLines(context, lines);
  assert.equal(segments, 4950); // those of opacity 0 are none
  assert.ok(strokes <= 48, `${strokes}`);
});

test("lines of many heads use the whole width; for one token every head has a box beside the lines", () => {
  const column = (axis) => ({ axis, middle: (item) => 10 * item, window: { height: 100 } });
  const heads = Array.from({ length: 64 }, (_, head) => head);
  const figure = { lines: [{ head: 3, query: 1, key: 2, weight: 0.5 }], heads, only: null, all: true,
    hue: () => "", opacity: (w) => w, query: column("query"), key: column("key") };
  const [all] = layoutLines(figure, 300, "blue", "grey").lines;
  assert.deepEqual([all.x1, all.x2], [0, 300]);
  const one = layoutLines({ ...figure, only: { axis: "query", item: 1 } }, 300, "blue", "grey");
  assert.ok(one.lines[0].x2 - one.lines[0].x1 > 150);
  assert.deepEqual(one.boxes.map(({ colours }) => colours.length), [64, 64]);
});

test("every head has a distinct colour, far from that of the next head", () => {
  for (const heads of [1, 2, 3, 8, 12, 16, 32]) {
    const colours = Array.from({ length: heads }, (_, head) => headColour(head, heads, "light"));
    assert.equal(new Set(colours).size, heads);
    for (const colour of colours) assert.match(colour, /^#[0-9a-f]{6}$/);
  }
});

/** An app whose host serves a map of `size` tokens with the weights `weight`. */
function liveApp(size) {
  const asked = [];
  const sum = (span, keys) => {
    let total = 0;
    for (let i = span[0]; i < span[1]; i++) for (let j = keys[0]; j < keys[1]; j++) total += weight(i, j);
    return total / (span[1] - span[0]);
  };
  const host = { mode: "served", has: () => true, download() {}, ask: async (request) => {
    asked.push(request);
    if (request.request === "between") {
      const masses = request.spans.flatMap((span) => request.key_spans.map((keys) => sum(span, keys)));
      return { meta: {}, arrays: [{ data: Float32Array.from(masses), shape: [request.spans.length, request.key_spans.length] }] };
    }
    const [rows, columns] = [request.row, request.column].map((tile) => Math.min(256, size - 256 * tile));
    const data = Float32Array.from({ length: rows * columns },
      (_, i) => weight(request.row * 256 + Math.floor(i / columns), request.column * 256 + (i % columns)));
    return { meta: { complete: 1 }, arrays: [{ data, shape: [rows, columns] }] };
  } };
  return { asked, host, client: makeClient(host, { wait: async () => {} }) };
}

test("tiles in view are requested, others are aborted, and weights are exact across tiles", async () => {
  const app = liveApp(600);
  await new Promise((resolve) => {
    const weights = new LineWeights(app, () => {
      if (weights.tiles.size < 4) return;
      assert.equal(weights.weight(0, 260, 250), Math.fround(weight(260, 250)));
      assert.equal(weights.weight(0, 599, 10), NaN);
      weights.request(where, [0], [0, 10], [0, 10]);
      assert.deepEqual([...weights.tiles.keys()], ["0 0 0"]);
      resolve();
    });
    weights.request(where, [0], [250, 270], [250, 270]);
  });
});

test("sums out of view are computed from tiles of a small map and requested for a large one", async (t) => {
  t.mock.timers.enable({ apis: ["setTimeout"] });
  for (const size of [300, 700]) {
    const app = liveApp(size), rows = [100, 103], columns = [50, 54], sizes = { queries: size, keys: size };
    const weights = new LineWeights(app, () => {});
    weights.request(where, [0], size <= 512 ? [0, size] : rows, size <= 512 ? [0, size] : columns);
    const offscreenMass = new OffscreenMass(app, weights, () => {});
    offscreenMass.request({ where, heads: [0], rows, columns, sizes });
    t.mock.timers.tick(1000);
    for (let i = 0; i < 20; i++) await new Promise((resolve) => setImmediate(resolve));
    let [before, behind] = [0, 0];
    for (let key = 0; key < 50; key++) before += weight(101, key);
    for (let query = 103; query < size; query++) behind += weight(query, 52);
    assert.ok(Math.abs(offscreenMass.of("query", 0, 101, "before") - before) < 1e-4, `${size}`);
    assert.ok(Math.abs(offscreenMass.of("key", 0, 52, "after") - behind) < 1e-3, `${size}`);
    assert.equal(app.asked.some(({ request }) => request === "between"), size > 512);
    weights.clear();
    offscreenMass.clear();
  }
});

test("a viewport that shows all items has no sum out of view", () => {
  const offscreenMass = new OffscreenMass(liveApp(10), new LineWeights(liveApp(10), () => {}), () => {});
  offscreenMass.request({ where, heads: [0], rows: [0, 10], columns: [0, 10], sizes: { queries: 10, keys: 10 } });
  assert.equal(offscreenMass.of("query", 0, 3, "before"), 0);
  assert.equal(offscreenMass.of("key", 0, 3, "after"), 0);
});

test("a saved page without the finest tiles shows means, and over how many tokens", async () => {
  const data = Float32Array.from({ length: 4 }, (_, i) => (i + 1) / 10); // a map of 4 tokens, in cells of 2 by 2
  const host = { mode: "saved", has: ({ level }) => level === 1, download() {},
    ask: async () => ({ meta: { complete: 1 }, arrays: [{ data, shape: [2, 2] }] }) };
  const app = { host, client: makeClient(host), sizes: () => ({ queries: 4, keys: 4 }) };
  await new Promise((resolve) => {
    const weights = new LineWeights(app, resolve);
    weights.request(where, [0], [0, 4], [0, 4]);
    app.weights = weights;
  });
  assert.equal(app.weights.cell, 2);
  assert.ok(Math.abs(app.weights.weight(0, 3, 1) - 0.15) < 1e-7);
});

test("a saved page without any tile shows that weights are missing", async () => {
  const host = { mode: "saved", has: () => false, download() {}, ask: async () => assert.fail("asked") };
  const app = { host, client: makeClient(host), sizes: () => ({ queries: 4, keys: 4 }) };
  const weights = new LineWeights(app, () => {});
  weights.request(where, [0], [0, 4], [0, 4]);
  await new Promise((resolve) => setImmediate(resolve));
  assert.equal(weights.cell, 0);
  assert.equal(weights.weight(0, 1, 1), NaN);
});

test("the lines that make up 80 % of a row are drawn, the strongest first; those that leave the window stay", () => {
  const row = [0.5, 0.05, 0.3, 0.1, 0.05].map((weight, key) => ({ head: 0, query: 1, key, weight }));
  const leaving = { head: 0, query: 1, key: Infinity, weight: 0.2 }, other = { head: 0, query: 2, key: 0, weight: 0.01 };
  assert.deepEqual(strongestShare([...row, leaving, other], 0.8), [row[0], row[2], leaving, other]);
});
