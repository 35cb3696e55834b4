import assert from "node:assert/strict";
import { test } from "node:test";
import { makeClient } from "../client.js";
import { makeReplyCache } from "../client.js";
import { HostError } from "../hosts.js";

const reply = (meta = {}, size = 1) => ({ meta, arrays: [{ data: new Float32Array(size), shape: [size] }] });
const settle = () => new Promise((resolve) => setTimeout(resolve, 0));

/** A host whose replies the test gives one by one. */
function handHost() {
  const open = [];
  return {
    open, mode: "served", has: () => true, download() {},
    ask: (request, signal) => new Promise((resolve, reject) => {
      const flight = { request, resolve, reject, aborted: false };
      open.push(flight);
      signal.addEventListener("abort", () => { flight.aborted = true; reject(new DOMException("", "AbortError")); });
    }),
  };
}
const asks = (host) => host.open.map(({ request }) => request.n);

test("equal requests in flight are sent once, and replies are cached", async () => {
  const host = handHost(), client = makeClient(host, { slowAfter: 200 });
  const both = [client.ask({ request: "tile", n: 1 }), client.ask({ n: 1, request: "tile" })];
  assert.equal(host.open.length, 1);
  assert.equal(client.peek({ request: "tile", n: 1 }), undefined);
  host.open[0].resolve(reply({ complete: 1 }));
  const [left, right] = await Promise.all(both);
  assert.equal(left, right);
  assert.equal(await client.ask({ request: "tile", n: 1 }), left);
  assert.equal(host.open.length, 1);
});

test("at most four requests are in flight, and the next is that of the highest priority", async () => {
  const host = handHost(), client = makeClient(host, { slowAfter: 200 });
  for (let n = 0; n < 6; n++) client.ask({ request: "x", n });
  client.ask({ request: "x", n: 9 }, { priority: 2 });
  client.ask({ request: "x", n: 5 }, { priority: 1 });
  assert.deepEqual(asks(host), [0, 1, 2, 3]);
  for (let i = 0; i < 3; i++) { host.open[i].resolve(reply()); await settle(); }
  assert.deepEqual(asks(host), [0, 1, 2, 3, 9, 5, 4]);
});

test("a request is aborted when its last caller aborts, and only then", async () => {
  const host = handHost(), client = makeClient(host, { slowAfter: 200 }), [one, two] = [new AbortController(), new AbortController()];
  const left = client.ask({ request: "x", n: 1 }, { signal: one.signal }), right = client.ask({ request: "x", n: 1 }, { signal: two.signal });
  one.abort();
  await assert.rejects(left, { name: "AbortError" });
  assert.equal(host.open[0].aborted, false);
  two.abort();
  await assert.rejects(right, { name: "AbortError" });
  assert.equal(host.open[0].aborted, true);
  client.ask({ request: "x", n: 1 });
  await settle();
  assert.equal(host.open.length, 2);
});

test("a queued request that is aborted is never sent", async () => {
  const host = handHost(), client = makeClient(host, { slowAfter: 200 }), controller = new AbortController();
  for (let n = 0; n < 4; n++) client.ask({ request: "x", n });
  client.ask({ request: "x", n: 4 }, { signal: controller.signal });
  controller.abort();
  host.open[0].resolve(reply());
  await settle();
  assert.deepEqual(asks(host), [0, 1, 2, 3]);
});

test("a request to a busy host is retried, and fails after the last retry", async () => {
  const waits = [];
  let busy = 2;
  const host = { mode: "served", has: () => true, download() {},
    ask: async () => { if (busy-- > 0) throw new HostError("busy", "busy"); return reply(); } };
  const client = makeClient(host, { wait: async (time) => void waits.push(time) });
  await client.ask({ request: "x" });
  assert.deepEqual(waits, [100, 200]);
  busy = Infinity;
  await assert.rejects(client.ask({ request: "y" }), { kind: "busy" });
});

test("an unreachable host is reported once, retried with one request at a time, and reported when reachable again", async () => {
  const events = [];
  let gone = 3, flying = 0, most = 0;
  const host = { mode: "served", has: () => true, download() {}, async ask() {
    most = Math.max(most, ++flying);
    await settle();
    flying -= 1;
    if (gone-- > 0) throw new HostError("unreachable", "unreachable");
    return reply();
  } };
  const client = makeClient(host, { wait: settle });
  client.subscribe(({ type }) => type !== "busy" && events.push(type));
  await client.ask({ request: "a" });
  assert.deepEqual(events, ["unreachable", "recovered"]);
  assert.equal(most, 1);
});

test("an error rejects the request and notifies listeners, without an unhandled rejection", async () => {
  const host = { mode: "served", has: () => true, download() {},
    ask: async () => { throw new HostError("refused", "There is no head 99."); } };
  const client = makeClient(host, { slowAfter: 200 }), told = [];
  client.subscribe((event) => event.type === "failed" && told.push(event.message));
  client.ask({ request: "x" });
  client.follow({ request: "y" }, () => {});
  await settle();
  await assert.rejects(client.ask({ request: "x" }), { message: "There is no head 99." });
  assert.deepEqual(told, Array(3).fill("There is no head 99."));
});

test("a reply missing from a saved page is not reported to listeners", async () => {
  const host = { mode: "saved", has: () => false, download() {}, ask: async () => { throw new HostError("missing", ""); } };
  const client = makeClient(host, { slowAfter: 200 }), told = [];
  client.subscribe((event) => told.push(event.type));
  await assert.rejects(client.ask({ request: "x" }), { kind: "missing" });
  assert.ok(!told.includes("failed"));
});

test("follow repeats a request until its reply is complete, starting with the cached reply", async () => {
  const completes = [0.25, 0.25, 0.5, 1], waits = [];
  const host = { mode: "served", has: () => true, download() {}, ask: async () => reply({ complete: completes.shift() }) };
  const client = makeClient(host, { wait: async (time) => void waits.push(time) }), seen = [];
  await client.ask({ request: "x" });
  await client.follow({ request: "x" }, ({ meta }) => seen.push(meta.complete));
  assert.deepEqual(seen, [0.25, 0.25, 0.5, 1]);
  assert.equal(waits.length, 1, "it waits where nothing went on");
  await client.follow({ request: "x" }, ({ meta }) => seen.push(meta.complete));
  assert.deepEqual(seen.slice(4), [1]);
});

test("follow ends without an error when it is aborted", async () => {
  const host = handHost(), client = makeClient(host, { slowAfter: 200 }), controller = new AbortController(), seen = [];
  const followed = client.follow({ request: "x" }, (one) => seen.push(one), { signal: controller.signal });
  controller.abort();
  await followed;
  assert.deepEqual(seen, []);
});

test("an incomplete reply is requested again", async () => {
  const host = handHost(), client = makeClient(host, { slowAfter: 200 });
  const first = client.ask({ request: "x" });
  host.open[0].resolve(reply({ complete: 0.5 }));
  await first;
  assert.equal(client.peek({ request: "x" }).meta.complete, 0.5);
  client.ask({ request: "x" });
  await settle();
  assert.equal(host.open.length, 2);
});

test("the cache evicts the least recently used replies, by bytes", () => {
  const cache = makeReplyCache(3 * (4096 + 1024)), big = () => reply({}, 1024);
  for (const name of ["a", "b", "c"]) cache.put(name, big());
  cache.get("a");
  cache.put("d", big());
  assert.deepEqual(["a", "b", "c", "d"].map((name) => cache.get(name) !== undefined), [true, false, true, true]);
  cache.put("huge", reply({}, 10_000));
  assert.ok(cache.get("huge"), "what is larger than the cache stays until the next comes");
});

test("a disposed client aborts all requests", async () => {
  const host = handHost(), client = makeClient(host, { slowAfter: 200 }), asked = client.ask({ request: "x" });
  client.dispose();
  await assert.rejects(asked, { name: "AbortError" });
  assert.equal(host.open[0].aborted, true);
  await assert.rejects(client.ask({ request: "y" }), { name: "AbortError" });
});

test("a host that does not reply for long is reported, and reported again with its next reply", async () => {
  const host = handHost(), client = makeClient(host, { slowAfter: 5 }), events = [];
  client.subscribe(({ type }) => type !== "busy" && events.push(type));
  const asked = client.ask({ request: "x" });
  await new Promise((resolve) => setTimeout(resolve, 30));
  assert.deepEqual(events, ["slow"]);
  host.open[0].resolve(reply());
  await asked;
  assert.deepEqual(events, ["slow", "recovered"]);
});
