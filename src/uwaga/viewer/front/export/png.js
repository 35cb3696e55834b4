// PNG files from pixels (RFC 2083), and zlib compression, which PDF uses too.

/**
 * @param {Uint8Array} bytes
 * @returns {Promise<Uint8Array>} the bytes in the zlib format (RFC 1950)
 */
export async function deflate(bytes) {
  const packed = new Blob([/** @type {BlobPart} */ (bytes)]).stream().pipeThrough(new CompressionStream("deflate"));
  return new Uint8Array(await new Response(packed).arrayBuffer());
}

/**
 * @param {Uint8Array[]} parts
 * @returns {Uint8Array} their concatenation
 */
export function joinBytes(parts) {
  const all = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) {
    all.set(part, at);
    at += part.length;
  }
  return all;
}

// PNG files from pixels (RFC 2083): 8 bits, RGBA, no filter, one IDAT.

const pngSignature = [137, 80, 78, 71, 13, 10, 26, 10];

/**
 * @param {Uint8ClampedArray | Uint8Array} pixels RGBA, (rows, columns, 4)
 * @param {number} columns
 * @param {number} rows
 * @returns {Promise<Uint8Array>} the file
 */
export async function pngFile(pixels, columns, rows) {
  const header = new Uint8Array(13);
  const view = new DataView(header.buffer);
  view.setUint32(0, columns);
  view.setUint32(4, rows);
  header.set([8, 6, 0, 0, 0], 8);
  const lines = new Uint8Array(rows * (1 + 4 * columns));
  for (let row = 0; row < rows; row++) {
    lines.set(pixels.subarray(4 * columns * row, 4 * columns * (row + 1)), row * (1 + 4 * columns) + 1);
  }
  const body = await deflate(lines);
  return joinBytes([new Uint8Array(pngSignature), pngChunk("IHDR", header), pngChunk("IDAT", body),
    pngChunk("IEND", new Uint8Array(0))]);
}

/** @param {string} name @param {Uint8Array} data @returns {Uint8Array} */
function pngChunk(name, data) {
  const chunk = new Uint8Array(12 + data.length);
  const view = new DataView(chunk.buffer);
  view.setUint32(0, data.length);
  for (let i = 0; i < 4; i++) chunk[4 + i] = name.charCodeAt(i);
  chunk.set(data, 8);
  view.setUint32(8 + data.length, crc32(chunk.subarray(4, 8 + data.length)));
  return chunk;
}

/** @param {Uint8Array} bytes @returns {number} their CRC-32 */
function crc32(bytes) {
  const table = new Uint32Array(256);
  for (let n = 0; n < 256; n++) {
    let c = n;
    for (let k = 0; k < 8; k++) c = c & 1 ? 0xedb88320 ^ (c >>> 1) : c >>> 1;
    table[n] = c;
  }
  let crc = 0xffffffff;
  for (const byte of bytes) crc = (table[(crc ^ byte) & 255] ?? 0) ^ (crc >>> 8);
  return (crc ^ 0xffffffff) >>> 0;
}

/**
 * @param {Uint8Array} bytes
 * @returns {string} base64
 */
export function base64(bytes) {
  let text = "";
  const step = 0x6000; // a multiple of 3, and below the argument limit of a call
  for (let at = 0; at < bytes.length; at += step) text += btoa(String.fromCharCode(...bytes.subarray(at, at + step)));
  return text;
}
