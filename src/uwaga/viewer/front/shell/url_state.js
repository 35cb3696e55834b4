// The state in the URL's fragment: a reload returns to the same head, back and forward go through the heads.

import { isEqual } from "../store.js";
import { typedOfHash, typedParams, completeRequest } from "../typing/session.js";
/** @import { About, App, Colour, State } from "../types.js" */

const urlTabs = ["answer", "picture", "explore", "overview", "table", "lesson"];
/** Characters of the lesson's example in the address; a longer one is left out. */
const maxExample = 6000;
/** A change of these adds a history entry, which "back" undoes. */
const historyKeys = /** @type {const} */ (["tab", "side", "kind", "layer", "head", "compare"]);

/** Those that name a head. @type {(keyof State)[]} */
const headKeys = ["kind", "layer", "head", "query", "key"];

/**
 * @param {Readonly<State>} state
 * @param {Readonly<State>} defaults  the defaults, which are not written
 * @param {boolean} [isProvisional]  no head has been chosen: that of the defaults is not written either
 * @returns {URLSearchParams}
 */
export function stateToParams(state, defaults, isProvisional = false) {
  const params = new URLSearchParams(), isLeftOut = isProvisional && headKeys.every((key) => state[key] === defaults[key]);
  for (const key of historyKeys) if (!isLeftOut || !headKeys.includes(key)) params.set(key, String(state[key]));
  for (const key of /** @type {const} */ (["pooling", "merge", "specials", "theme", "query", "key", "overviewScale"])) {
    if (state[key] !== defaults[key] && state[key] !== null) params.set(key, String(state[key]));
  }
  if (!state.mean && state.tab === "picture") params.set("mean", "no");
  if (state.wide) params.set("map", "wide");
  if (state.tab === "lesson") {
    if (state.step) params.set("step", state.step);
    if (state.example && state.example.length <= maxExample) params.set("example", state.example);
  }
  const { x, y, scale } = state.view;
  if (scale) params.set("view", [x, y, scale].map((part) => String(Number(part.toPrecision(7)))).join(","));
  if (!isEqual(state.colour, defaults.colour)) {
    const { log, low, high, threshold, hideSink, scheme } = state.colour;
    params.set("colour", [scheme, log ? "log" : "linear", low, high ?? "largest", threshold, hideSink ? "nosink" : "sink"].join(","));
  }
  return params;
}

/**
 * Parses the URL's fragment; invalid values are ignored.
 * @param {string} hash @param {About} about @param {Readonly<State>} defaults @returns {Partial<State>}
 */
export function hashToState(hash, about, defaults) {
  const params = new URLSearchParams(hash.replace(/^#/, ""));
  /** @type {Partial<State>} */
  const state = {};
  const readChoice = (/** @type {keyof State} */ key, /** @type {string[]} */ values) => {
    const value = params.get(key);
    if (value !== null && values.includes(value)) Object.assign(state, { [key]: value });
  };
  readChoice("tab", urlTabs);
  readChoice("pooling", ["sum", "max"]);
  readChoice("merge", ["tokens", "words"]);
  readChoice("specials", ["show", "hide"]);
  readChoice("theme", ["auto", "light", "dark"]);
  readChoice("overviewScale", ["all", "head"]);
  Object.assign(state, parseHead(params, about));
  const step = params.get("step") ?? "", example = params.get("example") ?? "";
  if (/^[a-z]{1,20}$/.test(step)) state.step = step;
  if (example && example.length <= maxExample) state.example = example;
  for (const key of /** @type {const} */ (["query", "key"])) {
    const value = params.get(key);
    if (value !== null && /^\d{1,9}$/.test(value)) state[key] = Number(value);
  }
  if (params.get("mean") === "no") state.mean = false;
  if (params.get("map") === "wide") state.wide = true;
  const view = (params.get("view") ?? "").split(",").map(Number);
  if (view.length === 3 && view.every(Number.isFinite) && view[2] > 0) state.view = { x: view[0], y: view[1], scale: view[2] };
  const colour = parseColourParam(params.get("colour"), defaults.colour);
  if (colour) state.colour = colour;
  return state;
}

/** @param {URLSearchParams} params @param {About} about @returns {Partial<State>} */
function parseHead(params, about) {
  const { start } = about;
  if (!start) return {};
  const side = about.sides.find(({ id }) => id === (params.get("side") ?? start.side));
  const kind = params.get("kind") ?? start.kind, layer = Number(params.get("layer") ?? start.layer);
  const map = side?.maps.find((one) => one.kind === kind && one.layer === layer), head = Number(params.get("head") ?? start.head);
  if (!side || !map || !Number.isInteger(head) || head < 0 || head >= map.heads) return {};
  const both = params.get("compare") === "both" && about.sides.length > 1;
  return { side: side.id, kind: map.kind, layer, head, compare: side.id === "difference" ? "difference" : both ? "both" : "one" };
}

/** @param {string | null} text @param {Colour} defaults @returns {Colour | null} */
function parseColourParam(text, defaults) {
  const [scheme, scale, low, high, threshold, sink] = (text ?? "").split(",");
  const numbers = [low, high === "largest" ? "0" : high, threshold].map(Number);
  if (!sink || !numbers.every((number) => number >= 0 && number <= 1)) return null;
  return { ...defaults, scheme, log: scale === "log", low: numbers[0], high: high === "largest"
    ? null : numbers[1], threshold: numbers[2], hideSink: sink === "nosink" };
}

/** @param {About} about @returns {string} the address's fragment; of a saved page without one, what it was saved to open */
export function openingHash({ opens }) {
  return window.location.hash.length > 1 || !opens ? window.location.hash : `#${opens}`;
}

/**
 * Keeps the URL's fragment and the store in sync; returns the cleanup function.
 * @param {App} app @param {Window} window
 * @param {Partial<State>} [carried]  of the text before
 * @returns {() => void}
 */
export function syncUrl(app, window, carried = {}) {
  const { store, about } = app;
  const defaults = store.get();
  const hash = openingHash(about), fromHash = hashToState(hash, about, defaults);
  // An address without a state says nothing against what is carried.
  store.set(hash.length > 1 ? { ...carried, ...fromHash } : carried);
  let shown = store.get();
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let timer;

  /** @param {boolean} isHistoryStep */
  function write(isHistoryStep) {
    const state = store.get(), params = stateToParams(state, defaults, app.provisional.on);
    for (const [name, value] of typedParams(about.run ? about.typed ?? null : null)) params.set(name, value);
    shown = state;
    const address = `#${params}`;
    if (address === window.location.hash) return;
    // Browsers throw DOMException if the history changes too often; the next change writes again.
    try {
      if (isHistoryStep) window.history.pushState(null, "", address);
      else window.history.replaceState(null, "", address);
    } catch (error) {
      if (!(error instanceof DOMException)) throw error;
    }
  }
  const unsubscribe = store.subscribe([], (state) => {
    clearTimeout(timer);
    const isHistoryStep = historyKeys.some((key) => state[key] !== shown[key]) || (state.tab === "lesson" && state.step !== shown.step);
    if (isHistoryStep) write(!app.quiet.on);
    else timer = setTimeout(() => write(false), 300);
  });
  const onPopState = () => {
    clearTimeout(timer);
    const typed = typedOfHash(window.location.hash);
    if (about.typing && !isEqual(typed, about.run ? about.typed : null)) {
      // Back to another text: a text that is kept needs no second run.
      const first = app.history.first;
      if (typed ?? first) void app.session.run(completeRequest(typed ?? first ?? {}), { keep: false });
      return;
    }
    const state = { ...omittedState(defaults), ...hashToState(window.location.hash, about, defaults) };
    shown = { ...store.get(), ...state };
    store.set(state);
    // A token pasted into the URL of an open page is not used; it is removed from the URL.
    if (new URLSearchParams(window.location.hash.replace(/^#/, "")).has("token")) write(false);
  };
  window.addEventListener("popstate", onPopState);
  app.provisional.end = () => {
    if (!app.provisional.on) return;
    app.provisional.on = false;
    write(false);
  };
  write(false);
  return () => {
    clearTimeout(timer);
    unsubscribe();
    window.removeEventListener("popstate", onPopState);
  };
}

/** @param {Readonly<State>} defaults @returns {Partial<State>} the values of keys that the URL omits */
function omittedState({ pooling, merge, specials, overviewScale, colour, theme, view, tab }) {
  return { pooling, merge, specials, overviewScale, colour, theme, view, tab, query: null, key: null, wide: false, step: "", example: "" };
}
