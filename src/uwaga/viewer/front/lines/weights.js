// The weights of several heads between two windows, out of the finest tiles, which the map and saved pages hold too. Where a
// saved page lacks them, the means over its coarser cells stand in, and `cell` says so.
import { keptCells } from "../text/kept.js";

/** @typedef {import("../types.js").App} App */
/** @typedef {import("../types.js").Where} Where */
/** @typedef {[number, number]} Range  first, one past the last */

const lineTile = 256;

/** Tiles of level 0 by head and place: asked for when wanted, given up when not. */
export class LineWeights {
  /**
   * @param {App} app
   * @param {() => void} onChange
   */
  constructor(app, onChange) {
    this.app = app;
    this.onChange = onChange;
    /** @type {Map<string, {data: ArrayLike<number>, columns: number}>} */
    this.tiles = new Map();
    /** @type {Map<string, AbortController>} */
    this.asked = new Map();
    this.cell = 1; // items of a cell's side; more than 1: means; 0: not in this saved page at all
    /** @type {Map<string, import("../text/kept.js").KeptCells | null>} */
    this.coarse = new Map();
    this.map = "";
  }

  /** @param {Where} where @param {number[]} heads @param {Range} rows @param {Range} columns */
  want(where, heads, rows, columns) {
    const map = JSON.stringify({ ...where, head: 0 });
    if (map !== this.map) this.drop();
    this.map = map;
    this.cell = 1;
    /** @type {Set<string>} */
    const wanted = new Set();
    for (const head of heads) {
      for (let row = Math.floor(rows[0] / lineTile); row * lineTile < rows[1]; row++) {
        for (let column = Math.floor(columns[0] / lineTile); column * lineTile < columns[1]; column++) {
          const name = `${head} ${row} ${column}`;
          wanted.add(name);
          const question = { ask: "tile", ...where, head, how: "mass", level: 0, row, column };
          if (!this.app.host.has(question)) this.askCoarse({ ...where, head });
          else if (!this.asked.has(name)) this.ask(name, question);
        }
      }
    }
    for (const [name, controller] of this.asked) {
      if (wanted.has(name)) continue;
      controller.abort();
      this.asked.delete(name);
      this.tiles.delete(name);
    }
  }

  /** @param {string} name @param {import("../types.js").Question} question */
  ask(name, question) {
    const controller = new AbortController();
    this.asked.set(name, controller);
    this.app.client.follow(question, ({ arrays }) => {
      if (controller.signal.aborted) return;
      this.tiles.set(name, { data: arrays[0].data, columns: arrays[0].shape[1] });
      this.onChange();
    }, { signal: controller.signal, priority: 4 }).catch(() => {
      // The client has told the user; wanting it again asks again.
      if (this.asked.get(name) === controller) this.asked.delete(name);
    });
  }

  /** @param {Where} where */
  async askCoarse(where) {
    const map = this.map;
    const name = String(where.head);
    const known = this.coarse.get(name);
    if (known !== undefined) {
      this.cell = known ? known.side : 0;
      return;
    }
    this.coarse.set(name, null);
    const sizes = this.app.sizes();
    const cells = await keptCells(this.app, where, sizes, [0, sizes.queries], [0, sizes.keys]);
    if (map !== this.map) return;
    this.coarse.set(name, cells);
    this.cell = cells ? cells.side : 0;
    this.onChange();
  }

  /** @param {number} head @param {number} query @param {number} key @returns {number} nan: not known yet */
  weight(head, query, key) {
    const tile = this.tiles.get(`${head} ${Math.floor(query / lineTile)} ${Math.floor(key / lineTile)}`);
    if (tile) return tile.data[(query % lineTile) * tile.columns + (key % lineTile)];
    return this.coarse.get(String(head))?.weight(query, key) ?? NaN;
  }

  /**
   * The sum of what one query gives a range of keys, or one key gets of a range of queries.
   * @param {number} head
   * @param {Range} queries
   * @param {Range} keys
   * @returns {number} nan: not all of it is known
   */
  sum(head, queries, keys) {
    let sum = 0;
    for (let query = queries[0]; query < queries[1]; query++) {
      for (let key = keys[0]; key < keys[1]; key++) sum += this.weight(head, query, key);
    }
    return sum;
  }

  drop() {
    for (const controller of this.asked.values()) controller.abort();
    this.asked.clear();
    this.tiles.clear();
    this.coarse.clear();
    this.map = "";
  }
}
