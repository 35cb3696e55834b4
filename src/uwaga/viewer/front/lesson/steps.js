// The way through the lesson: all steps by name, the one before and the one after, and how far one is.

import { el } from "../dom.js";

/**
 * @param {(step: number) => void} go
 * @returns {{element: HTMLElement, footer: HTMLElement, update: (lesson: import("./reply.js").Lesson, step: number) => void}}
 */
export function lessonSteps(go) {
  let at = 0;
  const list = el("ol", { class: "lesson-list" });
  const select = el("select", { class: "lesson-select", "aria-label": "Step", on: { change: () => go(Number(select.value)) } });
  const progress = el("progress", { class: "lesson-progress", "aria-label": "Progress", value: 0, max: 1 });
  const count = el("span", { class: "lesson-count" });
  const before = el("button", { type: "button", class: "lesson-before", title: "Step before (p)", on: { click: () => go(at - 1) } });
  const after = el("button", { type: "button", class: "lesson-after", title: "Next step (n)", on: { click: () => go(at + 1) } });
  return {
    element: el("nav", { class: "lesson-nav", "aria-label": "Steps of the lesson" }, progress, count, select, list),
    footer: el("div", { class: "lesson-footer" }, before, after),
    update(lesson, step) {
      at = step;
      const { steps } = lesson;
      progress.max = steps.length;
      progress.value = step + 1;
      count.textContent = `Step ${step + 1} of ${steps.length}`;
      if (list.childElementCount !== steps.length) {
        list.replaceChildren(...steps.map((one, place) => el("li", {}, el("button", { type: "button", on: { click: () => go(place) } }))));
        select.replaceChildren(...steps.map((one, place) => el("option", { value: place })));
      }
      steps.forEach((one, place) => {
        const title = one.number ? `${one.title} (${one.number})` : one.title;
        const button = /** @type {HTMLElement} */ (list.children[place].firstElementChild);
        button.textContent = title;
        if (place === step) button.setAttribute("aria-current", "step");
        else button.removeAttribute("aria-current");
        select.options[place].textContent = `${place + 1}. ${title}`;
      });
      select.value = String(step);
      before.disabled = step === 0;
      after.disabled = step === steps.length - 1;
      before.textContent = step > 0 ? `\u2190 ${steps[step - 1].title}` : "\u2190 Back";
      after.textContent = step < steps.length - 1 ? `${steps[step + 1].title} \u2192` : "The end";
    },
  };
}
