// Drawings of a step's numbers: arcs between words, ribbons, rows, a film of moments, waves, circles, shapes that fit, a batch in layers. The
// numbers are those of the matrices; a picture of numbers that would tell an answer shows question marks.

import { el, svgEl, tokenText } from "../dom.js";
import { makeArcs, makeRibbonPicture } from "./arcs.js";
import { circlesOf, makeFilm } from "./film.js";
import { sentenceText } from "./numbers.js";
import { matrixOf, valueAt } from "./reply.js";
import { makeRows } from "./rows.js";
/** @import { Lesson, Picture } from "./reply.js" */

/** @typedef {Picture & {covered?: string[]}} ShownPicture  covered: matrices that would tell an answer */
/** @typedef {{row: number, say: (choice: number) => void}} PictureGuess  the word that asks, and what a tap on another says */
/**
 * @typedef {{element: HTMLElement, matrices: string[], update: (lesson: Lesson, picture: ShownPicture, query: number,
 *   covered: boolean, guess?: PictureGuess | null) => void, dispose: () => void}} PictureView
 */
/** @typedef {{choose: (query: number) => void, place: () => {room: number, isNarrow: boolean}}} PictureActions  place: pixels across */
/** @typedef {{element: Element, update: (lesson: Lesson, picture: ShownPicture, query: number, covered: boolean, guess: PictureGuess | null) => void, dispose?: () => void}} PictureBody */

/** @param {ShownPicture} picture @param {PictureActions} actions @returns {PictureView} */
export function makePicture(picture, actions) {
  const draws = { arcs: makeArcs, ribbons: makeRibbonPicture, rows: makeRows, film: makeFilm, waves: makeWaves, circles: makeCircles, shapes: makeShapes, layers: makeLayers };
  const make = draws[/** @type {keyof typeof draws} */ (picture.kind)];
  if (!make) throw new Error(`lesson: unknown picture ${picture.kind}`);
  const view = make(actions);
  const title = el("figcaption", { class: "lesson-picture-title" });
  const words = el("p", { class: "lesson-note" });
  return {
    element: el("figure", { class: `lesson-picture lesson-picture-${picture.kind}`, "data-picture": picture.matrices[0] ?? picture.kind }, title, view.element, words),
    matrices: picture.matrices,
    update(lesson, now, query, covered, guess = null) {
      title.replaceChildren(...sentenceText(now.title));
      words.replaceChildren(...sentenceText(now.description));
      words.hidden = !now.description || covered;
      view.update(lesson, now, query, covered, guess);
    },
    dispose: () => view.dispose?.(),
  };
}

/** Each column as a curve over the rows. @returns {PictureBody} */
function makeWaves() {
  const element = el("div", { class: "lesson-scroll" });
  return {
    element,
    update(lesson, shown) {
      const matrix = matrixOf(lesson, shown.matrices[0]), curveHeight = 56, width = 560;
      const x = (/** @type {number} */ row) => 70 + row / Math.max(1, matrix.rows.length - 1) * (width - 84);
      element.replaceChildren(svgEl("svg", { class: "lesson-chart lesson-waves", viewBox: `0 0 ${width} ${matrix.columns.length * curveHeight + 20}`, role: "img",
        "aria-label": `${shown.title}. ${shown.description}` },
      matrix.columns.flatMap((name, column) => {
        const middle = column * curveHeight + curveHeight / 2;
        const y = (/** @type {number} */ row) => middle - valueAt(lesson, { of: matrix.id, row, column, slice: null }) * (curveHeight / 2 - 6);
        return [svgEl("line", { class: "lesson-rule", x1: 70, x2: width - 14, y1: middle, y2: middle }),
          svgEl("text", { x: 60, y: middle + 5, "text-anchor": "end", text: name }),
          svgEl("path", { class: "lesson-curve-back", d: matrix.rows.map((_, row) => `${row ? "L" : "M"}${x(row).toFixed(1)} ${y(row).toFixed(1)}`).join("") }),
          ...lesson.request.tokens.flatMap((/** @type {string} */ _, /** @type {number} */ row) => (row < matrix.rows.length
            ? [svgEl("circle", { class: "lesson-looked-at-dot", cx: x(row), cy: y(row), r: 3 })] : []))];
      }),
      matrix.rows.flatMap((name, row) => (row % 4 ? [] : [svgEl("text", { x: x(row), y: matrix.columns.length * curveHeight + 14, "text-anchor": "middle", text: name })]))));
    },
  };
}

/** A matrix as circles. @param {PictureActions} actions @returns {PictureBody} */
function makeCircles(actions) {
  const element = el("div", { class: "lesson-scroll" });
  return {
    element,
    update(lesson, shown, _query, covered) {
      const { id, rows } = matrixOf(lesson, shown.matrices[0]), { room, isNarrow } = actions.place();
      element.replaceChildren(circlesOf(lesson, id, { slice: 0, cell: Math.min(isNarrow ? 36 : 44, (room - 60) / rows.length), covered }));
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
      const width = x + 40, height = Math.max(...shown.sizes.map(([rows]) => rows)) * unit / 2 + 96;
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
      const matrix = matrixOf(lesson, shown.matrices[0]), [[rows, columns]] = shown.sizes, unit = 14, shift = 30;
      const count = matrix.rows.length;
      const width = columns * unit + (count - 1) * (columns * unit + shift) + 12, height = rows * unit + 34;
      element.replaceChildren(svgEl("svg", { class: "lesson-layers", viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": shown.title },
        matrix.rows.flatMap((name, layer) => {
          const x = 4 + layer * (columns * unit + shift);
          return [svgEl("text", { x, y: 14, text: `${layer + 1}` }),
            ...Array.from({ length: rows }, (_, row) => {
              const isWord = valueAt(lesson, { of: matrix.id, row: layer, column: row, slice: null }) > 0;
              return Array.from({ length: columns }, (__, column) => svgEl("rect", { class: isWord ? "lesson-layer-word" : "lesson-layer-padding",
                x: x + column * unit, y: 22 + row * unit, width: unit - 1.5, height: unit - 1.5 }, svgEl("title", {}, tokenText(name))));
            }).flat()];
        })));
    },
  };
}
