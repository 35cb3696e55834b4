// Moments of a matrix that grows: circles, a slider with eight of its moments, arcs of the same weights, and two curves.

import { wantsNoMotion } from "../explore/arc_view.js";
import { el, svgEl, tokenText } from "../dom.js";
import { tr } from "../languages.js";
import { makePlayer } from "../player.js";
import { arcsOfLinks, pathOfArc } from "../explore/arcs.js";
import { sharesOf } from "./arcs.js";
import { formulaText, lessonNumber } from "./numbers.js";
import { largestOf, matrixOf, valueAt } from "./reply.js";
import { circleRadius } from "./rows.js";
/** @import { PictureActions, PictureBody } from "./pictures.js" */
/** @import { Lesson, Matrix, Picture } from "./reply.js" */

/** Milliseconds that a moment of a film is shown, and how many moments stand below as small pictures. */
const pause = 70, mostStops = 8;

/**
 * A matrix as circles: filled is positive, a ring is negative.
 * @param {Lesson} lesson @param {string} id
 * @param {{slice: number, cell: number, covered?: boolean, isNamed?: boolean}} how @returns {Element}
 */
export function circlesOf(lesson, id, { slice, cell, covered = false, isNamed = true }) {
  const matrix = matrixOf(lesson, id), largest = largestOf(matrix), count = matrix.rows.length;
  const names = matrix.rows.map((name) => name.split(":")[0].replace(/^[a-z] = /, ""));
  const side = isNamed ? 24 : 0, size = side + count * cell + 2;
  return svgEl("svg", { class: "lesson-circles", viewBox: `0 0 ${size} ${size}`, width: size, height: size,
    ...(isNamed ? { role: "img", "aria-label": `${tokenText(matrix.title)}, ${count} \u00d7 ${count}` } : { "aria-hidden": "true" }) },
  ...(isNamed ? names.flatMap((name, at) => [svgEl("text", { class: "lesson-share", x: side + (at + 0.5) * cell, y: 14, "text-anchor": "middle", text: name }),
    svgEl("text", { class: "lesson-share", x: side - 6, y: side + (at + 0.5) * cell + 5, "text-anchor": "end", text: name })]) : []),
  matrix.rows.flatMap((row, i) => matrix.columns.map((column, j) => {
    const x = side + (j + 0.5) * cell, y = side + (i + 0.5) * cell, number = valueAt(lesson, { of: id, row: i, column: j, slice });
    if (covered) return svgEl("text", { class: "lesson-share", x, y: y + 5, "text-anchor": "middle", text: "?" });
    return svgEl("circle", { class: `lesson-circle${number < 0 ? " lesson-ring" : ""}`, cx: x, cy: y, r: Math.max(0.6, circleRadius(number, largest, cell * 0.46)).toFixed(2) },
      isNamed ? svgEl("title", {}, `${tokenText(row)}, ${tokenText(column)}: ${lessonNumber(number)}`) : null);
  })));
}

/** @param {PictureActions} actions @returns {PictureBody} */
export function makeFilm(actions) {
  const place = el("div", { class: "lesson-scroll" }), curves = el("div", { class: "lesson-film-curves" });
  const slider = el("input", { type: "range", min: 0, step: 1, class: "lesson-moment", "aria-label": tr("Moment") });
  const play = el("button", { type: "button", class: "lesson-watch", text: tr("Watch it learn"), on: { click: () => (player.isOn() ? stop() : start()) } });
  const caption = el("p", { class: "lesson-film-said", role: "status" }), factors = el("div", { class: "lesson-factors" });
  const strip = el("div", { class: "lesson-strip" });
  let moment = 0;
  const isStill = wantsNoMotion(), player = makePlayer(isStill ? pause * 12 : pause, step);
  /** @type {[Lesson, Picture, boolean] | null} */
  let last = null;
  /** @type {Matrix["data"] | null} the numbers that the strip shows */
  let stripped = null;
  slider.addEventListener("input", () => { stop(); moment = Number(slider.value); draw(); });

  /** Fewer on a narrow page. @param {number} most @returns {number[]} */
  function stops(most) {
    const count = actions.place().isNarrow ? mostStops / 2 : mostStops;
    return [...new Set(Array.from({ length: count }, (_, at) => Math.round(most * at / (count - 1))))];
  }

  function stop() {
    player.stop();
    play.textContent = tr("Watch it learn");
  }

  function start() {
    if (!last || last[2]) return;
    if (moment >= last[1].labels.length - 1) moment = 0;
    player.start();
    play.textContent = tr("Stop");
  }

  /** @param {number} count  of steps since it was started */
  function step(count) {
    const most = (last?.[1].labels.length ?? 0) - 1;
    if (count && moment >= most) return stop();
    if (count) moment = isStill ? stops(most).find((at) => at > moment) ?? most : moment + 1;
    draw();
  }

  function draw() {
    if (!last) return;
    const [lesson, shown, covered] = last, [growing, progress, shares, codes, wq, wk] = shown.matrices, { data, rows } = matrixOf(lesson, growing);
    const most = shown.labels.length - 1, { room, isNarrow } = actions.place();
    moment = Math.min(moment, most);
    slider.max = String(most);
    slider.value = String(moment);
    slider.disabled = play.disabled = covered;
    const cell = Math.max(18, Math.min(isNarrow ? 34 : 68, ((isNarrow ? room : 400) - 30) / rows.length));
    place.replaceChildren(circlesOf(lesson, growing, { slice: moment, cell, covered }));
    const step = Number(shown.labels[moment]);
    const at = (/** @type {number} */ column) => valueAt(lesson, { of: progress, row: step, column, slice: null });
    factors.replaceChildren(...factorFigures(lesson, { codes, wq, wk }, covered ? 0 : moment));
    caption.textContent = covered ? "" : tr("Step {step}: loss {loss}, weight one place back {back}; by chance {chance}.",
      { step, loss: lessonNumber(at(1)), back: lessonNumber(at(4)), chance: lessonNumber(1 / rows.length) });
    curves.replaceChildren(...(covered ? [] : [arcsPicture(lesson, shares, moment), curvesPicture(lesson, progress, step)]));
    strip.hidden = covered;
    if (!covered && stripped !== data) {
      stripped = data;
      strip.replaceChildren(...stops(most).map((stop_) => el("button", { type: "button", "data-moment": stop_, on: { click: () => { stop(); moment = stop_; draw(); } } },
        circlesOf(lesson, growing, { slice: stop_, cell: 72 / rows.length, isNamed: false }), shown.labels[stop_])));
    }
    for (const button of strip.children) button.setAttribute("aria-pressed", String(button.getAttribute("data-moment") === String(moment)));
  }

  return {
    element: el("div", { class: "lesson-film" }, place, el("div", {}, factors, caption, curves), el("div", { class: "lesson-film-foot" },
      el("div", { class: "lesson-control" }, play, slider), strip)),
    update(lesson, shown, _query, covered) {
      const isAnswered = !!last?.[2] && !covered;
      last = [lesson, shown, covered];
      draw();
      // The answer is seen to happen; with reduced motion it waits to be played.
      if (isAnswered && !isStill) start();
    },
    dispose: stop,
  };
}

/**
 * The four factors of the scores, each small above its name: of the places' codes P each column as a curve, of W_Q and W_K the
 * numbers of a moment.
 * @param {Lesson} lesson @param {{codes: string, wq: string, wk: string}} of @param {number} slice @returns {HTMLElement[]}
 */
function factorFigures(lesson, { codes, wq, wk }, slice) {
  const cell = 8, { rows, columns } = matrixOf(lesson, codes), size = columns.length * cell;
  const waves = (/** @type {boolean} */ isTurned) => svgEl("svg", { viewBox: `0 0 ${size} ${size}`, width: size, height: size, "aria-hidden": "true" },
    columns.map((_, column) => svgEl("path", { class: "lesson-factor-wave", d: rows.map((__, row) => {
      const along = 2 + row / Math.max(1, rows.length - 1) * (size - 4);
      const across = (column + 0.5 + 0.42 * valueAt(lesson, { of: codes, row, column, slice: null })) * cell;
      return `${row ? "L" : "M"}${(isTurned ? [along, across] : [across, along]).map((number) => number.toFixed(1)).join(" ")}`;
    }).join("") })));
  const circles = (/** @type {string} */ id, /** @type {boolean} */ isTurned) => {
    const matrix = matrixOf(lesson, id), largest = largestOf(matrix);
    return svgEl("svg", { viewBox: `0 0 ${size} ${size}`, width: size, height: size, "aria-hidden": "true" },
      matrix.rows.flatMap((_, row) => matrix.columns.map((__, column) => {
        const number = valueAt(lesson, { of: id, row, column, slice }), [i, j] = isTurned ? [column, row] : [row, column];
        return svgEl("circle", { class: `lesson-circle${number < 0 ? " lesson-ring" : ""}`, cx: (j + 0.5) * cell, cy: (i + 0.5) * cell, r: Math.max(0.4, circleRadius(number, largest, cell * 0.46)).toFixed(2) });
      })));
  };
  const named = (/** @type {Element} */ picture, /** @type {string} */ name, raised = "") =>
    el("figure", { class: "lesson-factor" }, picture, el("figcaption", {}, formulaText(name), raised && el("sup", { text: raised })));
  return [named(waves(false), "P"), named(circles(wq, false), "W_Q"), named(circles(wk, true), "W_K", "T"), named(waves(true), "P", "T"), el("span", { class: "lesson-note", text: tr("= the scores") })];
}

/** The weights of a moment as arcs over the places. @param {Lesson} lesson @param {string} id @param {number} slice @returns {Element} */
function arcsPicture(lesson, id, slice) {
  const matrix = matrixOf(lesson, id), count = matrix.rows.length, width = 420, base = 84;
  const x = (/** @type {number} */ at) => 16 + at / Math.max(1, count - 1) * (width - 32);
  const name = `lesson-film-arcs-${id}`;
  const links = matrix.rows.flatMap((_, query) => sharesOf(matrix.columns.map((__, column) => valueAt(lesson, { of: id, row: query, column, slice })))
    .map((weight, key) => ({ query, key, weight })).filter(({ key, weight }) => key !== query && weight > 0.02));
  return svgEl("svg", { class: "lesson-chart", viewBox: `0 0 ${width} ${base + 22}`, "aria-hidden": "true" },
    svgEl("defs", {}, svgEl("linearGradient", { id: name }, svgEl("stop", { offset: 0, class: "lesson-looked-at" }), svgEl("stop", { offset: 1, class: "lesson-looks" })),
      svgEl("linearGradient", { id: `${name}-on` }, svgEl("stop", { offset: 0, class: "lesson-looks" }), svgEl("stop", { offset: 1, class: "lesson-looked-at" }))),
    arcsOfLinks(links, matrix.rows.map((_, at) => x(at)), { height: base - 8, scale: 40 }).map((arc) => svgEl("path", { class: "lesson-arc", stroke: `url(#${arc.to < arc.from ? name : `${name}-on`})`,
      "stroke-width": arc.width.toFixed(1), d: pathOfArc(arc, (along, above) => `${along.toFixed(1)} ${(base - above).toFixed(1)}`) })),
    matrix.rows.map((row, at) => svgEl("text", { x: x(at), y: base + 17, "text-anchor": "middle", text: row.split(":")[0] })));
}

/** The loss and the weight one place back over the steps. @param {Lesson} lesson @param {string} id @param {number} step @returns {Element} */
function curvesPicture(lesson, id, step) {
  const matrix = matrixOf(lesson, id), count = matrix.rows.length, width = 420, height = 120;
  const at = (/** @type {number} */ row, /** @type {number} */ column) => valueAt(lesson, { of: id, row, column, slice: null });
  const x = (/** @type {number} */ row) => 4 + row / Math.max(1, count - 1) * (width - 8);
  const line = (/** @type {number} */ column) => {
    const most = Math.max(...matrix.rows.map((_, row) => at(row, column))) || 1;
    const y = (/** @type {number} */ row) => height - 22 - at(row, column) / most * (height - 44);
    return { d: matrix.rows.map((_, row) => `${row ? "L" : "M"}${x(row).toFixed(1)} ${y(row).toFixed(1)}`).join(""), y: y(step) };
  };
  const loss = line(1), back = line(4);
  return svgEl("svg", { class: "lesson-chart", viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" },
    svgEl("line", { class: "lesson-rule", x1: x(step), x2: x(step), y1: 16, y2: height - 18 }),
    svgEl("path", { class: "lesson-curve-back", d: back.d }), svgEl("path", { class: "lesson-curve-loss", d: loss.d }),
    svgEl("circle", { class: "lesson-looked-at-dot", cx: x(step), cy: back.y, r: 5 }), svgEl("circle", { class: "lesson-loss-dot", cx: x(step), cy: loss.y, r: 5 }),
    svgEl("text", { class: "lesson-curve-name-back", x: width - 4, y: 12, "text-anchor": "end", text: matrix.columns[4] }),
    svgEl("text", { x: 4, y: 12, text: matrix.columns[1] }),
    svgEl("text", { x: 4, y: height - 4, text: matrix.rows[0] }), svgEl("text", { x: width - 4, y: height - 4, "text-anchor": "end", text: matrix.rows[count - 1] }));
}
