// A calculation played term by term: what is multiplied lifts, the products appear one at a time, then the sum. Nothing that can be
// read already moves.

import { el } from "../dom.js";
import { tr } from "../languages.js";
/** @import { Cell } from "./reply.js" */

/** Milliseconds at the usual speed. */
const pauses = { lift: 240, term: 300, sum: 240 };

/**
 * @param {{terms: {element: HTMLElement, cells: Cell[]}[], result: HTMLElement,
 *   mark: (cells: Cell[] | null) => void}} calculation  mark: the numbers that are used now; null: those of the whole
 * @returns {{element: HTMLElement, stop: () => void}}
 */
export function makePlay({ terms, result, mark }) {
  /** Terms that are shown; one more: the result too. @type {number | null} null: all of it, and nothing is played. */
  let at = null;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let timer;
  const play = el("button", { type: "button", class: "lesson-play", on: { click: () => (timer ? pause() : run()) } });
  const step = el("button", { type: "button", text: tr("One term"), on: { click: () => { pause(); forward(); } } });
  const speed = el("select", { "aria-label": tr("Speed") },
    [["0.5", "\u00bd\u00d7"], ["1", "1\u00d7"], ["2", "2\u00d7"]].map(([value, text]) => el("option", { value, text, selected: value === "1" })));

  function draw() {
    terms.forEach(({ element }, place) => element.classList.toggle("lesson-unplayed", at !== null && place >= at));
    result.classList.toggle("lesson-unplayed", at !== null && at <= terms.length);
    play.textContent = timer ? tr("Pause") : tr("Play");
    if (at === null) return;
    if (at === 0) mark(terms.flatMap(({ cells }) => cells));
    else if (at <= terms.length) mark(terms[at - 1].cells);
  }

  function forward() {
    at = at === null ? 0 : at + 1;
    if (at > terms.length) {
      at = null;
      mark(null);
    }
    draw();
  }

  function run() {
    if (at === null) forward();
    const wait = () => (at === 0 ? pauses.lift : at === terms.length ? pauses.sum : pauses.term) / Number(speed.value);
    const next = () => {
      timer = undefined;
      forward();
      if (at !== null) timer = setTimeout(next, wait());
      draw();
    };
    timer = setTimeout(next, wait());
    draw();
  }

  function pause() {
    clearTimeout(timer);
    timer = undefined;
    draw();
  }

  draw();
  return {
    element: el("div", { class: "lesson-control lesson-player" }, play, step, speed),
    stop() {
      clearTimeout(timer);
      timer = undefined;
    },
  };
}
