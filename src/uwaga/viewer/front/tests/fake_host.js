// A host that replies to every request of the explorer from seeded random weights: for unit tests and for developing the views
// without a server. fakeHost({layers: 2, heads: 3, tokens: 40}) is a Host; `asked` lists the requests that it got.

import { fakeItems } from "./fake_text.js";
import { fakeMerged, fakePool, fakeRandom, fakeWeights } from "./fake_matrix.js";
import { abortError, HostError } from "../hosts.js";

/** @typedef {import("../types.js").Request} Request */
/** @typedef {import("../types.js").Reply} Reply */

const meanings = {
  entropy: "entropy of the weights, in nats", normalized_entropy: "entropy divided by its maximum",
  peak: "the largest weight of a row",
  distance: "how far away the keys are, in tokens", effective_count: "effective number of keys", sink: "weight on the first key",
  previous_token: "weight on the token before", duplicate_token: "weight on earlier keys of the same token",
  induction: "weight on what followed the same token before",
};

/**
 * @param {object} [options]
 * @param {number} [options.layers]
 * @param {number} [options.heads]
 * @param {number} [options.tokens]
 * @param {number} [options.targets]  tokens of the decoder; 0: none
 * @param {number} [options.sides]  1 or 2
 * @param {number} [options.delay]  milliseconds per reply
 * @param {Promise<unknown>} [options.held]  replies wait for it
 * @param {number} [options.steps]  replies until one is complete
 * @param {(request: Request) => HostError | null} [options.refuse]
 */
export function fakeHost({ layers = 4, heads = 4, tokens = 96, targets = 0, sides = 1, delay = 0, held, steps = 1, refuse = () => null } = {}) {
  const shape = { layers, heads, tokens, targets, sides };
  /** @type {Map<string, number>} */
  const turns = new Map();
  /** @type {Request[]} */
  const asked = [];
  return {
    mode: /** @type {"served"} */ ("served"),
    asked,
    has: () => true,
    download() {},
    /** @param {Request} request @param {AbortSignal} [signal] @returns {Promise<Reply>} */
    async ask(request, signal) {
      asked.push(request);
      await new Promise((resolve, reject) => {
        const timer = setTimeout(() => void Promise.resolve(held).then(resolve), delay);
        signal?.addEventListener("abort", () => { clearTimeout(timer); reject(abortError()); });
      });
      const refusal = refuse(request);
      if (refusal) throw refusal;
      const name = JSON.stringify(request), turn = (turns.get(name) ?? 0) + 1;
      turns.set(name, turn);
      return fakeReply(shape, request, Math.min(1, turn / steps));
    },
  };
}

/** @typedef {{layers: number, heads: number, tokens: number, targets: number, sides: number}} Shape */

/** @param {Shape} shape @param {Request} request @param {number} complete @returns {Reply} */
function fakeReply(shape, request, complete) {
  const answer = fakeAnswers[request.request];
  if (!answer) throw new HostError("refused", `There is no request ${JSON.stringify(request.request)}.`);
  return answer(shape, request, complete);
}

/** @param {Shape} shape @param {any} where */
function fakeRead(shape, where) {
  const rows = where.kind === "encoder" ? shape.tokens : shape.targets, columns = where.kind === "decoder" ? shape.targets : shape.tokens;
  const of = (/** @type {string} */ side) =>
    fakeMerged(fakeWeights({ ...where, side }, rows, columns), where.merge ?? "tokens", where.specials ?? "show");
  const matrix = of(where.side === "difference" ? "0" : where.side);
  if (where.side !== "difference") return matrix;
  const other = of("1").data;
  return { ...matrix, data: matrix.data.map((weight, i) => weight - other[i]) };
}

/** @param {import("../types.js").WireData} data @param {number[]} shape */
const array = (data, ...shape) => ({ data, shape });

/** @type {{[request: string]: (shape: Shape, request: any, complete: number) => Reply}} */
const fakeAnswers = {
  about: (shape) => ({ meta: fakeAbout(shape), arrays: [] }),
  items(shape, { stack, merge, specials, first, count }) {
    const items = fakeItems(stack === "encoder" ? shape.tokens : shape.targets, merge, specials);
    const end = Math.min(first + count, items.labels.length);
    return {
      meta: {
        labels: items.labels.slice(first, end), no_space_before: items.noSpaceBefore.slice(first, end), total: items.labels.length,
        specials: items.specials.filter((at) => at >= first && at < end),
      },
      arrays: [array(Int32Array.from(items.spans.slice(first, end).flat()), end - first, 2)],
    };
  },
  overview(shape, request, complete) {
    const cells = Array.from({ length: shape.heads }, (_, head) => {
      const matrix = fakeRead(shape, { ...request, head });
      return fakePool(matrix, Math.ceil(matrix.rows / 64), Math.ceil(matrix.columns / 64), request.pooling);
    });
    const { rows, columns } = cells[0], data = new Float32Array(shape.heads * rows * columns);
    cells.forEach((cell, head) => data.set(cell.data, head * rows * columns));
    return { meta: { complete }, arrays: [array(data, shape.heads, rows, columns)] };
  },
  tile(shape, request, complete) {
    const size = 2 ** request.level, pooled = fakePool(fakeRead(shape, request), size, size, request.pooling);
    return fakeBlock(pooled, [request.row * 256, request.row * 256 + 256], [request.column * 256, request.column * 256 + 256],
      { complete, exact: complete === 1 });
  },
  entry(shape, { query, key, ...where }) {
    const matrix = fakeRead(shape, where), row = matrix.data.subarray(query * matrix.columns, (query + 1) * matrix.columns);
    const weight = row[key], rank = row.filter((other) => other > weight).length + 1;
    return { meta: { weight, score: Math.log(Math.max(weight, 1e-30)) + 3, rank, visible: weight !== 0, lse: 3 }, arrays: [] };
  },
  row(shape, { query, ...where }) {
    const reply = fakeBlock(fakeRead(shape, where), [query, query + 1], [0, Infinity], {});
    return { meta: {}, arrays: [array(reply.arrays[0].data, reply.arrays[0].data.length)] };
  },
  column(shape, { key, ...where }, complete) {
    const reply = fakeBlock(fakeRead(shape, where), [0, Infinity], [key, key + 1], { complete });
    return { meta: reply.meta, arrays: [array(reply.arrays[0].data, reply.arrays[0].data.length)] };
  },
  labels: (shape, { layer }, complete) => ({ arrays: [], meta: { complete, sampled: null, labels: complete < 1 ? []
    : Array.from({ length: shape.heads }, (_, head) => ({ label: head === layer ? "previous" : "", share: head === layer ? 0.9 : null,
      least: head === layer ? 0.5 : null, queries: 9, of: 10, sink: 0.25, by_position: 0.99, key: 1, link: [3, 1, 0.25] })) } }),
  statistics(shape, { side, kind, layer }, complete) {
    const columns = Object.fromEntries(Object.keys(meanings).map((name, at) => [name, Array.from({ length: shape.heads }, (_, head) => {
      const value = fakeRandom(at, layer, head, kind.length, Number(side === "1")) * (name === "distance"
        ? shape.tokens / 3 : name === "entropy" ? 5 : 1);
      return (name === "induction" || name === "duplicate_token") && kind === "cross" ? null : side === "difference" ? value - 0.5 : value;
    })]));
    return { meta: { columns, complete, sampled: shape.tokens > 400 ? 256 : null }, arrays: [] };
  },
  page: () => ({ meta: { name: "page.html" }, arrays: [array(new TextEncoder().encode("<!doctype html>"), 15)] }),
};

/**
 * @param {import("./fake_matrix.js").Matrix} matrix
 * @param {number[]} rows
 * @param {number[]} columns
 * @param {{[key: string]: any}} meta
 * @returns {Reply}
 */
function fakeBlock(matrix, [top, bottom], [left, right], meta) {
  const end = Math.min(right, matrix.columns), height = Math.max(0, Math.min(bottom, matrix.rows) - top), width = Math.max(0, end - left);
  const data = new Float32Array(height * width);
  for (let i = 0; i < height; i++) {
    data.set(matrix.data.subarray((top + i) * matrix.columns + left, (top + i) * matrix.columns + end), i * width);
  }
  return { meta, arrays: [array(data, height, width)] };
}

/** @param {Shape} shape @returns {import("../types.js").About} */
function fakeAbout({ layers, heads, tokens, targets, sides }) {
  const kinds = /** @type {import("../types.js").Kind[]} */ (targets ? ["cross", "decoder", "encoder"] : ["encoder"]);
  const count = (/** @type {number} */ n) =>
    ({ tokens: n, words: fakeItems(n, "words", "show").labels.length, specials: fakeItems(n, "tokens", "show").specials.length });
  const ids = /** @type {import("../types.js").SideId[]} */ (sides > 1 ? ["0", "1", "difference"] : ["0"]);
  return {
    version: "0", title: "fake model", tile: 256, overview: 64, lesson: false, live: true,
    statistics: Object.entries(meanings).map(([name, meaning]) => ({ name, title: name.replace("_", " "), meaning })),
    sides: ids.map((id) => ({
      id, title: id === "difference" ? "first - second" : `model ${id}`,
      model: `fake-model-${id}`, text_title: `A text of ${tokens} tokens`,
      signed: id === "difference",
      maps: kinds.flatMap((kind) => Array.from({ length: layers }, (_, layer) => ({ kind, layer, heads }))),
      stacks: { encoder: count(tokens), ...(targets ? { decoder: count(targets) } : {}) },
      kinds: {
        encoder: { queries: "encoder", keys: "encoder" },
        ...(targets ? { decoder: { queries: "decoder", keys: "decoder" }, cross: { queries: "decoder", keys: "encoder" } } : {}),
      },
    })),
    start: { side: "0", kind: kinds[kinds.length - 1], layer: 0, head: 0 },
  };
}
