// Everything that a key can do, by name. The help lists it.

/** @typedef {import("./types.js").Command} Command */

/**
 * @param {() => boolean} [shortcuts]  whether keys without Ctrl or Alt run commands
 * @returns {import("./types.js").Commands}
 */
export function makeCommands(shortcuts = () => true) {
  /** @type {Map<string, Command>} */
  const commands = new Map();
  const ready = (/** @type {Command} */ command) => !command.when || command.when();

  return {
    add(command) {
      if (commands.has(command.id)) throw new Error(`commands: ${command.id} is there already`);
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
      if (!pressed || keyBelongsElsewhere(event, pressed)) return false;
      if (!shortcuts() && /^(shift\+)?.$/u.test(pressed) && pressed !== "?") return false;
      const meant = [...commands.values()].filter((command) => command.keys.some((key) => key.toLowerCase() === pressed) && ready(command));
      // One that says when it applies is the more particular.
      const command = meant.find((one) => one.when) ?? meant[0];
      if (!command) return false;
      event.preventDefault();
      event.stopPropagation();
      command.run(event);
      return true;
    },
    list: () => [...commands.values()],
  };
}

/**
 * "shift+arrowup", "h", "shift+h", "?", "ctrl+enter"; "" for a modifier alone.
 * @param {KeyboardEvent} event
 * @returns {string}
 */
export function keyName(event) {
  if (["Shift", "Control", "Alt", "Meta", "AltGraph", "Dead", "Unidentified"].includes(event.key)) return "";
  const letter = event.key.toLowerCase() !== event.key.toUpperCase();
  // Which signs need Shift depends on the keyboard: "?" is "?" on all.
  const shift = event.shiftKey && (event.key.length > 1 || letter || event.key === " ");
  const key = event.key === " " ? "Space" : event.key;
  return [event.ctrlKey && "ctrl", event.altKey && "alt", event.metaKey && "meta", shift && "shift", key]
    .filter(Boolean).join("+").toLowerCase();
}

/**
 * Whether the key is for the element that has the focus: text that is typed, a list that is chosen from, a pressed button.
 * @param {KeyboardEvent} event
 * @param {string} pressed
 * @returns {boolean}
 */
function keyBelongsElsewhere(event, pressed) {
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
