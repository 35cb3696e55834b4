// Form controls that several views use.

import { el } from "./dom.js";
import { tr } from "./languages.js";

/**
 * A segmented control: buttons of which one is pressed.
 * @template {string} Name
 * @param {string} label  for screen readers
 * @param {{name: Name, title: string, hint?: string}[]} choices
 * @param {(name: Name) => void} onChoose
 * @returns {{element: HTMLElement, show: (name: string) => void}}
 */
export function segmentedControl(label, choices, onChoose) {
  const buttons = choices.map(({ name, title, hint }) =>
    el("button", { type: "button", text: title, title: hint, "aria-pressed": "false", on: { click: () => onChoose(name) } }));
  return {
    element: el("div", { class: "uwaga-segments", role: "group", "aria-label": label }, buttons),
    show(name) {
      choices.forEach((choice, i) => buttons[i].setAttribute("aria-pressed", String(choice.name === name)));
    },
  };
}

/**
 * A toggle button.
 * @param {string} title
 * @param {string} hint
 * @param {() => void} onPress
 * @returns {{element: HTMLButtonElement, show: (on: boolean) => void}}
 */
export function toggle(title, hint, onPress) {
  const element = el("button", { type: "button", text: title, title: hint, "aria-pressed": "false", on: { click: onPress } });
  return { element, show: (on) => element.setAttribute("aria-pressed", String(on)) };
}

/**
 * A select with buttons for the previous and the next value.
 * @param {string} label
 * @param {(value: number) => void} onChoose
 * @returns {{element: HTMLElement, show: (values: number[], value: number) => void}}
 */
export function stepper(label, onChoose) {
  /** @type {number[]} */
  let shown = [];
  const select = el("select", { "aria-label": label, on: { change: () => onChoose(Number(select.value)) } });
  const step = (/** @type {number} */ by) => {
    const at = shown.indexOf(Number(select.value)) + by;
    if (at >= 0 && at < shown.length) onChoose(shown[at]);
  };
  const before = el("button", { type: "button", text: "\u2039", "aria-label": tr("{label}: previous", { label }), on: { click: () => step(-1) } });
  const after = el("button", { type: "button", text: "\u203a", "aria-label": tr("{label}: next", { label }), on: { click: () => step(1) } });
  return {
    element: el("div", { class: "uwaga-stepper", role: "group", "aria-label": label },
      el("span", { class: "uwaga-label", "aria-hidden": "true", text: label }), before, select, after),
    show(values, value) {
      if (values.join() !== shown.join()) {
        shown = values;
        select.replaceChildren(...values.map((one) => el("option", { value: one, text: String(one) })));
      }
      select.value = String(value);
      before.disabled = values.indexOf(value) <= 0;
      after.disabled = values.indexOf(value) >= values.length - 1;
    },
  };
}

/**
 * A button that opens a panel below it. Esc and leaving it close the panel.
 * @param {string} title
 * @param {HTMLElement} content
 * @param {() => void} [onOpen]
 * @returns {{element: HTMLElement, button: HTMLButtonElement, open: (on: boolean) => void}}
 */
export function menuButton(title, content, onOpen = () => {}) {
  const button = el("button", { type: "button", text: title, "aria-haspopup": "true", "aria-expanded": "false",
    on: { click: () => open(content.hidden) } });
  const element = el("div", { class: "uwaga-menu", on: {
    keydown(/** @type {KeyboardEvent} */ event) {
      if (event.key !== "Escape" || content.hidden) return;
      event.stopPropagation();
      open(false);
      button.focus();
    },
    focusout(/** @type {FocusEvent} */ event) {
      // A click on the menu's own ground moves the focus to nothing.
      if (event.relatedTarget instanceof Node && !element.contains(event.relatedTarget)) open(false);
    },
  } }, button, content);
  content.classList.add("uwaga-menu-content");
  content.hidden = true;
  /** @param {boolean} on */
  function open(on) {
    content.hidden = !on;
    button.setAttribute("aria-expanded", String(on));
    if (on) onOpen();
  }
  return { element, button, open };
}
