// Which kinds, layers and heads there are, and the commands that go from one to another.

import { segmentedControl } from "../controls.js";
import { tr } from "../languages.js";
import { hasMaps, nearestHead, stateOfSide } from "./app.js";
/** @import { About, App, Kind, Side, SideId, Tab } from "../types.js" */

/** @param {About} about @returns {Kind[]} */
export function kindsOf(about) {
  const there = new Set(about.sides.flatMap(({ maps }) => maps.map(({ kind }) => kind)));
  return /** @type {Kind[]} */ (["encoder", "decoder", "cross"]).filter((kind) => there.has(kind));
}

/** @param {Side} side @param {string} kind @returns {number[]} */
export function layersOf(side, kind) {
  return side.maps.filter((map) => map.kind === kind).map(({ layer }) => layer);
}

/** @param {Side} side @param {string} kind @param {number} layer @returns {number[]} */
function headsOf(side, kind, layer) {
  const map = side.maps.find((one) => one.kind === kind && one.layer === layer);
  return Array.from({ length: map?.heads ?? 0 }, (_, head) => head);
}

/**
 * "All heads" as small maps or as a table of statistics.
 * @param {App} app @param {"overview" | "table"} shown @returns {HTMLElement}
 */
export function makeAllHeadsSwitch(app, shown) {
  const control = segmentedControl(tr("All heads as"), [{ name: /** @type {"overview"} */ ("overview"), title: tr("Maps") },
    { name: /** @type {"table"} */ ("table"), title: tr("Table") }], (tab) => app.store.set({ tab }));
  control.show(shown);
  return control.element;
}

/** Navigation that is announced to screen readers. */
export const goTo = {
  /** @param {App} app @param {number} layer */
  layer: (app, layer) => goToHead(app, app.store.get().kind, layer, app.store.get().head),
  /** @param {App} app @param {number} head */
  head: (app, head) => goToHead(app, app.store.get().kind, app.store.get().layer, head),
  /** @param {App} app @param {string} kind */
  kind: (app, kind) => goToHead(app, kind, app.store.get().layer, app.store.get().head),
  /** @param {App} app @param {string} what  a side, or "both" */
  compare(app, what) {
    const { kind, layer, head, side } = app.store.get();
    const id = /** @type {SideId} */ (what !== "both" ? what : side === "difference" ? "0" : side);
    const set = stateOfSide(id, what === "both" ? "both" : "one");
    app.store.set({ ...set, ...nearestHead(app.side(id), kind, layer, head) });
    app.announce(what === "both" ? tr("Side by side") : app.side(id).title);
  },
};

/** @param {App} app @param {string} kind @param {number} layer @param {number} head */
function goToHead(app, kind, layer, head) {
  const to = nearestHead(app.side(), kind, layer, head);
  app.store.set(to);
  app.announce(tr("{kind} layer {layer}, head {head}", { kind: to.kind, layer: to.layer, head: to.head }));
}

/**
 * The value `by` places further, clamped to the ends.
 * @template Value
 * @param {Value[]} values
 * @param {Value} value
 * @param {number} by
 * @returns {Value}
 */
function clampedStep(values, value, by) {
  return values[Math.max(0, Math.min(values.length - 1, values.indexOf(value) + by))];
}

/** @template Value @param {Value[]} values @param {Value} value @returns {Value} the next value, cyclic */
function nextInCycle(values, value) {
  return values[(values.indexOf(value) + 1) % values.length];
}

/** Adds the commands of the whole page. @param {App} app @param {{name: Tab, title: string}[]} tabs */
export function addPageCommands(app, tabs) {
  const { store, commands } = app;
  const add = (/** @type {string} */ id, /** @type {string} */ title, /** @type {string[]} */ keys, /** @type {string} */ group,
    /** @type {() => void} */ run) => commands.add({ id: `shell.${id}`, title, keys, group, run });
  tabs.forEach(({ name, title }, i) =>
    add(`tab.${name}`, tr("Show: {tab}", { tab: title }), [String(i + 1)], tr("Views"), () => store.set({ tab: name })));

  if (app.about.sides.length) addHeadCommands(app, add);
  add("theme", tr("Theme: as the system, light, dark"), ["t"], tr("Display"), () => {
    const theme = nextInCycle(/** @type {("auto" | "light" | "dark")[]} */ (["auto", "light", "dark"]), store.get().theme);
    store.set({ theme });
    app.announce({ auto: tr("Theme as the system"), light: tr("Light theme"), dark: tr("Dark theme") }[theme]);
  });
}

/** @param {App} app @param {(id: string, title: string, keys: string[], group: string, run: () => void) => void} add */
function addHeadCommands(app, add) {
  const { store } = app;
  const layers = (/** @type {number} */ by) => goTo.layer(app, clampedStep(layersOf(app.side(), store.get().kind), store.get().layer, by));
  const heads = (/** @type {number} */ by) =>
    goTo.head(app, clampedStep(headsOf(app.side(), store.get().kind, store.get().layer), store.get().head, by));
  add("head.next", tr("Next head"), ["h"], tr("Heads"), () => heads(1));
  add("head.before", tr("Previous head"), ["Shift+h"], tr("Heads"), () => heads(-1));
  add("layer.next", tr("Next layer"), ["l"], tr("Heads"), () => layers(1));
  add("layer.before", tr("Previous layer"), ["Shift+l"], tr("Heads"), () => layers(-1));
  if (kindsOf(app.about).length > 1) {
    add("kind", tr("Next kind of attention"), ["k"], tr("Heads"),
      () => goTo.kind(app, nextInCycle(kindsOf(app.about).filter((kind) => layersOf(app.side(), kind).length), store.get().kind)));
  }
  if (app.about.sides.length > 1) {
    add("compare", tr("First, second, side by side, difference"), ["c"], tr("Heads"), () => {
      const { compare, side } = store.get();
      const all = [...app.about.sides.map(({ id }) => String(id)).filter((id) => id !== "difference"), "both",
        ...app.about.sides.some(({ id }) => id === "difference") ? ["difference"] : []];
      goTo.compare(app, nextInCycle(all, compare === "both" ? "both" : side));
    });
  }
  const setDisplay = (/** @type {Parameters<typeof hasMaps>[1]} */ part, /** @type {string} */ text) => {
    if (!hasMaps(app, part)) return app.status(tr("This is not in the saved page."));
    store.set(part);
    app.announce(text);
  };
  add("words", tr("Words or tokens"), ["w"], tr("Display"), () =>
    store.get().merge === "words" ? setDisplay({ merge: "tokens" }, tr("Tokens")) : setDisplay({ merge: "words" }, tr("Words")));
  add("specials", tr("Hide or show special tokens"), ["s"], tr("Display"), () =>
    store.get().specials === "hide" ? setDisplay({ specials: "show" }, tr("Special tokens shown"))
      : setDisplay({ specials: "hide" }, tr("Special tokens hidden")));
  add("pooling", tr("Mass or largest weight"), ["p"], tr("Display"), () =>
    store.get().pooling === "sum" ? setDisplay({ pooling: "max" }, tr("Largest weights")) : setDisplay({ pooling: "sum" }, tr("Mass")));
}
