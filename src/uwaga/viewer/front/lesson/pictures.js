// Drawings of a step's numbers: arcs between words, circles, a film of moments, waves, shapes that fit, a batch in layers. The
// numbers are those of the matrices; a picture of numbers that would tell an answer shows question marks.

import { el, svgEl, tokenText } from "../dom.js";
import { tr } from "../languages.js";
import { lessonNumber } from "./numbers.js";
import { lessonMatrix, lessonValue } from "./reply.js";

/** @typedef {import("./reply.js").Lesson} Lesson */
/** @typedef {import("./reply.js").LessonPicture} LessonPicture */
/**
 * @typedef {{element: HTMLElement, matrices: string[], update: (lesson: Lesson, picture: LessonPicture, query: number,
 *   covered: boolean) => void, dispose: () => void}} PictureView
 */
/** @typedef {{choose: (query: number) => void}} PictureActions */

/** Milliseconds that a moment of a film is shown. */
const filmPause = 350;
const arcsHeight = 150, arcsWord = 96, arcsMost = 30;
const circleCell = 34;

/**
 * @param {LessonPicture} picture
 * @param {PictureActions} actions
 * @returns {PictureView}
 */
export function makePicture(picture, actions) {
  const draws = { arcs: makeArcs, circles: makeCircles, film: makeFilm, waves: makeWaves, shapes: makeShapes, layers: makeLayers };
  const make = draws[/** @type {keyof typeof draws} */ (picture.kind)];
  if (!make) throw new Error(`lesson: unknown picture ${picture.kind}`);
  const view = make(actions);
  const title = el("figcaption", { class: "lesson-picture-title" });
  const words = el("p", { class: "lesson-note" });
  return {
    element: el("figure", { class: `lesson-picture lesson-picture-${picture.kind}`, "data-picture": picture.matrices[0] ?? picture.kind }, title, view.element, words),
    matrices: picture.matrices,
    update(lesson, now, query, covered) {
      title.textContent = tokenText(now.title);
      words.textContent = tokenText(now.description);
      words.hidden = !now.description || covered;
      view.update(lesson, now, query, covered);
    },
    dispose: () => view.dispose?.(),
  };
}

/** @typedef {{element: Element, update: (lesson: Lesson, picture: LessonPicture, query: number, covered: boolean) => void, dispose?: () => void}} PictureBody */

/** @param {Element} element @param {string} label @param {() => void} run */
function pressable(element, label, run) {
  element.setAttribute("role", "button");
  element.setAttribute("tabindex", "0");
  element.setAttribute("aria-label", label);
  element.addEventListener("click", run);
  element.addEventListener("keydown", (event) => {
    const { key } = /** @type {KeyboardEvent} */ (event);
    if (key !== "Enter" && key !== " ") return;
    event.preventDefault();
    run();
  });
}

/**
 * The place of an arc's end at each word: the arcs of the word that looks leave from one bar, in the order of the words, as wide
 * as their numbers.
 * @param {number[]} values
 * @param {number} from
 * @returns {{to: number, width: number, start: number}[]}  start: the middle of the arc's end on the bar, from the bar's middle
 */
export function arcsOf(values, from) {
  const sizes = values.map((value) => (Number.isFinite(value) ? Math.max(0, value) : 0));
  const sum = sizes.reduce((total, size) => total + size, 0) || 1;
  let at = -arcsMost / 2;
  const found = sizes.map((size, to) => {
    const width = size / sum * arcsMost;
    const start = at + width / 2;
    at += width;
    return { to, width, start };
  });
  return found.filter(({ to, width }) => to !== from && width > 0.3);
}

/** Words with arcs from the one that looks to those it looks at; a word is chosen by a click. @param {PictureActions} actions @returns {PictureBody} */
function makeArcs(actions) {
  const picture = svgEl("svg", { class: "lesson-arcs", role: "group" });
  const slider = el("input", { type: "range", min: 0, step: 1, class: "lesson-moment" });
  const label = el("span", { class: "lesson-moment-label" });
  const choice = el("label", { class: "lesson-control" }, slider, label);
  const element = el("div", { class: "lesson-scroll lesson-wide" }, picture);
  let slice = -1, asks = -1;
  /** @type {[Lesson, LessonPicture, number, boolean] | null} */
  let last = null;
  slider.addEventListener("input", () => { slice = Number(slider.value); if (last) draw(...last); });

  /** @param {Lesson} lesson @param {LessonPicture} shown @param {number} query @param {boolean} covered */
  function draw(lesson, shown, query, covered) {
    last = [lesson, shown, query, covered];
    const matrix = lessonMatrix(lesson, shown.matrices[0]);
    const isOwn = shown.labels.length > 0; // words of another sentence, with a slider of their own
    if (isOwn && slice < 0) [slice, asks] = shown.sizes[0];
    const from = isOwn ? asks : Math.min(query, matrix.rows.length - 1);
    choice.hidden = !isOwn;
    slider.max = String(shown.labels.length - 1);
    slider.value = String(slice);
    slider.setAttribute("aria-label", shown.title);
    label.textContent = isOwn ? shown.labels[slice] : "";
    const words = matrix.columns.map(tokenText);
    const values = words.map((_, to) => lessonValue(lesson, { of: matrix.id, row: from, column: to, slice: isOwn ? slice : null }));
    const widths = words.map((word) => Math.max(arcsWord / 2, [...word].reduce((sum, letter) => sum + (letter > "\u2e80" ? 24 : 13), 24)));
    let x = 16;
    const places = widths.map((width) => { const middle = x + width / 2; x += width; return middle; });
    picture.setAttribute("viewBox", `0 0 ${x + 16} ${arcsHeight + 64}`);
    picture.setAttribute("width", String(x + 16));
    picture.setAttribute("height", String(arcsHeight + 64));
    picture.setAttribute("aria-label", `${shown.title}: ${words[from]}`);
    const arcs = covered ? [] : arcsOf(values, from);
    const own = Number.isFinite(values[from]) ? values[from] : 0;
    picture.replaceChildren(
      svgEl("defs", {}, arcs.map(({ to }) => svgEl("linearGradient", { id: `lesson-arc-${shown.matrices[0]}-${to}`, gradientUnits: "userSpaceOnUse",
        x1: places[from], x2: places[to], y1: 0, y2: 0 },
      svgEl("stop", { offset: 0, class: "lesson-looks" }), svgEl("stop", { offset: 1, class: "lesson-looked-at" })))),
      svgEl("rect", { class: "lesson-bar", x: places[from] - arcsMost / 2, y: arcsHeight - 3, width: arcsMost, height: 3 }),
      ...(!covered && own > 0 ? [svgEl("rect", { class: "lesson-stub", x: places[from] - arcsMost / 2, y: arcsHeight - 22, width: arcsMost, height: 19, rx: 4 })] : []),
      ...arcs.map(({ to, width, start }) => svgEl("path", { class: "lesson-arc", "stroke-width": width.toFixed(1),
        stroke: `url(#lesson-arc-${shown.matrices[0]}-${to})`, d: arcPath(places[from] + start, places[to], arcsHeight) })),
      ...words.map((word, to) => {
        const text = svgEl("text", { class: `lesson-word${to === from ? " lesson-word-asks" : ""}`, x: places[to], y: arcsHeight + 26, "text-anchor": "middle", text: word });
        pressable(text, tr("{token} looks", { token: word }), () => { if (isOwn) { asks = to; if (last) draw(...last); } else actions.choose(to); });
        return text;
      }),
      ...values.map((value, to) => svgEl("text", { class: "lesson-share", x: places[to], y: arcsHeight + 50, "text-anchor": "middle",
        text: covered ? "?" : lessonNumber(value, matrix.digits) })));
  }
  return { element: el("div", {}, choice, element), update: draw };
}

/** @param {number} x1 @param {number} x2 @param {number} base @returns {string} */
function arcPath(x1, x2, base) {
  const high = Math.min(base - 20, 34 + Math.abs(x2 - x1) * 0.34);
  return `M${x1} ${base}C${x1} ${base - high * 1.33} ${x2} ${base - high * 1.33} ${x2} ${base}`;
}

/**
 * The radius of a number's circle: its area grows with the number.
 * @param {number} value
 * @param {number} largest
 * @param {number} most
 * @returns {number}
 */
export const circleRadius = (value, largest, most) => (Number.isFinite(value) && largest > 0 ? Math.sqrt(Math.min(1, Math.abs(value) / largest)) * most : 0);

/**
 * @param {Lesson} lesson
 * @param {string} id
 * @param {{slice?: number | null, largest?: number, covered?: boolean, marked?: number}} options
 * @returns {Element}
 */
function circlesOf(lesson, id, { slice = null, largest = 0, covered = false, marked = -1 }) {
  const matrix = lessonMatrix(lesson, id);
  const rows = matrix.rows.map(tokenText), columns = matrix.columns.map(tokenText);
  const value = (/** @type {number} */ row, /** @type {number} */ column) => lessonValue(lesson, { of: id, row, column, slice });
  let most = largest || (matrix.shade === "share" || matrix.shade === "bits" ? 1 : 0);
  if (!most) rows.forEach((_, row) => columns.forEach((__, column) => { most = Math.max(most, Math.abs(value(row, column)) || 0); }));
  const side = Math.min(130, Math.max(...rows.map(textWidth)) + 14), top = 30;
  const cell = Math.max(circleCell, Math.min(90, Math.max(...columns.map(textWidth)) + 8));
  const width = side + columns.length * cell + 8, height = top + rows.length * circleCell + 4;
  const line = (/** @type {string} */ text) => (textWidth(text) > 116 ? `${[...text].slice(0, 12).join("")}\u2026` : text);
  return svgEl("svg", { class: "lesson-circles", viewBox: `0 0 ${width} ${height}`, width, height, role: "img",
    "aria-label": `${tokenText(matrix.title)}, ${rows.length} \u00d7 ${columns.length}` },
  columns.map((name, column) => svgEl("text", { x: side + (column + 0.5) * cell, y: 18, "text-anchor": "middle", text: line(name) })),
  rows.map((name, row) => svgEl("text", { class: row === marked ? "lesson-word-asks" : "", x: side - 8, y: top + (row + 0.5) * circleCell + 5, "text-anchor": "end", text: line(name) })),
  rows.flatMap((_, row) => columns.map((__, column) => {
    const x = side + (column + 0.5) * cell, y = top + (row + 0.5) * circleCell, number = value(row, column);
    if (covered) return svgEl("text", { class: "lesson-share", x, y: y + 5, "text-anchor": "middle", text: "?" });
    if (Number.isNaN(number)) return svgEl("line", { class: "lesson-rule", x1: x - 5, x2: x + 5, y1: y + 5, y2: y - 5 });
    return svgEl("circle", { class: `lesson-circle${number < 0 ? " lesson-ring" : ""}${row === marked ? " lesson-circle-asks" : ""}`, cx: x, cy: y,
      r: Math.max(1, circleRadius(number, most, 15)).toFixed(2) },
    svgEl("title", {}, `${rows[row]}, ${columns[column]}: ${lessonNumber(number, Math.max(2, matrix.digits))}`));
  })));
}

/** About how wide a text is, at 14 pixels. @param {string} text @returns {number} */
const textWidth = (text) => [...text].reduce((sum, letter) => sum + (letter > "\u2e80" ? 14 : 7.4), 0);

/** @returns {PictureBody} */
function makeCircles() {
  const element = el("div", { class: "lesson-scroll" });
  return {
    element,
    update(lesson, shown, query, covered) {
      const matrix = lessonMatrix(lesson, shown.matrices[0]);
      const marked = matrix.rows.length === lesson.request.tokens.length && matrix.rows[query] === lesson.request.tokens[query] ? query : -1;
      element.replaceChildren(circlesOf(lesson, matrix.id, { covered, marked }));
    },
  };
}

/** Moments of a matrix with a slider, and two curves beside it. @returns {PictureBody} */
function makeFilm() {
  const place = el("div", { class: "lesson-scroll" }), curves = el("div", { class: "lesson-film-curves" });
  const slider = el("input", { type: "range", min: 0, step: 1, class: "lesson-moment", "aria-label": tr("Moment") });
  const play = el("button", { type: "button", class: "lesson-watch", text: tr("Watch it learn"), on: { click: () => (timer ? stop() : start()) } });
  const said = el("p", { class: "lesson-film-said", role: "status" });
  let moment = 0;
  /** @type {ReturnType<typeof setInterval> | undefined} */
  let timer;
  /** @type {[Lesson, LessonPicture, boolean] | null} */
  let last = null;
  slider.addEventListener("input", () => { stop(); moment = Number(slider.value); draw(); });

  function stop() {
    clearInterval(timer);
    timer = undefined;
  }

  function start() {
    if (!last || last[2]) return;
    const most = last[1].labels.length - 1;
    if (moment >= most) moment = 0;
    timer = setInterval(() => {
      if (moment >= most) { stop(); return; }
      moment += 1;
      draw();
    }, filmPause);
    draw();
  }

  function draw() {
    if (!last) return;
    const [lesson, shown, covered] = last;
    const [growing, progress] = shown.matrices;
    moment = Math.min(moment, shown.labels.length - 1);
    slider.max = String(shown.labels.length - 1);
    slider.value = String(moment);
    slider.disabled = play.disabled = covered;
    let largest = 0;
    for (const number of lessonMatrix(lesson, growing).data) largest = Math.max(largest, Math.abs(number) || 0);
    place.replaceChildren(circlesOf(lesson, growing, { slice: moment, largest, covered }));
    const step = Number(shown.labels[moment]);
    const at = (/** @type {number} */ column) => lessonValue(lesson, { of: progress, row: step, column, slice: null });
    said.textContent = covered ? "" : tr("Step {step}: loss {loss}, weight one place back {back}.", { step, loss: lessonNumber(at(1)), back: lessonNumber(at(4)) });
    curves.replaceChildren(...(covered ? [] : [filmCurves(lesson, progress, step)]));
  }

  return {
    element: el("div", { class: "lesson-film" }, place, el("div", {}, said, curves, el("div", { class: "lesson-control" }, play, slider))),
    update(lesson, shown, _query, covered) {
      last = [lesson, shown, covered];
      draw();
    },
    dispose: stop,
  };
}

/** The loss and the weight one place back over the steps. @param {Lesson} lesson @param {string} id @param {number} step @returns {Element} */
function filmCurves(lesson, id, step) {
  const matrix = lessonMatrix(lesson, id), count = matrix.rows.length, width = 420, height = 130;
  const at = (/** @type {number} */ row, /** @type {number} */ column) => lessonValue(lesson, { of: id, row, column, slice: null });
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
    svgEl("circle", { class: "lesson-looked-at-dot", cx: x(step), cy: back.y, r: 4 }), svgEl("circle", { class: "lesson-loss-dot", cx: x(step), cy: loss.y, r: 4 }),
    svgEl("text", { class: "lesson-curve-name-back", x: width - 4, y: 12, "text-anchor": "end", text: matrix.columns[4] }),
    svgEl("text", { x: 4, y: 12, text: matrix.columns[1] }),
    svgEl("text", { x: 4, y: height - 4, text: matrix.rows[0] }), svgEl("text", { x: width - 4, y: height - 4, "text-anchor": "end", text: matrix.rows[count - 1] }));
}

/** Each column as a curve over the rows. @returns {PictureBody} */
function makeWaves() {
  const element = el("div", { class: "lesson-scroll" });
  return {
    element,
    update(lesson, shown) {
      const matrix = lessonMatrix(lesson, shown.matrices[0]), each = 56, width = 560;
      const x = (/** @type {number} */ row) => 70 + row / Math.max(1, matrix.rows.length - 1) * (width - 84);
      element.replaceChildren(svgEl("svg", { class: "lesson-chart lesson-waves", viewBox: `0 0 ${width} ${matrix.columns.length * each + 20}`, role: "img",
        "aria-label": `${shown.title}. ${shown.description}` },
      matrix.columns.flatMap((name, column) => {
        const middle = column * each + each / 2;
        const y = (/** @type {number} */ row) => middle - lessonValue(lesson, { of: matrix.id, row, column, slice: null }) * (each / 2 - 6);
        return [svgEl("line", { class: "lesson-rule", x1: 70, x2: width - 14, y1: middle, y2: middle }),
          svgEl("text", { x: 60, y: middle + 5, "text-anchor": "end", text: name }),
          svgEl("path", { class: "lesson-curve-back", d: matrix.rows.map((_, row) => `${row ? "L" : "M"}${x(row).toFixed(1)} ${y(row).toFixed(1)}`).join("") }),
          ...lesson.request.tokens.flatMap((/** @type {string} */ _, /** @type {number} */ row) => (row < matrix.rows.length
            ? [svgEl("circle", { class: "lesson-looked-at-dot", cx: x(row), cy: y(row), r: 3 })] : []))];
      }),
      matrix.rows.flatMap((name, row) => (row % 4 ? [] : [svgEl("text", { x: x(row), y: matrix.columns.length * each + 14, "text-anchor": "middle", text: name })]))));
    },
  };
}

/** Rectangles of two matrices and of their product. @returns {PictureBody} */
function makeShapes() {
  const element = el("div", { class: "lesson-scroll" });
  return {
    element,
    update(_lesson, shown) {
      const unit = 16;
      const [left, right, result] = shown.sizes;
      const fits = left[1] === right[0];
      let x = 10;
      const parts = [left, right, result].flatMap(([rows, columns], at) => {
        if (!rows) return [svgEl("text", { class: "lesson-no", x, y: 62, text: "\u2260" })];
        const box = svgEl("rect", { class: `lesson-shape-box${fits ? "" : " lesson-no-fit"}`, x, y: 70 - rows * unit / 2, width: columns * unit, height: rows * unit });
        const name = svgEl("text", { x: x + columns * unit / 2, y: 70 + rows * unit / 2 + 16, "text-anchor": "middle", text: shown.labels[at] });
        const size = svgEl("text", { class: "lesson-share", x: x + columns * unit / 2, y: 70 - rows * unit / 2 - 6, "text-anchor": "middle", text: `${rows}\u00d7${columns}` });
        x += columns * unit;
        const sign = at < 2 ? svgEl("text", { x: x + 12, y: 75, "text-anchor": "middle", text: at ? (fits ? "=" : "") : "\u00b7" }) : null;
        x += 28;
        return [box, name, size, sign];
      });
      const width = x + 24, height = Math.max(...shown.sizes.map(([rows]) => rows)) * unit / 2 + 96;
      element.replaceChildren(svgEl("svg", { class: "lesson-shapes", viewBox: `0 0 ${width} ${height}`, width, height, role: "img",
        "aria-label": `${shown.labels[0]} ${left.join("\u00d7")} \u00b7 ${shown.labels[1]} ${right.join("\u00d7")}` }, parts));
    },
  };
}

/** A batch: for each row of a table of ones and zeros a layer, with a row of cells for each place. @returns {PictureBody} */
function makeLayers() {
  const element = el("div", { class: "lesson-scroll" });
  return {
    element,
    update(lesson, shown) {
      const matrix = lessonMatrix(lesson, shown.matrices[0]), [[rows, columns]] = shown.sizes, unit = 14, shift = 30;
      const count = matrix.rows.length;
      const width = columns * unit + (count - 1) * (columns * unit + shift) + 12, height = rows * unit + 34;
      element.replaceChildren(svgEl("svg", { class: "lesson-layers", viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": shown.title },
        matrix.rows.flatMap((name, layer) => {
          const x = 4 + layer * (columns * unit + shift);
          return [svgEl("text", { x, y: 14, text: `${layer + 1}` }),
            ...Array.from({ length: rows }, (_, row) => {
              const isWord = lessonValue(lesson, { of: matrix.id, row: layer, column: row, slice: null }) > 0;
              return Array.from({ length: columns }, (__, column) => svgEl("rect", { class: isWord ? "lesson-layer-word" : "lesson-layer-padding",
                x: x + column * unit, y: 22 + row * unit, width: unit - 1.5, height: unit - 1.5 }, svgEl("title", {}, tokenText(name))));
            }).flat()];
        })));
    },
  };
}
