import assert from "node:assert/strict";
import { test } from "node:test";
import { blitCells } from "../../map/renderer.js";
import { drawTiles } from "../../map/tile_drawing.js";

test("a pixel has the colour of the cell at its centre", () => {
  const pixels = new Uint32Array(8 * 4);
  blitCells(pixels, 8, new Int32Array(8), Uint32Array.of(1, 2, 3, 4), 2, 2, 1.4, 0, 2.5, 1, 0, 6, 4, false);
  assert.deepEqual([...pixels.subarray(0, 8)], [0, 1, 1, 1, 2, 2, 0, 0]);
  assert.deepEqual([...pixels.subarray(24)], [0, 3, 3, 3, 4, 4, 0, 0]);
});

test("unknown cells are transparent", () => {
  const pixels = new Uint32Array(4).fill(9);
  blitCells(pixels, 2, new Int32Array(2), Uint32Array.of(0, 2, 3, 0), 2, 2, 0, 0, 1, 0, 0, 2, 2, true);
  assert.deepEqual([...pixels], [9, 2, 3, 9]);
});

const tile = (layer, level, row, column, complete = 1) => {
  const made = { level, row, column, data: new Float32Array(1), rows: 256, columns: 256, complete,
    version: 1, scaleMax: 0, scaleMaxNoSink: 0, used: 0, drawn: null, layer };
  layer.levels[level].set(row * 2 ** 20 + column, made);
  return made;
};
const makeLayer = () => ({ pooling: "sum", levels: Array.from({ length: 40 }, () => new Map()) });
const panelOf = (layer) => ({ plot: { x: 0, y: 0, w: 512, h: 512 }, sizes: { queries: 1024, keys: 1024 }, layer,
  range: Int32Array.of(0, 2, 0, 2), level: 0, colouringLevel: 0, colouring: { unknown: 7 } });

function drawn(panel, view) {
  const calls = [];
  const renderer = {
    fill: () => {},
    paint: (one, x, y, cell, left, top, right, bottom, colouring, factor, transparent) =>
      calls.push({ what: `${one.level}/${one.row}/${one.column}`, box: [left, top, right, bottom], x, y, cell, factor, transparent }),
  };
  drawTiles(renderer, panel, view, 1, 5);
  return calls;
}

test("a complete tile is drawn alone; where there is none, the nearest coarser one is drawn", () => {
  const layer = makeLayer();
  tile(layer, 2, 0, 0);
  tile(layer, 0, 0, 0);
  const calls = drawn(panelOf(layer), { x: 0, y: 0, scale: 1 });
  assert.deepEqual(calls.map(({ what, box }) => [what, ...box]), [
    ["0/0/0", 0, 0, 256, 256], ["2/0/0", 256, 0, 512, 256], ["2/0/0", 0, 256, 256, 512], ["2/0/0", 256, 256, 512, 512],
  ]);
  assert.equal(calls[1].cell, 4);
  assert.equal(calls[1].factor, 0.25); // a mass over four keys, shown among those over one
});

test("an incomplete tile is drawn over coarser ones, which show through its unknown cells", () => {
  const layer = makeLayer();
  tile(layer, 2, 0, 0);
  tile(layer, 1, 0, 0, 0.5);
  tile(layer, 0, 0, 0, 0.3);
  const calls = drawn({ ...panelOf(layer), range: Int32Array.of(0, 1, 0, 1) }, { x: 0, y: 0, scale: 1 });
  assert.deepEqual(calls.map(({ what, transparent }) => [what, transparent]), [["2/0/0", false], ["1/0/0", true], ["0/0/0", true]]);
});

test("after zooming out, finer tiles replace a missing one", () => {
  const layer = makeLayer();
  tile(layer, 0, 1, 1);
  const panel = { ...panelOf(layer), level: 1, colouringLevel: 1, range: Int32Array.of(0, 1, 0, 1) };
  const calls = drawn(panel, { x: 0, y: 0, scale: 0.5 });
  assert.deepEqual(calls.map(({ what, box, factor }) => [what, ...box, factor]), [["0/1/1", 128, 128, 256, 256, 2]]);
});

test("adjacent tiles have no gap and no overlap at any scale", () => {
  for (const scale of [0.31, 0.77, 1.37, 2.03]) {
    const layer = makeLayer();
    for (let row = 0; row < 4; row++) for (let column = 0; column < 4; column++) tile(layer, 0, row, column);
    const calls = drawn({ ...panelOf(layer), range: Int32Array.of(0, 4, 0, 4) }, { x: 13.21, y: 100.77, scale });
    const covered = new Uint8Array(512 * 512);
    for (const { box: [left, top, right, bottom] } of calls) {
      for (let y = top; y < bottom; y++) for (let x = left; x < right; x++) covered[y * 512 + x] += 1;
    }
    const right = Math.min(512, Math.ceil((1024 - 13.21) * scale - 0.5));
    const bottom = Math.min(512, Math.ceil((1024 - 100.77) * scale - 0.5));
    for (let y = 0; y < bottom; y++) for (let x = 0; x < right; x++) assert.equal(covered[y * 512 + x], 1, `${scale} ${x} ${y}`);
  }
});
