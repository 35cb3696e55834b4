// The small maps of all heads of a kind of attention, a reply for each layer. Up to 64 items a cell is the exact weight of two items.

import { makeRequestSet } from "../requests.js";
/** @import { App, Reply, Request } from "../types.js" */

/** @typedef {{data: Float32Array, heads: number, rows: number, columns: number, complete: number}} LayerCells  NaN: not known yet */

/** Items along an axis up to which a small map has a cell for each, as in Python. */
const exactCells = 64;

/** @param {App} app @param {number} layer @param {string} [side] @returns {Request} */
export function smallMapsRequest(app, layer, side = app.store.get().side) {
  const { kind, merge, specials } = app.store.get();
  return { request: "overview", side, kind, layer, pooling: "sum", merge, specials };
}

/** @param {App} app @returns {{layer: number, heads: number}[]} the layers of the kind that is shown */
export function shownLayers(app) {
  return app.side().maps.filter(({ kind }) => kind === app.store.get().kind);
}

/** @param {App} app @returns {boolean} whether there are maps, and the small ones of every layer, which a saved page may lack */
export function hasLayers(app) {
  const layers = shownLayers(app);
  return layers.length > 0 && layers.every(({ layer }) => app.host.has(smallMapsRequest(app, layer)));
}

/** @param {App} app @returns {boolean} whether cells are single weights */
export function hasExactCells(app) {
  const { queries, keys } = app.sizes();
  return queries <= exactCells && keys <= exactCells;
}

/** @param {Reply | undefined} reply @returns {LayerCells | null} */
export function layerCells(reply) {
  if (!reply) return null;
  const [heads, rows, columns] = reply.arrays[0].shape;
  return { data: /** @type {Float32Array} */ (reply.arrays[0].data), heads, rows, columns, complete: reply.meta.complete ?? 1 };
}

/** @param {LayerCells} cells @param {number} head @returns {Float32Array} (rows, columns) */
export function headCells({ data, rows, columns }, head) {
  return data.subarray(head * rows * columns, (head + 1) * rows * columns);
}

/** @param {LayerCells} cells @param {number} head @param {number} query @returns {Float32Array} (columns,) */
export function rowCells(cells, head, query) {
  return headCells(cells, head).subarray(query * cells.columns, (query + 1) * cells.columns);
}

/** @param {App} app @param {() => void} onChange  when more has arrived */
export function makeEveryHead(app, onChange) {
  const requests = makeRequestSet(app, 2, onChange);
  const layer = (/** @type {number} */ number) => layerCells(app.client.peek(smallMapsRequest(app, number)));
  return {
    layer,
    request: () => requests.request(shownLayers(app).map((one) => smallMapsRequest(app, one.layer))),
    stop: requests.stop,
    /** The exact weights of a word in the open head; null: not known, or cells are of several words. @param {number} query @returns {Float32Array | null} */
    row(query) {
      const { layer: number, head } = app.store.get(), cells = hasExactCells(app) ? layer(number) : null;
      return cells && cells.complete === 1 && query < cells.rows ? rowCells(cells, head, query) : null;
    },
  };
}
