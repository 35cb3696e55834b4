// A reply that Python computed; tests/lessons/test_kept_reply.py compares it with the present one.

import { readFileSync } from "node:fs";
import { readLesson } from "../../lesson/reply.js";

const kept = JSON.parse(readFileSync(new URL("reply.json", import.meta.url), "utf8"));

/** @returns {import("../../lesson/reply.js").Lesson} */
export function keptLesson() {
  return readLesson(keptReply());
}

/** @returns {import("../../types.js").Reply} */
export function keptReply() {
  const arrays = kept.arrays.map(({ shape, data }) => ({ shape, data: Float32Array.from(data, (value) => value ?? NaN) }));
  return { meta: structuredClone(kept.meta), arrays };
}

/** Every cell of every matrix. @param {import("../../lesson/reply.js").Lesson} lesson */
export function* everyCell(lesson) {
  for (const [of, { rows, columns, sliced, data }] of lesson.matrices) {
    const slices = sliced ? data.length / rows.length / columns.length : 1;
    for (let slice = 0; slice < slices; slice++) {
      for (let row = 0; row < rows.length; row++) {
        for (let column = 0; column < columns.length; column++) yield { of, row, column, slice: sliced ? slice : null };
      }
    }
  }
}
