import assert from "node:assert/strict";
import { test } from "node:test";
import { ribbonBars } from "../../explore/ribbons.js";

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
