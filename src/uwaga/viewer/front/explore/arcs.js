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
 * @property {boolean} [isCut]
 */

/** Words that are shown on one line, with arcs; a longer text is read as prose, with what holds little folded. */
export const maxLineWords = 24;
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
 * @param {{height: number, scale?: number, far?: number, cut?: ReadonlySet<number>}} room  far: the distance of the highest arc, at least;
 *   cut: keys whose links are cut, which keep a trace
 * @returns {Arc[]}
 */
export function arcsOfWord(weights, query, centres, { height, scale = arcScale, far = arcFar, cut }) {
  const keys = Array.from(centres.keys()).filter((key) => weights[key] > 0 || cut?.has(key));
  const ordered = [...keys.filter((key) => key <= query).reverse(), ...keys.filter((key) => key > query).reverse()];
  const reach = Math.max(far, ...keys.filter((key) => weights[key] >= arcLeast || cut?.has(key)).map((key) => Math.abs(centres[key] - centres[query])));
  let at = centres[query] - (scale * ordered.reduce((sum, key) => sum + weights[key], 0)) / 2;
  return ordered.flatMap((key) => {
    const weight = weights[key], wide = weight * scale, from = at + wide / 2;
    at += wide;
    const isCut = Boolean(cut?.has(key));
    if (weight < arcLeast && !isCut) return [];
    const isSelf = key === query, distance = Math.abs(centres[key] - centres[query]);
    return [{ key, from, to: isSelf ? from : centres[key], weight, isSelf, isCut, width: isCut ? 1.6 : weight < arcHairline ? 0.8 : wide,
      rise: isSelf ? arcLowest + wide / 4 : Math.min(height, arcLowest + (height - arcLowest) * (distance / reach) ** 0.8) }];
  });
}

/**
 * Arcs of several words at once, from the middle of each.
 * @param {{query: number, key: number, weight: number}[]} links @param {number[]} centres @param {{height: number, scale?: number, far?: number}} room
 * @returns {Arc[]}
 */
export function arcsOfLinks(links, centres, { height, scale = arcScale, far = arcFar }) {
  const distance = (/** @type {{query: number, key: number}} */ { query, key }) => Math.abs(centres[key] - centres[query]), reach = Math.max(far, ...links.map(distance));
  return links.map((link) => ({ key: link.key, from: centres[link.query], to: centres[link.key], weight: link.weight, isSelf: false, width: Math.max(0.8, link.weight * scale * 0.4),
    rise: Math.min(height, arcLowest + (height - arcLowest) * (distance(link) / reach) ** 0.8) }));
}

/** @typedef {Arc & {opacity: number}} DrawnArc */
/** @typedef {{from: DrawnArc, to: DrawnArc}} ArcPair */

/**
 * How drawn arcs go over into others: each into the one to the same word, or into the one of its rank; what is left vanishes, what is new grows.
 * @param {DrawnArc[]} drawn @param {Arc[]} next @param {boolean} sameKeys @returns {ArcPair[]}
 */
export function arcPairs(drawn, next, sameKeys) {
  const byWeight = (/** @type {Arc} */ one, /** @type {Arc} */ other) => other.weight - one.weight, old = [...drawn].sort(byWeight);
  const pairs = [...next].sort(byWeight).map((to, rank) => {
    const from = sameKeys ? old.find(({ key }) => key === to.key) : old[rank];
    return { from: from ?? { ...to, to: to.from, rise: 20, width: 0, opacity: 0 }, to: { ...to, opacity: 1 } };
  });
  const left = old.filter((arc) => !pairs.some(({ from }) => from === arc));
  return [...pairs, ...left.map((arc) => ({ from: arc, to: { ...arc, width: 0, opacity: 0 } }))];
}

/** @param {ArcPair[]} pairs @param {number} part  of the way, from 0 to 1 @returns {DrawnArc[]} */
export function mixedArcs(pairs, part) {
  const eased = part < 0.5 ? 4 * part ** 3 : 1 - (2 - 2 * part) ** 3 / 2, mix = (/** @type {number} */ one, /** @type {number} */ other) => one + (other - one) * eased;
  return pairs.map(({ from, to }) => ({ ...to, from: mix(from.from, to.from), to: mix(from.to, to.to), rise: mix(from.rise, to.rise),
    width: mix(from.width, to.width), opacity: mix(from.opacity, to.opacity) })).filter(({ opacity }) => part < 1 || opacity > 0);
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
  const [start, ...rest] = arcCurve({ from, to, rise }).map(([along, above]) => at(along, above));
  return `M${start}C${rest.join(" ")}`;
}

/**
 * @param {{from: number, to: number, rise: number}} arc
 * @returns {[number, number][]} the four points of its cubic curve: along the text, and above it
 */
export function arcCurve({ from, to, rise }) {
  const bend = Math.sign(from - to) * Math.max(0, arcBend * (1 - Math.abs(from - to) / 70)), high = (rise * 4) / 3;
  return [[from, 0], [from + bend, high], [to - bend, high], [to, 0]];
}

/** @typedef {{d: (string | number)[][], width: number}} Glyph  d: the parts of a path, as [["M", x, y], ["C", ...]] */

/**
 * The drawing of a head: an arc for each pair of words, or of cells of several words, from a twelfth of the weight up.
 * @param {ArrayLike<number>} cells  (rows, columns)
 * @param {number} rows @param {number} columns
 * @param {ReadonlySet<number>} hidden  columns that are at rest
 * @param {{width: number, height: number}} size
 * @returns {Glyph[]}  the faintest first
 */
export function headArcs(cells, rows, columns, hidden, { width, height }) {
  const x = (/** @type {number} */ at, /** @type {number} */ of) => Number(((width * (at + 0.5)) / of).toFixed(1));
  /** @type {Glyph[]} */
  const arcs = [];
  for (let row = 0; row < rows; row++) {
    for (let column = 0; column < columns; column++) {
      const weight = Math.abs(cells[row * columns + column]);
      if (!(weight >= 0.1) || hidden.has(column)) continue;
      const [from, to] = [x(row, rows), x(column, columns)], far = Math.abs(from - to), high = Number(Math.min(height, 3 + far * 0.62).toFixed(1));
      arcs.push({ width: Number((0.35 + 1.8 * weight ** 1.5).toFixed(2)), d: far < 0.5 ? [["M", from, height], ["L", from, height - 2]]
        : [["M", from, height], ["C", from, Number((height - high * 1.33).toFixed(1)), to, Number((height - high * 1.33).toFixed(1)), to, height]] });
    }
  }
  return arcs.sort((one, other) => one.width - other.width);
}

/**
 * The drawing of a head of cross-attention: a line from each word below to what it looks at above.
 * @param {ArrayLike<number>} cells  (rows, columns)
 * @param {number} rows @param {number} columns @param {ReadonlySet<number>} hidden
 * @param {{width: number, height: number}} size @returns {Glyph[]}
 */
export function headRibbons(cells, rows, columns, hidden, { width, height }) {
  const x = (/** @type {number} */ at, /** @type {number} */ of) => Number(((width * (at + 0.5)) / of).toFixed(1));
  return Array.from({ length: rows * columns }, (_, at) => at).flatMap((at) => {
    const column = at % columns, weight = Math.abs(cells[at]), [from, to] = [x(Math.floor(at / columns), rows), x(column, columns)];
    return weight >= 0.1 && !hidden.has(column) ? [{ width: Number((0.4 + (weight * width * 0.45) / rows).toFixed(2)), d: [["M", from, height], ["C", from, height / 2, to, height / 2, to, 0]] }] : [];
  });
}
