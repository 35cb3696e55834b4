// Where the arcs of a word run: pure geometry. Along the text is the position of a word, above it the rise of an arc.

/**
 * @typedef {object} Arc
 * @property {number} key
 * @property {number} from  along the text: in the bar of the word that looks
 * @property {number} to  along the text: the middle of the word that is looked at
 * @property {number} rise  pixels
 * @property {number} width  pixels
 * @property {number} weight
 * @property {boolean} isSelf  of a word to itself: a stub
 */

/** Pixels of a bar that is 100 %. */
export const arcScale = 44;
/** An arc of less than this is a hairline; one of less than `arcLeast` is not drawn. */
const arcHairline = 0.02, arcLeast = 0.004;
const arcLowest = 26, arcFar = 420, arcBend = 24;

/**
 * The arcs of one word, each as wide as its weight, side by side out of one bar; those to near words are inside of those to far ones.
 * @param {ArrayLike<number>} weights  of the word
 * @param {number} query  the word
 * @param {number[]} centres  of all words, along the text
 * @param {{height: number, scale?: number, far?: number}} room  far: the distance of the highest arc, at least
 * @returns {Arc[]}
 */
export function arcsOfWord(weights, query, centres, { height, scale = arcScale, far = arcFar }) {
  const keys = Array.from(centres.keys()).filter((key) => weights[key] > 0);
  const ordered = [...keys.filter((key) => key <= query).reverse(), ...keys.filter((key) => key > query).reverse()];
  const reach = Math.max(far, ...keys.filter((key) => weights[key] >= arcLeast).map((key) => Math.abs(centres[key] - centres[query])));
  let at = centres[query] - (scale * ordered.reduce((sum, key) => sum + weights[key], 0)) / 2;
  return ordered.flatMap((key) => {
    const weight = weights[key], wide = weight * scale, from = at + wide / 2;
    at += wide;
    if (weight < arcLeast) return [];
    const isSelf = key === query, distance = Math.abs(centres[key] - centres[query]);
    return [{ key, from, to: isSelf ? from : centres[key], weight, isSelf, width: weight < arcHairline ? 0.8 : wide,
      rise: isSelf ? arcLowest + wide / 4 : Math.min(height, arcLowest + (height - arcLowest) * (distance / reach) ** 0.8) }];
  });
}

/**
 * @param {Arc} arc @param {(along: number, above: number) => string} at  a point as text
 * @returns {string} the path of its middle line; of a stub its outline
 */
export function pathOfArc({ from, to, rise, width, isSelf }, at) {
  if (isSelf) {
    const half = width / 2, round = Math.min(half, 10);
    return `M${at(from - half, 0)}L${at(from - half, rise - round)}Q${at(from - half, rise)} ${at(from - half + round, rise)}`
      + `L${at(from + half - round, rise)}Q${at(from + half, rise)} ${at(from + half, rise - round)}L${at(from + half, 0)}z`;
  }
  const bend = Math.sign(from - to) * Math.max(0, arcBend * (1 - Math.abs(from - to) / 70)), high = (rise * 4) / 3;
  return `M${at(from, 0)}C${at(from + bend, high)} ${at(to - bend, high)} ${at(to, 0)}`;
}

/**
 * The drawing of a head: an arc for each pair of words, or of cells of several words, from a twelfth of the weight up.
 * @param {ArrayLike<number>} cells  (rows, columns)
 * @param {number} rows @param {number} columns
 * @param {ReadonlySet<number>} hidden  columns that are at rest
 * @param {{width: number, height: number}} size
 * @returns {{d: string, width: number}[]}  the faintest first
 */
export function headArcs(cells, rows, columns, hidden, { width, height }) {
  const x = (/** @type {number} */ at, /** @type {number} */ of) => Number(((width * (at + 0.5)) / of).toFixed(1));
  /** @type {{d: string, width: number}[]} */
  const arcs = [];
  for (let row = 0; row < rows; row++) {
    for (let column = 0; column < columns; column++) {
      const weight = Math.abs(cells[row * columns + column]);
      if (!(weight >= 0.1) || hidden.has(column)) continue;
      const [from, to] = [x(row, rows), x(column, columns)], far = Math.abs(from - to), high = Number(Math.min(height, 3 + far * 0.62).toFixed(1));
      arcs.push({ width: Number((0.35 + 1.8 * weight ** 1.5).toFixed(2)), d: far < 0.5 ? `M${from} ${height}v-2` : `M${from} ${height}C${from} ${(height - high * 1.33).toFixed(1)} ${to} ${(height - high * 1.33).toFixed(1)} ${to} ${height}` });
    }
  }
  return arcs.sort((one, other) => one.width - other.width);
}
