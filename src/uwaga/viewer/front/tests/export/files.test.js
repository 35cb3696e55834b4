import assert from "node:assert/strict";
import { test } from "node:test";
import { inflateSync } from "node:zlib";
import { parseColour } from "../../colours.js";
import { csvFile, csvWeight } from "../../export/weights.js";
import { fileName } from "../../export/weights.js";
import { fittingScale } from "../../export/canvas.js";
import { pdfFile } from "../../export/pdf.js";
import { base64, pngFile } from "../../export/png.js";
import { svgEscape, svgFile } from "../../export/svg.js";
import { winansiCodes, winansiWidth } from "../../export/pdf.js";

const where = { side: "0", kind: "encoder", layer: 3, head: 5, merge: "tokens", specials: "show" };
const text = (string, rest = {}) => ({ kind: "text", x: 10, y: 20, text: string, size: 12, anchor: "start", fill: "#102030", ...rest });
const scene = (...items) => ({ width: 200, height: 100, background: "#ffffff", items });
const latin = (bytes) => Buffer.from(bytes).toString("latin1");

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

test("an encoded PNG decodes to the same pixels", async () => {
  const pixels = Uint8ClampedArray.from({ length: 3 * 2 * 4 }, (_, i) => (i * 37) % 256);
  const file = Buffer.from(await pngFile(pixels, 3, 2));
  assert.equal(file.toString("latin1", 1, 4), "PNG");
  assert.deepEqual([file.readUInt32BE(16), file.readUInt32BE(20)], [3, 2]);
  const length = file.readUInt32BE(33);
  const rows = inflateSync(file.subarray(41, 41 + length));
  assert.deepEqual([...rows.subarray(1, 13), ...rows.subarray(14, 26)], [...pixels]);
  assert.equal(file.toString("latin1", file.length - 8, file.length - 4), "IEND");
  assert.equal(file.readUInt32BE(file.length - 4), 0xae426082); // the check of an empty IEND, as the standard gives it
});

test("base64 equals that of Node", () => {
  const bytes = Uint8Array.from({ length: 100_001 }, (_, i) => (i * 7) % 256);
  assert.equal(base64(bytes), Buffer.from(bytes).toString("base64"));
});

test("text in an SVG is escaped", async () => {
  const svg = await svgFile(scene(text('<script>alert("1")</script> & \u0007\ud800')), "a <title>");
  assert.ok(svg.includes("&lt;script&gt;alert(&quot;1&quot;)&lt;/script&gt; &amp; \ufffd\ufffd"));
  assert.ok(svg.includes("<title>a &lt;title&gt;</title>"));
  assert.ok(!svg.includes("<script"));
  assert.equal(svgEscape("\u{1f600}"), "\u{1f600}");
});

test("an SVG has every shape of the scene, with colours that every reader supports", async () => {
  const pixels = new Uint8ClampedArray([255, 0, 0, 255]);
  const svg = await svgFile(scene({ kind: "rect", x: 1, y: 2, w: 3, h: 4.00049, fill: "rgba(255, 0, 0, 0.5)" },
    { kind: "line", x1: 0, y1: 0, x2: 9, y2: 9, stroke: "#00f", width: 2, opacity: 0.25 },
    { kind: "path", d: [["M", 0, 0], ["C", 1, 2, 3, 4, 5, 6]], stroke: "#000000", width: 1, opacity: 1 },
    { kind: "image", x: 0, y: 0, w: 50, h: 50, pixels, columns: 1, rows: 1 }));
  assert.ok(svg.includes('<rect x="1" y="2" width="3" height="4" fill="#ff0000" fill-opacity="0.5"/>'));
  assert.ok(svg.includes('stroke="#0000ff" stroke-opacity="0.25" stroke-width="2"'));
  assert.ok(svg.includes('d="M0 0C1 2 3 4 5 6" fill="none" stroke="#000000"'));
  assert.ok(svg.includes('href="data:image/png;base64,iVBORw0KGgo'));
});

test("text in the characters of Helvetica has codes and widths; other text has none", () => {
  assert.deepEqual(winansiCodes("a\u20acz\u00e9"), [97, 128, 122, 233]);
  assert.ok(Math.abs(winansiWidth([65, 32]) - 0.945) < 1e-12);
  assert.equal(winansiCodes("\u05e9"), null);
  assert.equal(winansiCodes("\n"), null);
  assert.equal(winansiCodes("\u0081"), null);
});

/** The objects of a PDF, located by its cross-reference table. */
function pdfObjectsOf(bytes) {
  const file = latin(bytes), start = Number(/startxref\n(\d+)\n%%EOF\n$/.exec(file)[1]);
  assert.ok(file.startsWith("%PDF-1.7\n"));
  const [, count] = /^xref\n0 (\d+)\n/.exec(file.slice(start));
  const rows = file.slice(file.indexOf("\n", start + 5) + 1).split("\n").slice(1, Number(count));
  return rows.map((row, i) => {
    assert.equal(`${row}\n`.length, 20);
    const at = Number(row.slice(0, 10)), head = `${i + 1} 0 obj\n`;
    assert.equal(file.slice(at, at + head.length), head);
    return file.slice(at + head.length, file.indexOf("\nendobj\n", at));
  });
}

/** @returns {string} the first content stream, decompressed */
function pdfContent(objects) {
  const page = objects.find((body) => body.includes("/Type /Page "));
  const body = objects[Number(/\/Contents (\d+)/.exec(page)[1]) - 1];
  const length = Number(/\/Length (\d+)/.exec(body)[1]), start = body.indexOf("stream\n") + 7;
  return inflateSync(Buffer.from(body.slice(start, start + length), "latin1")).toString("latin1");
}

test("the cross-reference table of a PDF has the offsets of its objects, and its page has the drawing", async () => {
  const objects = pdfObjectsOf(await pdfFile(scene(text("naive (caf\u00e9)"),
    { kind: "rect", x: 0, y: 0, w: 10, h: 10, fill: "rgba(0, 0, 255, 0.5)" },
    { kind: "line", x1: 0, y1: 0, x2: 1e-9, y2: 9, stroke: "#f00", width: 1, opacity: 0.3 })));
  const content = pdfContent(objects);
  assert.ok(content.startsWith("0.750000 0 0 -0.750000 0 75 cm\n"));
  assert.ok(content.includes(`<${Buffer.from("naive (caf\u00e9)", "latin1").toString("hex")}> Tj`));
  assert.ok(!/\de-/.test(content));
  const page = objects.find((body) => body.includes("/Type /Page "));
  assert.ok(page.includes("/MediaBox [0 0 150 75]"));
  assert.ok(page.includes("/ca 0.5") && page.includes("/CA 0.3"));
});

test("text anchored at its end or middle is placed by its width", async () => {
  const content = pdfContent(pdfObjectsOf(await pdfFile(scene(text("AA", { anchor: "end", size: 10 }),
    text("AA", { anchor: "middle", size: 10 })))));
  assert.ok(content.includes("1 0 0 -1 -13.34 0 Tm"));
  assert.ok(content.includes("1 0 0 -1 -6.67 0 Tm"));
});

test("text outside Helvetica is an image with transparency", async () => {
  const asked = [];
  const paintText = (item) => {
    asked.push(item.text);
    return { pixels: new Uint8ClampedArray([1, 2, 3, 0, 4, 5, 6, 255]), columns: 2, rows: 1, x: -1, y: -9, w: 20, h: 10 };
  };
  const objects = pdfObjectsOf(await pdfFile(scene(text("\u65e5\u672c"), text("plain")), { paintText }));
  assert.deepEqual(asked, ["\u65e5\u672c"]);
  assert.equal(objects.filter((body) => body.includes("/SMask")).length, 1);
  assert.ok(pdfContent(objects).includes("q 20 0 0 -10 -1 1 cm /I0 Do Q"));
});

test("PDF pages of any size are within the limits of readers", async () => {
  const huge = { ...scene(), width: 100_000, height: 50 };
  const page = pdfObjectsOf(await pdfFile(huge)).find((body) => body.includes("/Type /Page "));
  assert.ok(page.includes("/MediaBox [0 0 14400 7.2]"));
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
