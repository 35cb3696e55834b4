// A line chart with axes, a description for screen readers and a legend.

import { el, svgEl } from "../dom.js";
import { powerText } from "../languages.js";
import { formulaSpans, formulaText, lessonNumber } from "./numbers.js";
import { matrixOf } from "./reply.js";
/** @import { Chart, Lesson } from "./reply.js" */

const width = 480, height = 220;
const margin = { left: 58, right: 22, top: 30, bottom: 40 };

/**
 * @param {number[]} values @param {boolean} log
 * @returns {{low: number, high: number, ticks: number[], at: (value: number) => number}}  at: position of a value, 0 to 1
 */
export function scaleOf(values, log) {
  const finiteValues = values.filter((value) => Number.isFinite(value) && (!log || value > 0));
  let low = finiteValues.length ? Math.min(...finiteValues) : log ? 1 : 0;
  let high = finiteValues.length ? Math.max(...finiteValues) : 1;
  if (log) {
    const first = Math.floor(Math.log10(low) + 1e-9), last = Math.max(first + 1, Math.ceil(Math.log10(high) - 1e-9));
    const step = Math.max(1, Math.ceil((last - first) / 5));
    const ticks = Array.from({ length: Math.floor((last - first) / step) + 1 }, (_, n) => 10 ** (first + n * step));
    return { low: 10 ** first, high: 10 ** last, ticks, at: (value) => (Math.log10(value) - first) / (last - first) };
  }
  low = Math.min(0, low);
  if (high <= low) high = low + 1;
  const rough = (high - low) / 4, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((n) => n * power).find((one) => one >= rough) ?? rough;
  const end = Math.ceil(high / step - 1e-9) * step, begin = Math.floor(low / step + 1e-9) * step;
  const ticks = Array.from({ length: Math.round((end - begin) / step) + 1 }, (_, n) => begin + n * step);
  return { low: begin, high: end, ticks, at: (value) => (value - begin) / (end - begin) };
}

/** @param {Lesson} lesson @param {Chart} chart @returns {HTMLElement} */
export function makeChart(lesson, chart) {
  const matrix = matrixOf(lesson, chart.matrix);
  const columns = matrix.columns.length;
  const column = (/** @type {number} */ c) => matrix.rows.map((_, row) => matrix.data[row * columns + c]);
  const places = column(0), lines = chart.lines.map(column);
  const across = chart.log_x ? logScaleOfPlaces(places) : scaleOf(places, false), up = scaleOf(lines.flat(), chart.log_y);
  const x = (/** @type {number} */ value) => margin.left + across.at(value) * (width - margin.left - margin.right);
  const y = (/** @type {number} */ value) =>
    height - margin.bottom - up.at(value) * (height - margin.top - margin.bottom);
  const picture = svgEl("svg", { viewBox: `0 0 ${width} ${height}`, role: "img",
    "aria-label": `${chart.title}. ${chart.description}`, class: "lesson-chart" },
    up.ticks.flatMap((tick) => [
      svgEl("line", { class: "lesson-rule", x1: margin.left, x2: width - margin.right, y1: y(tick), y2: y(tick) }),
      svgEl("text", { x: margin.left - 6, y: y(tick) + 4, "text-anchor": "end", text: tickText(tick, chart.log_y) }),
    ]),
    across.ticks.filter((tick) => tick >= across.low && tick <= across.high).map((tick) =>
      svgEl("text", { x: x(tick), y: height - margin.bottom + 16, "text-anchor": "middle", text: tickText(tick, chart.log_x) })),
    svgEl("text", { x: (margin.left + width - margin.right) / 2, y: height - 6,
      "text-anchor": "middle" }, formulaSpans(chart.x_title)),
    svgEl("text", { x: 2, y: 13 }, formulaSpans(chart.y_title)),
    lines.flatMap((values, which) => lineElements(places, values, which, x, y, chart)),
  );
  const names = chart.lines.map((c, which) => el("li", { class: `lesson-line-${which}` },
    svgEl("svg", { viewBox: "0 0 28 8", class: "lesson-sample", "aria-hidden": "true" },
      svgEl("line", { class: `lesson-line lesson-line-${which}`, x1: 0, x2: 28, y1: 4, y2: 4 })),
    // A name that continues the one before it is completed.
    formulaText(matrix.columns[c].replace(/^\u2026/, () => matrix.columns[c - 1]))));
  return el("figure", { class: "lesson-figure" }, el("figcaption", {}, formulaText(chart.title)),
    picture, el("ul", { class: "lesson-legend" }, names));
}

/**
 * A logarithmic axis from the first x to the last, with ticks at some of them.
 * @param {number[]} places  x values, ascending
 * @returns {{low: number, high: number, ticks: number[], at: (value: number) => number}}
 */
function logScaleOfPlaces(places) {
  const low = places[0], high = places[places.length - 1];
  const every = Math.ceil(places.length / 6);
  return { low, high, ticks: places.filter((_, at) => at % every === 0), at: (value) => Math.log(value / low) / Math.log(high / low || 1) };
}

/**
 * @param {number[]} places @param {number[]} values @param {number} which @param {(value: number) => number} x
 * @param {(value: number) => number} y @param {Chart} chart @returns {Element[]}
 */
function lineElements(places, values, which, x, y, chart) {
  const finitePoints = places.map((place, at) => ({ place, value: values[at] }))
    .filter(({ place, value }) => Number.isFinite(value) && (!chart.log_y || value > 0) && (!chart.log_x || place > 0));
  const points = finitePoints.map(({ place, value }) => `${x(place).toFixed(1)},${y(value).toFixed(1)}`);
  const dots = finitePoints.length > 20 ? []
    : finitePoints.map(({ place, value }) => svgEl("circle", { class: `lesson-dot lesson-line-${which}`, cx: x(place), cy: y(value), r: 3 }));
  return [svgEl("polyline", { class: `lesson-line lesson-line-${which}`, points: points.join(" ") }), ...dots];
}

/** @param {number} tick @param {boolean} log @returns {string} */
function tickText(tick, log) {
  if (log && (tick >= 1e5 || tick < 1e-3)) return powerText(tick, 0).slice(2);
  return lessonNumber(tick, Number.isInteger(tick) ? 0 : Math.min(6, Math.max(1, -Math.floor(Math.log10(Math.abs(tick))))));
}
