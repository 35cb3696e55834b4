// The telling heads: what each of the most telling ones does in this text, and where its strongest link is.

import { sinkColumns, sinksOf } from "../weights.js";
import { statisticsQuestion } from "../questions.js";

/** @typedef {import("../types.js").App} App */
/** @typedef {import("../types.js").Items} Items */
/** @typedef {import("../types.js").Kind} Kind */

/** @typedef {{query: number, key: number, weight: number}} Link  items; weight: of the cell if cells are of many weights */
/** @typedef {{kind: Kind, layer: number, head: number, label: string, sentence: string, link: Link}} TellingHead */
/**
 * @typedef {object} Telling
 * @property {TellingHead[]} heads  the first is the one to open on
 * @property {number} total  heads of this kind of attention
 * @property {number} resting  heads that give most of their weight to sinks
 * @property {string} sink  the sink's name
 */

/** The largest value of these statistics names what a head does. @type {{name: string, least: number, label: string, sentence: string}[]} */
const namingStatistics = [
  { name: "previous_token", least: 0.5, label: "previous", sentence: "Looks at the word before" },
  { name: "duplicate_token", least: 0.3, label: "duplicate", sentence: "Finds the same word elsewhere" },
  { name: "induction", least: 0.3, label: "induction", sentence: "Looks after an earlier copy" },
  { name: "normalized_entropy", least: 0.85, label: "broad", sentence: "Spreads over everything" },
];
const mostTelling = 8;
const mostOfALabel = 2;

/**
 * @param {App} app
 * @param {AbortSignal} signal
 * @returns {Promise<Telling>}
 */
export async function askTelling(app, signal) {
  const { side: id, kind } = app.store.get(), side = app.side(id), axes = side.kinds[kind];
  const [queries, keys] = await Promise.all([app.items(id, axes.queries), app.items(id, axes.keys)]);
  const layers = side.maps.filter((map) => map.kind === kind);
  /** @type {TellingHead[]} */
  const found = [];
  let resting = 0;
  await Promise.all(layers.map(async ({ layer, heads }) => {
    const { how, merge, specials } = app.store.get(), row = { side: id, kind, layer };
    const asked = [{ ask: "overview", side: id, kind, layer, how, merge, specials }, statisticsQuestion(row)];
    const [cells, statistics] = await Promise.all(asked.map((question) =>
      (app.host.has(question) ? app.client.ask(question, { priority: 2, signal }) : null)));
    if (!cells) return;
    const [, rows, columns] = cells.arrays[0].shape, data = /** @type {Float32Array} */ (cells.arrays[0].data);
    const sinks = sinkColumns(sinksOf(keys, kind), columns, (at) => Math.floor((at * keys.total) / columns));
    for (let head = 0; head < heads; head++) {
      const part = data.subarray(head * rows * columns, (head + 1) * rows * columns);
      if (sinkMass(part, columns, sinks) > 0.5) resting += 1;
      const link = strongestLink(part, rows, columns, sinks, queries, keys);
      if (!link) continue;
      const values = statistics?.meta.columns ?? {};
      const named = namingStatistics.find(({ name, least }) => (values[name]?.[head] ?? 0) >= least);
      found.push({ kind, layer, head, label: named?.label ?? "link",
        sentence: named?.sentence ?? `Looks from \u201c${queries.labels[link.query]}\u201d to \u201c${keys.labels[link.key]}\u201d`, link });
    }
  }));
  const total = layers.reduce((sum, { heads }) => sum + heads, 0);
  const [sink] = sinksOf(keys, kind);
  return { heads: mostTellingHeads(found), total, resting, sink: sink === undefined ? "" : keys.labels[sink] };
}

/**
 * At most `mostTelling` heads and two of a label, those with the strongest links first.
 * @param {TellingHead[]} heads
 * @returns {TellingHead[]}
 */
export function mostTellingHeads(heads) {
  /** @type {Map<string, number>} */
  const counts = new Map();
  // A link to another place tells more than one to a neighbour.
  const worth = (/** @type {TellingHead} */ { link: { query, key, weight } }) => weight * Math.min(1, Math.abs(query - key) / 3);
  return [...heads].sort((a, b) => worth(b) - worth(a)).filter(({ label, link }) => {
    const name = label === "link" ? `${link.query} ${link.key}` : label;
    counts.set(name, (counts.get(name) ?? 0) + 1);
    return label === "link" ? counts.get(name) === 1 : Number(counts.get(name)) <= mostOfALabel;
  }).slice(0, mostTelling);
}

/** @param {Float32Array} cells @param {number} columns @param {Uint8Array | null} sinks @returns {number} the share of weight on sinks */
function sinkMass(cells, columns, sinks) {
  let [inside, all] = [0, 0];
  cells.forEach((weight, at) => {
    if (Number.isNaN(weight)) return;
    all += weight;
    if (sinks?.[at % columns]) inside += weight;
  });
  return all > 0 ? inside / all : 0;
}

/**
 * The largest weight off the sinks, between words.
 * @param {Float32Array} cells @param {number} rows @param {number} columns @param {Uint8Array | null} sinks
 * @param {Items} queries @param {Items} keys
 * @returns {Link | null}
 */
export function strongestLink(cells, rows, columns, sinks, queries, keys) {
  const item = (/** @type {number} */ at, /** @type {number} */ cellsOf, /** @type {Items} */ { total }) => Math.floor(((at + 0.5) * total) / cellsOf);
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
