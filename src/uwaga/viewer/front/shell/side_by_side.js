// A view of each side, beside each other, while both are compared: selection and settings are the same in both.

import { el } from "../dom.js";
import { kindTitle } from "../format.js";
import { tr } from "../languages.js";
import { nearestHead, stackSize } from "./app.js";

/** @typedef {import("../types.js").App} App */
/** @typedef {import("../types.js").View} View */
/** @typedef {import("../types.js").Scene} Scene */

/**
 * @param {App} app
 * @param {(app: App) => View} make
 * @returns {View}
 */
export function sideBySideView(app, make) {
  const { store, about } = app;
  if (about.sides.length < 2) return make(app);
  const first = makeHalf(appOfSide(app, 0), make);
  /** @type {ReturnType<typeof makeHalf> | null} */
  let second = null; // made when first shown
  const element = el("div", { class: "uwaga-halves" }, first.element);
  let shown = false;

  function draw() {
    if (!shown) return;
    const both = store.get().compare === "both";
    if (both && !second) element.append((second = makeHalf(appOfSide(app, 1), make)).element);
    element.dataset.halves = both ? "2" : "1";
    // Views do not know which side they show: hiding and showing makes them read it again.
    first.hide();
    first.show(both);
    if (both) second?.show(true);
    else second?.hide();
  }
  const unsubscribe = [
    store.subscribe(["compare"], draw),
    store.subscribe(["kind", "layer", "head"], () => { if (shown && store.get().compare === "both") draw(); }),
  ];
  const halves = () => (store.get().compare === "both" && second ? [first, second] : [first]);
  const { block } = first.view;
  return {
    element,
    show() {
      shown = true;
      draw();
    },
    hide() {
      shown = false;
      first.hide();
      second?.hide();
    },
    dispose() {
      unsubscribe.forEach((end) => end());
      first.view.dispose();
      second?.view.dispose();
    },
    ...(first.view.scene && { scene: async () => joinScenes(await Promise.all(halves().flatMap(({ view }) => view.scene?.() ?? []))) }),
    ...(block && { block: () => block() }),
  };
}

/**
 * A view under the title of its side, or a note if the side has no such head.
 * @param {App} app
 * @param {(app: App) => View} make
 */
function makeHalf(app, make) {
  const view = make(app);
  const title = el("h2", { class: "uwaga-half-title" });
  const note = el("p", { class: "uwaga-half-note", hidden: true });
  const element = el("div", { class: "uwaga-half" }, title, note, view.element);
  return {
    view, element,
    /** @param {boolean} titled */
    show(titled) {
      element.hidden = false;
      title.hidden = !titled;
      title.textContent = app.side().title;
      note.textContent = titled ? missingHeadText(app) : "";
      note.hidden = !note.textContent;
      view.element.hidden = !note.hidden;
      if (note.hidden) view.show();
      else view.hide();
    },
    hide() {
      element.hidden = true;
      view.hide();
    },
  };
}

/** @param {App} app @returns {string} the reason the reason why the side has no such map, or "" */
function missingHeadText(app) {
  const { kind, layer, head } = app.store.get(), side = app.side();
  const map = side.maps.find((one) => one.kind === kind && one.layer === layer);
  if (map && head < map.heads) return "";
  const near = nearestHead(side, kind, layer, head);
  const named = (/** @type {{kind: string, layer: number, head: number}} */ one) =>
    tr("{kind} layer {layer} head {head}", { kind: kindTitle(one.kind), layer: one.layer, head: one.head });
  return tr("There is no {value} here; the nearest is {near}.", { value: named({ kind, layer, head }), near: named(near) });
}

/**
 * The app with a fixed side while both are compared. Commands act on the first half; the second follows through the store.
 * @param {App} app
 * @param {0 | 1} index
 * @returns {App}
 */
function appOfSide(app, index) {
  const own = app.about.sides.filter(({ id }) => id !== "difference")[index];
  const get = () => {
    const state = app.store.get();
    return state.compare === "both" ? { ...state, side: own.id } : state;
  };
  const side = (/** @type {import("../types.js").SideId} */ id = get().side) => app.side(id);
  /** @type {App} */
  const first = {
    ...app, side,
    store: { ...app.store, get },
    where: () => ({ ...app.where(), side: get().side }),
    sizes() {
      const { kind, merge, specials } = get(), axes = side().kinds[kind];
      return { queries: stackSize(side(), axes.queries, merge, specials), keys: stackSize(side(), axes.keys, merge, specials) };
    },
  };
  if (index === 0) return first;
  return {
    ...first, idPrefix: "second-",
    commands: { ...app.commands, add: () => () => {} },
    announce: () => {},
    status: () => {},
  };
}

/**
 * Places scenes side by side.
 * @param {Scene[]} scenes
 * @returns {Scene}
 */
function joinScenes(scenes) {
  /** @type {Scene} */
  const joined = { width: 0, height: Math.max(...scenes.map(({ height }) => height)), background: scenes[0].background, items: [] };
  for (const { width, items } of scenes) {
    joined.items.push(...items.map((item) => translatedItem(item, joined.width)));
    joined.width += width;
  }
  return joined;
}

/** @param {import("../types.js").SceneItem} item @param {number} by @returns {import("../types.js").SceneItem} */
function translatedItem(item, by) {
  if (item.kind === "line") return { ...item, x1: item.x1 + by, x2: item.x2 + by };
  if (item.kind !== "path") return { ...item, x: item.x + by };
  // A path's numbers alternate between x and y.
  return { ...item, d: item.d.map(([name, ...at]) => [name, ...at.map((number, i) => (i % 2 ? number : Number(number) + by))]) };
}
