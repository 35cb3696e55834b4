// Keyboard commands by name, and the help dialog that lists them.

import { el, uniqueName } from "./dom.js";
import { tr } from "./languages.js";
/** @import { App, Command, Commands } from "./types.js" */

/** @param {() => boolean} [shortcuts]  whether keys without Ctrl or Alt run commands @returns {Commands} */
export function makeCommands(shortcuts = () => true) {
  /** @type {Map<string, Command>} */
  const commands = new Map();
  const ready = (/** @type {Command} */ command) => !command.when || command.when();

  return {
    add(command) {
      if (commands.has(command.id)) throw new Error(`commands: ${command.id} already exists`);
      commands.set(command.id, command);
      return () => void (commands.get(command.id) === command && commands.delete(command.id));
    },
    run(id) {
      const command = commands.get(id);
      if (!command || !ready(command)) return false;
      command.run();
      return true;
    },
    handle(event) {
      if (event.defaultPrevented || event.isComposing) return false;
      const pressed = keyName(event);
      if (!pressed || focusedElementTakesKey(event, pressed)) return false;
      if (!shortcuts() && /^(shift\+)?.$/u.test(pressed) && pressed !== "?") return false;
      const matching = [...commands.values()].filter((command) => command.keys.some((key) => key.toLowerCase() === pressed) && ready(command));
      // A command with a condition is more specific than one without.
      const command = matching.find((one) => one.when) ?? matching[0];
      if (!command) return false;
      event.preventDefault();
      event.stopPropagation();
      command.run(event);
      return true;
    },
    list: () => [...commands.values()],
  };
}

/** "shift+arrowup", "h", "shift+h", "?", "ctrl+enter"; "" for a modifier alone. @param {KeyboardEvent} event @returns {string} */
export function keyName(event) {
  if (["Shift", "Control", "Alt", "Meta", "AltGraph", "Dead", "Unidentified"].includes(event.key)) return "";
  const letter = event.key.toLowerCase() !== event.key.toUpperCase();
  // Whether a sign needs Shift depends on the keyboard layout: "?" is always named "?".
  const shift = event.shiftKey && (event.key.length > 1 || letter || event.key === " ");
  const key = event.key === " " ? "Space" : event.key;
  return [event.ctrlKey && "ctrl", event.altKey && "alt", event.metaKey && "meta", shift && "shift", key]
    .filter(Boolean).join("+").toLowerCase();
}

/**
 * Whether the focused element handles the key itself: a text field, a select, a button.
 * @param {KeyboardEvent} event @param {string} pressed @returns {boolean}
 */
function focusedElementTakesKey(event, pressed) {
  const target = /** @type {HTMLElement | null} */ (event.target);
  if (!target || !target.tagName || pressed === "escape") return false;
  const tag = target.tagName.toLowerCase();
  if (target.isContentEditable || tag === "textarea" || tag === "select") return true;
  if (tag === "input") {
    const type = (target.getAttribute("type") ?? "text").toLowerCase();
    if (!["checkbox", "radio", "button", "range", "submit", "reset", "color"].includes(type)) return true;
    return !/^(shift\+)?[^ ]$/u.test(pressed);
  }
  const presses = ["button", "a", "summary"].includes(tag)
    || ["button", "link", "tab", "option"].includes(target.getAttribute("role") ?? "");
  return presses && (pressed === "enter" || pressed === "space");
}

// The help dialog: every command with its keys, by group.

/** @type {{[key: string]: string}} */
const keyNames = { arrowup: "\u2191", arrowdown: "\u2193", arrowleft: "\u2190", arrowright: "\u2192",
  escape: "Esc", pageup: "Page Up", pagedown: "Page Down" };

/** @param {string} key  such as "Shift+ArrowUp" @returns {string} such as "Shift+(arrow up)" */
export function keyTitle(key) {
  return key.split(/(?<=.)\+(?=.)/).map((part) =>
    keyNames[part.toLowerCase()] ?? (part.length === 1 ? part.toUpperCase() : part)).join("+");
}

/** What rows, columns, colours and numbers are. @type {[string, string][]} */
const legendLines = [
  [tr("Row"), tr("a word that asks: the query. Its weights add up to 100%.")],
  [tr("Column"), tr("a word that is looked at: the key.")],
  [tr("Colour of a cell"), tr("the weight of that row on that column, from none to the largest in view. The legend below the map has the numbers.")],
  [tr("Grey bar"), tr("weight on special tokens such as [CLS], or on the first token. It is left out of the colours; the other weights are not rescaled.")],
  [tr("Orange and blue"), tr("orange is the word that asks, blue the word that is looked at. In a long text five bands of blue, with underlines, are 1, 3, 8, 20 and 50%.")],
  [tr("Layer, head"), tr("a model has many maps, one for each head of each layer. The most distinctive heads show a clear pattern in this text.")],
  [tr("Before you conclude"), tr("a weight shows from which word a head reads. It does not show how the head uses the word, or that the answer depends on it.")],
];

/** @param {App} app @returns {{element: HTMLDialogElement, toggle: () => void}} */
export function makeHelp(app) {
  const single = el("input", { type: "checkbox", on: { change: () => app.store.set({ shortcuts: single.checked }) } });
  const body = el("div", { class: "uwaga-help" });
  const title = el("h2", { text: tr("What one sees, and the keys"), id: uniqueName() });
  const element = el("dialog", { class: "uwaga-dialog", "aria-labelledby": title.id, on: {
    click: (/** @type {MouseEvent} */ event) => event.target === element && element.close(),
    // The browser restores the focus when the dialog closes; the page's keys must not act inside it.
    keydown: (/** @type {KeyboardEvent} */ event) => { if (event.key === "?") element.close(); event.stopPropagation(); },
  } },
    el("div", { class: "uwaga-dialog-head" }, title, el("button", { type: "button", text: tr("Close"), on: { click: () => element.close() } })),
    el("dl", { class: "uwaga-legend" }, legendLines.flatMap(([term, meaning]) => [el("dt", { text: term }), el("dd", { text: meaning })])), body, el("p", { class: "uwaga-help-note" }, el("label", {}, single, ` ${tr("Single keys run commands (turn off for speech input)")}`)));

  function fill() {
    single.checked = app.store.get().shortcuts;
    /** @type {Map<string, Command[]>} */
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
