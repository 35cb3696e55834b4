// Replies as bytes: u32 n, n bytes of JSON {meta, arrays}, then the arrays; all little-endian, each part padded to 8 bytes.

/** @import { Reply, WireData } from "./types.js" */

/** @typedef {{meta: {[key: string]: any}, arrays: {type: string, shape: number[]}[]}} Header */

/** @type {{[type: string]: (buffer: ArrayBuffer, start: number, count: number) => WireData}} */
const types = {
  f4: (buffer, start, count) => new Float32Array(buffer, start, count),
  i4: (buffer, start, count) => new Int32Array(buffer, start, count),
  u1: (buffer, start, count) => new Uint8Array(buffer, start, count),
};
const widths = /** @type {{[type: string]: number}} */ ({ f4: 4, i4: 4, u1: 1 });

/**
 * Decodes a reply. The arrays are views into the buffer. Throws Error if the bytes are malformed.
 * @param {ArrayBuffer} buffer @returns {Reply}
 */
export function decodeReply(buffer) {
  if (buffer.byteLength < 4) throw new Error("reply: too short");
  const length = new DataView(buffer).getUint32(0, true);
  if (4 + length > buffer.byteLength) throw new Error("reply: the header is truncated");
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  return decodeParts(header, buffer, 4 + length);
}

/**
 * Decodes a reply from its header and the buffer that holds the arrays from `start` on.
 * @param {Header} header @param {ArrayBuffer} buffer
 * @param {number} start  a multiple of 8
 * @returns {Reply}
 */
export function decodeParts(header, buffer, start) {
  let offset = start;
  const arrays = header.arrays.map(({ type, shape }) => {
    const width = widths[type];
    if (!width) throw new Error(`reply: unknown type ${type}`);
    const count = shape.reduce((product, size) => product * size, 1);
    if (offset + count * width > buffer.byteLength) throw new Error("reply: the arrays are truncated");
    const data = types[type](buffer, offset, count);
    offset += Math.ceil((count * width) / 8) * 8;
    return { data, shape };
  });
  return { meta: header.meta, arrays };
}

/**
 * The bytes of a view as an ArrayBuffer that starts at 0, copied only if the view is a part of a larger buffer.
 * @param {DataView | Uint8Array | ArrayBuffer} bytes @returns {ArrayBuffer}
 */
export function bufferOf(bytes) {
  if (bytes instanceof ArrayBuffer) return bytes;
  const { buffer, byteOffset, byteLength } = bytes;
  if (byteOffset === 0 && byteLength === buffer.byteLength) return /** @type {ArrayBuffer} */ (buffer);
  return /** @type {ArrayBuffer} */ (buffer.slice(byteOffset, byteOffset + byteLength));
}

/**
 * A request as canonical JSON (sorted keys, no spaces), the key of caches and saved pages; Python's page/ writes the same.
 * @param {unknown} value @returns {string}
 */
export function canonical(value) {
  if (Array.isArray(value)) return `[${value.map(canonical).join(",")}]`;
  if (value === null || typeof value !== "object") return JSON.stringify(value);
  const entries = Object.entries(value).filter(([, part]) => part !== undefined);
  entries.sort(([left], [right]) => (left < right ? -1 : 1));
  return `{${entries.map(([key, part]) => `${JSON.stringify(key)}:${canonical(part)}`).join(",")}}`;
}

/** Estimated memory of a reply in bytes. @param {Reply} reply @returns {number} */
export function replyBytes(reply) {
  const arrays = reply.arrays.reduce((total, { data }) => total + data.byteLength, 0);
  // Labels are strings: two bytes a letter and an object each.
  const labels = Array.isArray(reply.meta.labels) ? reply.meta.labels.length * 48 : 0;
  return arrays + labels + 1024;
}
