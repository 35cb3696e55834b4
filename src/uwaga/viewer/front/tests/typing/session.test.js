import assert from "node:assert/strict";
import { test } from "node:test";
import { HostError } from "../../hosts.js";
import { hostOfRun, makeSession, noEdits, typedOfHash, typedParams, completeRequest } from "../../typing/session.js";

const off = { ...noEdits(), heads: [{ kind: "encoder", layer: 1, head: 2, value: 0 }] };

test("a text in the address reads back equal, with its changes", () => {
  for (const typed of [completeRequest({ text: "it was tired & too late\n#2" }), completeRequest({ text: "a", second: "b" }), completeRequest({ text: "a", target: "c" }),
    completeRequest({ text: "a", edits: off })]) {
    assert.deepEqual(typedOfHash(`#${new URLSearchParams([["layer", "3"], ...typedParams(typed)])}`), typed);
  }
});

test("texts that are too long are not in the address", () => {
  assert.deepEqual(typedParams(completeRequest({ text: "x".repeat(2001) })), []);
  assert.equal(typedParams(completeRequest({ text: "x".repeat(2000) })).length, 1);
});

test("an address with broken changes is the text alone", () => {
  for (const edits of ["{", "7", "null", "[]", "{\"heads\":1}"]) assert.equal(typedOfHash(`#text=a&edits=${encodeURIComponent(edits)}`)?.edits, null);
  assert.equal(typedOfHash("#layer=1"), null);
});

test("requests about a result name it, those about the first do not", async () => {
  /** @type {any[]} */
  const asked = [];
  const host = /** @type {any} */ ({ mode: "served", ask: async (/** @type {any} */ request) => { asked.push(request); return { meta: {}, arrays: [] }; } });
  await hostOfRun(host, 3).ask({ request: "about" });
  await hostOfRun(host, 0).ask({ request: "about" });
  assert.deepEqual(asked, [{ request: "about", run: 3 }, { request: "about" }]);
});

/** @param {(request: any) => any} answer */
function session(answer) {
  /** @type {any[]} */
  const opened = [];
  const host = /** @type {any} */ ({ mode: "served", ask: async (/** @type {any} */ request) => ({ meta: await answer(request), arrays: [] }) });
  return { opened, made: makeSession(host, async (run, typed, keep) => void opened.push([run, typed.text, keep])) };
}

test("a text is run, shown and remembered once", async () => {
  const { made, opened } = session(({ text }) => ({ run: text.length }));
  await made.run(completeRequest({ text: "one" }));
  await made.run(completeRequest({ text: "three" }));
  await made.run(completeRequest({ text: "one" }), { keep: true });
  assert.deepEqual(opened, [[3, "one", false], [5, "three", false], [3, "one", true]]);
  assert.deepEqual(made.recent.map(({ text }) => text), ["one", "three"]);
});

test("changes of the model are no recent texts", async () => {
  const { made, opened } = session(() => ({ run: 1 }));
  await made.run(completeRequest({ text: "one", edits: off }));
  assert.equal(opened.length, 1);
  assert.deepEqual(made.recent, []);
});

test("a refusal is told and shows nothing", async () => {
  for (const refuse of [() => { throw new HostError("refused", "run: the text is too long"); }, () => ({ error: "the text is too long" })]) {
    const { made, opened } = session(refuse);
    await made.run(completeRequest({ text: "one" }));
    assert.equal(made.error(), "the text is too long");
    assert.equal(made.isRunning(), false);
    assert.deepEqual(opened, []);
  }
});

test("a second text gives up the first one", async () => {
  /** @type {((meta: any) => void)[]} */
  const answers = [];
  const { made, opened } = session(() => new Promise((resolve) => answers.push(resolve)));
  const first = made.run(completeRequest({ text: "one" })), second = made.run(completeRequest({ text: "two" }));
  answers[0]({ run: 1 });
  answers[1]({ run: 2 });
  await Promise.all([first, second]);
  assert.deepEqual(opened.map(([run]) => run), [2]);
  assert.equal(made.error(), "");
});
