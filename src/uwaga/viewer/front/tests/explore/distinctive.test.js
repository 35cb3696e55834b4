import assert from "node:assert/strict";
import { test } from "node:test";
import { askDistinctive, commonLabels, coreferenceText, evidenceText, linkStory, worthOf } from "../../explore/distinctive.js";
import { makeClient } from "../../client.js";
import { makeApp } from "../../shell/app.js";
import { fakeHost } from "../fake_host.js";

const itemsOf = (labels) => ({ labels, noSpaceBefore: labels.map(() => 0), total: labels.length, spans: new Int32Array(2 * labels.length),
  specials: new Set(labels.flatMap((label, at) => (label.startsWith("[") ? [at] : []))) });
const words = ["[CLS]", "a", "b", "c", "d", "e", "f", "g", "a", "b", "c", "d", "e", "f", "g", "[SEP]"];

test("labels and their evidence are those of Python", async () => {
  const host = /** @type {any} */ ({ ...fakeHost({ layers: 2, heads: 3, tokens: 20, steps: 2 }), mode: "notebook" }), client = makeClient(host);
  const { meta } = await client.ask({ request: "about" });
  const app = makeApp(/** @type {any} */ (null), host, client, /** @type {any} */ (meta), /** @type {any} */ ({}), /** @type {any} */ ({ rows: { cross: "written" } }));
  const { all, rests, sinks } = await askDistinctive(app, new AbortController().signal);
  assert.deepEqual([rests.size, rests.get("1 2"), sinks], [6, 0.25, "CLS and SEP"]);
  assert.deepEqual(all.filter((one) => one.label).map(({ layer, head, sentence }) => [layer, head, sentence]).sort(),
    [[0, 0, "Looks at the word before"], [1, 1, "Looks at the word before"]]);
  assert.match(all.find((one) => one.label)?.evidence ?? "", /^90% of its weight off the sinks is on the word before, on average; 9 of 10 words reach 50%/);
  assert.ok(all.every(({ worth }, at) => at === 0 || worth <= all[at - 1].worth));
  assert.ok(all[0].link.weight > 0.25, "of all links, not of the strongest alone");
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

test("a far link between different words tells more than a near one or a copy", () => {
  const worth = (label, query, key, weight) => worthOf({ kind: "encoder", label, link: { query, key, weight } }, words);
  assert.ok(worth("", 5, 1, 0.6) > worth("", 5, 4, 0.9));
  assert.ok(worth("", 5, 1, 0.6) > worth("", 8, 1, 0.8));
  assert.equal(worth("previous", 5, 4, 0.9), 0.45);
});

test("what came after an earlier copy of a word is said", () => {
  const items = itemsOf(words), link = (query, key) => ({ query, key, weight: 0.5 });
  assert.equal(linkStory(link(8, 2), items, items, "decoder"), "\u201cb\u201d is what came after \u201ca\u201d before.");
  assert.equal(linkStory(link(8, 3), items, items, "decoder"), "");
});
