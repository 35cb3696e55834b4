// Compression by the browser itself: the zlib format, which PNG and PDF both hold.

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
 * @returns {Uint8Array} all of them, one after the other
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
