import assert from "node:assert/strict";
import { test } from "node:test";
import { searchIndex, searchItems } from "../../text/search.js";

const index = searchIndex(["The", "un", "seen", "cat", ",", "the", "CAT"], [0, 0, 1, 0, 1, 0, 0]);

test("search finds words across subwords and tokens, ignoring case", () => {
  assert.deepEqual(searchItems(index, "UNSEEN"), [[1, 3]]);
  assert.deepEqual(searchItems(index, "the"), [[0, 1], [5, 6]]);
  assert.deepEqual(searchItems(index, "cat, the"), [[3, 6]]);
  assert.deepEqual(searchItems(index, "dog"), []);
  assert.deepEqual(searchItems(index, "  "), []);
});

test("# and a number searches for a position", () => {
  assert.deepEqual(searchItems(index, "#3"), [[3, 4]]);
  assert.deepEqual(searchItems(index, "#7"), []);
});

test("letters whose lower case is longer keep the offsets right", () => {
  const turkish = searchIndex(["\u0130\u0130\u0130", "x"], [0, 0]);
  assert.deepEqual(searchItems(turkish, "x"), [[1, 2]]);
});

test("the number of matches is limited", () => {
  assert.equal(searchItems(searchIndex(Array(100).fill("a"), Array(100).fill(0)), "a", 10).length, 10);
});
