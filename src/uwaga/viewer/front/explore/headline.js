// Sentences of what is seen: what a word looks at, what came of a cut, which head it is, how much rests.

import { briefText, el, unknownClass, wordText } from "../dom.js";
import { countText, headText, percentText } from "../format.js";
import { tr, trN, trParts } from "../languages.js";
/** @import { App, Items, Side, Stack } from "../types.js" */
/** @import { DistinctiveHead, Link } from "./distinctive.js" */

/** @typedef {{key: number, weight: number, count: number}} Seen  count: places at which it stands */
/**
 * @typedef {object} Look
 * @property {"nothing" | "evenly" | "mostly" | "most" | "rests"} is
 * @property {Seen | null} top  what gets the largest weight
 * @property {Seen | null} next  what gets most beside it, special tokens left out
 * @property {number} visible  keys that the word may look at
 */

/** A weight above this is most of all; weights within this factor of their mean are even. */
const mostOfAll = 0.5, evenFactor = 1.5;

/** Characters of a headline from which its letters are smaller. */
const longHeadline = 48;

/** @param {HTMLElement} headline */
export function shrinkLong(headline) {
  headline.toggleAttribute("data-long", (headline.textContent ?? "").length > longHeadline);
}

/** The height of the sentences stays while something is pointed at: a longer one must not move it away from under the pointer. @param {HTMLElement} top @param {boolean} isPointing */
export function holdHeight(top, isPointing) {
  if (isPointing === top.hasAttribute("data-pointing")) return;
  if (isPointing) top.style.setProperty("height", `${top.offsetHeight}px`);
  else top.style.removeProperty("height");
  top.toggleAttribute("data-pointing", isPointing);
}

/** @param {number} cell @returns {string} */
export function meansText(cell) {
  return tr("Means over {cell} by {cell} items: this saved page contains nothing finer here.", { cell });
}

/**
 * What a word looks at: the one rule behind every sentence that says it.
 * @param {ArrayLike<number>} weights  of the word, on all keys
 * @param {{keys: Pick<Items, "specials" | "labels">, sinks: ReadonlySet<number>, isHidden?: (key: number) => boolean, isCounted?: boolean}} of
 *   isCounted: a word that is said several times is one
 * @returns {Look | null} null: some of the weights are not known
 */
export function lookOf(weights, { keys, sinks, isHidden = () => false, isCounted = false }) {
  const seen = Array.from(weights, (weight, key) => ({ key, weight, count: 1 })).filter(({ key }) => !isHidden(key)), visible = seen.length;
  if (seen.some(({ weight }) => Number.isNaN(weight))) return null;
  const mean = seen.reduce((sum, { weight }) => sum + weight, 0) / visible;
  /** @type {Map<string | number, Seen>} */
  const words = new Map();
  for (const one of seen) {
    const name = isCounted && !sinks.has(one.key) ? keys.labels[one.key] : one.key, same = words.get(name);
    if (!same) words.set(name, { ...one });
    else Object.assign(same, { key: one.weight > weights[same.key] ? one.key : same.key, weight: same.weight + one.weight, count: same.count + 1 });
  }
  const most = (/** @type {Seen[]} */ some) => some.reduce((/** @type {Seen | null} */ best, one) => (one.weight > (best?.weight ?? 0) ? one : best), null);
  const all = [...words.values()], top = most(all), next = most(all.filter((one) => one !== top && !keys.specials.has(one.key)));
  const isEven = visible > 1 && seen.every(({ weight }) => weight <= evenFactor * mean && weight >= mean / evenFactor);
  const isRest = top !== null && sinks.has(top.key);
  return { top, next, visible, is: !top ? "nothing" : top.weight <= mostOfAll && isEven ? "evenly" : isRest ? "rests" : top.weight > mostOfAll ? "mostly" : "most" };
}

/**
 * "street rests on CLS: 89.2%; of the words, most on The: 5.3%".
 * @param {Look} look
 * @param {{weights: ArrayLike<number>, from: Node | string, name: (key: number) => Node | string, isSpecial: (key: number) => boolean, picked?: number | null, isPicture?: boolean}} of
 *   picked: a key that the sentence is about, if that is not what it says anyway
 * @returns {(Node | string)[]}
 */
export function lookParts({ is, top, next, visible }, { weights, from, name, isSpecial, picked = null, isPicture = false }) {
  const counted = (/** @type {Seen} */ { key, count }) => (count > 1 ? el("span", {}, trParts("{word}, {count} times", { word: name(key), count: countText(count) })) : name(key));
  if (!top) return trParts("{from} looks at nothing", { from });
  const to = counted(top), weight = percentText(top.weight), isNext = is === "rests" && next !== null && picked === next.key;
  if (picked !== null && picked !== top.key && !isNext) {
    const values = { from, to: name(picked), weight: percentText(weights[picked]), most: to, largest: weight };
    return is === "rests" ? trParts("{from} looks at {to}: {weight}, and rests on {most}: {largest}", values)
      : is === "evenly" ? trParts("{from} looks at {to}: {weight}", values) : trParts("{from} looks at {to}: {weight}, most at {most}: {largest}", values);
  }
  if (is === "mostly") return trParts("{from} looks mostly at {to}: {weight}", { from, to, weight });
  if (is === "most") return trParts("{from} looks most at {to}: {weight}", { from, to, weight });
  if (is === "evenly") return trParts("{from} spreads evenly over {count}: at most {weight} each", { from, count: countText(visible), weight });
  if (!next) return trParts("{from} rests on {to}: {weight}", { from, to, weight });
  const both = { from, to, weight, most: counted(next), largest: percentText(next.weight) };
  return isPicture ? trParts("{from} rests on {to}: {weight}; of the patches, most on {most}: {largest}", both)
    : isSpecial(top.key) ? trParts("{from} rests on {to}: {weight}; of the words, most on {most}: {largest}", both)
      : trParts("{from} rests on {to}: {weight}; of the other words, most on {most}: {largest}", both);
}

/**
 * The sentence of a word, of a link where one is picked, or of what it looks at without a link that is cut.
 * @param {{queries: Items, keys: Items}} texts @param {number} query @param {number | null} key
 * @param {Float32Array | null} weights
 * @param {{sinks: ReadonlySet<number>, signed: boolean, strongest: Link | undefined, isCounted: boolean,
 *   isHidden: (key: number) => boolean, cut?: ReadonlySet<number>}} of  strongest: the link of the head that is told
 * @returns {(string | Node)[]}
 */
export function headlineOf({ queries, keys }, query, key, weights, { sinks, signed, strongest, isCounted, isHidden, cut = new Set() }) {
  const word = (/** @type {Items} */ items, /** @type {number} */ item) =>
    el("bdi", { class: [items === queries && item === query ? "uwaga-asks" : sinks.has(item) ? "" : "uwaga-asked", unknownClass(items, item)].join(" "), text: wordText(items, item) });
  const from = word(queries, query), name = (/** @type {number} */ item) => word(keys, item);
  if (!weights) return strongest?.query === query && (key === null || key === strongest.key)
    ? trParts("{from} looks at {to}: {weight}", { from, to: name(strongest.key), weight: percentText(strongest.weight) }) : [from];
  const picked = key !== null && key < keys.total && !cut.has(key) ? key : null;
  if (signed) {
    const at = picked ?? weights.reduce((best, weight, item) => (!sinks.has(item) && Math.abs(weight) > Math.abs(weights[best] ?? 0) ? item : best), -1);
    return at < 0 ? [from] : [from, " \u2192 ", name(at), `: ${weights[at] > 0 ? "+" : ""}${percentText(weights[at])}`];
  }
  if (picked !== null && isHidden(picked)) return trParts("{from} looks at {to}: {weight}", { from, to: name(picked), weight: tr("masked") });
  const look = lookOf(weights, { keys, sinks, isHidden, isCounted: isCounted && picked === null });
  const sentence = look ? lookParts(look, { weights, from, name, isSpecial: (item) => keys.specials.has(item), picked }) : [from];
  return cut.size ? trParts("Without {lost}, {said}", { lost: name([...cut][0]), said: el("span", {}, sentence) }) : sentence;
}

/**
 * Which head it is: the model, its place, and what it does, with the share on sinks if that is most of its weight.
 * @param {App} app @param {DistinctiveHead | undefined} openHead @param {number} [rest]  of the whole head
 */
export function whereText(app, openHead, rest = 0) {
  const { kind, layer, head } = app.store.get();
  return [app.side().model, headText(kind, layer, head), openHead?.label && openHead.sentence.replace(/^./u, (letter) => letter.toLowerCase()),
    openHead?.label && rest > mostOfAll && tr("{rest} at rest", { rest: percentText(rest) })].filter(Boolean).join(" \u00b7 ");
}

/** Models that read any text, byte by byte, and that know the words of many languages. */
const readsBytes = "copyist", readsLanguages = "intfloat/multilingual-e5-small";

/** @param {Side} side @param {string[]} names  of the stacks that are shown @returns {string} how much of the text the model does not know */
export function unknownText({ stacks }, names) {
  const shown = [...new Set(names)].map((name) => stacks[name]), sum = (/** @type {(of: Stack) => number} */ of) => shown.reduce((all, one) => all + of(one), 0);
  const count = sum(({ unknown = 0 }) => unknown);
  if (!count) return "";
  const values = { total: sum(({ tokens, specials }) => tokens - specials), token: shown.find((of) => of.unknown_token)?.unknown_token, bytes: readsBytes, languages: readsLanguages };
  return [trN("{count} of {total} tokens is unknown to this model: it reads {token} instead.", "{count} of {total} tokens are unknown to this model: it reads the same {token} for each.", count, values),
    tr("The model {bytes}, which comes with uwaga, reads every text, byte by byte; {languages} knows words of many languages.", values)].join(" ");
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
