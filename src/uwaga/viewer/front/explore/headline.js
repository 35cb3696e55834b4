// Sentences of what is seen: what a word looks at, what came of a cut, which head it is, how much rests.

import { briefText, el, wordText } from "../dom.js";
import { countText, headText, percentText } from "../format.js";
import { tr, trParts } from "../languages.js";
import { strongestItems } from "../weights.js";

/** @typedef {import("../types.js").Items} Items */

/** The least weight of a word that a headline counts. */
const leastCounted = 0.01;

/** @param {number} cell @returns {string} */
export function meansText(cell) {
  return tr("Means over {cell} by {cell} items: this saved page contains nothing finer here.", { cell });
}

/**
 * it looks mostly at tired: 59 %.
 * @param {{queries: Items, keys: Items}} texts
 * @param {number} query
 * @param {number | null} key
 * @param {Float32Array | null} weights
 * @param {ReadonlySet<number>} sinks
 * @param {boolean} signed
 * @param {import("./distinctive.js").Link | undefined} strongest  of the head
 * @param {boolean} isCounted  words that are said several times are one
 * @returns {(string | Node)[]}
 */
export function headlineOf({ queries, keys }, query, key, weights, sinks, signed, strongest, isCounted) {
  const word = (/** @type {Items} */ items, /** @type {number} */ item) =>
    el("bdi", { class: items === queries && item === query ? "uwaga-asks" : sinks.has(item) ? "" : "uwaga-asked", text: wordText(items, item) });
  const from = word(queries, query);
  if (!weights && strongest?.query === query && (key === null || key === strongest.key))
    return trParts("{from} looks at {to}: {weight}", { from, to: word(keys, strongest.key), weight: percentText(strongest.weight) });
  if (!weights) return [from];
  const best = strongestItems(weights, sinks.size + 1).find((item) => !sinks.has(item));
  const at = key !== null && key < keys.total ? key : best;
  if (at === undefined) {
    const [rest] = strongestItems(weights, 1);
    return rest === undefined || keys.specials.has(rest) ? trParts("{from} looks at nothing but special tokens", { from }) : trParts("{from} looks at {to}: {weight}", { from, to: word(keys, rest), weight: percentText(weights[rest]) });
  }
  if (signed) return [from, " \u2192 ", word(keys, at), `: ${weights[at] > 0 ? "+" : ""}${percentText(weights[at])}`];
  const to = word(keys, at), weight = percentText(weights[at]);
  if (at === best) {
    // A long text says a word again and again.
    const same = Array.from(weights.keys()).filter((item) => weights[item] >= leastCounted && !sinks.has(item) && keys.labels[item] === keys.labels[at]);
    if (isCounted && key === null && same.length > 1) return trParts("{from} looks mostly at {to}, {count} times: {weight}", { from, to, count: countText(same.length), weight: percentText(same.reduce((sum, item) => sum + weights[item], 0)) });
    return trParts("{from} looks mostly at {to}: {weight}", { from, to, weight });
  }
  if (best === undefined || sinks.has(at)) return trParts("{from} looks at {to}: {weight}", { from, to, weight });
  return trParts("{from} looks at {to}: {weight}, mostly at {most}: {largest}", { from, to, weight, most: word(keys, best), largest: percentText(weights[best]) });
}

/**
 * Without animal, it looks mostly at [CLS]: 31.4 %.
 * @param {{queries: Items, keys: Items}} texts @param {number} query @param {ReadonlySet<number>} cut @param {ArrayLike<number>} weights
 */
export function withoutText({ queries, keys }, query, cut, weights) {
  const [at] = strongestItems(weights, 1), word = (/** @type {string} */ hue, /** @type {Items} */ items, /** @type {number} */ item) => el("bdi", { class: hue, text: wordText(items, item) });
  const lost = word("uwaga-asked", keys, [...cut][0]), from = word("uwaga-asks", queries, query);
  if (at === undefined) return trParts("Without {lost}, {from} looks at nothing", { lost, from });
  return trParts("Without {lost}, {from} looks mostly at {most}: {largest}", { lost, from, most: word("", keys, at), largest: percentText(weights[at]) });
}

/** @param {import("../types.js").App} app @param {import("./distinctive.js").DistinctiveHead | undefined} own @returns {string} the model, which head, and what the head does */
export function whereText(app, own) {
  const { kind, layer, head } = app.store.get();
  return [app.side().model, headText(kind, layer, head), own?.label && own.sentence.replace(/^./u, (letter) => letter.toLowerCase())].filter(Boolean).join(" \u00b7 ");
}

/** @param {ArrayLike<number> | null} weights @param {ReadonlySet<number>} sinks @param {Items} keys @returns {string} */
export function restText(weights, sinks, keys) {
  const resting = weights ? [...sinks].reduce((sum, sink) => sum + (weights[sink] || 0), 0) : 0;
  if (resting <= 0.5) return "";
  const first = [...sinks].find((sink) => !keys.specials.has(sink));
  return first === undefined ? tr("{resting} of this word’s weight rests on special tokens.", { resting: percentText(resting) })
    : sinks.size > 1 ? tr("{resting} of this word’s weight rests on the first word and on special tokens.", { resting: percentText(resting) })
      : tr("{resting} of this word’s weight rests on the first word, “{first}”.", { resting: percentText(resting), first: briefText(keys.labels[first]) });
}
