// The heads of the layer as coloured boxes that are switched on and off.
import { el } from "../dom.js";

/**
 * @param {(heads: Set<number>) => void} onChange
 * @returns {{element: HTMLElement, show: (total: number, on: Set<number>, colour: (head: number) => string) => void}}
 */
export function makeHeadBoxes(onChange) {
  const element = el("div", { class: "uwaga-lines-heads", role: "group", "aria-label": "Heads; with Shift, that head alone" });
  /** @type {Set<number>} */
  let shown = new Set();
  const press = (/** @type {number} */ head, /** @type {boolean} */ alone) => {
    const next = new Set(alone ? [head] : shown);
    if (!alone && !next.delete(head)) next.add(head);
    onChange(next);
  };
  return {
    element,
    show(total, on, colour) {
      shown = on;
      if (element.childElementCount !== total) {
        element.replaceChildren(...Array.from({ length: total }, (_, head) => el("button", {
          type: "button", class: "uwaga-lines-head", text: String(head), "aria-label": `Head ${head}`,
          title: `head ${head}; Shift or a double click: this head alone`,
          on: { click: (/** @type {MouseEvent} */ event) => press(head, event.shiftKey), dblclick: () => press(head, true) },
        })));
      }
      [...element.children].forEach((button, head) => {
        button.setAttribute("aria-pressed", String(on.has(head)));
        /** @type {HTMLElement} */ (button).style.setProperty("--lines-head", colour(head));
      });
    },
  };
}
