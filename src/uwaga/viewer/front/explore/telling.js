// The telling heads: what each of the most telling ones does in this text, and where its strongest link is.
//
// Everything is computed from the small maps of "All heads", without special tokens as queries, and without the sinks' columns:
// shares are of the weight that is left. A map of more than `overview` tokens is pooled; then only what survives pooling is named.

import { sinkColumns, sinksOf } from "../weights.js";

/** @typedef {import("../types.js").App} App */
/** @typedef {import("../types.js").Items} Items */
/** @typedef {import("../types.js").Kind} Kind */

/** @typedef {{query: number, key: number, weight: number}} Link  items; weight: of the cell if cells are of many weights */
/**
 * @typedef {object} TellingHead
 * @property {Kind} kind
 * @property {number} layer
 * @property {number} head
 * @property {string} label  heads of one label do the same; "" if the strongest link is all that is said
 * @property {string} sentence
 * @property {Link} link
 */
/**
 * @typedef {object} Telling
 * @property {TellingHead[]} heads  the first is the one to open on
 * @property {TellingHead[]} all  every head that has a link
 * @property {number} total  heads of this kind of attention
 * @property {number} resting  heads that give most of their weight to sinks
 * @property {string} sink  the sink's name
 */
/** @typedef {{cells: Float32Array, rows: number, columns: number, sinks: Uint8Array | null, queries: Items, keys: Items, kind: Kind}} SmallMap */

/**
 * The least share of the weight off the sinks that gives a head its name; that of entropy is of its maximum. The first that fits.
 * @type {{label: string, least: number, sentence: string}[]}
 */
export const headLabels = [
  { label: "previous", least: 0.5, sentence: "Looks at the word before" },
  { label: "next", least: 0.5, sentence: "Looks at the word after" },
  { label: "self", least: 0.5, sentence: "Looks at itself" },
  { label: "induction", least: 0.3, sentence: "Looks after an earlier copy" },
  { label: "duplicate", least: 0.3, sentence: "Finds the same word elsewhere" },
  { label: "broad", least: 0.85, sentence: "Spreads over everything" },
  { label: "ahead", least: 0.8, sentence: "Looks ahead" },
  { label: "back", least: 0.8, sentence: "Looks back" },
  { label: "gathers", least: 0.4, sentence: "Most words look at one" },
];
/** So many queries must each give that share: what rests on fewer names nothing. */
const leastQueries = 5;
const mostTelling = 8;
const mostOfALabel = 2;

/**
 * @param {App} app
 * @param {AbortSignal} signal
 * @returns {Promise<Telling>}
 */
export async function askTelling(app, signal) {
  const { side: id, kind, how, merge, specials } = app.store.get(), side = app.side(id), axes = side.kinds[kind];
  const [queries, keys] = await Promise.all([app.items(id, axes.queries), app.items(id, axes.keys)]);
  const layers = side.maps.filter((map) => map.kind === kind);
  /** @type {TellingHead[]} */
  const found = [];
  let resting = 0;
  await Promise.all(layers.map(async ({ layer, heads }) => {
    const question = { ask: "overview", side: id, kind, layer, how, merge, specials };
    if (!app.host.has(question)) return;
    const { arrays: [array] } = await app.client.ask(question, { priority: 2, signal });
    const [, rows, columns] = array.shape, data = /** @type {Float32Array} */ (array.data);
    const sinks = sinkColumns(sinksOf(keys, kind), columns, (at) => Math.floor((at * keys.total) / columns));
    for (let head = 0; head < heads; head++) {
      const map = { cells: data.subarray(head * rows * columns, (head + 1) * rows * columns), rows, columns, sinks, queries, keys, kind };
      const link = strongestLink(map), { label, sentence, rests } = describeHead(map);
      if (rests > 0.5) resting += 1;
      if (link) found.push({ kind, layer, head, label, sentence: sentence || linkSentence(link, queries, keys), link });
    }
  }));
  const total = layers.reduce((sum, { heads }) => sum + heads, 0);
  const [sink] = sinksOf(keys, kind);
  return { heads: mostTellingHeads(found, keys.labels), all: found, total, resting, sink: sink === undefined ? "" : keys.labels[sink] };
}

/** @param {Link} link @param {Items} queries @param {Items} keys */
function linkSentence({ query, key }, queries, keys) {
  return `\u201c${queries.labels[query]}\u201d looks at \u201c${keys.labels[key]}\u201d`;
}

/**
 * What a head does over the whole text.
 * @param {SmallMap} map
 * @returns {{label: string, sentence: string, rests: number}} rests: the share of its weight on sinks
 */
export function describeHead({ cells, rows, columns, sinks, queries, keys, kind }) {
  const isExact = rows === queries.total && columns === keys.total, isSelf = kind !== "cross";
  /** By label: the sum of the shares, the queries that could have one, and those that do. @type {{[label: string]: [number, number, number]}} */
  const sums = Object.fromEntries(headLabels.map(({ label }) => [label, [0, 0, 0]]));
  const leastOf = Object.fromEntries(headLabels.map(({ label, least }) => [label, least]));
  const columnSums = new Float64Array(columns);
  let [inSinks, all, asked] = [0, 0, 0];
  const add = (/** @type {string} */ label, /** @type {number} */ share) => {
    const one = sums[label];
    one[0] += share;
    one[1] += 1;
    if (share >= leastOf[label]) one[2] += 1;
  };
  for (let i = 0; i < rows; i++) {
    const row = cells.subarray(i * columns, (i + 1) * columns);
    let off = 0;
    row.forEach((weight, j) => {
      if (Number.isNaN(weight)) return;
      all += weight;
      if (sinks?.[j]) inSinks += weight;
      else off += weight;
    });
    if (!(off > 0) || (isExact && queries.specials.has(i))) continue;
    asked += 1;
    const share = (/** @type {number} */ j) => (j < 0 || j >= columns || sinks?.[j] ? 0 : row[j] / off);
    let [entropy, ahead, same, after, copies, earlier] = [0, 0, 0, 0, 0, 0];
    for (let j = 0; j < columns; j++) {
      const part = share(j);
      if (part > 0) entropy -= part * Math.log(part);
      columnSums[j] += part;
      if (j > i) ahead += part;
      if (!isExact || !isSelf || j === i || queries.labels[i] !== keys.labels[j]) continue;
      same += part;
      copies += 1;
      // The word after an earlier copy, unless that is the word itself.
      if (j < i - 1) { after += share(j + 1); earlier += 1; }
    }
    const seen = row.reduce((count, weight, j) => count + (weight > 0 && !sinks?.[j] ? 1 : 0), 0);
    if (seen > 1) add("broad", entropy / Math.log(seen));
    if (!isSelf) continue;
    if (isExact && i > 0) add("previous", share(i - 1));
    if (isExact && i < rows - 1 && kind === "encoder") add("next", share(i + 1));
    if (isExact) add("self", share(i));
    if (copies) add("duplicate", same);
    if (earlier) add("induction", after);
    if (kind === "encoder") { add("ahead", ahead); add("back", 1 - ahead - share(i)); }
  }
  const most = columnSums.indexOf(Math.max(...columnSums));
  sums.gathers = [columnSums[most], asked, asked];
  const fits = headLabels.find(({ label, least }) => sums[label][2] >= leastQueries && sums[label][0] / sums[label][1] >= least);
  const sentence = fits?.label === "gathers" && isExact ? `Most words look at \u201c${keys.labels[most]}\u201d` : fits?.sentence ?? "";
  return { label: fits?.label ?? "", sentence, rests: all > 0 ? inSinks / all : 0 };
}

/**
 * At most `mostTelling` heads and two of a label. A link to another place, between different words, tells more than one to a
 * neighbour or a copy.
 * @param {TellingHead[]} heads
 * @param {string[]} names  of the keys
 * @returns {TellingHead[]}
 */
export function mostTellingHeads(heads, names) {
  /** @type {Map<string, number>} */
  const counts = new Map();
  const worth = (/** @type {TellingHead} */ { kind, label, link: { query, key, weight } }) => {
    const far = kind === "cross" ? 1 : Math.min(1, Math.abs(query - key) / 3);
    return weight * far * (kind !== "cross" && names[query] === names[key] ? 0.6 : 1) * (label === "broad" ? 0.5 : 1);
  };
  return [...heads].sort((a, b) => worth(b) - worth(a)).filter(({ label, link }) => {
    const name = label || `${link.query} ${link.key}`;
    counts.set(name, (counts.get(name) ?? 0) + 1);
    return Number(counts.get(name)) <= (label ? mostOfALabel : 1);
  }).slice(0, mostTelling);
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
