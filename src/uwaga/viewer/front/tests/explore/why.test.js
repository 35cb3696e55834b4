import assert from "node:assert/strict";
import { test } from "node:test";
import { isNextMost, otherKeys, partText, signedBars, whyNotText } from "../../explore/why.js";

test("bars of both signs begin at one line, and the longest take the whole width", () => {
  assert.deepEqual(signedBars([3, -1, 0]), [{ start: 25, width: 75 }, { start: 0, width: 25 }, { start: 25, width: 0 }]);
  assert.deepEqual(signedBars([2, 1]), [{ start: 0, width: 100 }, { start: 0, width: 50 }]);
  assert.deepEqual(signedBars([-2, -1]), [{ start: 0, width: 100 }, { start: 50, width: 50 }]);
  assert.deepEqual(signedBars([0]), [{ start: 0, width: 0 }]);
});

test("a key is compared with the word that is looked at next most, and with those at rest and itself last", () => {
  const weights = [0.3, 0.1, 0.25, 0.2, 0.15, 0];
  assert.deepEqual(otherKeys(weights, 2, 3, new Set([0])), [4, 1, 0, 3]);
  assert.deepEqual(otherKeys(weights, 2, null, new Set()), [0, 3, 4, 1]);
  assert.deepEqual(otherKeys([1, 0, 0], 0, 0, new Set()), []);
  assert.equal(otherKeys(Array(100).fill(0.01), 5, null, new Set()).length <= 9, true);
});

test("a word is called the next one only where none but the first and those at rest is looked at more", () => {
  const weights = [0.3, 0.1, 0.25, 0.2, 0.15, 0];
  assert.equal(isNextMost(weights, 2, 3, new Set([0])), true);
  assert.equal(isNextMost(weights, 2, 4, new Set([0])), false); // the word itself, 3, is
  assert.equal(isNextMost(weights, 4, 2, new Set([0])), false); // it is before the picked one
  assert.equal(isNextMost(weights, 0, 2, new Set()), true);
});

test("parts have names", () => {
  const part = (/** @type {string} */ name, /** @type {any} */ more = {}) => ({ name, kind: null, layer: null, head: null, ...more });
  assert.equal(partText(part("head", { kind: "decoder", layer: 1, head: 2 }), false), "layer 1, head 2");
  assert.equal(partText(part("head", { kind: "cross", layer: 1, head: 2 }), true), "cross-attention layer 1, head 2");
  assert.equal(partText(part("head", { kind: "encoder", layer: 1, head: 2 }), true), "layer 1, head 2");
  assert.equal(partText(part("feed-forward", { layer: 0 }), false), "layer 0, feed-forward");
  for (const name of ["token", "position", "type", "bias", "distance"]) assert.notEqual(partText(part(name), false), name);
  assert.equal(partText(part("more"), false), "more");
});

test("every reason is one sentence", () => {
  for (const reason of ["model", "changed", "hidden", "family"]) assert.match(whyNotText(reason), /^[A-Z][^]*\.$/);
  assert.equal(whyNotText("it was stopped"), "The score cannot be split: it was stopped");
});
