import assert from "node:assert/strict";
import { test } from "node:test";
import { isWord, informativeLinks } from "../../explore/informative_links.js";

const itemsOf = (labels) => /** @type {any} */ ({ labels, total: labels.length, spans: Int32Array.from(labels.flatMap((_, at) => [at, at + 1])), specials: new Set(labels.flatMap((label, at) => (label.startsWith("[") ? [at] : []))) });
const cellsOf = (...heads) => ({ data: Float32Array.from(heads.flat(2)), heads: heads.length, rows: heads[0].length, columns: heads[0][0].length, complete: 1 });

test("special tokens and signs are no words", () => {
  const items = itemsOf(["[CLS]", "a", "!", "4", "\u732b", "[SEP]"]);
  assert.deepEqual(items.labels.map((_, item) => isWord(items, item)), [false, true, false, true, true, false]);
});

test("the link that tells most is that to a far word, or to what followed an earlier copy", () => {
  const items = itemsOf(["[CLS]", "so", "we", "ran", "and", "so", "we"]), row = (key, weight) => items.labels.map((_, i) => (i === key ? weight : 0));
  const none = row(0, 1), near = [none, none, none, row(2, 0.9), none, none, none], far = [none, none, none, none, row(1, 0.6), none, none];
  assert.deepEqual(informativeLinks(cellsOf(near, far), items, items, "encoder").map((one) => one?.link.query), [3, 4]);
  const [nearest, farthest] = informativeLinks(cellsOf(near, far), items, items, "encoder");
  assert.ok(Number(farthest?.worth) > Number(nearest?.worth));
  const foreseen = [none, none, none, none, none, row(2, 0.5), none];
  assert.equal(informativeLinks(cellsOf(foreseen), items, items, "decoder")[0]?.worth, 0.5 * 1.5);
  const asking = itemsOf(["[CLS]", "so", "we", "ran", "and", "saw", "it"]), pronoun = [none, none, none, none, none, none, row(1, 0.4)];
  assert.equal(informativeLinks(cellsOf(pronoun), asking, asking, "encoder")[0]?.worth, Math.fround(0.4) * 2);
  assert.equal(informativeLinks(cellsOf([none, none, none, none, none, none, none]), items, items, "encoder")[0], null);
});

test("of cross-attention a head tells more that reads along, and a sound more that is not its letter's name", () => {
  const sounds = itemsOf(["K", "AE", "SH"]), names = itemsOf(["c", "a", "t"]);
  const along = [[0.9, 0.05, 0.05], [0.02, 0.96, 0.02], [0, 0.1, 0.9]], back = [[0, 0, 1], [0, 1, 0], [1, 0, 0]];
  const [read, turned] = informativeLinks(cellsOf(along, back), sounds, names, "cross");
  assert.deepEqual([read?.link.query, read?.link.key], [0, 0]);
  assert.ok(Number(read?.worth) > Number(turned?.worth));
});
