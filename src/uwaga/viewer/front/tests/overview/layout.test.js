import assert from "node:assert/strict";
import { test } from "node:test";
import { placeAt, makeLayout, stepFrom, visibleRows } from "../../overview/layout.js";
import { layerPixels, headScaleMax, sinkShares } from "../../overview/drawing.js";

const side = (id, layers, heads,
  kinds = ["encoder"]) => ({ id, maps: kinds.flatMap((kind) => Array.from({ length: layers }, (_, layer) => ({ kind, layer, heads }))) });
const layoutOf = (layers, heads, width = 1200, kinds = ["encoder"]) =>
  makeLayout(kinds.map((kind) => ({ side: side("0", layers, heads, kinds), kind, title: kind })), width, 800, 16, 1);

test("thumbnails fill the width, between a smallest and a largest size", () => {
  const twelve = layoutOf(12, 12);
  assert.ok(twelve.width <= 1200 && twelve.width > 1100, String(twelve.width));
  assert.equal(layoutOf(48, 64).cell, 32);
  assert.ok(layoutOf(1, 1).cell > 300);
  assert.ok(layoutOf(1, 1, 320).cell < 320);
  const four = layoutOf(4, 4);
  assert.ok(four.width > 0.6 * 1200, `four heads fill ${four.width} of 1200`);
});

test("the share of each head's weight on sinks", () => {
  const cells = { data: Float32Array.of(0.75, 0.25, NaN, NaN, 0.5, 0.5, 0, 1), heads: 2, rows: 2, columns: 2 };
  assert.deepEqual(sinkShares(cells, Uint8Array.of(1, 0)), [0.75, 0.25]);
  assert.deepEqual(sinkShares(cells, null), [0, 0]);
});

test("one row per layer, one band per kind; hit testing of heads", () => {
  const layout = layoutOf(3, 4, 1200, ["encoder", "cross"]);
  assert.deepEqual(layout.bands.map(({ title }) => title), ["encoder", "cross"]);
  assert.deepEqual(layout.rows.map(({ kind, layer }) => kind[0] + layer), ["e0", "e1", "e2", "c0", "c1", "c2"]);
  for (const [row, head] of [[0, 0], [5, 3], [3, 1]]) {
    const x = layout.left + head * layout.pitch + 1, y = layout.rows[row].y + layout.cell - 1;
    assert.deepEqual(placeAt(layout, x, y), { row, head });
  }
  assert.equal(placeAt(layout, layout.left + layout.cell + 1, layout.rows[0].y), null, "between two");
  assert.equal(placeAt(layout, layout.left + 4 * layout.pitch, layout.rows[0].y), null, "behind the last");
});

test("of 48 layers of 64 heads, only those in view are drawn and requested", () => {
  const layout = layoutOf(48, 64), [first, end] = visibleRows(layout, 500, 900);
  assert.ok(first > 5 && end < 30 && end - first <= 13, `${first} ${end}`);
  assert.deepEqual(visibleRows(layout, 1e6, 2e6), [48, 48]);
});

test("arrow keys stay in the grid, also where rows differ in length", () => {
  const layout = layoutOf(2, 4);
  layout.rows[1].heads = 2;
  assert.deepEqual(stepFrom(layout, { row: 0, head: 3 }, "ArrowDown", 3), { row: 1, head: 1 });
  assert.deepEqual(stepFrom(layout, { row: 0, head: 3 }, "ArrowRight", 3), { row: 0, head: 3 });
  assert.deepEqual(stepFrom(layout, { row: 0, head: 3 }, "Home", 3), { row: 0, head: 0 });
  assert.deepEqual(stepFrom(layout, { row: 0, head: 0 }, "PageDown", 3), { row: 1, head: 0 });
  assert.equal(stepFrom(layout, { row: 0, head: 0 }, "x", 3), null);
});

test("pixels: heads side by side, each with its own scale; unknown and hidden cells", () => {
  const cells = { data: Float32Array.of(0, 0.5, 1, NaN, 4, 2, 0, 0), heads: 2, rows: 2, columns: 2 };
  const look = { colour: { log: false, low: 0, high: null, threshold: 0, hideSink: false, scheme: "grey" },
    signed: false, theme: "light", hidden: null };
  assert.deepEqual([0, 1].map((head) => headScaleMax(cells, null, head, head + 1)), [1, 4]);
  assert.equal(headScaleMax(cells, Uint8Array.of(1, 0)), 2);
  const red = (pixels) => Array.from({ length: 8 }, (_, at) => pixels[4 * at]);
  const [white, half, black] = [255, red(layerPixels(cells, look, (head) => [1, 4][head]))[1], 0x22];
  assert.deepEqual(red(layerPixels(cells, look, (head) => [1, 4][head])), [white, half, black, half, black, 214, white, white]);
  assert.deepEqual(red(layerPixels(cells, { ...look, hidden: Uint8Array.of(1, 0) }, () => 0.5)), [white, black, white, black, white, 214, white, white]);
});
