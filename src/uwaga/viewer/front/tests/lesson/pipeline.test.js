import assert from "node:assert/strict";
import { test } from "node:test";
import { splitTerms } from "../../lesson/explanation.js";
import { boxesOf, boxState, ownBoxes } from "../../lesson/pipeline.js";
import { keptLesson } from "./saved_reply.js";

const lesson = keptLesson();
const stepOf = (id) => lesson.steps.findIndex((step) => step.id === id);

test("every step and matrix that the drawing names is in the lesson", () => {
  for (const [step, slots] of Object.entries(ownBoxes)) {
    assert.ok(stepOf(step) >= 0, step);
    for (const [slot, [id]] of Object.entries(slots)) {
      if (id && id !== "first" && slot !== "head3") assert.ok(lesson.matrices.has(id), `${step}: ${id}`);
    }
  }
});

test("a matrix is of this step, of an earlier or of a later one", () => {
  assert.equal(boxState(lesson, stepOf("scores"), "q"), "here");
  assert.equal(boxState(lesson, stepOf("softmax"), "q"), "past");
  assert.equal(boxState(lesson, stepOf("crude"), "q"), "coming");
  assert.equal(boxState(lesson, stepOf("crude"), ""), "coming");
});

test("no two boxes overlap, and all stand inside the drawing, in every step", () => {
  lesson.steps.forEach((_, step) => {
    const boxes = boxesOf(lesson, step);
    for (const box of boxes) assert.ok(box.y >= 12 && box.y + box.rows * box.cell <= 220, `${lesson.steps[step].id}: ${box.slot}`);
    for (const [at, one] of boxes.entries()) {
      for (const other of boxes.slice(at + 1)) {
        const apart = one.x + one.columns * one.cell <= other.x || other.x + other.columns * other.cell <= one.x
          || one.y + one.rows * one.cell <= other.y || other.y + other.rows * other.cell <= one.y;
        assert.ok(apart, `${lesson.steps[step].id}: ${one.slot} and ${other.slot}`);
      }
    }
  });
});

test("the terms of a calculation begin behind a plus", () => {
  const cell = (column) => ({ cell: { of: "q", row: 0, column, slice: null } });
  assert.deepEqual(splitTerms([cell(0), " \u00b7 ", cell(1), " + ", cell(2)]), [[cell(0), " \u00b7 ", cell(1)], [" + ", cell(2)]]);
  assert.deepEqual(splitTerms([cell(0)]), [[cell(0)]]);
});
