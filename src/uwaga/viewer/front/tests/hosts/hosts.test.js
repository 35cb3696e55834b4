import assert from "node:assert/strict";
import { gzipSync } from "node:zlib";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { addressToken, servedHost } from "../../hosts/served.js";
import { savedHost } from "../../hosts/saved.js";
import { widgetHost } from "../../hosts/widget.js";
import { canonical } from "../../wire.js";

const kept = JSON.parse(readFileSync(new URL("../wire.json", import.meta.url), "utf8")).replies[0];
const body = Buffer.from(kept.base64, "base64");

test("the token of the address, behind ? or #", () => {
  assert.equal(addressToken({ search: "?token=abc", hash: "" }), "abc");
  assert.equal(addressToken({ search: "", hash: "#layer=1&token=d-e_f" }), "d-e_f");
  assert.equal(addressToken({ search: "", hash: "" }), "");
});

test("served: the question and the token go to /ask, the reply comes back", async () => {
  const sent = [];
  const host = servedHost({ search: "?token=secret", hash: "" }, async (...request) => { sent.push(request); return new Response(body); });
  const reply = await host.ask({ ask: "about" });
  assert.deepEqual(reply.meta, kept.meta);
  const [address, { method, headers, body: question }] = sent[0];
  assert.deepEqual([address, method, headers["X-Uwaga-Token"], question], ["/ask", "POST", "secret", '{"ask":"about"}']);
});

test("served: refusals in the server's words, busy and gone told apart", async () => {
  const answering = (response) => servedHost({ search: "", hash: "" },
    async () => { if (response instanceof Error) throw response; return response; }).ask({ ask: "x" });
  await assert.rejects(answering(new Response('{"error":"There is no layer 7."}', { status: 400 })),
    { kind: "refused", message: "There is no layer 7." });
  await assert.rejects(answering(new Response("<html>", { status: 500 })), { kind: "refused", message: "The program refused (500)." });
  await assert.rejects(answering(new Response('{"error":"busy"}', { status: 503 })), { kind: "busy" });
  await assert.rejects(answering(new TypeError("fetch failed")),
    { kind: "gone", message: "The program that computes this page does not answer." });
  await assert.rejects(answering(new DOMException("", "AbortError")), { name: "AbortError" });
});

test("saved: replies by their question's name, plain or gzip; what is not there is said", async () => {
  const question = { layer: 1, ask: "tile" };
  for (const stored of [body, gzipSync(body)]) {
    const host = savedHost({ [canonical(question)]: stored.toString("base64") });
    assert.equal(host.has({ ask: "tile", layer: 1 }), true);
    assert.deepEqual((await host.ask(question)).meta, kept.meta);
    assert.equal(host.has({ ask: "tile", layer: 2 }), false);
    await assert.rejects(host.ask({ ask: "constructor" }), { kind: "absent", message: "This is not in the saved page." });
  }
});

/** A model whose messages the test reads and answers. */
function notebook() {
  const listeners = new Set();
  return { sent: [], listeners, send(message) { this.sent.push(message); }, on: (_, listener) => listeners.add(listener),
    off: (_, listener) => listeners.delete(listener),
    say: (message, buffers) => listeners.forEach((listener) => listener(message, buffers)) };
}

test("notebook: a reply belongs to its question, and to its view of the model", async () => {
  const model = notebook(), [one, two] = [widgetHost(model), widgetHost(model)];
  const first = one.ask({ ask: "a" }), second = two.ask({ ask: "b" });
  const end = 4 + body.readUInt32LE(0), header = JSON.parse(body.subarray(4, end).toString());
  model.say({ id: "somebody else's", error: "no" });
  const padded = new DataView(new Uint8Array([...Array(8).fill(7), ...body.subarray(end)]).buffer, 8);
  model.say({ id: model.sent[1].id, header }, [padded]);
  model.say({ id: model.sent[0].id, error: "There is no head 9." }, []);
  await assert.rejects(first, { kind: "refused", message: "There is no head 9." });
  assert.deepEqual([...(await second).arrays[0].data].length, kept.arrays[0][2].length);
});

test("notebook: giving up and going away", async () => {
  const model = notebook(), host = widgetHost(model), controller = new AbortController();
  const given = host.ask({ ask: "a" }, controller.signal), left = host.ask({ ask: "b" });
  controller.abort();
  await assert.rejects(given, { name: "AbortError" });
  host.dispose();
  await assert.rejects(left, { name: "AbortError" });
  assert.equal(model.listeners.size, 0);
});
