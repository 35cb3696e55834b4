import assert from "node:assert/strict";
import { test } from "node:test";
import { describeHead, mostTellingHeads, strongestLink } from "../../explore/telling.js";
import { proseRange } from "../../explore/prose.js";

const itemsOf = (labels) => ({ labels, glued: labels.map(() => 0), total: labels.length, spans: new Int32Array(2 * labels.length),
  specials: new Set(labels.flatMap((label, at) => (label.startsWith("[") ? [at] : []))) });
const words = ["[CLS]", "a", "b", "c", "d", "e", "f", "g", "a", "b", "c", "d", "e", "f", "g", "[SEP]"];
const count = words.length;

/** A map of which `weight` gives each entry before the rows are divided by their sums, with half of each row on [CLS]. */
function mapOf(weight, labels = words) {
  const items = itemsOf(labels), n = labels.length, cells = new Float32Array(n * n);
  for (let i = 0; i < n; i++) {
    let sum = 0;
    for (let j = 1; j < n - 1; j++) sum += weight(i, j);
    for (let j = 1; j < n - 1; j++) cells[i * n + j] = sum ? (0.5 * weight(i, j)) / sum : 0;
    cells[i * n] = 1 - (sum ? 0.5 : 0);
  }
  const sinks = new Uint8Array(n);
  sinks[0] = sinks[n - 1] = 1;
  return { cells, rows: n, columns: n, sinks, queries: items, keys: items, kind: "encoder" };
}
const label = (weight, labels) => describeHead(mapOf(weight, labels)).label;

test("heads made by construction get their labels, whatever rests on the sink", () => {
  assert.equal(label((i, j) => Number(j === i - 1)), "previous");
  assert.equal(label((i, j) => Number(j === i + 1)), "next");
  assert.equal(label((i, j) => Number(j === i)), "self");
  assert.equal(label((i, j) => Number(i !== j && words[i] === words[j])), "duplicate");
  assert.equal(label((i, j) => Number(j > 1 && j < i && words[i] === words[j - 1]) || 0.01), "induction");
  assert.equal(label(() => 1), "broad");
  assert.equal(label((i, j) => Number(j === i + 2) + Number(j === i + 4) || 1e-4), "ahead");
  assert.equal(label((i, j) => Number(j === i - 2) + Number(j === i - 4) || 1e-4), "back");
  assert.equal(describeHead(mapOf((i, j) => Number(j === 4))).sentence, "Most words look at \u201cd\u201d");
  assert.ok(describeHead(mapOf((i, j) => Number(j === i))).rests > 0.4);
});

test("random weights get no label", () => {
  let state = 1;
  const random = () => (state = (state * 48271) % 2147483647) / 2147483647;
  for (let turn = 0; turn < 200; turn++) {
    const scores = Float64Array.from({ length: count * count }, () => Math.exp(4 * Math.sqrt(-2 * Math.log(random())) * Math.cos(6.283 * random())));
    assert.equal(label((i, j) => scores[i * count + j]), "", String(turn));
  }
});

test("what rests on fewer than five queries names nothing", () => {
  const rare = ["[CLS]", "a", "b", "c", "a", "b", "c", "d", "e", "f", "[SEP]"];
  const copies = (i, j) => Number(i !== j && rare[i] === rare[j]) || 0.2;
  assert.equal(label(copies, rare), "duplicate"); // six queries have a copy
  const rarer = ["[CLS]", "a", "b", "c", "a", "b", "g", "d", "e", "f", "[SEP]"];
  assert.notEqual(label((i, j) => Number(i !== j && rarer[i] === rarer[j]) || 0.2, rarer), "duplicate"); // four
});

test("the strongest link is between words, off the sinks", () => {
  const map = mapOf((i, j) => (i === 6 && j === 2 ? 9 : 1), ["[CLS]", "it", "cat", ",", "and", ",", "tired", "[SEP]"]);
  const { query, key } = strongestLink(map);
  assert.deepEqual([query, key], [6, 2]);
  map.cells[3 * 8 + 2] = 0.9; // a comma asks
  assert.equal(strongestLink(map).query, 6);
});

test("at most two heads of a label; a far link between different words comes first", () => {
  const head = (number, name, query, key, weight) => ({ kind: "encoder", layer: 0, head: number, label: name, sentence: "", link: { query, key, weight } });
  const heads = [head(0, "previous", 5, 4, 0.9), head(1, "previous", 6, 5, 0.8), head(2, "previous", 7, 6, 0.7),
    head(3, "", 5, 1, 0.6), head(4, "duplicate", 8, 1, 0.8), head(5, "", 5, 1, 0.5)];
  assert.deepEqual(mostTellingHeads(heads, words).map((one) => one.head), [3, 4, 0, 1]);
});

test("long texts show a window around the picked word", () => {
  assert.deepEqual(proseRange(600, 5), [0, 600]);
  assert.deepEqual(proseRange(5000, 5), [0, 600]);
  assert.deepEqual(proseRange(5000, 2000), [1700, 2300]);
  assert.deepEqual(proseRange(5000, 4999), [4400, 5000]);
});
