import assert from "node:assert/strict";
import { test } from "node:test";
import { scaleTop } from "../../shell/scale.js";

test("a small map ends at its largest weight", () => {
  assert.equal(scaleTop(Float32Array.of(0.5, 0.25, 0.25, 0)), 0.5);
});

test("a line of ones in a large map stays what it is", () => {
  const data = new Float32Array(512 * 512).fill(1e-4);
  for (let i = 0; i < 512; i++) data[i * 513] = 0.95;
  assert.ok(Math.abs(scaleTop(data) - 0.95) < 1e-6);
});

test("a corner of large weights does not leave the rest white", () => {
  // A causal map that looks at all alike: row i has i + 1 weights of 1 / (i + 1).
  const data = new Float32Array(256 * 256);
  for (let i = 0; i < 256; i++) data.fill(1 / (i + 1), i * 256, i * 256 + i + 1);
  const top = scaleTop(data);
  assert.ok(top > 0.03 && top < 0.05, String(top));
});

test("columns may be left out, signs do not count, and neither does what is no number", () => {
  const data = Float32Array.of(0.9, -0.2, NaN, 0.8, 0.1, -Infinity);
  assert.ok(Math.abs(scaleTop(data, 0, 6, 3, 1) - 0.2) < 1e-6);
  assert.equal(scaleTop(new Float32Array(4)), 0);
  assert.ok(Math.abs(scaleTop(data, 3, 6) - 0.8) < 1e-6);
});
