import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import {
  bandOf, bandScale, colourPosition, colourScaleMax, colourSchemes, luminance, colourTable, signedColourPosition, signedColourTable,
} from "../colours.js";

/** CIE L* of an entry of a colour table. */
function lightness(table, at) {
  const linear = (c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
  const [r, g, b] = [0, 1, 2].map((part) => linear(table[4 * at + part] / 255));
  const y = 0.2126 * r + 0.7152 * g + 0.0722 * b;
  return y > 216 / 24389 ? 116 * Math.cbrt(y) - 16 : (y * 24389) / 27;
}
const entry = (table, at) => [...table.subarray(4 * at, 4 * at + 4)];

test("zero is white in the light theme and the background in the dark one; the largest weight in the dark theme is not white", () => {
  for (const { name } of colourSchemes()) {
    assert.deepEqual(entry(colourTable(name, "light"), 0), [255, 255, 255, 255]);
    assert.deepEqual(entry(colourTable(name, "dark"), 0), [16, 20, 27, 255]);
  }
  assert.deepEqual(entry(colourTable("blue", "light"), 255), [0x12, 0x23, 0x50, 255]);
  assert.deepEqual(entry(colourTable("blue", "dark"), 255), [0xc1, 0xe6, 0xf9, 255]);
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
    const table = signedColourTable(theme), zero = theme === "light" ? [255, 255, 255] : [0x1d, 0x22, 0x2b];
    for (const at of [127, 128]) for (let part = 0; part < 3; part++) assert.ok(Math.abs(table[4 * at + part] - zero[part]) <= 8);
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
  assert.ok(Math.abs(colourScaleMax(data, 0, 6, Uint8Array.of(1, 0, 0)) - 0.2) < 1e-6);
  assert.equal(colourScaleMax(new Float32Array(4)), 0);
  assert.ok(Math.abs(colourScaleMax(data, 3, 6) - 0.8) < 1e-6);
});

test("bands of weights; a row without a large weight has bands of its largest", () => {
  assert.deepEqual([0, 0.009, 0.01, 0.03, 0.08, 0.2, 0.5, 1, NaN].map((weight) => bandOf(weight, 1)), [0, 0, 1, 2, 3, 4, 5, 5, 0]);
  assert.equal(bandScale([0.9, 0.05, NaN], new Set()), 1);
  const scale = bandScale([0.9, 0.05, 0.02], new Set([0]));
  assert.deepEqual([0.05, 0.02, 0.001].map((weight) => bandOf(weight, scale)), [5, 4, 1]);
});

/** The custom properties of the light theme and of the dark one, as base.css has them. */
const themes = Object.fromEntries(["light", "dark"].map((theme) => {
  const css = readFileSync(new URL("../shell/base.css", import.meta.url), "utf8");
  const block = theme === "light" ? css.slice(0, css.indexOf("}")) : /data-theme="dark"\] \{([^}]*)\}/.exec(css)[1];
  return [theme, Object.fromEntries([...block.matchAll(/--([\w-]+): (#[0-9a-f]{6});/g)].map(([, name, value]) => [name, value]))];
}));
const contrast = (one, other) => {
  const [a, b] = [one, other].map((hex) => luminance([1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16))) + 0.05);
  return Math.max(a, b) / Math.min(a, b);
};

test("words have a contrast of 4.5 on all grounds, borders of controls 3, text on every band 6", () => {
  for (const [theme, colours] of Object.entries(themes)) {
    for (const ground of ["bg", "surface", "raised"]) {
      for (const word of ["text", "muted", "query", "key", "danger"]) {
        const found = contrast(colours[word], colours[ground]);
        assert.ok(found >= 4.5, `${theme}: ${word} on ${ground} has ${found}`);
      }
      if (ground !== "raised") assert.ok(contrast(colours.edge, colours[ground]) >= 3, `${theme}: edge on ${ground}`);
    }
    for (let band = 1; band <= 5; band++) {
      const found = contrast(colours["on-band"], colours[`key-${band}`]);
      assert.ok(found >= 6, `${theme}: text on band ${band} has ${found}`);
    }
  }
});
