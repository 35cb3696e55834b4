import assert from "node:assert/strict";
import { test } from "node:test";
import { hashToState, stateToParams } from "../../shell/url_state.js";
import { initialState } from "../../store.js";
import { fakeHost } from "../fake_host.js";

const about = /** @type {any} */ ((await fakeHost({ layers: 3, heads: 4, targets: 20, sides: 2 }).ask({ request: "about" })).meta);
const read = (hash) => hashToState(hash, about, initialState());

test("a written state reads back equal", () => {
  const state = { ...initialState(), tab: "table", side: "1", kind: "cross", layer: 2, head: 3,
    pooling: "max", merge: "words", specials: "hide", compare: "both",
    query: 4, key: 0, wide: true, view: { x: 1.5, y: 2, scale: 7.25 },
    colour: { log: true, low: 0, high: 0.5, threshold: 0.001, hideSink: false, scheme: "grey" }, theme: "dark" };
  const fromHash = read(`#${stateToParams(state, initialState())}`);
  assert.deepEqual({ ...initialState(), ...fromHash }, state);
});

test("the lesson's step and example are in the URL of its tab alone", () => {
  const state = { ...initialState(), tab: "lesson", step: "softmax", example: '{"text":"a & b"}' };
  const fromHash = read(`#${stateToParams(state, initialState())}`);
  assert.deepEqual({ ...initialState(), ...fromHash }, state);
  assert.doesNotMatch(String(stateToParams({ ...state, tab: "explore" }, initialState())), /step|example/);
  assert.doesNotMatch(String(stateToParams({ ...state, example: "x".repeat(6001) }, initialState())), /example/);
  assert.equal(read("#step=<b>&example=").step, undefined);
});

test("defaults are left out of the URL", () => {
  assert.equal(String(stateToParams(initialState(), initialState())), "tab=explore&side=0&kind=encoder&layer=0&head=0&compare=one");
});

test("unknown keys and invalid values are ignored", () => {
  for (const hash of ["#layer=99", "#head=4", "#head=-1", "#head=1.5", "#kind=<script>",
    "#side=7", "#layer=NaN"]) assert.deepEqual(read(hash), {});
  const head = { side: "0", kind: "encoder", layer: 0, head: 0, compare: "one" };
  for (const hash of ["#tab=settings", "#pooling=mean", "#query=-3", "#map=5", "#view=1,2,0", "#view=1,2",
    "#colour=blue,log,9,1,0,sink", "#token=x"]) assert.deepEqual(read(hash), head);
});

test("comparison follows from the side, whatever the URL says", () => {
  assert.equal(read("#side=difference&compare=one").compare, "difference");
  assert.equal(read("#side=0&compare=difference").compare, "one");
});
