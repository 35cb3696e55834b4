import assert from "node:assert/strict";
import { test } from "node:test";
import { initialState, makeStore } from "../store.js";

test("listeners of a changed key are called, and no others", () => {
  const store = makeStore(initialState()), heard = [];
  store.subscribe(["layer"], (state, changed) => heard.push([state.layer, [...changed]]));
  store.subscribe([], () => heard.push("any"));
  store.set({ head: 3 });
  store.set({ layer: 2, head: 3 });
  assert.deepEqual(heard, ["any", [2, ["layer"]], "any"]);
});

test("setting an equal value, or a deeply equal object, is not a change", () => {
  const store = makeStore(initialState());
  let count = 0;
  store.subscribe([], () => (count += 1));
  store.set({ view: { x: 0, y: 0, scale: 0 }, query: null, colour: { ...initialState().colour } });
  assert.equal(count, 0);
  store.set({ colour: { ...initialState().colour, log: true } });
  assert.equal(count, 1);
});

test("a listener may set a key; all listeners get the latest value only", () => {
  const store = makeStore(initialState()), heard = [];
  store.subscribe(["layer"], ({ layer }) => { if (layer === 1) store.set({ layer: 2 }); });
  store.subscribe(["layer"], ({ layer }, changed) => heard.push([layer, changed.has("layer")]));
  store.set({ layer: 1 });
  assert.deepEqual(heard, [[2, true], [2, true]]);
});

test("a listener can unsubscribe, also while it is being called", () => {
  const store = makeStore(initialState()), heard = [];
  const leaves = [store.subscribe(["head"], () => leaves[1]()), store.subscribe(["head"], () => heard.push("second"))];
  store.set({ head: 1 });
  assert.deepEqual(heard, []);
});

test("an unknown key is an error", () => {
  assert.throws(() => makeStore(initialState()).set({ haed: 1 }), { message: "store: unknown key haed" });
});
