// Every command with its keys, by group.

import { el } from "../dom.js";

/** @type {{[key: string]: string}} */
const helpKeys = { arrowup: "\u2191", arrowdown: "\u2193", arrowleft: "\u2190", arrowright: "\u2192",
  escape: "Esc", pageup: "Page Up", pagedown: "Page Down" };

/**
 * @param {string} key  such as "Shift+ArrowUp"
 * @returns {string} such as "Shift+(arrow up)"
 */
export function keyTitle(key) {
  return key.split(/(?<=.)\+(?=.)/).map((part) =>
    helpKeys[part.toLowerCase()] ?? (part.length === 1 ? part.toUpperCase() : part)).join("+");
}

/**
 * @param {import("../types.js").App} app
 * @returns {{element: HTMLDialogElement, toggle: () => void}}
 */
export function makeHelp(app) {
  const single = el("input", { type: "checkbox", on: { change: () => app.store.set({ shortcuts: single.checked }) } });
  const body = el("div", { class: "uwaga-help" });
  const title = el("h2", { text: "Keyboard", id: `uwaga-help-${Math.random().toString(36).slice(2)}` });
  const element = el("dialog", { class: "uwaga-dialog", "aria-labelledby": title.id, on: {
    click: (/** @type {MouseEvent} */ event) => event.target === element && element.close(),
    // A dialog that is closed gives the focus back to what had it; keys of the page are not for it.
    keydown: (/** @type {KeyboardEvent} */ event) => { if (event.key === "?") element.close(); event.stopPropagation(); },
  } },
    el("div", { class: "uwaga-dialog-head" }, title, el("button", { type: "button", text: "Close", on: { click: () => element.close() } })),
    body, el("p", { class: "uwaga-help-note" }, el("label", {}, single, " Single keys run commands (turn off for speech input)")));

  function fill() {
    single.checked = app.store.get().shortcuts;
    /** @type {Map<string, import("../types.js").Command[]>} */
    const groups = new Map();
    for (const command of app.commands.list()) {
      if (command.keys.length) groups.set(command.group, [...(groups.get(command.group) ?? []), command]);
    }
    body.replaceChildren(...[...groups].map(([group, commands]) => el("section", {}, el("h3", { text: group }),
      el("dl", {}, commands.flatMap(({ title: what, keys }) =>
        [el("dt", { text: what }), el("dd", {}, keys.map((key) => el("kbd", { text: keyTitle(key) })))])))));
  }
  return {
    element,
    toggle() {
      if (element.open) return element.close();
      fill();
      element.showModal();
    },
  };
}
