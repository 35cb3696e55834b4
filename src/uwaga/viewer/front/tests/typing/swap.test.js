import assert from "node:assert/strict";
import { test } from "node:test";
import { placeOfItem } from "../../typing/swap.js";

const itemsOf = (labels) => /** @type {any} */ ({ labels, total: labels.length, specials: new Set(labels.flatMap((label, at) => (label.startsWith("[") ? [at] : []))) });

test("a word's place is that of its own copy", () => {
  const text = "the cat saw the dog", items = itemsOf(["[CLS]", "the", "cat", "saw", "the", "dog", "[SEP]"]);
  assert.deepEqual(items.labels.map((_, item) => placeOfItem(text, items, item)), [-1, 0, 4, 8, 12, 16, -1]);
  assert.equal(placeOfItem("another text", items, 2), -1);
});
