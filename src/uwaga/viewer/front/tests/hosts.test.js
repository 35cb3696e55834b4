import assert from "node:assert/strict";
import { gzipSync } from "node:zlib";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { savedHost, servedHost, takeToken, widgetHost } from "../hosts.js";
import { canonical } from "../wire.js";

const kept = JSON.parse(readFileSync(new URL("./wire.json", import.meta.url), "utf8")).replies[0];
const body = Buffer.from(kept.base64, "base64");

/** A page with a URL fragment and session storage. */
function pageAt(hash, stored = {}) {
  const page = { location: { pathname: "/", hash }, written: [], stored,
    history: { replaceState: (_, __, address) => page.written.push(address) },
    localStorage: { getItem: (name) => stored[name] ?? null, setItem: (name, value) => { stored[name] = value; } } };
  return page;
}

test("the token is removed from the URL, the rest of the fragment is kept", () => {
  for (const [hash, token, left] of [["#token=d-e_f&tab=lesson", "d-e_f", ["/#tab=lesson"]], ["#token=a", "a", ["/"]], ["#tab=map", null, []], ["", null, []]]) {
    const page = pageAt(hash);
    assert.equal(takeToken(page), token);
    assert.deepEqual(page.written, left);
  }
});

test("served: the token of the URL is stored and sent with each request; the page works without storage", async () => {
  const sent = [], stored = {}, get = async (...request) => { sent.push(request); return new Response(body); };
  const without = pageAt("#token=secret");
  without.localStorage = { getItem() { throw new DOMException("", "SecurityError"); }, setItem() { throw new DOMException("", "SecurityError"); } };
  for (const page of [pageAt("#token=secret", stored), pageAt("", stored), without])
    assert.deepEqual((await servedHost(page, get).ask({ request: "about" })).meta, kept.meta);
  const said = sent.map(([address, { method, headers, body: request }]) => [address, method, headers["X-Uwaga-Token"], request]);
  assert.deepEqual(said, Array(3).fill(["/ask", "POST", "secret", '{"request":"about"}']));
  assert.deepEqual(stored, { "uwaga-token": "secret" });
});

test("served: errors have the server's message; busy and unreachable are distinguished", async () => {
  const answering = (response) => servedHost(pageAt(""),
    async () => { if (response instanceof Error) throw response; return response; }).ask({ request: "x" });
  await assert.rejects(answering(new Response('{"error":"There is no layer 7."}', { status: 400 })),
    { kind: "refused", message: "There is no layer 7." });
  await assert.rejects(answering(new Response("<html>", { status: 500 })), { kind: "refused", message: "The program refused (500)." });
  await assert.rejects(answering(new Response('{"error":"busy"}', { status: 503 })), { kind: "busy" });
  await assert.rejects(answering(new TypeError("fetch failed")),
    { kind: "unreachable", message: "The program that computes this page does not answer." });
  await assert.rejects(answering(new DOMException("", "AbortError")), { name: "AbortError" });
});

test("saved: replies by the key of the request, plain or gzip; a missing reply is an error", async () => {
  const request = { layer: 1, request: "tile" };
  for (const stored of [body, gzipSync(body)]) {
    const host = savedHost({ [canonical(request)]: stored.toString("base64") });
    assert.equal(host.has({ request: "tile", layer: 1 }), true);
    assert.deepEqual((await host.ask(request)).meta, kept.meta);
    assert.equal(host.has({ request: "tile", layer: 2 }), false);
    await assert.rejects(host.ask({ request: "constructor" }), { kind: "missing", message: "This is not in the saved page." });
  }
});

/** A widget model whose messages the test reads and replies to. */
function notebook() {
  const listeners = new Set();
  return { sent: [], listeners, send(message) { this.sent.push(message); }, on: (_, listener) => listeners.add(listener),
    off: (_, listener) => listeners.delete(listener),
    say: (message, buffers) => listeners.forEach((listener) => listener(message, buffers)) };
}

test("notebook: a reply is matched to its request, and to its view of the model", async () => {
  const model = notebook(), [one, two] = [widgetHost(model), widgetHost(model)];
  const first = one.ask({ request: "a" }), second = two.ask({ request: "b" });
  const end = 4 + body.readUInt32LE(0), header = JSON.parse(body.subarray(4, end).toString());
  model.say({ id: "another view's", error: "no" });
  const padded = new DataView(new Uint8Array([...Array(8).fill(7), ...body.subarray(end)]).buffer, 8);
  model.say({ id: model.sent[1].id, header }, [padded]);
  model.say({ id: model.sent[0].id, error: "There is no head 9." }, []);
  await assert.rejects(first, { kind: "refused", message: "There is no head 9." });
  assert.deepEqual([...(await second).arrays[0].data].length, kept.arrays[0][2].length);
});

test("notebook: aborting a request and disposing of the host", async () => {
  const model = notebook(), host = widgetHost(model), controller = new AbortController();
  const aborted = host.ask({ request: "a" }, controller.signal), left = host.ask({ request: "b" });
  controller.abort();
  await assert.rejects(aborted, { name: "AbortError" });
  host.dispose();
  await assert.rejects(left, { name: "AbortError" });
  assert.equal(model.listeners.size, 0);
});
