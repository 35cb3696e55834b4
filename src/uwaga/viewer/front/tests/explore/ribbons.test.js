import assert from "node:assert/strict";
import { test } from "node:test";
import { ribbonBars, ribbonCells, ribbonColumns } from "../../explore/ribbons.js";

test("every row sends out a bar of the same width, and a column's bar is what it receives", () => {
  const cells = [0.9, 0.1, 0, 0, 0.5, 0.5, 0, 0, 0.2, 0.8, 0, 0];
  for (const width of [300, 1300]) {
    const { queries, keys, full } = ribbonBars(cells, 3, 4, width);
    assert.deepEqual(queries.map((bar) => bar.width), [full, full, full]);
    [1.6, 1.4, 0, 0].forEach((sum, key) => assert.ok(keys[key].width <= sum * full + 1e-6));
    assert.ok(Math.abs(keys[0].width / keys[1].width - 1.6 / 1.4) < 1e-9);
    for (const bars of [queries, keys]) {
      assert.ok(bars.every((bar, at) => at === 0 || bar.start >= bars[at - 1].start + bars[at - 1].width - 1e-9), "they do not overlap");
      assert.ok(bars[0].start >= 0 && bars[bars.length - 1].start + bars[bars.length - 1].width <= width + 1e-9);
    }
  }
});

test("of more than thirty columns those around the middle are shown, and on each side a fold", () => {
  const shown = (total, middle, width = 1200) => ribbonColumns(total, middle, width).map(({ first, stop, isFold }) => (isFold ? `${first}-${stop}` : first));
  assert.deepEqual(shown(30, 15), Array.from({ length: 30 }, (_, i) => i));
  const columnsFrom = (from, count = 25) => Array.from({ length: count }, (_, i) => from + i);
  assert.deepEqual(shown(60, 30), ["0-18", ...columnsFrom(18), "43-60"]);
  assert.deepEqual(shown(60, 3), [...columnsFrom(0), "25-60"]);
  assert.deepEqual(shown(60, 59), ["0-35", ...columnsFrom(35)]);
  assert.deepEqual(shown(60, 13), ["0-1", ...columnsFrom(1), "26-60"]);
  // On a phone so many as have 26 pixels.
  assert.deepEqual(shown(13, 6, 350), columnsFrom(0, 13));
  assert.deepEqual(shown(14, 7, 350), ["0-2", ...columnsFrom(2, 11), "13-14"]);
  assert.deepEqual(shown(9, 4, 10), ["0-3", 3, 4, 5, "6-9"]);
});

test("all shares of a row add up to one, whatever is folded", () => {
  for (const [rows, columns] of [[31, 31], [64, 50], [10, 400], [45, 20]]) {
    const cells = new Float32Array(rows * columns);
    for (let row = 0; row < rows; row++) {
      const wild = Array.from({ length: columns }, (_, key) => Math.exp(3 * Math.sin(7 * row + key * key))), sum = wild.reduce((all, one) => all + one, 0);
      wild.forEach((one, key) => { cells[row * columns + key] = one / sum; });
    }
    for (const middle of [0, 5, 13, 30]) {
      const [below, above] = [ribbonColumns(rows, Math.min(middle, rows - 1), 900), ribbonColumns(columns, Math.min(2 * middle, columns - 1), 900)];
      const shown = ribbonCells(cells, columns, below, above);
      below.forEach(({ first, isFold }, row) => {
        const rowCells = [...shown.subarray(row * above.length, (row + 1) * above.length)], sum = rowCells.reduce((all, one) => all + one, 0);
        assert.ok(isFold ? sum === 0 : Math.abs(sum - 1) < 1e-6);
        above.forEach(({ first: key, isFold: folds }, to) => assert.ok(folds || isFold || rowCells[to] === cells[first * columns + key]));
      });
    }
  }
});
