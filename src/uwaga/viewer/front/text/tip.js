// What stands at the pointer: the token and its exact weights.
import { el, tokenElement } from "../dom.js";
import { weightText } from "./shade.js";

/**
 * @param {HTMLElement} inside
 * @returns {{show: (event: PointerEvent, item: number, label: string, lines: string[]) => void, hide: () => void}}
 */
export function makeTip(inside) {
  const element = el("div", { class: "uwaga-text-tip", hidden: true, role: "status", "aria-live": "off" });
  inside.append(element);
  let last = "";
  return {
    show(event, item, label, lines) {
      const said = `${item} ${label} ${lines.join()}`;
      if (said !== last) {
        last = said;
        element.replaceChildren(el("div", {}, `${item} `, tokenElement(label)), ...lines.map((line) => el("div", { text: line })));
      }
      element.hidden = false;
      const box = inside.getBoundingClientRect();
      const { offsetWidth, offsetHeight } = element;
      const below = event.clientY - box.top + 18;
      const top = below + offsetHeight > box.height ? event.clientY - box.top - offsetHeight - 10 : below;
      const left = Math.min(event.clientX - box.left + 10, box.width - offsetWidth - 4);
      element.style.setProperty("transform", `translate(${Math.max(0, left)}px, ${Math.max(0, top)}px)`);
    },
    hide() {
      element.hidden = true;
      last = "";
    },
  };
}

/**
 * @param {import("./pane.js").PaneLook} look
 * @param {number} item
 * @returns {string[]} the item's weights, in words
 */
export function tipLines({ row, column }, item) {
  return [
    ...(row ? [`gets ${weightText(row.weights[item])} of the query`] : []),
    ...(column ? [`gives ${weightText(column.weights[item])} to the key`] : []),
  ];
}
