// The most distinctive heads: what each of them does in this text, and where its strongest link is.
//
// Labels come from Python, with their evidence. Links are those of the small maps of "All heads", without special tokens as queries, and
// without the sinks' columns.

import { briefText } from "../dom.js";
import { percentText } from "../format.js";
import { tr } from "../languages.js";
import { sinkColumns, sinksOf } from "../weights.js";

/** @typedef {import("../types.js").App} App */
/** @typedef {import("../types.js").Items} Items */
/** @typedef {import("../types.js").Kind} Kind */

/** @typedef {{query: number, key: number, weight: number}} Link  items; weight: of the cell if cells are of many weights */
/**
 * @typedef {object} DistinctiveHead
 * @property {Kind} kind
 * @property {number} layer
 * @property {number} head
 * @property {string} label  heads of one label do the same; "" if the strongest link is all that is said
 * @property {string} sentence
 * @property {string} evidence  what the label rests on; "" without one
 * @property {Link} link
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
 * @property {{shift: number, right: number, wrong: number, of: number} | null} [coreference]  where it follows what a pronoun means
 */
/**
 * @typedef {object} DistinctiveHeads
 * @property {DistinctiveHead[]} heads  the first is the one to open on
 * @property {DistinctiveHead[]} all  every head that has a link
 * @property {number} total  heads of this kind of attention
 * @property {number} resting  heads that give most of their weight to sinks
 * @property {string} sink  the sink's name
 */
/** @typedef {{cells: Float32Array, rows: number, columns: number, sinks: Uint8Array | null, queries: Items, keys: Items, kind: Kind}} SmallMap */

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
const mostDistinctive = 8;
const mostOfALabel = 2;
/** What a head that has a name is worth at least, on the scale of a link's weight: a name says more than a weak link. */
const leastOfNamed = 0.45;

/**
 * @param {App} app
 * @param {AbortSignal} signal
 * @returns {Promise<DistinctiveHeads>}
 */
export async function askDistinctive(app, signal) {
  const { side: id, kind, pooling, merge, specials } = app.store.get(), side = app.side(id), axes = side.kinds[kind];
  const [queries, keys] = await Promise.all([app.items(id, axes.queries), app.items(id, axes.keys)]);
  const layers = side.maps.filter((map) => map.kind === kind);
  /** @type {(DistinctiveHead & {gathers: string, coreference: HeadLabel["coreference"]})[]} */
  const found = [];
  let resting = 0;
  /** @type {string[]} */
  const given = [];
  await Promise.all(layers.map(async ({ layer, heads }) => {
    const named = { request: "labels", side: id, kind, layer, merge, specials };
    /** @type {{labels: HeadLabel[], sampled: number | null}} */
    const known = { labels: [], sampled: null };
    if (app.host.has(named)) await app.client.follow(named, ({ meta }) => void Object.assign(known, meta), { priority: 2, signal });
    const request = { request: "overview", side: id, kind, layer, pooling, merge, specials };
    if (!app.host.has(request)) return;
    const { arrays: [array] } = await app.client.ask(request, { priority: 2, signal });
    const [, rows, columns] = array.shape, data = /** @type {Float32Array} */ (array.data);
    const sinks = sinkColumns(sinksOf(keys, kind), columns, (at) => Math.floor((at * keys.total) / columns));
    for (let head = 0; head < heads; head++) {
      const map = { cells: data.subarray(head * rows * columns, (head + 1) * rows * columns), rows, columns, sinks, queries, keys, kind };
      const link = strongestLink(map), { label = "", sink: rests = 0 } = known.labels[head] ?? {};
      given.push(label);
      if (rests > 0.5) resting += 1;
      if (link) found.push({ kind, layer, head, label, sentence: "", link, evidence: label ? evidenceText(known.labels[head], known.sampled) : "",
        coreference: known.labels[head]?.coreference ?? null, gathers: label === "gathers" ? keys.labels[known.labels[head].key] : "" });
    }
  }));
  const common = commonLabels(given);
  const all = found.map(({ gathers, coreference, ...one }) => {
    if (coreference && (!one.label || common.has(one.label)))
      return { ...one, label: "coreference", sentence: labelSentences.coreference, evidence: coreferenceText(coreference) };
    const isNamed = one.label !== "" && !common.has(one.label);
    const sentence = !isNamed ? linkSentence(one.link, queries, keys)
      : gathers ? tr("Most words look at “{gathers}”", { gathers }) : labelSentences[one.label];
    return { ...one, label: isNamed ? one.label : "", evidence: isNamed ? one.evidence : "", sentence };
  });
  const total = layers.reduce((sum, { heads }) => sum + heads, 0);
  const [sink] = sinksOf(keys, kind);
  return { heads: mostDistinctiveHeads(all, keys.labels), all, total, resting, sink: sink === undefined ? "" : keys.labels[sink] };
}

/** @param {Link} link @param {Items} queries @param {Items} keys */
function linkSentence({ query, key }, queries, keys) {
  return tr("“{labels}” looks at “{labels2}”", { labels: briefText(queries.labels[query]), labels2: briefText(keys.labels[key]) });
}

/**
 * What the open head does over the whole text; "" where no label fits.
 * @param {App} app
 * @param {Items} keys
 * @returns {Promise<string>}
 */
export async function headSentence(app, keys) {
  const { side, kind, layer, head, merge, specials } = app.store.get(), request = { request: "labels", side, kind, layer, merge, specials };
  if (app.side().signed || !app.host.has(request)) return "";
  /** @type {HeadLabel[]} */
  let labels = [];
  await app.client.follow(request, ({ meta }) => void (labels = meta.labels), { priority: 6 });
  const own = labels[head];
  if (own?.coreference && !own.label) return labelSentences.coreference;
  return own?.label === "gathers" ? tr("Most words look at “{labels}”", { labels: keys.labels[own.key] }) : labelSentences[own?.label ?? ""] ?? "";
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
 * At most `mostDistinctive` heads and two of a label. A link to another place, between different words, tells more than one to a
 * neighbour or a copy.
 * @param {DistinctiveHead[]} heads
 * @param {string[]} names  of the keys
 * @returns {DistinctiveHead[]}
 */
export function mostDistinctiveHeads(heads, names) {
  /** @type {Map<string, number>} */
  const counts = new Map();
  const worth = (/** @type {DistinctiveHead} */ { kind, label, link: { query, key, weight } }) => {
    const far = kind === "cross" ? 1 : Math.min(1, Math.abs(query - key) / 3);
    const own = weight * far * (kind !== "cross" && names[query] === names[key] ? 0.6 : 1) * (label === "broad" ? 0.5 : 1);
    return label && label !== "broad" ? Math.max(own, leastOfNamed) : own;
  };
  return [...heads].sort((a, b) => worth(b) - worth(a)).filter(({ label, link }) => {
    const name = label || `${link.query} ${link.key}`;
    counts.set(name, (counts.get(name) ?? 0) + 1);
    return Number(counts.get(name)) <= (label ? mostOfALabel : 1);
  }).slice(0, mostDistinctive);
}

/**
 * The largest weight off the sinks, between words; the first of equal ones.
 * @param {SmallMap} map
 * @returns {Link | null}
 */
export function strongestLink({ cells, rows, columns, sinks, queries, keys }) {
  const item = (/** @type {number} */ at, /** @type {number} */ count, /** @type {Items} */ { total }) => Math.floor(((at + 0.5) * total) / count);
  const isWord = (/** @type {Items} */ items, /** @type {number} */ at) => /[\p{L}\p{N}]/u.test(items.labels[at] ?? "") && !items.specials.has(at);
  /** @type {Link | null} */
  let best = null;
  for (let i = 0; i < rows; i++) {
    const query = item(i, rows, queries);
    if (!isWord(queries, query)) continue;
    for (let j = 0; j < columns; j++) {
      const weight = cells[i * columns + j], key = item(j, columns, keys);
      if (sinks?.[j] || !(weight > (best?.weight ?? 0)) || !isWord(keys, key)) continue;
      best = { query, key, weight };
    }
  }
  return best;
}
