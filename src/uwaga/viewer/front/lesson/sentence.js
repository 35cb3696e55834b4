// The sentence that the lesson is about, and the way back to the first numbers.

import { el } from "../dom.js";
import { lessonWords } from "./edits.js";

/**
 * @param {{write: (tokens: string[]) => void, reset: () => void, isReadOnly: boolean}} actions
 * @returns {{element: HTMLElement, update: (lesson: import("./reply.js").Lesson) => void}}
 */
export function lessonSentence({ write, reset, isReadOnly }) {
  let most = 1;
  const wrong = el("span", { class: "lesson-wrong", role: "alert", hidden: true });
  const input = el("input", { type: "text", class: "lesson-sentence", autocomplete: "off", spellcheck: "false", readonly: isReadOnly });
  const button = el("button",
    { type: "button", text: "Reset", title: "Sentence and numbers as they were (Shift+R)", disabled: isReadOnly, on: { click: reset } });

  function read() {
    const found = lessonWords(input.value, most);
    input.setAttribute("aria-invalid", String("wrong" in found));
    wrong.hidden = !("wrong" in found);
    wrong.textContent = "wrong" in found ? found.wrong : "";
    if ("words" in found) write(found.words);
  }
  input.addEventListener("change", read);
  input.addEventListener("keydown", (event) => { if (event.key === "Enter") { event.preventDefault(); read(); } });
  return {
    element: el("div", { class: "lesson-top" },
      el("label", { class: "lesson-control" }, "Sentence, with spaces between words ", input), button, wrong),
    update(lesson) {
      most = lesson.limits.tokens;
      if (input.getAttribute("aria-invalid") !== "true" || input !== input.ownerDocument.activeElement) {
        input.value = lesson.question.tokens.join(" ");
        input.setAttribute("aria-invalid", "false");
        wrong.hidden = true;
      }
    },
  };
}
