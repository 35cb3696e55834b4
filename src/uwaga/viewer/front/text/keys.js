// What the keys do in the text.

/** @typedef {import("../types.js").App} App */
/** @typedef {"left" | "right" | "up" | "down" | "home" | "end" | "pageup" | "pagedown" | "first" | "last"} Step */

/** @type {[Step, string, string][]} */
const textSteps = [
  ["left", "ArrowLeft", "Token before"], ["right", "ArrowRight", "Token after"], ["up", "ArrowUp", "Token above"],
  ["down", "ArrowDown", "Token below"], ["home", "Home", "First token of the line"], ["end", "End", "Last token of the line"],
  ["pageup", "PageUp", "A page up"], ["pagedown", "PageDown", "A page down"],
];

/**
 * @param {App} app
 * @param {{shown: () => boolean, step: (step: Step, stretch: boolean) => void, direction: (direction: import("./frame.js").Direction) =>
 *   void, find: (by: number) => void,
 *   focusFind: () => void, other: () => void, removeSpan: () => void, clear: () => void}} act
 * @returns {() => void} removes the commands
 */
export function addTextCommands(app, act) {
  const moves = () => act.shown() && textKeysFree(app.root);
  const group = "Text";
  const add = (/** @type {string} */ id, /** @type {string} */ title, /** @type {string[]} */ keys,
    /** @type {() => void} */ run, when = act.shown) =>
    app.commands.add({ id: `text.${id}`, title, keys, group, run, when });
  const removals = textSteps.flatMap(([step, key, title]) => [
    add(step, title, [key], () => act.step(step, false), moves),
    add(`stretch-${step}`, `${title}, stretching the span`, [`Shift+${key}`], () => act.step(step, true), moves),
  ]);
  removals.push(
    add("first", "First token of the text", ["Ctrl+Home"], () => act.step("first", false), moves),
    add("last", "Last token of the text", ["Ctrl+End"], () => act.step("last", false), moves),
    add("row", "Show what the token attends to", ["a"], () => act.direction("row")),
    add("column", "Show what attends to the token", ["b"], () => act.direction("column")),
    add("both", "Show both", ["x"], () => act.direction("both")),
    add("find", "Find in the text", ["/"], act.focusFind),
    add("find-next", "Find the next one", ["n"], () => act.find(1)),
    add("find-before", "Find the one before", ["Shift+N"], () => act.find(-1)),
    add("other", "The other text", ["e"], act.other),
    add("remove-span", "Remove the newest span", ["Delete"], act.removeSpan),
    add("clear", "Let go of token and spans", ["Escape"], act.clear),
  );
  return () => removals.forEach((remove) => remove());
}

/** @param {HTMLElement} root @returns {boolean} whether the focus is on nothing that uses arrow keys itself */
function textKeysFree(root) {
  const scope = /** @type {Document | ShadowRoot} */ (root.getRootNode());
  const focused = scope.activeElement;
  const roles = ["tab", "tablist", "scrollbar", "slider", "dialog", "grid"].map((role) => `[role="${role}"]`);
  return !focused?.closest([...roles, "dialog", "select", "input"].join());
}
