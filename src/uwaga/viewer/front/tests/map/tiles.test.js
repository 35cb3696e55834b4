import assert from "node:assert/strict";
import { test } from "node:test";
import { colourScaleMax } from "../../colours.js";
import { makeClient } from "../../client.js";
import { layerScaleMax, makeTiles, tileAt } from "../../map/tiles.js";
import { HostError } from "../../hosts.js";
import { fakeHost } from "../fake_host.js";
import { cellsOf, lastLevel, levelFor, tileRange, topLevel, planTileRequests } from "../../map/pyramid.js";
import { wholeMapScale } from "../../map/viewport.js";

const where = { side: "0", kind: "encoder", layer: 0, head: 0, merge: "tokens", specials: "show" };
const request = (level, row, column, priority = 50) => ({ level, row, column, priority });
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

function open(options, more = {}) {
  const host = fakeHost({ layers: 1, heads: 2, tokens: 600, ...options }), ask = host.ask;
  let pending = 0;
  host.ask = (...args) => {
    pending++;
    return ask(...args).finally(() => pending--);
  };
  const settled = async () => {
    do await pause(1); while (pending);
    await pause(1);  // for what follows from the last reply
    if (pending) await settled();
  };
  const events = { tiles: [], forgotten: [], failed: [] };
  const tiles = makeTiles({
    client: makeClient(host), onTile: (tile) => events.tiles.push(tile), onForget: (tile) => events.forgotten.push(tile),
    onFail: (layer) => events.failed.push(layer.failed), ...more,
  });
  return { host, tiles, events, settled, layer: tiles.layer(where, "sum") };
}

test("a tile is requested once", async () => {
  const { host, tiles, events, layer, settled } = open();
  tiles.request(layer, [request(0, 1, 2)]);
  await settled();
  const tile = tileAt(layer, 0, 1, 2);
  assert.deepEqual([tile.rows, tile.columns, tile.complete], [256, 88, 1]);
  tiles.request(layer, [request(0, 1, 2)]);
  await settled();
  assert.equal(host.asked.length, 1);
  assert.equal(events.tiles.length, 1);
  assert.deepEqual(host.asked[0], { request: "tile", ...where, pooling: "sum", level: 0, row: 1, column: 2 });
});

test("at level 0 tiles are requested as mass, at coarser levels as mass or max", async () => {
  const { host, tiles, settled } = open();
  tiles.request(tiles.layer(where, "max"), [request(0, 0, 0), request(1, 0, 0)]);
  await settled();
  assert.deepEqual(host.asked.map(({ level, pooling }) => [level, pooling]), [[0, "sum"], [1, "max"]]);
});

test("a tile is refined until it is complete, after every tile in view has a first reply", async () => {
  const { host, tiles, layer, settled } = open({ steps: 3, delay: 1 });
  const requests = Array.from({ length: 9 }, (_, i) => request(0, Math.floor(i / 3), i % 3, 90 - i));
  tiles.request(layer, requests);
  await settled();
  const names = host.asked.map(({ row, column }) => `${row}/${column}`);
  assert.equal(host.asked.length, 27);
  assert.equal(new Set(names.slice(0, 9)).size, 9);
  assert.equal(tileAt(layer, 0, 2, 2).complete, 1);
  assert.equal(tileAt(layer, 0, 2, 2).version, 3);
});

test("tiles scrolled out of view are aborted; tiles that stay in view are not requested twice", async () => {
  let release = () => {};
  const { host, tiles, layer, settled } = open({ held: new Promise((resolve) => { release = resolve; }) });
  tiles.request(layer, [request(0, 0, 0), request(0, 0, 1), request(0, 0, 2), request(0, 1, 0), request(0, 1, 1), request(0, 1, 2)]);
  await pause(1);
  tiles.request(layer, [request(0, 1, 2), request(0, 2, 2)]);
  release();
  await settled();
  const names = host.asked.map(({ row, column }) => `${row}/${column}`);
  assert.equal(names.filter((name) => name === "1/2").length, 1);
  assert.ok(!names.includes("1/1"));
  assert.ok(tileAt(layer, 0, 2, 2) && !tileAt(layer, 0, 0, 0));
});

test("memory is bounded: the least recently drawn tiles are evicted, those in view are not", async () => {
  const { tiles, events, layer, settled } = open({}, { maxBytes: 3 * 256 * 256 * 8 });
  for (const [frame, column] of [[1, 0], [2, 1]]) {
    tiles.request(layer, [request(0, 0, column), request(0, 1, column)]);
    await settled();
    for (const row of [0, 1]) tileAt(layer, 0, row, column).used = frame;
    tiles.trim(frame);
  }
  assert.deepEqual(events.forgotten.map(({ row, column }) => `${row}/${column}`), ["0/0", "1/0"]);
  assert.ok(tileAt(layer, 0, 0, 1) && tileAt(layer, 0, 1, 1));
  assert.ok(tiles.bytes() <= 3 * 256 * 256 * 8);
});

test("the end of the colour scale is kept after its tile is evicted, with and without sinks", async () => {
  const { tiles, layer, settled } = open({}, { maxBytes: 1 });
  tiles.request(layer, [request(0, 0, 0)]);
  await settled();
  tiles.setSinks(layer, new Set([0, 2]));
  const { data, columns } = tileAt(layer, 0, 0, 0);
  const scaleMax = colourScaleMax(data);
  const noSink = colourScaleMax(Float32Array.from(data.filter((_, i) => ![0, 2].includes(i % columns))));
  tileAt(layer, 0, 0, 0).used = 1;
  tiles.trim(2);
  assert.equal(tileAt(layer, 0, 0, 0), undefined);
  assert.equal(layerScaleMax(layer, 0, false), scaleMax);
  assert.equal(layerScaleMax(layer, 0, true), noSink);
});

test("errors of the host are reported, and the tile is requested again when it is needed again", async () => {
  let refuse = true;
  const { host, tiles, events, layer, settled } = open({ refuse: () => (refuse ? new HostError("refused", "No such head.") : null) });
  tiles.request(layer, [request(0, 0, 0)]);
  await settled();
  assert.deepEqual(events.failed, ["No such head."]);
  refuse = false;
  tiles.request(layer, [request(0, 0, 0)]);
  await settled();
  assert.equal(layer.failed, "");
  assert.equal(host.asked.length, 2);
  assert.ok(tileAt(layer, 0, 0, 0));
});

const always = () => true;
const large = { queries: 100_000, keys: 100_000 };
const plot = { w: 700, h: 600 };
const name = (request) => `${request.level}/${request.row}/${request.column}`;

test("the top level is the finest one with a single tile", () => {
  assert.equal(topLevel({ queries: 4, keys: 4 }), 0);
  assert.equal(topLevel({ queries: 256, keys: 12 }), 0);
  assert.equal(topLevel({ queries: 257, keys: 12 }), 1);
  assert.equal(topLevel(large), 9);
  assert.equal(cellsOf(100_000, 9), 196);
  assert.equal(lastLevel(large), 17);
});

test("cells are at least one device pixel and less than two", () => {
  for (const ratio of [1, 1.5, 2, 3]) {
    for (let scale = 0.01; scale < 0.9; scale *= 1.13) {
      const level = levelFor(scale, ratio, 20);
      assert.ok(2 ** level * scale * ratio > 0.98, `${scale} ${ratio}`);
      assert.ok(level === 0 || 2 ** level * scale * ratio < 2.01, `${scale} ${ratio}`);
    }
  }
  assert.equal(levelFor(40, 1, 9), 0);
  assert.equal(levelFor(1e-9, 1, 9), 9);
});

test("a viewport needs the tiles that it intersects and no others", () => {
  const view = { x: 250, y: 600, scale: 1 };
  assert.deepEqual([...tileRange(view, plot, large, 0)], [2, 5, 0, 4]);
  assert.deepEqual([...tileRange(view, plot, { queries: 700, keys: 700 }, 0)], [2, 3, 0, 3]);
  assert.deepEqual([...tileRange(view, plot, { queries: 10, keys: 700 }, 0)], [1, 1, 0, 3]);
});

test("the whole map is requested first, then tiles from the centre of the viewport outwards", () => {
  const plan = planTileRequests({ x: 50_000, y: 50_000, scale: 1 }, { w: 1280, h: 1280 }, large, 1, always);
  assert.equal(name(plan[0]), "9/0/0");
  const priorities = plan.map((request) => request.priority).filter((priority) => priority > 20);
  assert.deepEqual(priorities, [...priorities].sort((left, right) => right - left));
  assert.equal(name(plan[1]), "0/197/197");
  const inView = plan.filter(({ level, priority }) => level === 0 && priority > 20);
  assert.equal(inView.length, 36);
  assert.equal(plan.filter(({ priority }) => priority < 20).length, 28);
});

test("a map that fits in one tile needs one tile", () => {
  const sizes = { queries: 96, keys: 96 };
  const plan = planTileRequests({ x: 0, y: 0, scale: wholeMapScale(sizes, plot) }, plot, sizes, 2, always);
  assert.deepEqual(plan.map(name), ["0/0/0"]);
});

test("where a saved page lacks a level, the next coarser one is used", () => {
  const held = new Set(["3/0/0", "1/1/1"]);
  const offered = (level, row, column) => held.has(`${level}/${row}/${column}`);
  const sizes = { queries: 1024, keys: 1024 };
  const plan = planTileRequests({ x: 512, y: 512, scale: 1 }, { w: 500, h: 500 }, sizes, 1, offered);
  assert.deepEqual(plan.map(name), ["3/0/0", "1/1/1"]);
  assert.deepEqual(planTileRequests({ x: 0, y: 0, scale: 1 }, plot, sizes, 1, () => false), []);
});

test("queries and keys of different lengths", () => {
  const sizes = { queries: 300, keys: 5000 };
  assert.equal(topLevel(sizes), 5);
  const plan = planTileRequests({ x: 0, y: 0, scale: 1 }, plot, sizes, 1, always);
  assert.ok(plan.some((request) => name(request) === "0/1/2"));
  assert.ok(plan.every(({ level, row, column }) => row * 256 * 2 ** level < 300 && column * 256 * 2 ** level < 5000));
});

test("tiles outside the viewport are requested only where they are exact and cheap", () => {
  const plan = planTileRequests({ x: 20_000, y: 20_000, scale: 0.25 }, plot, large, 1, always);
  assert.ok(plan.every(({ priority }) => priority > 20));
});
