import assert from "node:assert/strict";
import { test } from "node:test";
import { gifCodes, gifFile, gifPalette, gifPixels } from "../../export/gif.js";

/** What a reader of GIF makes of packed codes. */
function decoded(bytes) {
  let at = 0, size = 9, table = [], last = null;
  const result = [], reset = () => { table = Array.from({ length: 258 }, (_, i) => (i < 256 ? [i] : [])); size = 9; last = null; };
  const read = () => {
    let code = 0;
    for (let bit = 0; bit < size; bit++, at++) code |= ((bytes[at >> 3] >> (at & 7)) & 1) << bit;
    return code;
  };
  reset();
  for (;;) {
    const code = read();
    if (code === 256) { reset(); continue; }
    if (code === 257) return result;
    const entry = code < table.length ? table[code] : [...last, last[0]];
    for (const pixel of entry) result.push(pixel);
    if (last && table.length < 4096) table.push([...last, entry[0]]);
    if (table.length === 1 << size && size < 12) size++;
    last = entry;
  }
}

test("packed codes are read back, whatever the pixels, over many full tables", () => {
  let seed = 7;
  const random = () => (seed = (seed * 16807) % 2147483647) / 2147483647;
  for (const [count, colours] of [[0, 1], [1, 256], [50_000, 1], [50_000, 2], [60_000, 256]]) {
    const pixels = Uint8Array.from({ length: count }, () => Math.floor(random() * colours));
    assert.deepEqual(decoded(gifCodes(pixels)), [...pixels]);
  }
});

test("a palette has the most frequent colours, and every other colour is the nearest of them", () => {
  const paper = [251, 250, 246, 255], ink = [27, 29, 34, 255], rare = [30, 30, 30, 255], picture = Uint8ClampedArray.from([...Array(50).fill(paper), ...Array(20).fill(ink), rare].flat());
  const { colours, places } = gifPalette([picture]), pixels = gifPixels(picture, places);
  const colour = (place) => [...colours.subarray(3 * place, 3 * place + 3)];
  for (const [at, wanted] of [[0, paper], [50, ink], [70, rare]]) assert.ok(colour(pixels[at]).every((part, i) => Math.abs(part - wanted[i]) <= 8));
});

test("a file has its sizes, a loop, and of a later frame only the rows that differ", async () => {
  const first = new Uint8Array(12), second = Uint8Array.from(first);
  second[5] = 1;
  const file = await gifFile([{ pixels: first, time: 5 }, { pixels: second, time: 70 }], 4, 3, new Uint8Array(768));
  assert.equal(String.fromCharCode(...file.subarray(0, 6)), "GIF89a");
  assert.deepEqual([...file.subarray(6, 11)], [4, 0, 3, 0, 0xf7]);
  assert.equal(file.at(-1), 0x3b);
  const controls = [...file.keys()].filter((at) => at > 781 && file[at] === 0x21 && file[at + 1] === 0xf9);
  assert.deepEqual(controls.map((at) => [file[at + 4], ...file.subarray(at + 9, at + 17)]), [[5, 0, 0, 0, 0, 4, 0, 3, 0], [70, 0, 0, 1, 0, 4, 0, 1, 0]]);
});

test("frames are packed one after the other, as they come", async () => {
  const log = [];
  async function* frames() {
    for (let at = 0; at < 3; at++) {
      log.push(`frame ${at}`);
      yield { get pixels() { log.push(`packed ${at}`); return new Uint8Array(4); }, time: 5 };
      await new Promise((resolve) => setTimeout(resolve));
    }
  }
  await gifFile(frames(), 2, 2, new Uint8Array(768));
  assert.deepEqual(log, [0, 1, 2].flatMap((at) => [`frame ${at}`, `packed ${at}`]));
});
