// What the keys do among the lines.

/** @typedef {"up" | "down" | "pageup" | "pagedown" | "first" | "last"} LineStep */

/** @type {[LineStep, string, string][]} */
const lineSteps = [
  ["up", "ArrowUp", "Token above"], ["down", "ArrowDown", "Token below"], ["pageup", "PageUp", "A window up"],
  ["pagedown", "PageDown", "A window down"], ["first", "Home", "First token"], ["last", "End", "Last token"],
];

/**
 * @param {import("../types.js").App} app
 * @param {{shown: () => boolean, step: (step: LineStep) => void, side: (axis: "query" | "key") => void, pick: () => void,
 *   which: () => void,
 *   lock: () => void, less: (by: number) => void, clear: () => void}} act
 * @returns {() => void} removes the commands
 */
export function addLineCommands(app, act) {
  const moves = () => act.shown() && lineKeysFree(app.root);
  const add = (/** @type {string} */ id, /** @type {string} */ title, /** @type {string[]} */ keys,
    /** @type {() => void} */ run, when = act.shown) =>
    app.commands.add({ id: `lines.${id}`, title, keys, group: "Lines", run, when });
  const removals = [
    ...lineSteps.map(([step, key, title]) => add(step, title, [key], () => act.step(step), moves)),
    add("queries", "To the queries", ["ArrowLeft"], () => act.side("query"), moves),
    add("keys", "To the keys", ["ArrowRight"], () => act.side("key"), moves),
    add("pick", "Keep the token picked", ["Enter"], act.pick),
    add("which", "This head, or all heads of the layer", ["v"], act.which),
    add("lock", "Lock or unlock the columns", ["u"], act.lock),
    add("more", "Fainter lines too", ["<"], () => act.less(-1)),
    add("less", "Stronger lines only", [">"], () => act.less(1)),
    add("clear", "Lines of all tokens again", ["Escape"], act.clear),
  ];
  return () => removals.forEach((remove) => remove());
}

/** @param {HTMLElement} root @returns {boolean} whether the focus is on nothing that uses arrow keys itself */
function lineKeysFree(root) {
  const scope = /** @type {Document | ShadowRoot} */ (root.getRootNode());
  return !scope.activeElement?.closest('[role="tab"], [role="tablist"], [role="slider"], [role="dialog"], dialog, select, input');
}
