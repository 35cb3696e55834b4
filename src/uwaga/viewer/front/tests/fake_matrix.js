// Seeded attention weights for the fake host: each head has a pattern of its own, so that maps look different.

import { fakeItems } from "./fake_text.js";

/**
 * A number in [0, 1) that depends on all of its arguments (the finaliser of MurmurHash3).
 * @param {...number} parts
 */
export function fakeRandom(...parts) {
  let h = 0x9e3779b9;
  for (const part of parts) {
    h = Math.imul(h ^ part, 0x85ebca6b);
    h = Math.imul(h ^ (h >>> 13), 0xc2b2ae35);
    h ^= h >>> 16;
  }
  return (h >>> 0) / 2 ** 32;
}

/** @typedef {{rows: number, columns: number, data: Float32Array}} Matrix */

/**
 * Weights over tokens: rows sum to 1.
 * @param {{side: string, kind: string, layer: number, head: number}} where
 * @param {number} rows
 * @param {number} columns
 * @returns {Matrix}
 */
export function fakeWeights({ side, kind, layer, head }, rows, columns) {
  const seed = layer * 64 + head + (side === "1" ? 5000 : 0) + kind.length * 10000;
  const habit = Math.floor(fakeRandom(seed, 1) * 5);
  const data = new Float32Array(rows * columns);
  for (let i = 0; i < rows; i++) {
    const at = kind === "cross" ? Math.round((i / rows) * columns) : i;
    const end = kind === "decoder" ? i + 1 : columns;
    let sum = 0;
    for (let j = 0; j < end; j++) {
      let weight = 0.02 + 0.1 * fakeRandom(seed, i, j) ** 4;
      if (habit === 0 && j === at - 1) weight += columns / 20;
      if (habit === 1 && j === 0) weight += columns / 30;
      if (habit === 2) weight += 2 * Math.exp(-(((j - at) / 6) ** 2));
      if (habit === 3 && Math.floor(j / 17) === Math.floor(at / 17)) weight += 0.5;
      if (habit === 4 && j % 37 === at % 37) weight += 1.5;
      data[i * columns + j] = weight;
      sum += weight;
    }
    for (let j = 0; j < end; j++) data[i * columns + j] /= sum;
  }
  return { rows, columns, data };
}

/**
* The matrix over items (tokens or words): columns summed, rows averaged; without special tokens each row is normalised again.
 * @param {Matrix} matrix
 * @param {string} merge
 * @param {string} specials
 * @returns {Matrix}
 */
export function fakeMerged(matrix, merge, specials) {
  if (merge === "tokens" && specials === "show") return matrix;
  const down = fakeItems(matrix.rows, merge, specials).spans, across = fakeItems(matrix.columns, merge, specials).spans;
  const data = new Float32Array(down.length * across.length);
  down.forEach(([first, end], i) => {
    let sum = 0;
    across.forEach(([a, b], j) => {
      for (let row = first; row < end; row++) {
        for (let key = a; key < b; key++) data[i * across.length + j] += matrix.data[row * matrix.columns + key] / (end - first);
      }
      sum += data[i * across.length + j];
    });
    if (specials === "hide" && sum > 0) for (let j = 0; j < across.length; j++) data[i * across.length + j] /= sum;
  });
  return { rows: down.length, columns: across.length, data };
}

/**
 * Cells of `size` items a side: mass is the sum over keys and the mean over queries, max the largest.
 * @param {Matrix} matrix
 * @param {number} down  items a cell covers
 * @param {number} across
 * @param {string} pooling
 * @returns {Matrix}
 */
export function fakePool(matrix, down, across, pooling) {
  const rows = Math.ceil(matrix.rows / down), columns = Math.ceil(matrix.columns / across);
  const data = new Float32Array(rows * columns).fill(pooling === "max" ? -Infinity : 0);
  for (let i = 0; i < matrix.rows; i++) {
    const row = Math.floor(i / down), share = Math.min(down, matrix.rows - row * down);
    for (let j = 0; j < matrix.columns; j++) {
      const cell = row * columns + Math.floor(j / across), weight = matrix.data[i * matrix.columns + j];
      if (pooling === "max") data[cell] = Math.max(data[cell], weight);
      else data[cell] += weight / share;
    }
  }
  return { rows, columns, data };
}
