// Weights out of the tiles of mass that a page holds: the finest level of which all that is needed is there.

/** @typedef {import("../types.js").App} App */
/** @typedef {import("../types.js").Where} Where */
/** @typedef {import("./ranges.js").Range} Range */

/**
 * @typedef {object} KeptCells
 * @property {number} side  items of a cell's side; 1: exact
 * @property {(query: number, key: number) => number} weight  the mean over its cell
 */

const keptSide = 256; // cells of a tile's side

/**
 * @param {App} app
 * @param {Where} where
 * @param {{queries: number, keys: number}} sizes
 * @param {Range} rows  queries that are needed
 * @param {Range} columns  keys that are needed
 * @returns {Promise<KeptCells | null>} null: no level holds them all
 */
export async function keptCells(app, where, sizes, rows, columns) {
  for (let level = 0; 2 ** level < 2 * Math.max(sizes.queries, sizes.keys); level++) {
    const places = keptPlaces(level, rows, columns);
    const questions = places.map(([row, column]) => ({ ask: "tile", ...where, how: "mass", level, row, column }));
    if (!questions.every((question) => app.host.has(question))) continue;
    const replies = await Promise.all(questions.map((question) => app.client.ask(question, { priority: 5 })));
    /** @type {Map<string, import("../types.js").WireArray>} */
    const tiles = new Map(places.map(([row, column], index) => [`${row} ${column}`, replies[index].arrays[0]]));
    return { side: 2 ** level, weight: (query, key) => keptWeight(tiles, level, sizes.keys, query, key) };
  }
  return null;
}

/** @param {number} level @param {Range} rows @param {Range} columns @returns {Range[]} row and column of each tile */
function keptPlaces(level, rows, columns) {
  const span = keptSide * 2 ** level;
  /** @type {Range[]} */
  const places = [];
  for (let row = Math.floor(rows[0] / span); row * span < rows[1]; row++) {
    for (let column = Math.floor(columns[0] / span); column * span < columns[1]; column++) places.push([row, column]);
  }
  return places;
}

/**
 * @param {Map<string, import("../types.js").WireArray>} tiles
 * @param {number} level
 * @param {number} keys  of the whole axis: the last cell holds fewer
 * @param {number} query
 * @param {number} key
 * @returns {number}
 */
function keptWeight(tiles, level, keys, query, key) {
  const [row, column] = [query, key].map((item) => Math.floor(item / 2 ** level));
  const tile = tiles.get(`${Math.floor(row / keptSide)} ${Math.floor(column / keptSide)}`);
  if (!tile) return NaN;
  const mass = tile.data[(row % keptSide) * tile.shape[1] + (column % keptSide)];
  return mass / (Math.min(keys, (column + 1) * 2 ** level) - column * 2 ** level);
}
