// Weights to shades, and to the few numbers that stand for many of them.

/** @typedef {import("../types.js").Colour} Colour */

/**
 * @typedef {object} Shade
 * @property {(item: number) => number} of  in [-1, 1]; 0: not shaded
 * @property {number} high  the weight of the deepest shade
 */

const shadeReach = 1e-4; // of the highest weight, for logarithms; the map's colours reach as far

/**
 * @param {ArrayLike<number>} weights  nan: not known
 * @param {Pick<Colour, "log" | "low" | "high" | "threshold" | "hideSink">} colour
 * @param {boolean} [keys]  the items are keys: the sink is the first of them
 * @returns {Shade}
 */
export function makeShade(weights, colour, keys = true) {
  const hidden = colour.hideSink && keys ? 0 : -1;
  const high = colour.high ?? shadeLargest(weights, hidden);
  const floor = Math.max(colour.low, colour.log ? high * shadeReach : 0);
  const of = (/** @type {number} */ item) => {
    const weight = weights[item];
    const size = Math.abs(weight);
    if (!(size > 0) || item === hidden || size < colour.threshold || !(high > 0)) return 0;
    if (size >= high) return Math.sign(weight);
    if (size <= floor) return 0;
    const part = colour.log ? Math.log(size / floor) / Math.log(high / floor) : (size - floor) / (high - floor);
    return Math.sign(weight) * Math.min(1, part);
  };
  return { of, high };
}

/** @param {ArrayLike<number>} weights @param {number} hidden @returns {number} */
function shadeLargest(weights, hidden) {
  let largest = 0;
  for (let i = 0; i < weights.length; i++) {
    const size = Math.abs(weights[i]);
    if (size > largest && i !== hidden) largest = size;
  }
  return largest;
}

/**
 * The items of the largest weights, the largest first, equal ones by position.
 * @param {ArrayLike<number>} weights  nan: not known, left out
 * @param {number} count
 * @returns {number[]}
 */
export function strongestItems(weights, count) {
  /** @type {number[]} */
  const best = [];
  const size = (/** @type {number} */ item) => Math.abs(weights[item]);
  for (let item = 0; item < weights.length; item++) {
    const mine = size(item);
    if (!(mine > 0) || (best.length === count && mine <= size(best[count - 1]))) continue;
    let at = best.length;
    while (at > 0 && size(best[at - 1]) < mine) at--;
    best.splice(at, 0, item);
    if (best.length > count) best.pop();
  }
  return best;
}

/**
 * A document in as many rows as a strip has pixels: how much weight each row holds and the largest shade in it.
 * @param {ArrayLike<number>} weights
 * @param {(item: number) => number} shade
 * @param {Int32Array} starts  the first item of each line of text, then their number
 * @param {number} rows
 * @returns {{mass: Float32Array, shades: Float32Array}} masses are sums of what is known
 */
export function stripRows(weights, shade, starts, rows) {
  const mass = new Float32Array(rows);
  const shades = new Float32Array(rows);
  const lines = starts.length - 1;
  for (let line = 0; line < lines; line++) {
    const count = starts[line + 1] - starts[line];
    for (let k = 0; k < count; k++) {
      const item = starts[line] + k;
      const part = shade(item);
      if (part === 0) continue;
      // The items of a line share its height, so that a short text too shows where in a line the weight is.
      const first = Math.min(rows - 1, Math.floor(((line + k / count) / lines) * rows));
      const last = Math.max(first + 1, Math.floor(((line + (k + 1) / count) / lines) * rows));
      for (let row = first; row < last; row++) {
        mass[row] += weights[item];
        if (Math.abs(part) > Math.abs(shades[row])) shades[row] = part;
      }
    }
  }
  return { mass, shades };
}

/**
 * A weight to be read: six digits, which is what float32 holds for certain.
 * @param {number} weight
 * @returns {string}
 */
export function weightText(weight) {
  if (Number.isNaN(weight)) return "not known yet";
  if (weight === 0) return "0";
  return Math.abs(weight) < 1e-4 ? weight.toExponential(5) : weight.toPrecision(6);
}
