// What the model makes of the text: the next tokens or those of a mask, with their probabilities, or how alike two texts' vectors are;
// and beside a change of the model what each was before, as dots.

import { barFill, el, tokenText } from "../dom.js";
import { percentText } from "../format.js";
import { tr } from "../languages.js";
import { stackOfAxis } from "../shell/app.js";
import { dotLines, mostMovedFigures } from "./dots.js";
/** @import { App, Items } from "../types.js" */
/** @import { MovedFigure } from "./dots.js" */

const blockSize = 256; // positions per reply, as in Python
const maskTokens = new Set(["[MASK]", "<mask>"]);

/**
 * The positions that are shown, and the title of each.
 * @param {{kind: string, tokens: number}} info
 * @param {Items | null} items  of the stack that predicts, if the queries are of that stack
 * @param {number | null} query  the picked item of it
 * @param {boolean} [isWritten]  items are named by what is written there
 * @returns {{position: number, title: string, word: string | null}[]}
 */
export function placesOf({ kind, tokens }, items, query, isWritten = false) {
  const label = (/** @type {number} */ item) => items?.labels[item] ?? "";
  const last = (/** @type {number} */ item) => (items ? items.spans[2 * item + 1] - 1 : tokens - 1);
  if (kind === "masked") {
    const masks = items ? items.labels.flatMap((name, item) => (maskTokens.has(name) ? [item] : [])) : [];
    const at = query !== null && (!masks.length || masks.includes(query)) ? query : masks[0] ?? null;
    return at === null ? [] : [{ position: last(at), title: tr("In place of"), word: label(at) }];
  }
  const end = { position: tokens - 1, title: tr("What comes next"), word: null };
  if (!items || query === null || query >= items.total || last(query) >= tokens - 1) return [end];
  return [{ position: last(query), title: isWritten ? tr("In place of") : tr("What follows"), word: label(query) }, end];
}

/** The least move of a probability that a sentence tells; the least probability of a line but the first. */
const leastShare = 0.001, leastProbable = 0.005;

/** @param {App} app @returns {{element: HTMLElement, show: (texts: {queries: Items} | null) => void, dispose: () => void}} */
export function makePredictions(app) {
  const element = el("div", { class: "uwaga-predictions", hidden: true });
  let asked = new AbortController();
  let shown = "";

  /** @param {string} side @param {number} position @param {AbortSignal} signal */
  async function at(side, position, signal) {
    const first = Math.floor(position / blockSize) * blockSize;
    const reply = await app.client.ask({ request: "predictions", side, first, count: blockSize }, { signal, priority: 3 });
    const words = /** @type {string[]} */ (reply.meta.words[position - first]), count = words.length;
    // Beside a change of the model: with it, and without it.
    const [now, before] = reply.arrays.map(({ data }) => data.subarray((position - first) * count, (position - first + 1) * count));
    return words.map((name, i) => ({ name, after: now[i], before: before ? before[i] : NaN }));
  }

  /** @param {{queries: Items} | null} texts */
  async function show(texts) {
    const { side, kind, query } = app.store.get(), predictions = app.about.predictions ?? {};
    const changed = Boolean(app.about.python);
    // Beside a change of the model, on any side, both are shown.
    const now = changed ? "1" : side === "difference" ? "0" : side;
    const info = predictions[now];
    if (!info) return showSimilar();
    const axis = app.side().kinds[kind].queries, isOfStack = stackOfAxis(axis) === info.stack;
    const places = placesOf(info, isOfStack && texts ? texts.queries : null, isOfStack ? query : null, axis === "written");
    const name = JSON.stringify([now, places]);
    if (name === shown) return;
    shown = name;
    asked.abort();
    asked = new AbortController();
    const { signal } = asked;
    try {
      const sections = await Promise.all(places.map(async (place) => {
        const figures = await at(now, place.position, signal);
        return changed ? movedSection(place, figures) : section(place, figures);
      }));
      if (signal.aborted) return;
      element.hidden = !sections.length;
      element.replaceChildren(...(changed && sections.length ? [el("h2", { text: tr("What changed in the output") })] : []), ...sections);
    } catch {
      if (signal.aborted) return;
      shown = ""; // the client reports the error
      element.hidden = true; // those of another word would be wrong here
    }
  }

  /** How alike the vector of the text is to that of the other one, or to that without the changes. */
  function showSimilar() {
    const { similarity, python, sides } = app.about;
    element.hidden = typeof similarity !== "number";
    if (typeof similarity !== "number") return;
    element.replaceChildren(python ? movedVector(similarity) : el("section", {}, el("h2", { text: tr("How alike its vector is to that of") }),
      el("ul", { class: "uwaga-bars uwaga-bars-long" }, bar(sides[app.store.get().side === "1" ? 0 : 1].title, Math.max(0, similarity), percentText(similarity)))));
  }

  return {
    element,
    show: (texts) => void show(texts),
    dispose: () => asked.abort(),
  };
}

/** @typedef {{title: string, word: string | null}} Place */

/** @param {Place} place */
const placeTitle = ({ title, word }) => [title, word === null ? null : [" ", el("bdi", { text: tr("“{token}”", { token: tokenText(word) }) })]].flat();

/** @param {Place} place @param {MovedFigure[]} figures */
function section(place, figures) {
  return el("section", {}, el("h2", {}, placeTitle(place)), el("ul", { class: "uwaga-bars" }, figures.map(({ name, after }) => bar(name, after, percentText(after)))));
}

/** Probabilities before and after a change of the model. @param {Place} place @param {MovedFigure[]} figures */
function movedSection(place, figures) {
  const { fell, rose } = mostMovedFigures(figures, leastShare), name = (/** @type {MovedFigure} */ one) => tokenText(one.name), by = (/** @type {MovedFigure} */ { before, after }) => percentText(Math.abs(after - before));
  const summary = fell && rose ? tr("“{fell}” lost {less}, “{rose}” gained {more}.", { fell: name(fell), less: by(fell), rose: name(rose), more: by(rose) })
    : fell ? tr("“{fell}” lost {less}.", { fell: name(fell), less: by(fell) }) : rose ? tr("“{rose}” gained {more}.", { rose: name(rose), more: by(rose) })
      : tr("No token’s probability moved by 0.1% or more.");
  return el("section", {}, el("h3", {}, placeTitle(place)), el("p", { class: "uwaga-said", text: summary }), dotLines(figures.filter(({ before, after }, i) => !i || Math.max(before, after) >= leastProbable)));
}

/** @param {number} similarity  of the vectors before and after a change of the model */
function movedVector(similarity) {
  const text = similarity > 1 - 1e-6 ? tr("Nothing: the text’s vector is as before.") : tr("The text’s vector is {share} like the one before.", { share: percentText(similarity) });
  return el("section", {}, el("h2", { text: tr("What changed in the output") }), el("p", { class: "uwaga-said", text }));
}

/** @param {string} word @param {number} now @param {string} number */
function bar(word, now, number) {
  return el("li", { class: "uwaga-bar-row" }, el("bdi", { class: "uwaga-token", text: tokenText(word), title: tokenText(word) }), el("span", { class: "uwaga-bar" }, barFill("key", Math.min(100, 100 * now))),
    el("span", { class: "uwaga-bar-number", text: number }));
}
