import assert from "node:assert/strict";
import { test } from "node:test";
import { breakLines, isRightToLeft, lineOfItem, linesInView, nearestItem } from "../../text/layout.js";

const plain = (widths, rest = {}) =>
  breakLines({ widths, noSpaceBefore: widths.map(() => 0), ends: widths.map(() => 0), width: 100, gap: 10, ...rest });

test("a line has as many items as fit, with spaces between them", () => {
  const flow = plain([40, 40, 40, 100, 5]);
  assert.deepEqual([...flow.starts], [0, 2, 3, 4, 5]);
  assert.deepEqual([...flow.lefts], [0, 50, 0, 0, 0]);
});

test("subwords have no space before them and stay on the line of their word", () => {
  const flow = plain([60, 20, 25, 10], { noSpaceBefore: [0, 0, 1, 1] });
  assert.deepEqual([...flow.starts], [0, 1, 4]);
  assert.deepEqual([...flow.lefts], [0, 0, 20, 45]);
});

test("a word wider than a line is broken between subwords; a single wider item has a line of its own", () => {
  const flow = plain([60, 60, 300, 20], { noSpaceBefore: [0, 1, 1, 0] });
  assert.deepEqual([...flow.starts], [0, 1, 2, 3, 4]);
});

test("a newline token ends its line", () => {
  const flow = plain([10, 10, 10], { ends: [1, 0, 1] });
  assert.deepEqual([...flow.starts], [0, 1, 3]);
});

test("every item is on exactly one line, within its width, for random texts", () => {
  let seed = 7;
  const random = () => (seed = (seed * 16807) % 2147483647) / 2147483647;
  for (let round = 0; round < 200; round++) {
    const total = Math.floor(random() * 60);
    const widths = Array.from({ length: total }, () => 1 + random() * 60);
    const noSpaceBefore = widths.map(() => (random() < 0.4 ? 1 : 0)), ends = widths.map(() => (random() < 0.1 ? 1 : 0));
    const flow = plain(widths, { noSpaceBefore, ends });
    assert.equal(flow.starts.at(-1), total);
    for (let line = 0; line < flow.lines; line++) {
      assert.ok(flow.starts[line + 1] > flow.starts[line]);
      for (let item = flow.starts[line]; item < flow.starts[line + 1]; item++) {
        assert.ok(flow.lefts[item] + widths[item] <= 100.001, `round ${round}`);
        assert.equal(lineOfItem(flow.starts, item), line);
        if (item > flow.starts[line]) assert.ok(flow.lefts[item] >= flow.lefts[item - 1] + widths[item - 1] - 0.001);
      }
    }
  }
});

test("no items give no lines", () => {
  const flow = plain([]);
  assert.equal(flow.lines, 0);
  assert.deepEqual(linesInView({ top: 0, height: 100, lineHeight: 10, lines: 0, extra: 5 }), [0, 0]);
});

test("the rendered range has the lines in view and a margin, within the existing lines", () => {
  assert.deepEqual(linesInView({ top: 1000, height: 100, lineHeight: 10, lines: 1000, extra: 3 }), [97, 113]);
  assert.deepEqual(linesInView({ top: 0, height: 100, lineHeight: 10, lines: 4, extra: 3 }), [0, 4]);
  assert.deepEqual(linesInView({ top: 90_000, height: 100, lineHeight: 10, lines: 4, extra: 3 }), [4, 4]);
});

test("a hundred thousand items are laid out in a few looks at each", () => {
  const widths = Float32Array.from({ length: 100_000 }, (_, i) => 20 + (i % 50));
  let looks = 0;
  const counted = new Proxy(widths, { get: (all, name) => { looks++; return Reflect.get(all, name); } });
  const flow = breakLines({ widths: counted, noSpaceBefore: new Uint8Array(100_000), ends: new Uint8Array(100_000), width: 800, gap: 4 });
  assert.ok(flow.lines > 5000);
  assert.ok(looks < 5 * 100_000, `${looks}`);
});

test("moving down selects the nearest item of the next line", () => {
  const widths = [40, 40, 20, 20, 20];
  const flow = plain(widths);
  assert.deepEqual([...flow.starts], [0, 2, 5]);
  assert.equal(nearestItem(flow, widths, 1, 90), 4);
  assert.equal(nearestItem(flow, widths, 1, 0), 2);
});

test("Hebrew and Arabic texts are laid out from right to left", () => {
  assert.equal(isRightToLeft(["\u05e9\u05dc\u05d5\u05dd", "means", "peace"]), false);
  assert.equal(isRightToLeft(["\u0645\u0631\u062d\u0628\u0627", "\u0628\u0643", "a"]), true);
  assert.equal(isRightToLeft([]), false);
});
