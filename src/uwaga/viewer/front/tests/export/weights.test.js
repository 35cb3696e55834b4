import assert from "node:assert/strict";
import { test } from "node:test";
import { makeClient } from "../../client.js";
import { blockCsv, blockInView, savePage } from "../../export/weights.js";

const where = { side: "0", kind: "encoder", layer: 0, head: 1, merge: "tokens", specials: "show" };
const weight = (query, key) => Math.fround((query * 100 + key) / 8192);

/** The parts of an app of 3000 tokens that exports need. */
function makeApp(live = true, sees = null) {
  const asked = [];
  const items = { labels: Array.from({ length: 3000 }, (_, i) => `t${i}`), noSpaceBefore: [],
    specials: new Set(), spans: Int32Array.from({ length: 6000 }, (_, i) => (i + 1) >> 1), total: 3000 };
  const host = { mode: live ? "served" : "saved", has: () => live, download() {}, ask: async (request) => {
    asked.push(request);
    if (request.request === "page")
      return { meta: { name: "attention.html" }, arrays: [{ data: Uint8Array.of(1, 2), shape: [2] }] };
    const { level, row, column } = request, data = Float32Array.from({ length: 256 * 256 }, (_, i) => weight(row * 256 + (i >> 8), column * 256 + (i & 255)));
    return { meta: { complete: level ? 0.5 : 1 }, arrays: [{ data, shape: [256, 256] }] };
  } };
  const side = () => ({ model: "m", text_title: "Is it tired? Yes.", kinds: { encoder: { queries: "encoder", keys: "encoder" } }, maps: [{ kind: "encoder", layer: 0, heads: 2, sees }] });
  const store = { get: () => where };
  return { asked, app: { host, client: makeClient(host), about: { live }, where: () => where,
    sizes: () => ({ queries: 3000, keys: 3000 }), side, store, items: async () => items } };
}
const viewOf = (rows, columns) => ({ block: () => ({ rows, columns }) });

test("the CSV has the block in view, from its tiles", async () => {
  const { app, asked } = makeApp();
  const { name, blob } = await blockCsv(app, viewOf([10, 810], [0, 2000]));
  assert.equal(name, "uwaga_m_encoder_layer0_head1_weights_10-810x0-2000.csv");
  const lines = (await blob.text()).replace("\ufeff", "").trimEnd().split("\r\n");
  assert.equal(lines.length, 801);
  assert.equal(asked.length, 4 * 8);
  assert.ok(asked.every(({ request, level }) => request === "tile" && level === 0));
  for (const [row, key] of [[0, 0], [523, 7], [524, 0], [799, 1999]]) {
    const cells = lines[row + 1].split(",");
    assert.equal(cells[0], `"${row + 10} t${row + 10}"`);
    assert.equal(Math.fround(Number(cells[key + 1])), weight(row + 10, key));
  }
});

test("what a mask hides is an empty cell of the CSV, not a weight of 0", async () => {
  for (const live of [true, false]) {
    const { app } = makeApp(live, [2, 0]);
    if (!live) Object.assign(app.host, { has: ({ request, level }) => request === "tile" && level === 0, ask: async () => ({ meta: {}, arrays: [{ data: new Float32Array(256 * 256), shape: [256, 256] }] }) });
    const { blob } = await blockCsv(app, viewOf([3, 6], [1, 7])), lines = (await blob.text()).trimEnd().split("\r\n").slice(1);
    assert.deepEqual(lines.map((line) => line.split(",").slice(1).map((cell) => (cell === "" ? "." : "w")).join("")), ["www...", ".www..", "..www."]);
  }
});

test("too many weights are refused, and the message says what to do", async () => {
  const { app } = makeApp();
  await assert.rejects(blockCsv(app, viewOf([0, 3000], [0, 3000])),
    { message: "The view has 3,000 \u00d7 3,000 weights, more than the limit of 4,194,304 per file. Zoom in on the map, then save again." });
  await assert.rejects(blockCsv(app, viewOf([5, 5], [0, 9])), { message: "No weights are in view." });
});

test("a view without a visible block exports the whole map", () => {
  const { app } = makeApp();
  assert.deepEqual(blockInView(app, {}), { rows: [0, 3000], columns: [0, 3000] });
  assert.deepEqual(blockInView(app, { block: () => null }), { rows: [0, 3000], columns: [0, 3000] });
});

test("a snapshot is requested with the complete tiles seen so far", async () => {
  const { app, asked } = makeApp();
  const tile = (level, column) => ({ request: "tile", ...where, pooling: "sum", level, row: 0, column });
  await app.client.ask(tile(0, 0));
  await app.client.ask(tile(1, 0)); // not complete: not in the page
  await app.client.ask(tile(0, 1));
  const { name, note } = await savePage(app);
  assert.equal(name, "uwaga_m_Is-it-tired-Yes.html");
  assert.equal(note, "with 2 tiles");
  assert.deepEqual(asked.at(-1).exact, [tile(0, 0), tile(0, 1)]);
});

test("a saved page without the exact weights in view refuses the export", async () => {
  const { app } = makeApp(false);
  await assert.rejects(blockCsv(app, viewOf([0, 2], [0, 2])), { message: "This saved page does not contain the exact weights in view." });
});
