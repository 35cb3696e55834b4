// Changes of the model: a head switched off, a link cut; and the bar that lists them, with before, after and their difference.

import { segmentedControl } from "../controls.js";
import { el, tokenText } from "../dom.js";
import { headText } from "../format.js";
import { tr, trN } from "../languages.js";
import { goTo } from "../shell/head_navigation.js";
import { itemOfToken } from "../shell/selection.js";
import { isEqual } from "../store.js";
import { copyButton } from "./box.js";
import { countEdits, noEdits, completeRequest } from "./session.js";
/** @import { App, Command, Edits, Items, SideId } from "../types.js" */

/** @typedef {{kind: string, layer: number, head: number}} HeadPlace */

/** @param {Edits} edits @param {HeadPlace} at @returns {number | null} the factor of the head's output; null: as it is */
export function headFactor(edits, { kind, layer, head }) {
  const value = edits.heads.find((one) => one.kind === kind && one.layer === layer && one.head === head)?.value;
  return typeof value === "number" ? value : null;
}

/** @param {Edits} edits @param {HeadPlace} at @param {number | null} factor  null: as it is @returns {Edits} */
export function withHead(edits, { kind, layer, head }, factor) {
  const others = edits.heads.filter((one) => !(one.kind === kind && one.layer === layer && one.head === head));
  return { ...edits, heads: factor === null ? others : [...others, { kind, layer, head, value: factor }] };
}

/**
 * Cuts a link before softmax, or mends it if it is cut.
 * @param {Edits} edits @param {HeadPlace} at @param {number[]} queries  tokens @param {number[]} keys
 * @returns {Edits}
 */
export function withLink(edits, { kind, layer, head }, queries, keys) {
  const link = { kind, layer, head, queries, keys };
  const others = edits.scores.filter((one) => !isEqual(one, link));
  return { ...edits, scores: others.length < edits.scores.length ? others : [...others, link] };
}

/** @param {Items} items @param {number} item @returns {number[]} its tokens */
export function tokensOfItem(items, item) {
  const [first, stop] = [items.spans[2 * item], items.spans[2 * item + 1]];
  return Array.from({ length: stop - first }, (_, i) => first + i);
}

/**
 * @param {App} app
 * @returns {{controls: HTMLElement | null, cut: HTMLElement | null, bar: HTMLElement, dispose: () => void,
 *   show: (texts: {queries: Items, keys: Items} | null, best?: number | null) => void}} best: the key whose link is cut where none is picked
 */
export function makeChanges(app) {
  const { store, about, session } = app, controls = el("div", { class: "uwaga-change-controls", role: "group", "aria-label": tr("Change the model") });
  const bar = el("div", { class: "uwaga-changes", role: "region", "aria-label": tr("Changes"), hidden: true });
  const typed = about.typed, can = Boolean(about.typing?.editable && typed && typed.second === null && app.host.mode !== "saved");
  const edits = typed?.edits ?? noEdits();
  /** @type {{queries: Items, keys: Items} | null} */
  let texts = null;
  /** @type {number | null} */
  let best = null;
  if (!about.python && !can) return { controls: null, cut: null, bar, show() {}, dispose() {} };

  const head = segmentedControl(tr("This head"), [{ name: /** @type {"as is"} */ ("as is"), title: tr("As is") }, { name: /** @type {"off"} */ ("off"), title: tr("Off"),
    hint: tr("The head's output becomes zero") }, { name: /** @type {"double"} */ ("double"), title: "\u00d7 2", hint: tr("The head's output is doubled") }],
  (name) => change(withHead(edits, store.get(), { "as is": null, off: 0, double: 2 }[name])));
  const cut = el("button", { type: "button", class: "uwaga-cut", on: { click: () => app.commands.run("typing.cut") } });
  const views = segmentedControl(tr("Shown"), [{ name: /** @type {"0"} */ ("0"), title: tr("Before") }, { name: /** @type {"1"} */ ("1"), title: tr("After") },
    { name: /** @type {"difference"} */ ("difference"), title: tr("Difference"), hint: tr("Before minus after") }], (name) => goTo.compare(app, name));
  controls.append(head.element);

  /** @param {Edits} next @param {boolean} [isStep]  false: a step back or forth */
  function change(next, isStep = true) {
    if (!typed) return;
    if (isStep) { app.history.past.push(edits); app.history.future.length = 0; }
    void session.run(completeRequest({ ...typed, edits: next }), { keep: true });
  }

  /** @returns {{queries: number[], keys: number[]} | null} the picked link, in tokens */
  function pickedLink() {
    const { query, key: picked } = store.get(), key = picked ?? best;
    if (!texts || query === null || key === null || query >= texts.queries.total || key >= texts.keys.total) return null;
    return { queries: tokensOfItem(texts.queries, query), keys: tokensOfItem(texts.keys, key) };
  }

  function isCut() {
    const link = pickedLink(), { kind, layer, head: number } = store.get();
    return link !== null && edits.scores.some((one) => isEqual(one, { kind, layer, head: number, ...link }));
  }

  const remove = !can ? [] : [
    { id: "typing.cut", title: tr("Cut the picked link, or mend it"), keys: ["d"], when: () => pickedLink() !== null, run() {
      const link = pickedLink();
      if (link) change(withLink(edits, store.get(), link.queries, link.keys));
    } },
    { id: "typing.undo", title: tr("Undo a change"), keys: ["ctrl+z"], when: () => app.history.past.length > 0, run: () => {
      const before = app.history.past.pop();
      if (!before) return;
      app.history.future.push(edits);
      change(before, false);
    } },
    { id: "typing.redo", title: tr("Make the change again"), keys: ["ctrl+shift+z"], when: () => app.history.future.length > 0, run() {
      const next = app.history.future.pop();
      if (!next) return;
      app.history.past.push(edits);
      change(next, false);
    } },
  ].map((/** @type {Omit<Command, "group">} */ command) => app.commands.add({ group: tr("Text and changes"), ...command }));

  /** @param {string} name  of the change @param {Edits} without */
  function chip(name, without) {
    return el("span", { class: "uwaga-change" }, el("bdi", { text: name }), can && el("button", { type: "button", text: "\u00d7", "aria-label": tr("Take back: {name}", { name }), on: { click: () => change(without) } }));
  }

  /** @param {HeadPlace} at */
  const where = ({ kind, layer, head: number }) => headText(kind, layer, number);
  const named = (/** @type {Items | undefined} */ items, /** @type {number[] | null} */ tokens) => {
    const found = (tokens ?? []).map((token) => (items ? itemOfToken(items.spans, token) : null));
    // A word of several tokens is named once.
    return (tokens ?? []).flatMap((token, i) => {
      const item = found[i];
      return item === null || !items || items.spans[2 * item] > token ? [String(token)] : i && found[i - 1] === item ? [] : [tokenText(items.labels[item])];
    }).join(" ");
  };

  function draw() {
    const state = store.get(), count = countEdits(edits);
    if (can) {
      const factor = headFactor(edits, state);
      head.show(factor === 0 ? "off" : factor === 2 ? "double" : "as is");
      const link = pickedLink(), on = isCut();
      cut.disabled = link === null;
      cut.textContent = on ? tr("✂ Mend link") : tr("✂ Cut link");
      cut.title = tr("The query may not see this key: its score is removed before softmax, so that its weight is 0 and the rest of the row grows (D)");
    }
    bar.hidden = !count;
    if (!count) return;
    views.show(state.compare === "both" ? "1" : state.side);
    bar.replaceChildren(
      el("strong", { text: trN("{count} change", "{count} changes", count) }),
      el("span", { class: "uwaga-change-list" },
        edits.heads.map((one) => chip(one.value === 0 ? tr("{head} off", { head: where(one) }) : `${where(one)} \u00d7 ${one.value}`, withHead(edits, one, null))),
        edits.scores.map((one) => chip(tr("{queries} → {keys} cut in {one}", { queries: named(texts?.queries, one.queries), keys: named(texts?.keys, one.keys), one: where(one) }),
          { ...edits, scores: edits.scores.filter((other) => other !== one) })),
        edits.weights.map((one) => chip(tr("{queries} → {keys} × {factor} after the softmax in {one}", { queries: named(texts?.queries, one.queries), keys: named(texts?.keys, one.keys), factor: one.factor, one: where(one) }),
          { ...edits, weights: edits.weights.filter((other) => other !== one) }))),
      views.element,
      can ? el("span", { class: "uwaga-change-actions" },
        el("button", { type: "button", text: tr("Undo"), disabled: !app.history.past.length, on: { click: () => app.commands.run("typing.undo") } }),
        el("button", { type: "button", text: tr("Clear"), on: { click: () => change(noEdits()) } }),
        copyButton(app, tr("Copy as Python"), () => about.python ?? "")) : "");
  }

  /** Holding the backslash shows what was before. */
  /** @type {SideId | ""} */
  let held = "";
  const keydown = (/** @type {KeyboardEvent} */ event) => {
    if (event.key !== "\\" || held || !countEdits(edits) || event.target instanceof HTMLTextAreaElement) return;
    held = store.get().side;
    goTo.compare(app, "0");
  };
  const keyup = (/** @type {KeyboardEvent} */ event) => {
    if (event.key !== "\\" || !held) return;
    goTo.compare(app, held);
    held = "";
  };
  app.root.addEventListener("keydown", keydown);
  app.root.addEventListener("keyup", keyup);
  const unsubscribe = store.subscribe(["side", "compare", "kind", "layer", "head", "query", "key"], draw);
  draw();
  return {
    controls: can ? controls : null, cut: can ? cut : null, bar,
    show(next, key = null) {
      texts = next;
      best = key;
      draw();
    },
    dispose() {
      unsubscribe();
      remove.forEach((end) => end());
      app.root.removeEventListener("keydown", keydown);
      app.root.removeEventListener("keyup", keyup);
    },
  };
}
