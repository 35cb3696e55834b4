// GIF files (GIF89a): frames of one palette, each only as high as what has changed, looped.

import { joinBytes } from "./png.js";

/** @typedef {{pixels: Uint8Array, time: number}} GifFrame  pixels: places in the palette, (height, width); time: hundredths of a second */

const gifColours = 256, colourBits = 5, mostCodes = 4096;

/**
 * The most frequent colours of pictures, to five bits a channel, and the place of every colour in them.
 * @param {Iterable<Uint8ClampedArray>} pictures  RGBA
 * @returns {{colours: Uint8Array, places: Uint8Array}} colours: (256, 3); places: by the 15 bits of a colour
 */
export function gifPalette(pictures) {
  const counts = new Uint32Array(1 << (3 * colourBits));
  for (const pixels of pictures) for (let at = 0; at < pixels.length; at += 4) counts[colourKey(pixels, at)]++;
  const best = [...counts.keys()].filter((key) => counts[key]).sort((one, other) => counts[other] - counts[one]).slice(0, gifColours);
  const colours = new Uint8Array(3 * gifColours), places = new Uint8Array(counts.length);
  const channels = (/** @type {number} */ key) => [key >> 10, (key >> 5) & 31, key & 31];
  best.forEach((key, place) => colours.set(channels(key).map((part) => (part << 3) | (part >> 2)), 3 * place));
  for (let key = 0; key < counts.length; key++) {
    let least = Infinity;
    const own = channels(key);
    best.forEach((one, place) => {
      const far = channels(one).reduce((sum, part, i) => sum + (part - own[i]) ** 2, 0);
      if (far < least) [least, places[key]] = [far, place];
    });
  }
  return { colours, places };
}

/** @param {Uint8ClampedArray} pixels @param {number} at */
function colourKey(pixels, at) {
  return ((pixels[at] >> 3) << 10) | ((pixels[at + 1] >> 3) << 5) | (pixels[at + 2] >> 3);
}

/** @param {Uint8ClampedArray} pixels  RGBA @param {Uint8Array} places @returns {Uint8Array} */
export function gifPixels(pixels, places) {
  return Uint8Array.from({ length: pixels.length / 4 }, (_, at) => places[colourKey(pixels, 4 * at)]);
}

/**
 * Each frame is packed when it comes, and kept until the next.
 * @param {AsyncIterable<GifFrame> | Iterable<GifFrame>} frames @param {number} width @param {number} height @param {Uint8Array} colours  (256, 3)
 * @returns {Promise<Uint8Array>} the file
 */
export async function gifFile(frames, width, height, colours) {
  const two = (/** @type {number} */ number) => [number & 255, number >> 8], letters = (/** @type {string} */ text) => [...text].map((letter) => letter.charCodeAt(0));
  const parts = [Uint8Array.of(...letters("GIF89a"), ...two(width), ...two(height), 0xf7, 0, 0), colours, Uint8Array.of(0x21, 0xff, 11, ...letters("NETSCAPE2.0"), 3, 1, 0, 0, 0)];
  /** @type {Uint8Array | null} */
  let before = null;
  for await (const { pixels, time } of frames) {
    let top = 0, bottom = height;
    if (before) {
      const old = before, isSame = (/** @type {number} */ row) => { for (let at = row * width; at < (row + 1) * width; at++) if (pixels[at] !== old[at]) return false; return true; };
      while (top < height - 1 && isSame(top)) top++;
      while (bottom > top + 1 && isSame(bottom - 1)) bottom--;
    }
    before = pixels;
    parts.push(Uint8Array.of(0x21, 0xf9, 4, 4, ...two(time), 0, 0, 0x2c, 0, 0, ...two(top), ...two(width), ...two(bottom - top), 0, 8), gifBlocks(gifCodes(pixels.subarray(top * width, bottom * width))));
  }
  return joinBytes([...parts, Uint8Array.of(0x3b)]);
}

/** @param {Uint8Array} bytes @returns {Uint8Array} in blocks of 255, each after its length */
function gifBlocks(bytes) {
  const blocks = Math.ceil(bytes.length / 255), result = new Uint8Array(bytes.length + blocks + 1);
  for (let block = 0; block < blocks; block++) {
    const part = bytes.subarray(255 * block, 255 * (block + 1));
    result[256 * block] = part.length;
    result.set(part, 256 * block + 1);
  }
  return result;
}

/**
 * LZW (Welch, "A Technique for High-Performance Data Compression", 1984) with codes of 9 to 12 bits, as GIF packs them.
 * @param {Uint8Array} pixels @returns {Uint8Array}
 */
export function gifCodes(pixels) {
  const clear = gifColours, end = clear + 1, next = new Uint16Array(mostCodes * gifColours);
  let out = new Uint8Array(1024), length = 0, bits = 0, count = 0, size = 9, last = end;
  const write = (/** @type {number} */ code) => {
    bits |= code << count;
    count += size;
    while (count >= 8) {
      if (length === out.length) { const larger = new Uint8Array(2 * length); larger.set(out); out = larger; }
      out[length++] = bits & 255;
      bits >>= 8;
      count -= 8;
    }
  };
  write(clear);
  let prefix = -1;
  for (const pixel of pixels) {
    if (prefix < 0) { prefix = pixel; continue; }
    const known = next[prefix * gifColours + pixel];
    if (known) { prefix = known; continue; }
    write(prefix);
    if (last + 1 < mostCodes) {
      next[prefix * gifColours + pixel] = ++last;
      if (last === 1 << size && size < 12) size++;
    } else {
      write(clear);
      next.fill(0);
      size = 9;
      last = end;
    }
    prefix = pixel;
  }
  if (prefix >= 0) write(prefix);
  write(end);
  size = 8;
  write(0);
  return out.subarray(0, length);
}
