// The bytes of wire.json are those that src/uwaga/viewer/messages.py writes; tests/viewer/queries/test_service.py keeps them the same.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { canonical, decodeReply, bufferOf } from "../wire.js";

const kept = JSON.parse(readFileSync(new URL("wire.json", import.meta.url), "utf8"));
const bytes = (text) => {
  const { buffer, byteOffset, byteLength } = Buffer.from(text, "base64");
  return buffer.slice(byteOffset, byteOffset + byteLength);
};

test("replies that Python wrote are decoded", () => {
  for (const { base64, meta, arrays } of kept.replies) {
    const reply = decodeReply(bytes(base64));
    assert.deepEqual(reply.meta, meta);
    assert.deepEqual(reply.arrays.map(({ data, shape }) =>
      [data.constructor.name, shape, [...data].map((value) => (Number.isNaN(value) ? null : value))]), arrays);
  }
});

test("requests have the same keys as in Python", () => {
  for (const { request, name } of kept.requests) assert.equal(canonical(request), name);
  assert.equal(canonical({ b: undefined, a: 1 }), '{"a":1}');
});

test("invalid bytes are refused", () => {
  const good = bytes(kept.replies[0].base64);
  assert.throws(() => decodeReply(new ArrayBuffer(2)), { message: "reply: too short" });
  assert.throws(() => decodeReply(good.slice(0, 9)), { message: "reply: the header is truncated" });
  assert.throws(() => decodeReply(good.slice(0, good.byteLength - 8)), { message: "reply: the arrays are truncated" });
});

test("a view into a longer buffer becomes a buffer that starts at 0", () => {
  const all = new Uint8Array([9, 9, 1, 2, 3]);
  assert.deepEqual([...new Uint8Array(bufferOf(all.subarray(2)))], [1, 2, 3]);
  assert.equal(bufferOf(all), all.buffer);
});
