// What changed in the output, each figure as a line with a ring, before, and a dot, after.

import { el, tokenText } from "../dom.js";
import { percentText } from "../format.js";
import { decimalText, tr } from "../languages.js";

/** @typedef {{name: string, before: number, after: number}} MovedFigure */

/** Lines show the whole scale from 0 to 1 if the largest move is at least this, else a part of it. */
const leastSeen = 0.03;

/**
 * How much of the scale a line shows: all, or if everything moved little, as little as shows it; then each line is around where its figure was.
 * @param {MovedFigure[]} figures
 * @returns {{span: number, place: (value: number, figure: MovedFigure) => number}} place: from 0 to 1 along a line
 */
export function dotScale(figures) {
  const most = Math.max(0, ...figures.map(({ before, after }) => Math.abs(after - before)));
  if (most >= leastSeen || most === 0) return { span: 1, place: (value) => Math.min(1, Math.max(0, value)) };
  // The first of 1, 2 and 5 times a power of ten on which no dot is farther out than at nine tenths of the way.
  const power = 10 ** Math.floor(Math.log10(most / 0.45)), span = [1, 2, 5, 10].map((times) => times * power).find((one) => most / one <= 0.45) ?? 1;
  return { span, place: (value, { before }) => 0.5 + (value - before) / span };
}

/** The figures that fell most and rose most. @param {MovedFigure[]} figures @param {number} least @returns {{fell: MovedFigure | null, rose: MovedFigure | null}} */
export function mostMovedFigures(figures, least) {
  const sorted = [...figures].sort((one, other) => one.after - one.before - (other.after - other.before)), [first, last] = [sorted[0], sorted[sorted.length - 1]];
  return { fell: first && first.before - first.after >= least ? first : null, rose: last && last.after - last.before >= least ? last : null };
}

/** @param {MovedFigure[]} figures  probabilities @returns {HTMLElement[]} */
export function dotLines(figures) {
  const { span, place } = dotScale(figures);
  // Of a tenth of a line the numbers differ.
  const digits = span < 1 ? 1 - Math.floor(Math.log10(span) + 1e-9) : 2, written = (/** @type {number} */ value, /** @type {number} */ places) => `${decimalText(100 * value, Math.max(0, places - 2))}%`;
  const text = (/** @type {number} */ value) => (span === 1 ? percentText(value) : written(value, digits)), scale = written(span, digits - 1), what = tr("probability");
  return [el("ul", { class: "uwaga-dot-lines" }, figures.map((figure) => {
    const [was, is] = [place(figure.before, figure), place(figure.after, figure)], percent = (/** @type {number} */ at) => `${(100 * at).toFixed(2)}%`;
    return el("li", {}, el("bdi", { text: tokenText(figure.name) }), el("b", { text: `${text(figure.before)} \u2192 ${text(figure.after)}` }),
      el("span", { "aria-hidden": "true" }, el("i", { class: "uwaga-dot-way", style: { "inset-inline-start": percent(Math.min(was, is)), width: percent(Math.abs(is - was)) } }),
        el("i", { class: "uwaga-dot-ring", style: { "inset-inline-start": percent(was) } }), el("i", { class: "uwaga-dot", style: { "inset-inline-start": percent(is) } })));
  })), el("p", { class: "uwaga-sub", text: span === 1 ? tr("{what}, 0 to 100% · ring: before · dot: after", { what })
    : tr("{what} · ring: before · dot: after · each line is {span} wide, with what was in its middle", { what, span: scale }) })];
}
