import assert from "node:assert/strict";
import { test } from "node:test";
import { fittingText, ribbonItems, sentenceItems, titledScene } from "../../export/share.js";

test("a title moves every item down and is cut to the width of the picture", () => {
  const scene = { width: 200, height: 100, background: "#ffffff", items: [
    { kind: "rect", x: 1, y: 2, w: 3, h: 4, fill: "#000000" }, { kind: "line", x1: 0, y1: 1, x2: 5, y2: 6, stroke: "#000000", width: 1, opacity: 1 },
    { kind: "path", d: [["M", 1, 2], ["L", 3, 4]], stroke: "#000000", width: 1, opacity: 1 }] };
  const { items: [title, text, rect, line, path], height } = titledScene(scene, { title: "m, encoder layer 0, head 1", text: "word ".repeat(50), ink: "#111111", muted: "#222222" });
  const by = height - scene.height;
  assert.ok(by > 40);
  assert.deepEqual([rect.y, line.y1, line.y2, path.d], [2 + by, 1 + by, 6 + by, [["M", 1, 2 + by], ["L", 3, 4 + by]]]);
  assert.ok(title.text.startsWith("m, encoder") && text.text.endsWith("\u2026") && text.text.length < 40);
});

test("a text that fits is not cut", () => {
  assert.equal(fittingText("tired", 10, 100), "tired");
  assert.equal(fittingText("tired", 10, 15), "ti\u2026");
});

test("a picture to share has the words, the arcs from 1.5% up, and one number", () => {
  const labels = ["[CLS]", "it", "saw", "the", "cat", "[SEP]"], words = /** @type {any} */ ({ labels, specials: new Set([0, 5]), noSpaceBefore: labels.map(() => 0), total: 6 });
  const paint = { from: "#c43e0a", middle: "#953695", to: "#1556b0", ink: "#1b1d22", muted: "#5f6168" };
  const items = sentenceItems(words, 1, 4, [0.2, 0.1, 0.01, 0.09, 0.5, 0.1], { width: 1200, base: 452, rise: 384, paint }), texts = items.filter(({ kind }) => kind === "text");
  assert.deepEqual(texts.map((/** @type {any} */ { text }) => text), ["50%", "it", "saw", "the", "cat"]);
  assert.deepEqual(texts.slice(1).map((/** @type {any} */ { fill }) => fill), [paint.from, paint.muted, paint.ink, paint.to]);
  assert.equal(new Set(items.filter(({ kind }) => kind === "path").map((/** @type {any} */ { width }) => width)).size, 2, "of the and cat");
  assert.ok(items.every((/** @type {any} */ item) => item.kind !== "text" || (item.x > 0 && item.x < 1200)));
  assert.deepEqual(sentenceItems({ ...words, labels: Array(40).fill("word") }, 1, 4, Array(40).fill(0.025), { width: 1200, base: 452, rise: 384, paint }), []);
});

test("two rows are shared as ribbons of the picked one, as wide as their weights, with one number", () => {
  const items = (/** @type {string[]} */ labels) => /** @type {any} */ ({ labels, specials: new Set(), total: labels.length });
  const paint = { from: "#c43e0a", middle: "#953695", to: "#1556b0", ink: "#1b1d22", muted: "#5f6168", edge: "#8a877d" };
  const place = { width: 1200, top: 90, base: 492, paint, sinks: new Set() };
  const texts = { queries: items(["K", "AE", "T"]), keys: items(["c", "a", "t"]) }, drawn = ribbonItems(texts, 1, 1, [0.2, 0.79, 0.01], place);
  assert.deepEqual(drawn.filter(({ kind }) => kind === "text").map((/** @type {any} */ { text }) => text), ["79%", "c", "a", "t", "K", "AE", "T"]);
  const widths = [...new Set(drawn.filter(({ kind }) => kind === "path").map((/** @type {any} */ { width }) => width))];
  assert.equal(widths.length, 2, "0.01 is too little");
  assert.ok(Math.abs(widths[0] / widths[1] - 0.2 / 0.79) < 1e-3);
  const long = { queries: items(Array(40).fill("K")), keys: items(Array.from({ length: 64 }, (_, i) => String(i))) }, folds = ribbonItems(long, 20, 30, Array(64).fill(1 / 64), place);
  assert.deepEqual(folds.filter((/** @type {any} */ { text }) => text?.startsWith("+")).map((/** @type {any} */ { text }) => text), ["+18", "+21", "+8", "+7"]);
  assert.deepEqual(ribbonItems({ ...texts, keys: items(["a whole passage"]) }, 0, 0, [1], place), []);
});
