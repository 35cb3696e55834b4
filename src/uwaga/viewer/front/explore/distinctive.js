// What each head does in this text, which of its links tells most, and the head that a page opens on: one that follows what a pronoun of
// the text means, else the one of the most informative link.
//
// Labels and strongest links come from Python: labels with their evidence, links as the exact weight between two words.

import { briefText, wordText } from "../dom.js";
import { hasExactCells, layerCells, smallMapsRequest } from "./every_head.js";
import { isForeseen, informativeLinks } from "./informative_links.js";
import { percentText } from "../format.js";
import { currentLanguage, tr } from "../languages.js";
import { sinksOf } from "../weights.js";
/** @import { App, Items, Kind } from "../types.js" */

/** @typedef {{query: number, key: number, weight: number}} Link  two items, and the exact weight between them */
/**
 * @typedef {object} DistinctiveHead
 * @property {Kind} kind
 * @property {number} layer
 * @property {number} head
 * @property {string} label  heads of one label do the same; "" if the strongest link is all that is said
 * @property {string} sentence
 * @property {string} evidence  what the label rests on; "" without one
 * @property {Link} link  the most informative one
 * @property {number} worth  what it tells a person, beside the other heads
 */
/**
 * @typedef {object} HeadLabel  of Python
 * @property {string} label
 * @property {number | null} share
 * @property {number | null} least
 * @property {number} queries
 * @property {number} of
 * @property {number} sink  the share of all weight on sinks
 * @property {number | null} by_position
 * @property {number} key
 * @property {[number, number, number] | null} link  query, key and weight of its strongest link between words; null: it has none
 * @property {{shift: number, right: number, wrong: number, of: number, link: [number, number, number]} | null} [coreference]  where it
 *   follows what a pronoun of this text means
 */
/**
 * @typedef {object} DistinctiveHeads
 * @property {DistinctiveHead[]} all  every head that has a link; the first is the one to open on
 * @property {Map<string, number>} rests  by "layer head": the share of its weight on sinks
 * @property {string} sinks  the names of the sinks; "" without one
 */

/** What a head with a label of Python does (`uwaga.inspect.head_labels`). @type {{[label: string]: string}} */
const labelSentences = {
  previous: tr("Looks at the word before"), next: tr("Looks at the word after"), self: tr("Looks at itself"),
  induction: tr("Looks after an earlier copy"), duplicate: tr("Finds the same word elsewhere"), broad: tr("Spreads over everything"),
  ahead: tr("Looks ahead"), back: tr("Looks back"), gathers: tr("Most words look at one"),
  coreference: tr("Follows what a pronoun means"),
};
/** How much of a head's weight makes its label. @type {{[label: string]: (share: string) => string}} */
const labelShares = {
  previous: (share) => tr("{share} of its weight off the sinks is on the word before", { share }),
  next: (share) => tr("{share} of its weight off the sinks is on the word after", { share }),
  self: (share) => tr("{share} of its weight off the sinks is on the word itself", { share }),
  induction: (share) => tr("{share} of its weight off the sinks is on what followed an earlier copy", { share }),
  duplicate: (share) => tr("{share} of its weight off the sinks is on other copies of the word", { share }),
  ahead: (share) => tr("{share} of its weight off the sinks is on later words", { share }),
  back: (share) => tr("{share} of its weight off the sinks is on earlier words", { share }),
  gathers: (share) => tr("{share} of its weight off the sinks is on one word", { share }),
  broad: (share) => tr("The entropy of its weights off the sinks is {share} of the most that it can be", { share }),
};
/** A label that more than half of the heads have, of at least four, names none of them. */
const commonShare = 0.5, commonHeads = 4;
const namedSinks = 3;
/** What a head that has a name is worth at least, on the scale of a link's weight: a name says more than a weak link. */
const leastOfNamed = 0.45;

/** @param {App} app @param {AbortSignal} signal @returns {Promise<DistinctiveHeads>} */
export async function askDistinctive(app, signal) {
  const { side: id, kind, merge, specials } = app.store.get(), side = app.side(id), axes = side.kinds[kind];
  const [queries, keys] = await Promise.all([app.items(id, axes.queries), app.items(id, axes.keys)]);
  const layers = side.maps.filter((map) => map.kind === kind), isExact = hasExactCells(app);
  /** @type {(DistinctiveHead & {gathers: string, coreference: HeadLabel["coreference"], isInformative: boolean})[]} */
  const found = [];
  /** @type {Map<string, number>} */
  const rests = new Map();
  /** @type {string[]} */
  const allLabels = [];
  await Promise.all(layers.map(async ({ layer, heads }) => {
    const named = { request: "labels", side: id, kind, layer, merge, specials }, small = smallMapsRequest(app, layer);
    /** @type {{labels: HeadLabel[], sampled: number | null}} */
    const answer = { labels: [], sampled: null };
    /** @type {ReturnType<typeof informativeLinks>} */
    let bestLinks = [];
    await Promise.all([
      app.host.has(named) && app.client.follow(named, ({ meta }) => void Object.assign(answer, meta), { priority: 2, signal }),
      isExact && app.host.has(small) && app.client.follow(small, (reply) => {
        const cells = layerCells(reply);
        if (cells?.complete === 1) bestLinks = informativeLinks(cells, queries, keys, kind);
      }, { priority: 2, signal }),
    ]);
    answer.labels.slice(0, heads).forEach((one, head) => {
      allLabels.push(one.label);
      rests.set(`${layer} ${head}`, one.sink);
      const best = bestLinks[head], link = best?.link ?? (one.link && linkOf(one.link));
      if (link) found.push({ kind, layer, head, label: one.label, sentence: "", link, evidence: one.label ? evidenceText(one, answer.sampled) : "",
        worth: best?.worth ?? 0, isInformative: Boolean(best), coreference: one.coreference ?? null, gathers: one.label === "gathers" ? keys.labels[one.key] : "" });
    });
  }));
  const common = commonLabels(allLabels);
  const all = found.map(({ gathers, coreference, isInformative, ...one }) => {
    if (coreference && (!one.label || common.has(one.label)))
      return { ...one, label: "coreference", sentence: labelSentences.coreference, link: linkOf(coreference.link), evidence: coreferenceText(coreference),
        worth: 2 + linkOf(coreference.link).weight };
    const isNamed = one.label !== "" && !common.has(one.label), label = isNamed ? one.label : "";
    const sentence = !isNamed ? tr("“{labels}” looks at “{labels2}”", { labels: briefText(queries.labels[one.link.query]), labels2: briefText(keys.labels[one.link.key]) })
      : gathers ? tr("Most words look at “{label}”", { label: gathers }) : labelSentences[one.label];
    return { ...one, label, evidence: isNamed ? one.evidence : "", sentence, worth: isInformative ? one.worth : isExact ? 0 : worthOf({ ...one, label }, keys.labels) };
  }).sort((one, other) => other.worth - one.worth || one.layer - other.layer || one.head - other.head);
  return { all, rests, sinks: sinkNames(keys, kind) };
}

/** @param {Items} keys @param {string} kind @returns {string} such as "CLS and SEP" */
export function sinkNames(keys, kind) {
  const names = new Set([...sinksOf(keys, kind)].sort((one, other) => one - other).map((sink) => wordText(keys, sink)));
  return new Intl.ListFormat(currentLanguage().language).format([...names].slice(0, namedSinks));
}

/** @param {[number, number, number]} link @returns {Link} */
function linkOf([query, key, weight]) {
  return { query, key, weight };
}

/**
 * What the open head does over the whole text, "" if no label fits; and its strongest link.
 * @param {App} app @param {Items} keys @returns {Promise<{sentence: string, link: Link | null}>}
 */
export async function askOpenHead(app, keys) {
  const { side, kind, layer, head, merge, specials } = app.store.get(), request = { request: "labels", side, kind, layer, merge, specials };
  if (app.side().signed || !app.host.has(request)) return { sentence: "", link: null };
  /** @type {HeadLabel[]} */
  let labels = [];
  await app.client.follow(request, ({ meta }) => void (labels = meta.labels), { priority: 6 });
  const found = labels[head], link = found?.link ? linkOf(found.link) : null;
  if (found?.coreference && !found.label) return { sentence: labelSentences.coreference, link: linkOf(found.coreference.link) };
  return { link, sentence: found?.label === "gathers" ? tr("Most words look at “{label}”", { label: keys.labels[found.key] }) : labelSentences[found?.label ?? ""] ?? "" };
}

/** @param {string[]} labels  of every head; "" for none @returns {Set<string>} those that most have */
export function commonLabels(labels) {
  if (labels.length < commonHeads) return new Set();
  return new Set(labels.filter((label) => label && labels.filter((other) => other === label).length > commonShare * labels.length));
}

/** @param {HeadLabel} found @param {number | null} sampled @returns {string} what the label rests on */
export function evidenceText({ label, share, least, queries, of, by_position: position }, sampled) {
  const mean = labelShares[label](percentText(share ?? 0));
  return [
    tr("{mean}, on average; {queries} of {of} words reach {least}, which the name needs from at least five.", { mean, queries, of, least: percentText(least ?? 0) }),
    position === null ? "" : tr("Distance alone explains {position} of the differences of its weights.", { position: percentText(position) }),
    sampled === null ? "" : tr("From a sample of {sampled} queries.", { sampled }),
  ].filter(Boolean).join(" ");
}

/** @param {NonNullable<HeadLabel["coreference"]>} found @returns {string} what the label rests on */
export function coreferenceText({ shift, right, wrong, of }) {
  return tr("Where one word decides what a pronoun means, this head’s weight follows it: by {shift} on average over {of} pairs of sentences, by 5% or more the right way in {right} and the wrong way in {wrong}. The name needs 3%, and more pairs the right way than chance would have in any head.", { shift: percentText(shift), of, right, wrong });
}

/**
 * What a head's strongest link tells: one to another place, between different words, more than one to a neighbour or a copy.
 * @param {{kind: Kind, label: string, link: Link}} head
 * @param {string[]} names  of the keys
 */
export function worthOf({ kind, label, link: { query, key, weight } }, names) {
  const far = kind === "cross" ? 1 : Math.min(1, Math.abs(query - key) / 3);
  const worth = weight * far * (kind !== "cross" && names[query] === names[key] ? 0.6 : 1) * (label === "broad" ? 0.5 : 1);
  return label && label !== "broad" ? Math.max(worth, leastOfNamed) : worth;
}

/**
 * What a link tells beside its weight; "" for nothing.
 * @param {Link} link @param {Items} queries @param {Items} keys @param {Kind} kind
 */
export function linkStory({ query, key }, queries, keys, kind) {
  if (kind === "cross" || queries !== keys || !isForeseen(keys, query, key)) return "";
  return tr("“{to}” is what came after “{from}” before.", { from: briefText(queries.labels[query]), to: briefText(keys.labels[key]) });
}
