import assert from "node:assert/strict";
import { test } from "node:test";
import { askDistinctive, commonLabels, coreferenceText, evidenceText, mostDistinctiveHeads, strongestLink } from "../../explore/distinctive.js";
import { proseRange } from "../../explore/prose.js";
import { makeClient } from "../../client.js";
import { makeApp } from "../../shell/app.js";
import { fakeHost } from "../fake_host.js";

const itemsOf = (labels) => ({ labels, noSpaceBefore: labels.map(() => 0), total: labels.length, spans: new Int32Array(2 * labels.length),
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
test("labels and their evidence are those of Python", async () => {
  const host = /** @type {any} */ ({ ...fakeHost({ layers: 2, heads: 3, tokens: 20, steps: 2 }), mode: "notebook" }), client = makeClient(host);
  const { meta } = await client.ask({ request: "about" });
  const app = makeApp(/** @type {any} */ (null), host, client, /** @type {any} */ (meta), /** @type {any} */ ({}), /** @type {any} */ ({ rows: { cross: "written" } }));
  const { all, total, resting } = await askDistinctive(app, new AbortController().signal);
  assert.deepEqual([total, resting], [6, 0]);
  assert.deepEqual(all.filter((one) => one.label).map(({ layer, head, sentence }) => [layer, head, sentence]).sort(),
    [[0, 0, "Looks at the word before"], [1, 1, "Looks at the word before"]]);
  assert.match(all.find((one) => one.label)?.evidence ?? "", /^90% of its weight off the sinks is on the word before, on average; 9 of 10 words reach 50%/);
  assert.ok(all.every((one) => one.label || (!one.evidence && /looks at/.test(one.sentence))));
});

test("a label that most heads have names none", () => {
  assert.deepEqual([...commonLabels(["broad", "broad", "broad", "self", ""])], ["broad"]);
  assert.equal(commonLabels(["broad", "broad", "", ""]).size, 0);
  assert.equal(commonLabels(["broad", "broad", "broad"]).size, 0);
});

test("evidence says where it is from a sample, and that of entropy is no weight", () => {
  const found = { label: "broad", share: 0.9, least: 0.85, queries: 200, of: 256, sink: 0.1, by_position: null, key: 0 };
  assert.equal(evidenceText(found, 256), "The entropy of its weights off the sinks is 90% of the most that it can be, on average; "
    + "200 of 256 words reach 85%, which the name needs from at least five. From a sample of 256 queries.");
});

test("a head that follows a pronoun says on what that rests", () => {
  assert.equal(coreferenceText({ shift: 0.06, right: 19, wrong: 3, of: 40 }), "Where one word decides what a pronoun means, this head\u2019s weight follows it: "
    + "by 6% on average over 40 pairs of sentences, by 5% or more the right way in 19 and the wrong way in 3. The name needs 3%, and more pairs the right way than chance would have in any head.");
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
  assert.deepEqual(mostDistinctiveHeads(heads, words).map((one) => one.head), [3, 4, 0, 1]);
});

test("long texts show a window around the picked word", () => {
  assert.deepEqual(proseRange(600, 5), [0, 600]);
  assert.deepEqual(proseRange(5000, 5), [0, 600]);
  assert.deepEqual(proseRange(5000, 2000), [1700, 2300]);
  assert.deepEqual(proseRange(5000, 4999), [4400, 5000]);
});
