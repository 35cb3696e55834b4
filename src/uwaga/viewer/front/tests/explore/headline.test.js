import assert from "node:assert/strict";
import { test } from "node:test";
import { lookOf, lookParts } from "../../explore/headline.js";

const keys = { labels: ["[CLS]", "cat", "dog", "cat", "[SEP]"], specials: new Set([0, 4]) }, sinks = keys.specials;
const said = (/** @type {number[]} */ weights, more = {}, of = {}) => lookParts(/** @type {any} */ (lookOf(weights, { keys, sinks, ...more })),
  { weights, from: "it", name: (key) => `${keys.labels[key]}.${key}`, isSpecial: (key) => keys.specials.has(key), ...of }).join("");

test("more than half is most, the largest is looked at most, a sink is rested on, and what is even is said to be", () => {
  assert.equal(said([0.1, 0.6, 0.1, 0.1, 0.1]), "it looks mostly at cat.1: 60%");
  assert.equal(said([0.1, 0.2, 0.5, 0.1, 0.1]), "it looks most at dog.2: 50%");
  assert.equal(said([0.25, 0.24, 0.2, 0.16, 0.15]), "it spreads evenly over 5: at most 25% each");
  assert.equal(said([0.4, 0.1, 0.2, 0.05, 0.25]), "it rests on [CLS].0: 40%; of the words, most on dog.2: 20%");
  assert.equal(said([1, 0, 0, 0, 0]), "it rests on [CLS].0: 100%");
  assert.equal(said([0.4, 0.1, 0.2, 0.05, 0.25], {}, { isPicture: true }), "it rests on [CLS].0: 40%; of the patches, most on dog.2: 20%");
  assert.equal(said([0.1, 0.5, 0.2, 0.1, 0.1], { sinks: new Set([1]) }), "it rests on cat.1: 50%; of the other words, most on dog.2: 20%");
  assert.equal(said([0, 0, 0, 0, 0]), "it looks at nothing");
  assert.equal(lookOf([NaN, 0.1, 0.2, 0.3, 0.4], { keys, sinks }), null);
});

test("a picked word is said beside what is looked at most", () => {
  assert.equal(said([0.1, 0.2, 0.5, 0.1, 0.1], {}, { picked: 2 }), "it looks most at dog.2: 50%");
  assert.equal(said([0.1, 0.2, 0.5, 0.1, 0.1], {}, { picked: 1 }), "it looks at cat.1: 20%, most at dog.2: 50%");
  assert.equal(said([0.4, 0.1, 0.2, 0.05, 0.25], {}, { picked: 2 }), "it rests on [CLS].0: 40%; of the words, most on dog.2: 20%");
  assert.equal(said([0.4, 0.1, 0.2, 0.05, 0.25], {}, { picked: 1 }), "it looks at cat.1: 10%, and rests on [CLS].0: 40%");
  assert.equal(said([0.25, 0.24, 0.2, 0.16, 0.15], {}, { picked: 1 }), "it looks at cat.1: 24%");
});

test("what a mask hides is no part of an even share", () => {
  const isHidden = (/** @type {number} */ key) => key > 1;
  assert.equal(said([0.5, 0.5, 0, 0, 0], { isHidden }), "it spreads evenly over 2: at most 50% each");
});

test("a word that is said several times counts once, also where another place has the largest weight", () => {
  const look = lookOf([0.1, 0.25, 0.3, 0.25, 0.1], { keys, sinks, isCounted: true });
  assert.deepEqual([look?.is, look?.top], ["most", { key: 1, weight: 0.5, count: 2 }]);
});
