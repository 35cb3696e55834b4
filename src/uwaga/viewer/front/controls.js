// Form controls that several views use.

import { el } from "./dom.js";

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
 * A button that opens a panel below it. Esc and leaving it close the panel.
 * @param {string} title @param {HTMLElement} content @param {() => void} [onOpen]
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
