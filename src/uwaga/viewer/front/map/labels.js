// Which labels of an axis are drawn, and where: never one over another.

/** @typedef {{mode: "tokens" | "positions", step: number}} MapTicks */

/**
 * How an axis is labelled at a scale. Tokens as long as every one or every second fits: beyond that a word here and there
 * says nothing of its neighbours, and positions say where one is.
 * @param {number} scale  CSS pixels per item
 * @param {number} line  CSS pixels that a label takes along the axis
 * @param {number} wide  CSS pixels that a number takes along the axis
 * @returns {MapTicks}
 */
export function mapTicks(scale, line, wide) {
  if (scale >= line) return { mode: "tokens", step: 1 };
  if (scale * 2 >= line) return { mode: "tokens", step: 2 };
  return { mode: "positions", step: mapNiceStep(wide / scale) };
}

/**
 * The least of 1, 2, 5, 10, 20, 50... that is not below a number.
 * @param {number} least
 */
export function mapNiceStep(least) {
  const power = 10 ** Math.floor(Math.log10(Math.max(least, 1)));
  for (const times of [1, 2, 5]) if (times * power >= least * 0.999999) return times * power;
  return 10 * power;
}

/**
 * The longest beginning of a text that is not wider than so many pixels, with "…" where something is left out.
 * @param {string} text
 * @param {number} most
 * @param {(text: string) => number} measure
 */
export function mapShorten(text, most, measure) {
  if (measure(text) <= most) return text;
  const letters = mapGraphemes(text);
  let low = 0;
  let high = letters.length;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (measure(`${letters.slice(0, middle).join("")}…`) <= most) low = middle;
    else high = middle - 1;
  }
  return `${letters.slice(0, low).join("")}…`;
}

/**
 * Letters with their accents, so that none is cut in two.
 * @param {string} text
 */
function mapGraphemes(text) {
  // A label that fits no axis needs no more of its beginning than this.
  const head = text.slice(0, 256);
  if (typeof Intl === "undefined" || !("Segmenter" in Intl)) return [...head];
  return [...new Intl.Segmenter(undefined, { granularity: "grapheme" }).segment(head)].map((part) => part.segment);
}

/**
 * Which of the labels may be drawn beside those that have to be: items whose stretch overlaps none of theirs.
 * @param {number} middle  of the label, in pixels along the axis
 * @param {number} size  that it takes along the axis
 * @param {readonly number[]} kept  middles and sizes of labels drawn already, in turn
 * @param {number} count  entries of kept that count
 */
export function mapFree(middle, size, kept, count) {
  for (let i = 0; i < count; i += 2) {
    if (Math.abs(middle - kept[i]) < (size + kept[i + 1]) / 2) return false;
  }
  return true;
}

/**
 * A place among others in words: 1st, 2nd, 3rd, 11th.
 * @param {number} rank
 */
export function mapOrdinal(rank) {
  const tens = rank % 100;
  const ones = rank % 10;
  const end = tens >= 11 && tens <= 13 ? "th" : ones === 1 ? "st" : ones === 2 ? "nd" : ones === 3 ? "rd" : "th";
  return `${mapCount(rank)}${end}`;
}

/**
 * A count with spaces between thousands: 100 000. The spaces are thin and do not break.
 * @param {number} count
 */
export function mapCount(count) {
  return String(Math.round(count)).replace(/\B(?=(\d{3})+(?!\d))/gu, "\u202f");
}

/**
 * A weight in four digits that mean something: 0.1234, 0.00001234 as 1.234e-5.
 * @param {number | null} weight
 */
export function mapNumber(weight) {
  if (weight === null || weight === undefined) return "none";
  if (Number.isNaN(weight)) return "not known yet";
  if (weight === 0) return "0";
  const size = Math.abs(weight);
  if (!Number.isFinite(size)) return weight > 0 ? "infinite" : "-infinite";
  if (size < 1e-4 || size >= 1e6) return weight.toExponential(3);
  return String(Number(weight.toPrecision(4)));
}
