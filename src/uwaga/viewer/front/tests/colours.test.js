import assert from "node:assert/strict";
import { test } from "node:test";
import {
  colourPosition, colourScaleMax, colourSchemes, colourTable, signedColourPosition, signedColourTable,
} from "../colours.js";

/** CIE L* of an entry of a colour table. */
function lightness(table, at) {
  const linear = (c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
  const [r, g, b] = [0, 1, 2].map((part) => linear(table[4 * at + part] / 255));
  const y = 0.2126 * r + 0.7152 * g + 0.0722 * b;
  return y > 216 / 24389 ? 116 * Math.cbrt(y) - 16 : (y * 24389) / 27;
}
const entry = (table, at) => [...table.subarray(4 * at, 4 * at + 4)];

test("zero is white in the light theme and the background in the dark one; the maximum is far from it", () => {
  for (const { name } of colourSchemes()) {
    assert.deepEqual(entry(colourTable(name, "light"), 0), [255, 255, 255, 255]);
    assert.deepEqual(entry(colourTable(name, "dark"), 0), [16, 20, 27, 255]);
  }
  assert.deepEqual(entry(colourTable("blue", "light"), 255), [0x12, 0x23, 0x50, 255]);
  assert.deepEqual(entry(colourTable("blue", "dark"), 255), [255, 255, 255, 255]);
});

test("equal steps of weight are about equal steps of lightness", () => {
  for (const { name } of colourSchemes()) {
    for (const theme of ["light", "dark"]) {
      const table = colourTable(name, theme), all = lightness(table, 255) - lightness(table, 0);
      for (let part = 0; part < 8; part++) {
        const step = lightness(table, Math.round((part + 1) * 31.875)) - lightness(table, Math.round(part * 31.875));
        assert.ok(step / all > 0.06 && step / all < 0.21, `${name} ${theme} ${part}: ${step / all}`);
      }
    }
  }
});

test("an unknown colour scheme is replaced by blue", () => assert.deepEqual(colourTable("toString", "light"), colourTable("blue", "light")));

test("differences: zero is between the middle two entries, orange below, blue above", () => {
  for (const theme of ["light", "dark"]) {
    const table = signedColourTable(theme), zero = colourTable("blue", theme);
    for (const at of [127, 128]) for (let part = 0; part < 3; part++) assert.ok(Math.abs(table[4 * at + part] - zero[part]) <= 6);
    assert.ok(table[4 * 40] > table[4 * 40 + 2], "red more than blue");
    assert.ok(table[4 * 215] < table[4 * 215 + 2], "blue more than red");
  }
});

test("a weight's position in the colour table", () => {
  const linear = { log: false, low: 0, threshold: 0 };
  assert.deepEqual([0, 0.25, 0.5, 2].map((w) => colourPosition(w, linear, 0.5)), [0, 0.5, 1, 1]);
  assert.deepEqual([0.1, 0.3].map((w) => colourPosition(w, { ...linear, threshold: 0.2 }, 0.6)), [0, 0.5]);
  assert.deepEqual([0.1, 0.2, 0.4].map((w) => colourPosition(w, { ...linear, low: 0.2 }, 0.6)).map((p) => Number(p.toFixed(6))),
    [0, 0, 0.5]);
  const log = { log: true, low: 0, threshold: 0 };
  assert.deepEqual([0, 1e-5, 1e-2, 1].map((w) => Number(colourPosition(w, log, 1).toFixed(6))), [0, 0, 0.5, 1]);
  assert.ok(Number.isNaN(colourPosition(NaN, linear, 1)));
  assert.equal(colourPosition(0.3, linear, 0), 0);
  assert.deepEqual([-0.5, -0.25, 0, 0.5].map((w) => signedColourPosition(w, linear, 0.5)), [0, 0.25, 0.5, 1]);
});

test("the scale of a small map ends at its largest weight", () => {
  assert.equal(colourScaleMax(Float32Array.of(0.5, 0.25, 0.25, 0)), 0.5);
});

test("a diagonal of ones in a large map determines the scale", () => {
  const data = new Float32Array(512 * 512).fill(1e-4);
  for (let i = 0; i < 512; i++) data[i * 513] = 0.95;
  assert.ok(Math.abs(colourScaleMax(data) - 0.95) < 1e-6);
});

test("a few large weights do not make the rest white", () => {
  // A uniform causal map: row i has i + 1 weights of 1 / (i + 1).
  const data = new Float32Array(256 * 256);
  for (let i = 0; i < 256; i++) data.fill(1 / (i + 1), i * 256, i * 256 + i + 1);
  const top = colourScaleMax(data);
  assert.ok(top > 0.03 && top < 0.05, String(top));
});

test("columns can be left out; signs, NaN and infinity are ignored", () => {
  const data = Float32Array.of(0.9, -0.2, NaN, 0.8, 0.1, -Infinity);
  assert.ok(Math.abs(colourScaleMax(data, 0, 6, 3, 1) - 0.2) < 1e-6);
  assert.equal(colourScaleMax(new Float32Array(4)), 0);
  assert.ok(Math.abs(colourScaleMax(data, 3, 6) - 0.8) < 1e-6);
});
