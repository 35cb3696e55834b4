import assert from "node:assert/strict";
import { scaleTop } from "../shell/scale.js";
import { test } from "node:test";
import { makeClient } from "../client.js";
import { makeMapTiles, mapTileAt } from "../map/tiles.js";
import { mapMost } from "../map/most.js";
import { HostError } from "../hosts/errors.js";
import { fakeHost } from "./fake_host.js";

const where = { side: "0", kind: "encoder", layer: 0, head: 0, merge: "tokens", specials: "show" };
const wish = (level, row, column, priority = 50) => ({ level, row, column, priority });
const settled = (ms = 30) => new Promise((resolve) => setTimeout(resolve, ms));

function open(options, more = {}) {
  const host = fakeHost({ layers: 1, heads: 2, tokens: 600, ...options });
  const events = { tiles: [], forgotten: [], failed: [] };
  const tiles = makeMapTiles({
    client: makeClient(host), onTile: (tile) => events.tiles.push(tile), onForget: (tile) => events.forgotten.push(tile),
    onFail: (layer) => events.failed.push(layer.failed), ...more,
  });
  return { host, tiles, events, layer: tiles.layer(where, "mass") };
}

test("a tile comes once and is not asked for again", async () => {
  const { host, tiles, events, layer } = open();
  tiles.want(layer, [wish(0, 1, 2)]);
  await settled();
  const tile = mapTileAt(layer, 0, 1, 2);
  assert.deepEqual([tile.rows, tile.columns, tile.complete], [256, 88, 1]);
  tiles.want(layer, [wish(0, 1, 2)]);
  await settled();
  assert.equal(host.asked.length, 1);
  assert.equal(events.tiles.length, 1);
  assert.deepEqual(host.asked[0], { ask: "tile", ...where, how: "mass", level: 0, row: 1, column: 2 });
});

test("exact weights have one name, however coarse levels are pooled", async () => {
  const { host, tiles } = open();
  tiles.want(tiles.layer(where, "max"), [wish(0, 0, 0), wish(1, 0, 0)]);
  await settled();
  assert.deepEqual(host.asked.map(({ level, how }) => [level, how]), [[0, "mass"], [1, "max"]]);
});

test("a tile sharpens until it is complete, after everything in view has been answered once", async () => {
  const { host, tiles, layer } = open({ steps: 3, delay: 1 });
  const wishes = Array.from({ length: 9 }, (_, i) => wish(0, Math.floor(i / 3), i % 3, 90 - i));
  tiles.want(layer, wishes);
  while (host.asked.length < 27 || mapTileAt(layer, 0, 2, 2)?.complete !== 1) await settled();
  const names = host.asked.map(({ row, column }) => `${row}/${column}`);
  assert.equal(host.asked.length, 27);
  assert.equal(new Set(names.slice(0, 9)).size, 9);
  assert.equal(mapTileAt(layer, 0, 2, 2).complete, 1);
  assert.equal(mapTileAt(layer, 0, 2, 2).version, 3);
});

test("what is scrolled away is given up; what stays in view is not asked for twice", async () => {
  const { host, tiles, layer } = open({ delay: 20 });
  tiles.want(layer, [wish(0, 0, 0), wish(0, 0, 1), wish(0, 0, 2), wish(0, 1, 0), wish(0, 1, 1), wish(0, 1, 2)]);
  await settled(5);
  tiles.want(layer, [wish(0, 1, 2), wish(0, 2, 2)]);
  await settled(90);
  const names = host.asked.map(({ row, column }) => `${row}/${column}`);
  assert.equal(names.filter((name) => name === "1/2").length, 1);
  assert.ok(!names.includes("1/1"));
  assert.ok(mapTileAt(layer, 0, 2, 2) && !mapTileAt(layer, 0, 0, 0));
});

test("memory is bounded: what was drawn longest ago is forgotten, what is on show is not", async () => {
  const { tiles, events, layer } = open({}, { maxBytes: 3 * 256 * 256 * 8 });
  for (const [frame, column] of [[1, 0], [2, 1]]) {
    tiles.want(layer, [wish(0, 0, column), wish(0, 1, column)]);
    await settled();
    for (const row of [0, 1]) mapTileAt(layer, 0, row, column).used = frame;
    tiles.trim(frame);
  }
  assert.deepEqual(events.forgotten.map(({ row, column }) => `${row}/${column}`), ["0/0", "1/0"]);
  assert.ok(mapTileAt(layer, 0, 0, 1) && mapTileAt(layer, 0, 1, 1));
  assert.ok(tiles.bytes() <= 3 * 256 * 256 * 8);
});

test("where colours end is remembered beyond the tile that held it, with and without the first key", async () => {
  const { tiles, layer } = open({}, { maxBytes: 1 });
  tiles.want(layer, [wish(0, 0, 0)]);
  await settled();
  const { data, columns } = mapTileAt(layer, 0, 0, 0);
  const most = scaleTop(data);
  const rest = scaleTop(Float32Array.from(data.filter((_, i) => i % columns !== 0)));
  mapTileAt(layer, 0, 0, 0).used = 1;
  tiles.trim(2);
  assert.equal(mapTileAt(layer, 0, 0, 0), undefined);
  assert.equal(mapMost(layer, 0, false), most);
  assert.equal(mapMost(layer, 0, true), rest);
});

test("what the host refuses is told, and asked for again when it is wanted again", async () => {
  let refuse = true;
  const { host, tiles, events, layer } = open({ refuse: () => (refuse ? new HostError("refused", "No such head.") : null) });
  tiles.want(layer, [wish(0, 0, 0)]);
  await settled();
  assert.deepEqual(events.failed, ["No such head."]);
  refuse = false;
  tiles.want(layer, [wish(0, 0, 0)]);
  await settled();
  assert.equal(layer.failed, "");
  assert.equal(host.asked.length, 2);
  assert.ok(mapTileAt(layer, 0, 0, 0));
});
