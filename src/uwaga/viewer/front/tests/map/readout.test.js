import assert from "node:assert/strict";
import { test } from "node:test";
import { colourBarTitle, levelInMiddle, statusText } from "../../map/readout.js";

const shown = { level: 0, percent: 100, merge: "tokens", pooling: "sum", live: true };

test("the status has the size of cells and whether weights are exact", () => {
  assert.equal(statusText(shown), "Exact weights");
  assert.equal(statusText({ ...shown, level: 3 }), "A cell is 8 \u00d7 8 tokens: summed over keys, mean over queries");
  assert.equal(statusText({ ...shown, level: 9, pooling: "max", merge: "words", percent: 12 }),
    "A cell is 512 \u00d7 512 words: the largest weight. From a sample, 12% read");
  assert.equal(statusText({ ...shown, level: 2, percent: 0, live: false }),
    "A cell is 4 \u00d7 4 tokens: summed over keys, mean over queries. The saved page contains nothing finer here");
  assert.deepEqual([colourBarTitle("sum", 0), colourBarTitle("sum", 1), colourBarTitle("max", 1)],
    ["weight", "mass of a cell", "largest of a cell"]);
});

test("on a saved page the status has the level that is shown, not the one that a server would send", () => {
  const levels = Array.from({ length: 40 }, () => new Map());
  levels[3].set(0, { data: new Float32Array(128 * 128), rows: 128, columns: 128, complete: 1 });
  const panel = { plot: { x: 0, y: 0, w: 400, h: 400 }, sizes: { queries: 1024, keys: 1024 }, level: 1, layer: { levels } };
  assert.equal(levelInMiddle(panel, { x: 100, y: 100, scale: 1 }), 3);
  assert.equal(levelInMiddle({ ...panel, layer: { levels: Array.from({ length: 40 }, () => new Map()) } }, { x: 0, y: 0, scale: 1 }), 1);
});
