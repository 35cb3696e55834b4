import assert from "node:assert/strict";
import { test } from "node:test";
import { HostError } from "../../hosts.js";
import { hostOfRun, makeSession, noEdits, typedOfHash, typedParams, wholeTyped } from "../../typing/session.js";

const off = { ...noEdits(), heads: [{ kind: "encoder", layer: 1, head: 2, value: 0 }] };

test("a text in the address reads back equal, with its changes", () => {
  for (const typed of [wholeTyped({ text: "it was tired & too late\n#2" }), wholeTyped({ text: "a", second: "b" }), wholeTyped({ text: "a", target: "c" }),
    wholeTyped({ text: "a", edits: off })]) {
    assert.deepEqual(typedOfHash(`#${new URLSearchParams([["layer", "3"], ...typedParams(typed)])}`), typed);
  }
});

test("texts that are too long are not in the address", () => {
  assert.deepEqual(typedParams(wholeTyped({ text: "x".repeat(2001) })), []);
  assert.equal(typedParams(wholeTyped({ text: "x".repeat(2000) })).length, 1);
});

test("an address with broken changes is the text alone", () => {
  for (const edits of ["{", "7", "null", "[]", "{\"heads\":1}"]) assert.equal(typedOfHash(`#text=a&edits=${encodeURIComponent(edits)}`)?.edits, null);
  assert.equal(typedOfHash("#layer=1"), null);
});

test("questions about a result name it, those about the first do not", async () => {
  /** @type {any[]} */
  const asked = [];
  const host = /** @type {any} */ ({ mode: "served", ask: async (/** @type {any} */ question) => { asked.push(question); return { meta: {}, arrays: [] }; } });
  await hostOfRun(host, 3).ask({ ask: "about" });
  await hostOfRun(host, 0).ask({ ask: "about" });
  assert.deepEqual(asked, [{ ask: "about", run: 3 }, { ask: "about" }]);
});

/** @param {(question: any) => any} answer */
function session(answer) {
  /** @type {any[]} */
  const opened = [];
  const host = /** @type {any} */ ({ mode: "served", ask: async (/** @type {any} */ question) => ({ meta: await answer(question), arrays: [] }) });
  return { opened, made: makeSession(host, async (run, typed, keep) => void opened.push([run, typed.text, keep])) };
}

test("a text is run, shown and remembered once", async () => {
  const { made, opened } = session(({ text }) => ({ run: text.length }));
  await made.run(wholeTyped({ text: "one" }));
  await made.run(wholeTyped({ text: "three" }));
  await made.run(wholeTyped({ text: "one" }), { keep: true });
  assert.deepEqual(opened, [[3, "one", false], [5, "three", false], [3, "one", true]]);
  assert.deepEqual(made.recent.map(({ text }) => text), ["one", "three"]);
});

test("changes of the model are no recent texts", async () => {
  const { made, opened } = session(() => ({ run: 1 }));
  await made.run(wholeTyped({ text: "one", edits: off }));
  assert.equal(opened.length, 1);
  assert.deepEqual(made.recent, []);
});

test("a refusal is told and shows nothing", async () => {
  for (const refuse of [() => { throw new HostError("refused", "run: the text is too long"); }, () => ({ error: "the text is too long" })]) {
    const { made, opened } = session(refuse);
    await made.run(wholeTyped({ text: "one" }));
    assert.equal(made.error(), "the text is too long");
    assert.equal(made.isRunning(), false);
    assert.deepEqual(opened, []);
  }
});

test("a second text gives up the first one", async () => {
  /** @type {((meta: any) => void)[]} */
  const answers = [];
  const { made, opened } = session(() => new Promise((resolve) => answers.push(resolve)));
  const first = made.run(wholeTyped({ text: "one" })), second = made.run(wholeTyped({ text: "two" }));
  answers[0]({ run: 1 });
  answers[1]({ run: 2 });
  await Promise.all([first, second]);
  assert.deepEqual(opened.map(([run]) => run), [2]);
  assert.equal(made.error(), "");
});
