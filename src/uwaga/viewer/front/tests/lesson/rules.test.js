import assert from "node:assert/strict";
import { test } from "node:test";
import { hasCell, withNumber } from "../../lesson/reply.js";
import { recomputed, sourcesOf } from "../../lesson/rules.js";
import { everyCell, keptLesson } from "./saved_reply.js";

const lesson = keptLesson();

test("the numbers of the reply come out again, and everything is shown", () => {
  const again = recomputed(lesson, structuredClone(lesson.request));
  assert.equal(again.matrices.size, lesson.matrices.size);
  for (const [id, { data }] of again.matrices) data.forEach((value, at) => {
    const before = lesson.matrices.get(id).data[at];
    assert.ok(Object.is(value, before) || Math.abs(value - before) <= 1e-3 * (1 + Math.abs(before)), `${id} ${at}: ${value} ${before}`);
  });
});

test("another number of X changes what follows from it, and hides what no rule gives", () => {
  const edited = recomputed(lesson, withNumber(lesson.request, "x", 1, 0, 7));
  assert.equal(edited.matrices.get("x").data[lesson.matrices.get("x").columns.length], 7);
  assert.notDeepEqual(edited.matrices.get("next_word").data, lesson.matrices.get("next_word").data);
  const hidden = [...lesson.matrices.keys()].filter((id) => !edited.matrices.has(id));
  assert.deepEqual(hidden.sort(), ["hard_output", "hard_weights", "hardening", "packed", "packed_apart", "padded", "with_apart", "with_order", "with_shuffled",
    "without_apart", "without_shuffled"]);
  for (const { question, told, ledger, sections, pictures } of edited.steps) {
    assert.deepEqual([question, told, ledger], [null, [], []]);
    for (const { findings, matrices, charts } of sections) {
      assert.deepEqual(findings, []);
      assert.ok([...matrices, ...charts.map(({ matrix }) => matrix)].every((id) => edited.matrices.has(id)));
    }
    for (const { matrices } of [...pictures, ...sections.flatMap((section) => section.pictures)]) assert.ok(matrices.every((id) => edited.matrices.has(id)));
  }
  for (const cell of everyCell(edited)) assert.ok(sourcesOf(edited, cell).every((source) => hasCell(edited, source)));
});

test("another payload hides no table: what no rule gives does not depend on it", () => {
  const edited = recomputed(lesson, withNumber(lesson.request, "payload", 0, 0, 7));
  assert.equal(edited.matrices.size, lesson.matrices.size);
  assert.deepEqual(edited.steps.map(({ sections }) => sections.map(({ matrices }) => matrices)), lesson.steps.map(({ sections }) => sections.map(({ matrices }) => matrices)));
});
