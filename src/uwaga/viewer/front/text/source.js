// Rows, columns and masses of a map: from the host, or, in a page that is one file, from the tiles that it holds.
import { keptCells } from "./kept.js";

/** @typedef {import("../types.js").App} App */
/** @typedef {import("../types.js").Where} Where */
/** @typedef {import("./ranges.js").Range} Range */

/**
 * @typedef {object} Weights
 * @property {Float32Array} weights  nan: not known
 * @property {number} complete  in [0, 1]
 * @property {number} cell  1: exact; more: each is the mean over so many keys and queries
 */

/**
 * @typedef {object} SourceOptions
 * @property {Where} where
 * @property {{queries: number, keys: number}} sizes
 * @property {AbortSignal} signal
 * @property {(weights: Weights | null) => void} onWeights  null: nothing of it is here
 */

/**
 * What one query attends to.
 * @param {App} app
 * @param {number} query
 * @param {SourceOptions} options
 * @returns {Promise<void>}
 */
export function rowWeights(app, query, { where, sizes, signal, onWeights }) {
  const question = { ask: "row", ...where, query };
  if (app.host.has(question)) return sourceFollow(app, question, signal, onWeights);
  return sourceKept(app, where, sizes, [query, query + 1], [0, sizes.keys], (cells) => onWeights(cells && {
    weights: Float32Array.from({ length: sizes.keys }, (_, key) => cells.weight(query, key)), complete: 1, cell: cells.side,
  }));
}

/**
 * What attends to one key.
 * @param {App} app
 * @param {number} key
 * @param {SourceOptions} options
 * @returns {Promise<void>}
 */
export function columnWeights(app, key, { where, sizes, signal, onWeights }) {
  const question = { ask: "column", ...where, key };
  if (app.host.has(question)) return sourceFollow(app, question, signal, onWeights);
  return sourceKept(app, where, sizes, [0, sizes.queries], [key, key + 1], (cells) => onWeights(cells && {
    weights: Float32Array.from({ length: sizes.queries }, (_, query) => cells.weight(query, key)), complete: 1, cell: cells.side,
  }));
}

/**
 * The mean over each span's queries of their weight on the keys of each of the others.
 * @param {App} app
 * @param {Where} where
 * @param {{queries: number, keys: number}} sizes
 * @param {Range[]} spans
 * @param {Range[]} keySpans
 * @param {AbortSignal} signal
 * @returns {Promise<{masses: Float32Array, cell: number} | null>} (spans, keySpans); null: not in this page
 */
export async function spanMasses(app, where, sizes, spans, keySpans, signal) {
  const question = { ask: "between", ...where, spans, key_spans: keySpans };
  if (app.host.has(question)) {
    const reply = await app.client.ask(question, { signal, priority: 4 });
    return { masses: /** @type {Float32Array} */ (reply.arrays[0].data), cell: 1 };
  }
  const cells = await keptCells(app, where, sizes, sourceHull(spans), sourceHull(keySpans));
  if (!cells) return null;
  const masses = spans.flatMap((span) => keySpans.map((keySpan) => sourceMass(cells, span, keySpan)));
  return { masses: Float32Array.from(masses), cell: cells.side };
}

/**
 * @param {App} app
 * @param {import("../types.js").Question} question
 * @param {AbortSignal} signal
 * @param {(weights: Weights) => void} onWeights
 */
function sourceFollow(app, question, signal, onWeights) {
  return app.client.follow(question, ({ meta, arrays }) => {
    onWeights({ weights: /** @type {Float32Array} */ (arrays[0].data), complete: meta.complete ?? 1, cell: 1 });
  }, { signal, priority: 5 });
}

/**
 * @param {App} app
 * @param {Where} where
 * @param {{queries: number, keys: number}} sizes
 * @param {Range} rows
 * @param {Range} columns
 * @param {(cells: import("./kept.js").KeptCells | null) => void} onCells
 */
async function sourceKept(app, where, sizes, rows, columns, onCells) {
  onCells(await keptCells(app, where, sizes, rows, columns));
}

/** @param {import("./kept.js").KeptCells} cells @param {Range} span @param {Range} keySpan @returns {number} */
function sourceMass(cells, span, keySpan) {
  let sum = 0;
  for (let query = span[0]; query < span[1]; query++) {
    for (let key = keySpan[0]; key < keySpan[1]; key++) sum += cells.weight(query, key);
  }
  return sum / (span[1] - span[0]);
}

/** @param {Range[]} ranges @returns {Range} the least that holds them all */
function sourceHull(ranges) {
  return [Math.min(...ranges.map(([first]) => first)), Math.max(...ranges.map(([, last]) => last))];
}
