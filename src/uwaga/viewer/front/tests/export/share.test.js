import assert from "node:assert/strict";
import { test } from "node:test";
import { fittingText, titledScene } from "../../export/share.js";

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
