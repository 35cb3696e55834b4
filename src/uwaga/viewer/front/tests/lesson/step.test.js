import assert from "node:assert/strict";
import { test } from "node:test";
import { scaleOf } from "../../lesson/chart.js";
import { bestHead, isSectionOpen, noModelText, stepStructure } from "../../lesson/step.js";
import { lessonScene } from "../../lesson/scene.js";
import { keptLesson } from "./saved_reply.js";

test("an axis begins at zero or below and ends at a round number", () => {
  const { low, high, ticks, at } = scaleOf([0.4, 0.97], false);
  assert.deepEqual([low, high, at(low), at(high)], [0, 1, 0, 1]);
  assert.deepEqual(ticks.map((tick) => tick.toFixed(2)), ["0.00", "0.50", "1.00"]);
  assert.equal(scaleOf([-3, 7], false).low, -5);
  assert.deepEqual(scaleOf([], false).ticks.length > 1, true);
});

test("a logarithmic axis ranges over powers of ten, and ignores numbers that are not positive", () => {
  const { low, high, ticks, at } = scaleOf([0, NaN, 4, 1013], true);
  assert.deepEqual([low, high, ticks], [1, 10000, [1, 10, 100, 1000, 10000]]);
  assert.ok(Math.abs(at(100) - 0.5) < 1e-12);
});

test("the shape of a step depends on its sizes, not on its numbers", () => {
  const lesson = keptLesson(), other = keptLesson();
  other.matrices.get("x").data[0] = 9;
  assert.equal(stepStructure(lesson, 0), stepStructure(other, 0));
  other.matrices.get("x").rows.push("more");
  assert.notEqual(stepStructure(lesson, 0), stepStructure(other, 0));
});

test("the section that answers is open; on a narrow page none where a picture stands above", () => {
  const lesson = keptLesson();
  lesson.steps.forEach(({ id, sections, pictures, drawing }, step) => {
    const open = (isNarrow) => sections.map((_, at) => isSectionOpen(lesson, step, at, isNarrow));
    assert.equal(open(false).includes(true), sections.length > 0, id);
    assert.equal(open(true).filter((one) => one).length, pictures.length || drawing ? 0 : 1, id);
    sections.forEach(({ folded }, at) => assert.ok(!folded || !open(false)[at], id));
  });
});

test("the best head has the largest or smallest value, and heads without a value are ignored", () => {
  const tables = [{ layer: 0, columns: { peak: [0.5, null] } }, { layer: 3, columns: { peak: [0.2, 0.9] } }, { layer: 4, columns: {} }];
  assert.deepEqual(bestHead(tables, { statistic: "peak", sense: "largest", why: "" }), { layer: 3, head: 1, value: 0.9 });
  assert.deepEqual(bestHead(tables, { statistic: "peak", sense: "smallest", why: "" }), { layer: 3, head: 0, value: 0.2 });
  assert.equal(bestHead(tables, { statistic: "induction", sense: "largest", why: "" }), null);
});

test("without a model, the text explains how to load one", () => {
  assert.equal(noModelText({ about: { sides: [] } }),
    "No model is loaded. \u201cuwaga view TEXT\u201d opens a text in one, with this lesson beside it.");
  assert.equal(noModelText({ about: { sides: [{ maps: [{ kind: "encoder", layer: 0, heads: 1 }] }] } }), "");
});

test("the exported drawing of a step has every number of its tables within its size", () => {
  globalThis.getComputedStyle = () => ({ getPropertyValue: () => "" });
  const { width, height, items } = lessonScene(keptLesson(), 7, 1, null);
  const texts = items.filter((item) => item.kind === "text").map((item) => item.text);
  assert.ok(texts.includes("Output Z = A V"));
  assert.ok(texts.includes("The sum, for one query (pen)"));
  const cells = items.filter((item) => item.kind === "rect");
  assert.equal(cells.length, 9 + 9 + 9 + 9 + 3);
  for (const { x, y, w, h } of cells) assert.ok(x >= 0 && y >= 0 && x + w <= width && y + h <= height);
});
