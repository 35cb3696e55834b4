// Where the weight of a cut link went: ribbons from what lost it to the words that gained it. Width is weight.

import { el, isRightToLeft, svgEl, uniqueName, wordText } from "../dom.js";
import { percentText } from "../format.js";
import { decimalText, tr, trN, trParts } from "../languages.js";
/** @import { Items } from "../types.js" */

/** @typedef {{start: number, width: number}} Band  pixels down the picture */

/** Pixels of a band that is 100 %; of a row of text; between bands. */
const wholeBand = 220, flowRow = 28, flowGap = 4;
/** Words with a band of their own; the least weight that is told. */
const mostGains = 6, leastGain = 0.0005;
/** How much the growth of shares may differ, in float32, and still count as one factor. */
const sameFactor = 1e-3;

/**
 * What a row lost and gained, exactly: what went is what came, but for rounding, since both rows add up to 1.
 * @param {ArrayLike<number>} before @param {ArrayLike<number>} after @param {ReadonlySet<number>} cut
 * @returns {{lost: number, faded: number, gains: {key: number, gain: number}[], others: number, rest: number, factor: number | null}}
 *   lost: of what is cut; faded: of words that are not cut; others: how many more words gained, and rest: what; factor: by which every
 *   other share grew, null if there is no such factor
 */
export function flowOf(before, after, cut) {
  const moved = Array.from(before, (was, key) => ({ key, gain: after[key] - was }));
  const sum = (/** @type {{gain: number}[]} */ some) => some.reduce((all, { gain }) => all + gain, 0);
  const cutChanges = moved.filter(({ key }) => cut.has(key)), others = moved.filter(({ key }) => !cut.has(key));
  const won = others.filter(({ gain }) => gain > 0).sort((one, other) => other.gain - one.gain);
  // One more word needs no row for others.
  const shown = won.length <= mostGains + 1 ? won.length : mostGains, gains = won.slice(0, shown).filter(({ gain }) => gain >= leastGain), small = won.slice(gains.length);
  const factor = 1 / (1 + sum(cutChanges)), isOne = others.every(({ key }) => before[key] < leastGain || Math.abs(after[key] / before[key] / factor - 1) < sameFactor);
  return { lost: -sum(cutChanges), faded: -sum(others.filter(({ gain }) => gain < 0)), gains, others: small.length, rest: sum(small), factor: isOne && Number.isFinite(factor) ? factor : null };
}

/**
 * Where the bands are: on the left one under the other, on the right each in a row of its own.
 * @param {number[]} sources  shares @param {number[]} targets
 * @returns {{height: number, left: Band[], right: Band[], rows: number[]}} rows: pixels of each row on the right
 */
export function flowBands(sources, targets) {
  const rows = targets.map((share) => Math.max(flowRow, share * wholeBand + flowGap)), height = rows.reduce((sum, one) => sum + one, 0);
  let at = (height - sources.reduce((sum, one) => sum + one, 0) * wholeBand) / 2, row = 0;
  const left = sources.map((share) => ({ start: (at += share * wholeBand) - share * wholeBand, width: share * wholeBand }));
  const right = targets.map((share, i) => ({ start: (row += rows[i]) - rows[i] / 2 - (share * wholeBand) / 2, width: share * wholeBand }));
  return { height, left, right, rows };
}

/**
 * @param {Items} keys @param {ReadonlySet<number>} cut @param {ReadonlySet<number>} sinks
 * @param {ArrayLike<number>} before  the row @param {ArrayLike<number>} after
 * @returns {HTMLElement[]}
 */
export function flowParts(keys, cut, sinks, before, after) {
  const { lost, faded, gains, others, rest, factor } = flowOf(before, after, cut), total = lost + faded;
  const targets = [...gains.map(({ gain }) => gain), ...(rest >= leastGain ? [rest] : [])];
  const sources = [lost, ...(faded >= leastGain ? [faded] : [])], { height, left, right, rows } = flowBands(sources, targets);
  // What is cut and what fades flows together into what gained.
  const [start] = left, whole = sources.reduce((sum, one) => sum + one, 0) * wholeBand;
  const gradient = uniqueName();
  let at = start?.start ?? 0;
  const paths = right.map(({ start: top, width }, i) => {
    const from = at, wide = Math.max(0.75, width), targetWidth = Math.max(0.75, (targets[i] / total) * whole);
    at += (targets[i] / total) * whole;
    return svgEl("path", { class: gains[i] && !sinks.has(gains[i].key) ? null : "uwaga-flow-rest", fill: `url(#${gradient})`, d: `M0 ${from}C50 ${from} 50 ${top} 100 ${top}V${top + wide}C50 ${top + wide} 50 ${from + targetWidth} 0 ${from + targetWidth}z` });
  });
  const word = (/** @type {number} */ key) => el("bdi", { text: wordText(keys, key) }), first = [...cut];
  return [el("h2", {}, trParts("Where the {share} went", { share: percentText(lost) })),
    el("p", { class: "uwaga-sub", text: factor === null ? tr("The link was cut before the softmax, so the rest of the row is rescaled to add up to 100%.")
      : tr("The link was cut before the softmax, so every other share grew by the same factor, {factor}.", { factor: decimalText(factor, 2) }) }),
    el("div", { class: "uwaga-flow", dir: isRightToLeft(keys.labels) ? "rtl" : "ltr" },
      el("p", {}, el("span", { class: "uwaga-asked" }, first.slice(0, 3).flatMap((key, i) => [i ? " " : "", word(key)]), first.length > 3 ? "\u2026" : ""),
        el("small", { dir: "ltr", text: `${percentText(first.reduce((sum, key) => sum + before[key], 0))} \u2192 ${percentText(first.reduce((sum, key) => sum + after[key], 0))}` }),
        faded >= leastGain && el("small", { text: tr("other words: {share}", { share: percentText(-faded) }) })),
      svgEl("svg", { viewBox: `0 0 100 ${height}`, height, preserveAspectRatio: "none", "aria-hidden": "true" },
        svgEl("defs", {}, svgEl("linearGradient", { id: gradient }, svgEl("stop", { offset: 0, class: "uwaga-flow-from" }), svgEl("stop", { offset: 1, class: "uwaga-stop-asked" }))), paths),
      el("ul", {}, [...gains.map(({ key, gain }) => ({ name: word(key), gain })), ...(rest >= leastGain ? [{ name: el("bdi", { text: trN("{count} other", "{count} others", others) }), gain: rest }] : [])]
        .map(({ name, gain }, i) => el("li", { style: { height: `${rows[i]}px` } }, name, el("b", { dir: "ltr", text: `+${percentText(gain)}` })))))];
}
