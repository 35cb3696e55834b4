// Which paragraphs of a long text are open: those that hold what a word looks at. The rest is folded, with its exact share.

/** @import { Items, Range } from "../types.js" */

/** What open paragraphs hold of the weight off the sinks; the most items that are open, however broad a head is. */
const heldShare = 0.98, mostOpen = 900;
/** A text of so few items is never folded; a strip of fewer is not worth its line. */
const wholeText = 80, leastFolded = 12;
/** Items of a paragraph: a longer one is cut at the end of a line or of a sentence, or else where it reaches the maximum. */
const leastParagraph = 40, mostParagraph = 120, leastEnd = 24;
/** Letters of an item that is a passage itself, on average: it is a paragraph. */
const passageLetters = 24;
/** The least weight that is written at its word: 1 %, or an eighth of the largest if that is less. */
const leastStated = 0.01, statedPart = 1 / 8;

/** How much ends before an item: 2 a paragraph, 1 a line or a sentence, 0 nothing. @param {Items} items @param {number} item */
function boundaryBefore({ labels, breaks }, item) {
  const before = labels[item - 1], label = labels[item], lines = (breaks?.get(item) ?? 0) + (/\n*\s*$/u.exec(before)?.[0].split("\n").length ?? 1) - 1;
  if (lines) return Math.min(2, lines);
  return !/^[\s"'\u201d\u2019)\]\u300d.!?]/u.test(label) && /[.!?\u2026\u3002\uff01\uff1f]["'\u201d\u2019)\]\u300d]*$/u.test(before) ? 1 : 0;
}

/** @param {Items} items @returns {boolean} whether its items are passages, as those of a database */
export function holdsPassages({ total, labels }) {
  return total > 0 && labels.reduce((sum, label) => sum + label.length, 0) >= passageLetters * total;
}

/** @param {Items} items @returns {Range[]} of items, in order, without gaps */
export function paragraphsOf(items) {
  const { total } = items, isPassages = holdsPassages(items);
  /** @type {Range[]} */
  const ranges = [];
  let first = 0, soft = 0, isCut = false;
  for (let item = 1; item <= total; item++) {
    const ends = item === total || isPassages ? 2 : boundaryBefore(items, item);
    if (ends === 1) soft = item;
    if (ends === 2 || item - first >= mostParagraph) {
      const end = ends < 2 && soft - first >= leastParagraph ? soft : item;
      // The end of a paragraph that was cut stays with what was cut off it.
      const last = ranges[ranges.length - 1];
      if (ends === 2 && isCut && last && end - first < leastEnd) last[1] = end;
      else ranges.push([first, end]);
      isCut = ends < 2;
      first = end;
    }
  }
  return ranges;
}

/** @param {ArrayLike<number>} weights  NaN: not known @param {Range} range @param {ReadonlySet<number>} [without] @param {(weight: number) => number} [of] */
export function sumOf(weights, [first, end], without, of = (weight) => weight) {
  let sum = 0;
  for (let item = first; item < end; item++) if (!without?.has(item)) sum += of(weights[item]) || 0;
  return sum;
}

/**
 * @param {ArrayLike<number>} weights @param {ReadonlySet<number>} sinks
 * @returns {number} the least weight that is written at its word
 */
export function leastWritten(weights, sinks) {
  let largest = 0;
  for (let item = 0; item < weights.length; item++) if (!sinks.has(item) && Math.abs(weights[item]) > largest) largest = Math.abs(weights[item]);
  return Math.min(leastStated, Math.max(largest * statedPart, Number.MIN_VALUE));
}

/**
 * The paragraphs of a text, open or folded; folded neighbours are one strip.
 * @param {Range[]} paragraphs
 * @param {{weights: ArrayLike<number> | null, sinks: ReadonlySet<number>, keep: (number | null)[], opened: ReadonlySet<number>, fills?: boolean}} what
 *   keep: items that are to be seen; opened: first items of paragraphs that a reader has opened; fills: without weights, open what there is room for
 * @returns {{range: Range, isOpen: boolean}[]}
 */
export function foldedText(paragraphs, { weights, sinks, keep, opened, fills = true }) {
  const total = paragraphs.length ? paragraphs[paragraphs.length - 1][1] : 0;
  const isKept = (/** @type {Range} */ [first, end]) => total <= wholeText || opened.has(first) || keep.some((item) => item !== null && item >= first && item < end);
  const open = new Set(paragraphs.filter(isKept)), size = (/** @type {Range} */ [first, end]) => end - first;
  let room = mostOpen - [...open].reduce((sum, one) => sum + size(one), 0);
  if (weights) {
    const held = new Map(paragraphs.map((one) => [one, sumOf(weights, one, sinks, Math.abs)])), all = [...held.values()].reduce((sum, one) => sum + one, 0);
    const rest = all * (1 - heldShare);
    let left = all - [...open].reduce((sum, one) => sum + (held.get(one) ?? 0), 0);
    for (const one of [...paragraphs].sort((a, b) => (held.get(b) ?? 0) - (held.get(a) ?? 0))) {
      if (left <= rest || room < size(one)) break;
      if (open.has(one)) continue;
      open.add(one);
      left -= held.get(one) ?? 0;
      room -= size(one);
    }
  } else if (fills || !open.size) {
    // Nothing is known yet: the beginning, or what follows the kept items.
    const at = Math.max(0, paragraphs.findIndex((one) => open.has(one)));
    for (const one of paragraphs.slice(at)) if (room >= size(one)) { open.add(one); room -= size(one); } else break;
  }
  /** @type {{range: Range, isOpen: boolean}[]} */
  const parts = [];
  for (const range of paragraphs) {
    const last = parts[parts.length - 1], isOpen = open.has(range);
    if (last && !last.isOpen && !isOpen) last.range = [last.range[0], range[1]];
    else parts.push({ range, isOpen });
  }
  return parts.map((part) => (size(part.range) < leastFolded ? { ...part, isOpen: true } : part));
}
