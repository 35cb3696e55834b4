// What the model makes of the text: the next tokens or those of a mask, with their probabilities, or how alike two texts' vectors are;
// and beside a change of the model what it was before.

import { barFill, el, tokenText } from "../dom.js";
import { percentText } from "../format.js";
import { tr } from "../languages.js";
import { stackOfAxis } from "../shell/app.js";

/** @typedef {import("../types.js").App} App */
/** @typedef {import("../types.js").Items} Items */

const predictedBlock = 256; // positions per reply, as in Python
const maskTokens = new Set(["[MASK]", "<mask>"]);

/**
 * The positions that are shown, and the title of each.
 * @param {{kind: string, tokens: number}} info
 * @param {Items | null} items  of the stack that predicts, where it is the queries' one
 * @param {number | null} query  the picked item of it
 * @param {boolean} [isWritten]  items are named by what is written there
 * @returns {{position: number, title: string, word: string | null}[]}
 */
export function predictedPlaces({ kind, tokens }, items, query, isWritten = false) {
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

/**
 * Bars of now and, where there is one, of before: every token of either list that is among the five of now.
 * @param {{words: string[], probabilities: number[]}} now
 * @param {{words: string[], probabilities: number[]} | null} before
 * @returns {{word: string, now: number, before: number | null}[]}
 */
export function predictionBars(now, before) {
  return now.words.map((word, i) => {
    const at = before ? before.words.indexOf(word) : -1;
    return { word, now: now.probabilities[i], before: at < 0 ? null : /** @type {any} */ (before).probabilities[at] };
  });
}

/**
 * @param {App} app
 * @returns {{element: HTMLElement, show: (texts: {queries: Items} | null) => void, dispose: () => void}}
 */
export function makePredictions(app) {
  const element = el("div", { class: "uwaga-predictions", hidden: true });
  let asked = new AbortController();
  let shown = "";

  /** @param {string} side @param {number} position @param {AbortSignal} signal */
  async function at(side, position, signal) {
    const first = Math.floor(position / predictedBlock) * predictedBlock;
    const reply = await app.client.ask({ request: "predictions", side, first, count: predictedBlock }, { signal, priority: 3 });
    const words = reply.meta.words[position - first], count = words.length;
    const data = /** @type {Float32Array} */ (reply.arrays[0].data);
    return { words, probabilities: [...data.subarray((position - first) * count, (position - first + 1) * count)] };
  }

  /** @param {{queries: Items} | null} texts */
  async function show(texts) {
    const { side, kind, query } = app.store.get(), predictions = app.about.predictions ?? {};
    const changed = Boolean(app.about.python);
    // Beside a change of the model the bars are those with it, on any side, and their outlines those without.
    const now = changed ? "1" : side === "difference" ? "0" : side;
    const info = predictions[now];
    if (!info) return showSimilar();
    const axis = app.side().kinds[kind].queries, own = stackOfAxis(axis) === info.stack;
    const places = predictedPlaces(info, own && texts ? texts.queries : null, own ? query : null, axis === "written");
    const name = JSON.stringify([now, places]);
    if (name === shown) return;
    shown = name;
    asked.abort();
    asked = new AbortController();
    const { signal } = asked;
    try {
      const sections = await Promise.all(places.map(async (place) => {
        const [after, before] = await Promise.all([at(now, place.position, signal), changed ? at("0", place.position, signal) : null]);
        return section(place, predictionBars(after, before));
      }));
      if (signal.aborted) return;
      element.hidden = !sections.length;
      element.replaceChildren(...sections);
    } catch {
      if (!signal.aborted) shown = ""; // the client reports the error
    }
  }

  /** How alike the vector of the text is to those of others. */
  function showSimilar() {
    const similar = app.about.similar ?? [], { unchanged } = app.about;
    element.hidden = !similar.length && typeof unchanged !== "number";
    element.replaceChildren(...(typeof unchanged === "number" ? [el("section", {}, el("h2", { text: tr("What changed in the output") }),
      el("p", { text: unchanged > 1 - 1e-6 ? tr("Nothing: the text’s vector is as before.") : tr("The text’s vector is {share} like the one before.", { share: percentText(unchanged) }) }))] : []));
    if (similar.length) element.append(el("section", {}, el("h2", { text: tr("How alike its vector is to that of") }),
      el("ul", { class: "uwaga-bars uwaga-bars-long" }, similar.map(([title, cosine]) => bar(title, Math.max(0, cosine), null, percentText(cosine))))));
  }

  return {
    element,
    show: (texts) => void show(texts),
    dispose: () => asked.abort(),
  };
}

/** @param {{title: string, word: string | null}} place @param {ReturnType<typeof predictionBars>} bars */
function section({ title, word }, bars) {
  return el("section", {}, el("h2", {}, title, word === null ? null : [" ", el("bdi", { text: tr("“{token}”", { token: tokenText(word) }) })]),
    el("ul", { class: "uwaga-bars" }, bars.map((one) => bar(one.word, one.now, one.before, percentText(one.now)))));
}

/** @param {string} word @param {number} now @param {number | null} before @param {string} number */
function bar(word, now, before, number) {
  const outline = before === null ? null : el("i", { class: "uwaga-bar-before", style: { width: `${Math.min(100, 100 * before)}%` } });
  const points = before === null ? null : Math.round(100 * (now - before));
  return el("li", { class: "uwaga-bar-row" }, el("bdi", { class: "uwaga-token", text: tokenText(word), title: tokenText(word) }), el("span", { class: "uwaga-bar" }, barFill("key", Math.min(100, 100 * now)), outline),
    el("span", { class: "uwaga-bar-number" }, number, points ? el("small", { text: ` ${points > 0 ? "+" : "\u2212"}${Math.abs(points)}` }) : null));
}
