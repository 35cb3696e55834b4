import assert from "node:assert/strict";
import { test } from "node:test";
import { csvFile, csvWeight, fileName } from "../../export/weights.js";
import { fittingScale } from "../../export/canvas.js";
import { escaped, parseColour, svgFile } from "../../export/svg.js";

const where = { side: "0", kind: "encoder", layer: 3, head: 5, merge: "tokens", specials: "show" };
const text = (string, rest = {}) => ({ kind: "text", x: 10, y: 20, text: string, size: 12, anchor: "start", fill: "#102030", ...rest });
const scene = (...items) => ({ width: 200, height: 100, background: "#ffffff", items });

test("CSS colours are parsed", () => {
  assert.deepEqual(parseColour("#f00"), { r: 1, g: 0, b: 0, a: 1 });
  assert.deepEqual(parseColour("#00ff0080"), { r: 0, g: 1, b: 0, a: 128 / 255 });
  assert.deepEqual(parseColour("rgb(255, 0, 51)"), { r: 1, g: 0, b: 0.2, a: 1 });
  assert.deepEqual(parseColour("rgb(0 0 255 / 25%)"), { r: 0, g: 0, b: 1, a: 0.25 });
  assert.deepEqual(parseColour("color(srgb 0.5 0 1 / 0.5)"), { r: 0.5, g: 0, b: 1, a: 0.5 });
  assert.equal(parseColour("none"), null);
  assert.equal(parseColour("transparent"), null);
  assert.throws(() => parseColour("tomato soup"), { message: 'cannot read the colour "tomato soup"' });
});

test("text in an SVG is escaped", () => {
  const svg = svgFile(scene(text('<script>alert("1")</script> & \u0007\ud800')), "a <title>");
  assert.ok(svg.includes("&lt;script&gt;alert(&quot;1&quot;)&lt;/script&gt; &amp; \ufffd\ufffd"));
  assert.ok(svg.includes("<title>a &lt;title&gt;</title>"));
  assert.ok(!svg.includes("<script"));
  assert.equal(escaped("\u{1f600}"), "\u{1f600}");
});

test("an SVG has every shape of the scene, with colours that every reader supports", () => {
  const svg = svgFile(scene({ kind: "rect", x: 1, y: 2, w: 3, h: 4.00049, fill: "rgba(255, 0, 0, 0.5)" },
    { kind: "line", x1: 0, y1: 0, x2: 9, y2: 9, stroke: "#00f", width: 2, opacity: 0.25 },
    { kind: "path", d: [["M", 0, 0], ["C", 1, 2, 3, 4, 5, 6]], stroke: "#000000", width: 1, opacity: 1 }));
  assert.ok(svg.includes('<rect x="1" y="2" width="3" height="4" fill="#ff0000" fill-opacity="0.5"/>'));
  assert.ok(svg.includes('stroke="#0000ff" stroke-opacity="0.25" stroke-width="2"'));
  assert.ok(svg.includes('d="M0 0C1 2 3 4 5 6" fill="none" stroke="#000000"'));
});

test("exported pictures are limited to the largest canvas size", () => {
  assert.equal(fittingScale(1000, 500, 2), 2);
  assert.equal(fittingScale(32768, 10, 2), 0.5);
  assert.ok(Math.abs(16000 * 16000 * fittingScale(16000, 16000, 2) ** 2 - 64 * 1024 * 1024) < 1);
});

test("a CSV names rows and columns by position and token, quoted, and escapes formulas", () => {
  const csv = csvFile({ weights: Float32Array.of(0.1, 1, NaN, 0.5), firstRow: 7, firstColumn: 2,
    rows: ["=1+1", 'say "a"'], columns: ["a,b", "line\nbreak"] });
  assert.equal(csv, '"query \\ key","2 a,b","3 line\nbreak"\r\n"7 =1+1",0.1,1\r\n"8 say ""a""",,0.5\r\n');
});

test("weights are the shortest decimals that round to the same float32", () => {
  for (let i = 0; i < 20_000; i++) {
    const value = Math.fround(Math.random() ** 8);
    const written = csvWeight(value);
    assert.equal(Math.fround(Number(written)), value);
    assert.ok(written.replace(/^0\.0*|e.*$|\./g, "").length <= 9, written);
  }
  assert.equal(csvWeight(Math.fround(0.1)), "0.1");
  assert.equal(csvWeight(0), "0");
});

test("file names describe the content, in characters that every file system accepts", () => {
  assert.equal(fileName({ model: "org/all-MiniLM-L6-v2", where, what: "text", ending: "png" }),
    "uwaga_all-MiniLM-L6-v2_encoder_layer3_head5_text.png");
  assert.equal(fileName({ model: "../..\\x:y*",
    where: { ...where, side: "difference", merge: "words", specials: "hide" }, what: "weights",
    block: { rows: [0, 64], columns: [5, 9] }, ending: "csv" }),
    "uwaga_x-y_encoder_layer3_head5_difference_words_no-specials_weights_0-64x5-9.csv");
  assert.equal(fileName({ model: "", where, what: "map", ending: "svg" }), "uwaga_encoder_layer3_head5_map.svg");
});
