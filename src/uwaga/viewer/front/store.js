// The state of the page in one store; views subscribe to changes of its keys.

/** @import { State, Store } from "./types.js" */

/** @param {State} initial @returns {Store} */
export function makeStore(initial) {
  let state = Object.freeze({ ...initial });
  /** @type {Set<{keys: Set<string>, listener: (state: Readonly<State>, changed: Set<string>) => void}>} */
  const listeners = new Set();
  /** @type {Set<string>} */
  let changed = new Set();
  let notifying = false;

  function notify() {
    // A listener may call set: its change is notified after all listeners have seen the present one.
    notifying = true;
    try {
      while (changed.size) {
        const now = changed;
        changed = new Set();
        for (const entry of [...listeners]) {
          if (!listeners.has(entry)) continue;
          if (entry.keys.size === 0 || [...now].some((key) => entry.keys.has(key))) entry.listener(state, now);
        }
      }
    } finally {
      notifying = false;
    }
  }

  return {
    get: () => state,
    set(partial) {
      const differing = Object.entries(partial).filter(([key, value]) => !isEqual(/** @type {any} */ (state)[key], value));
      if (!differing.length) return;
      for (const [key] of differing) {
        if (!(key in state)) throw new Error(`store: unknown key ${key}`);
        changed.add(key);
      }
      state = Object.freeze({ ...state, ...Object.fromEntries(differing) });
      if (!notifying) notify();
    },
    subscribe(keys, listener) {
      const entry = { keys: new Set(/** @type {string[]} */ (keys)), listener };
      listeners.add(entry);
      return () => void listeners.delete(entry);
    },
  };
}

/** Deep equality of plain values. @param {any} left @param {any} right @returns {boolean} */
export function isEqual(left, right) {
  if (Object.is(left, right)) return true;
  if (!left || !right || typeof left !== "object" || typeof right !== "object") return false;
  const keys = Object.keys(left);
  if (keys.length !== Object.keys(right).length) return false;
  return keys.every((key) => isEqual(left[key], right[key]));
}

/** @returns {State} the defaults */
export function initialState() {
  return {
    side: "0", kind: "encoder", layer: 0, head: 0, mean: true, pooling: "sum", merge: "tokens", specials: "show",
    tab: "explore", compare: "one", query: null, key: null, wide: false,
    view: { x: 0, y: 0, scale: 0 },
    colour: { log: false, low: 0, high: null, threshold: 0, hideSink: true, scheme: "blue" },
    theme: "auto", dark: false, shortcuts: true, overviewScale: "head",
    step: "", example: "",
  };
}
