// The state in the URL's fragment: a reload returns to the same head, back and forward go through the heads.

import { storeEqual } from "../store.js";

/** @typedef {import("../types.js").State} State */

const addressTabs = ["overview", "map", "text", "lines", "table", "lesson"];
/** Going to another of these is a step that "back" undoes. */
const addressSteps = /** @type {const} */ (["tab", "side", "kind", "layer", "head", "compare"]);

/**
 * @param {Readonly<State>} state
 * @param {Readonly<State>} standard  what needs no mention
 * @returns {URLSearchParams}
 */
export function writeAddress(state, standard) {
  const written = new URLSearchParams();
  for (const key of addressSteps) written.set(key, String(state[key]));
  for (const key of /** @type {const} */ (["how", "merge", "specials", "theme", "query", "key", "overviewScale"])) {
    if (state[key] !== standard[key] && state[key] !== null) written.set(key, String(state[key]));
  }
  for (const key of /** @type {const} */ (["span", "keySpan"])) {
    const span = state[key];
    if (span) written.set(key, span.join("-"));
  }
  const { x, y, scale } = state.view;
  if (scale) written.set("view", [x, y, scale].map((part) => String(Number(part.toPrecision(7)))).join(","));
  if (!storeEqual(state.colour, standard.colour)) {
    const { log, low, high, threshold, hideSink, scheme } = state.colour;
    written.set("colour", [scheme, log ? "log" : "linear", low, high ?? "largest", threshold, hideSink ? "nosink" : "sink"].join(","));
  }
  return written;
}

/**
 * What an address says; what it says wrongly is left out.
 * @param {string} hash
 * @param {import("../types.js").About} about
 * @param {Readonly<State>} standard
 * @returns {Partial<State>}
 */
export function readAddress(hash, about, standard) {
  const written = new URLSearchParams(hash.replace(/^#/, ""));
  /** @type {Partial<State>} */
  const state = {};
  const among = (/** @type {keyof State} */ key, /** @type {string[]} */ values) => {
    const value = written.get(key);
    if (value !== null && values.includes(value)) Object.assign(state, { [key]: value });
  };
  among("tab", addressTabs);
  among("how", ["mass", "max"]);
  among("merge", ["tokens", "words"]);
  among("specials", ["show", "hide"]);
  among("theme", ["auto", "light", "dark"]);
  among("overviewScale", ["all", "head"]);
  Object.assign(state, addressHead(written, about));
  for (const key of /** @type {const} */ (["query", "key"])) {
    const value = written.get(key);
    if (value !== null && /^\d{1,9}$/.test(value)) state[key] = Number(value);
  }
  for (const key of /** @type {const} */ (["span", "keySpan"])) {
    const ends = /^(\d{1,9})-(\d{1,9})$/.exec(written.get(key) ?? "");
    if (ends && Number(ends[1]) < Number(ends[2])) state[key] = [Number(ends[1]), Number(ends[2])];
  }
  const view = (written.get("view") ?? "").split(",").map(Number);
  if (view.length === 3 && view.every(Number.isFinite) && view[2] > 0) state.view = { x: view[0], y: view[1], scale: view[2] };
  const colour = addressColour(written.get("colour"), standard.colour);
  if (colour) state.colour = colour;
  return state;
}

/** @param {URLSearchParams} written @param {import("../types.js").About} about @returns {Partial<State>} */
function addressHead(written, about) {
  const { start } = about;
  if (!start) return {};
  const side = about.sides.find(({ id }) => id === (written.get("side") ?? start.side));
  const kind = written.get("kind") ?? start.kind, layer = Number(written.get("layer") ?? start.layer);
  const map = side?.maps.find((one) => one.kind === kind && one.layer === layer), head = Number(written.get("head") ?? start.head);
  if (!side || !map || !Number.isInteger(head) || head < 0 || head >= map.heads) return {};
  const both = written.get("compare") === "both" && about.sides.length > 1;
  return { side: side.id, kind: map.kind, layer, head, compare: side.id === "difference" ? "difference" : both ? "both" : "one" };
}

/** @param {string | null} text @param {import("../types.js").Colour} standard @returns {import("../types.js").Colour | null} */
function addressColour(text, standard) {
  const [scheme, scale, low, high, threshold, sink] = (text ?? "").split(",");
  const numbers = [low, high === "largest" ? "0" : high, threshold].map(Number);
  if (!sink || !numbers.every((number) => number >= 0 && number <= 1)) return null;
  return { ...standard, scheme, log: scale === "log", low: numbers[0], high: high === "largest"
    ? null : numbers[1], threshold: numbers[2], hideSink: sink === "nosink" };
}

/**
 * Keeps address and store the same until disposed.
 * @param {import("../types.js").App} app
 * @param {Window} window
 * @returns {() => void}
 */
export function followAddress(app, window) {
  const { store, about } = app;
  const standard = store.get();
  const known = readAddress(window.location.hash, about, standard);
  store.set(known);
  let shown = store.get();
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let later;

  /** @param {boolean} step */
  function write(step) {
    const state = store.get(), written = writeAddress(state, standard);
    shown = state;
    const address = `#${written}`;
    if (address === window.location.hash) return;
    // Browsers limit how often the history may change and throw; the next change writes again.
    try {
      if (step) window.history.pushState(null, "", address);
      else window.history.replaceState(null, "", address);
    } catch (error) {
      if (!(error instanceof DOMException)) throw error;
    }
  }
  const leave = store.subscribe([], (state) => {
    clearTimeout(later);
    const step = addressSteps.some((key) => state[key] !== shown[key]);
    if (step) write(true);
    else later = setTimeout(() => write(false), 300);
  });
  const popped = () => {
    clearTimeout(later);
    const state = { ...addressPlain(standard), ...readAddress(window.location.hash, about, standard) };
    shown = { ...store.get(), ...state };
    store.set(state);
    // An address with a code that is pasted into a page which is open: it stays unused, and does not stay there.
    if (new URLSearchParams(window.location.hash.replace(/^#/, "")).has("code")) write(false);
  };
  window.addEventListener("popstate", popped);
  write(false);
  return () => {
    clearTimeout(later);
    leave();
    window.removeEventListener("popstate", popped);
  };
}

/** @param {Readonly<State>} standard @returns {Partial<State>} what an address that does not mention them means */
function addressPlain({ how, merge, specials, overviewScale, colour, theme, view, tab }) {
  return { how, merge, specials, overviewScale, colour, theme, view, tab, query: null, key: null, span: null, keySpan: null };
}
