import assert from "node:assert/strict";
import { test } from "node:test";
import { colourTable, luminance, signedColourTable } from "../../colours.js";
import {
  cellTextIsBlack, colourBarLabel, colourBarTicks, colourCells, colourPanels, positionOf, valueAt,
} from "../../map/colours.js";

const plain = { log: false, low: 0, high: 0.5, threshold: 0, hideSink: false, signed: false,
  table: colourTable("blue", "light"), unknown: 0xff112233, version: 1 };
const signed = { ...plain, signed: true, table: signedColourTable("light") };

test("positions between the first and the last colour", () => {
  assert.deepEqual([0, 0.125, 0.5, 0.9].map((value) => positionOf(plain, value)), [0, 0.25, 1, 1]);
  const log = { ...plain, log: true, high: 1 };
  assert.deepEqual([0, 1e-5, 1e-4, 1].map((value) => positionOf(log, value)), [0, 0, 0, 1]);
  assert.ok(Math.abs(positionOf(log, 1e-2) - 0.5) < 1e-12);
  assert.deepEqual([-0.5, -0.25, 0, 0.25, 0.5].map((value) => positionOf(signed, value)), [0, 0.25, 0.5, 0.75, 1]);
});

test("weights below the threshold have no colour, in differences too", () => {
  assert.deepEqual([0.1, 0.3].map((value) => positionOf({ ...plain, threshold: 0.2 }, value)), [0, 0.6]);
  assert.deepEqual([-0.1, 0.1].map((value) => positionOf({ ...signed, threshold: 0.2 }, value)), [0.5, 0.5]);
});

test("the labels of the colour bar are the weights of its colours", () => {
  for (const colouring of [plain, signed, { ...plain, low: 0.1 }, { ...plain, log: true }, { ...plain, log: true, low: 0.01 }]) {
    for (const place of [0.1, 0.4, 0.75, 1]) assert.ok(Math.abs(positionOf(colouring, valueAt(colouring, place)) - place) < 1e-9);
  }
  assert.deepEqual(colourBarTicks(signed).map(({ value }) => value), [-0.5, 0, 0.5]);
  assert.equal(colourBarLabel({ ...plain, threshold: 0.01, hideSink: true }),
    "Colours from 0% to 50% and more, linear, nothing below 1%, without sinks");
  assert.equal(colourBarLabel({ ...plain, log: true }), "Colours from <0.1% to 50% and more, logarithmic");
});

test("cells: unknown ones have their colour or are transparent", () => {
  const data = Float32Array.of(0.5, NaN, 0, 0.25);
  const into = new Uint32Array(4);
  colourCells(plain, data, 1, into, false);
  const table = new Uint32Array(plain.table.buffer);
  assert.deepEqual([...into], [table[255], plain.unknown, table[0], table[128]]);
  colourCells(plain, data, 0.5, into, true);
  assert.deepEqual([...into], [table[128], 0, table[0], table[64]]);
});

test("numbers in cells have a contrast of at least 4.5 on every colour of every scheme", () => {
  const contrast = (a, b) => (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  for (const theme of ["light", "dark"]) {
    for (const [scheme, isSigned] of [["blue", false], ["orange", false], ["grey", false], ["blue", true]]) {
      const table = isSigned ? signedColourTable(theme) : colourTable(scheme, theme);
      const colouring = { ...plain, high: 1, signed: isSigned, table };
      for (let at = 0; at < 256; at++) {
        const weight = isSigned ? (at / 255) * 2 - 1 : at / 255;
        const text = cellTextIsBlack(colouring, weight) ? 0 : 1;
        const place = Math.floor(positionOf(colouring, weight) * 255 + 0.5);
        assert.ok(contrast(luminance(table, 4 * place), text) >= 4.5, `${scheme} ${theme} ${at}`);
      }
    }
  }
});

const layer = (scaleMax, scaleMaxNoSink) => ({ pooling: "sum", levels: Array.from({ length: 40 }, () => new Map()),
  scaleMax: Float64Array.from({ length: 40 }, (_, at) => scaleMax[at] ?? 0),
  scaleMaxNoSink: Float64Array.from({ length: 40 }, (_, at) => scaleMaxNoSink[at] ?? 0) });
const style = { table: plain.table, signedTable: signed.table, unknown: 1 };
const colour = { log: false, low: 0, high: null, threshold: 0, hideSink: false, scheme: "blue" };

test("two sides share a scale, their difference has its own", () => {
  const panels = [
    { side: { signed: false }, layer: layer([0.2], [0.1]), colouring: plain },
    { side: { signed: false }, layer: layer([0.6], [0.05]), colouring: plain },
    { side: { signed: true }, layer: layer([0.3], [0.3]), colouring: plain },
  ];
  colourPanels(panels, colour, style, 0);
  assert.deepEqual(panels.map((panel) => panel.colouring.high), [0.6, 0.6, 0.3]);
  assert.equal(panels[0].colouring, panels[1].colouring);
  const before = panels[0].colouring;
  colourPanels(panels, colour, style, 0);
  assert.equal(panels[0].colouring, before);
  colourPanels(panels, { ...colour, hideSink: true }, style, 0);
  assert.deepEqual(panels.map((panel) => panel.colouring.high), [0.1, 0.1, 0.3]);
  assert.ok(panels[0].colouring.version > before.version);
});

test("a level without tiles takes the scale of the next level that has one", () => {
  const panels = [{ side: { signed: false }, layer: layer([0, 0, 0, 0.8], []), colouring: plain }];
  colourPanels(panels, colour, style, 1);
  assert.equal(panels[0].colouring.high, 0.2); // masses of level 3 are sums over four times as many keys
  panels[0].layer.pooling = "max";
  colourPanels(panels, colour, style, 1);
  assert.equal(panels[0].colouring.high, 0.8);
});
