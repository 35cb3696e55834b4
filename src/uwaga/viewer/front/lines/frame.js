// The parts of the lines view, put together.
import { el } from "../dom.js";
import { segments, toggle } from "../shell/pieces.js";
import { makeHeadBoxes } from "./heads.js";

/** What the slider's places mean: lines of smaller weights are left out. */
export const lineThresholds = [0, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8];

/**
 * @param {object} told
 * @param {(which: "one" | "all") => void} told.which
 * @param {(heads: Set<number>) => void} told.heads
 * @param {() => void} told.lock
 * @param {() => void} told.threshold
 * @param {HTMLElement} queries
 * @param {HTMLElement} keys
 */
export function linesFrame({ which, heads, lock, threshold }, queries, keys) {
  /** @type {{name: "one" | "all", title: string, hint: string}[]} */
  const choices = [
    { name: "one", title: "this head", hint: "lines of the head that the page shows (v)" },
    { name: "all", title: "all heads", hint: "lines of every head of the layer, a colour for each (v)" },
  ];
  const switchHeads = segments("Whose lines", choices, which);
  const boxes = makeHeadBoxes(heads);
  const locked = toggle("locked", "both columns scroll together (u)", lock);
  const slider = el("input", { type: "range", min: 0, max: lineThresholds.length - 1, step: 1, value: 2,
    "aria-label": "Least weight of a line", on: { input: threshold } });
  const least = el("output", { class: "uwaga-lines-least" });
  const canvas = el("canvas", { class: "uwaga-lines-canvas", "aria-hidden": "true" });
  const stage = el("div", { class: "uwaga-lines-stage" }, queries, canvas, keys);
  const heading = (/** @type {string} */ name) => el("h3", { class: `uwaga-lines-heading uwaga-lines-${name}` });
  const titles = { query: heading("query"), key: heading("key") };
  const list = el("aside", { class: "uwaga-lines-side", "aria-label": "Strongest lines" });
  const note = el("p", { class: "uwaga-lines-note", role: "status" });
  const element = el("div", { class: "uwaga-lines" },
    el("div", { class: "uwaga-lines-bar" }, switchHeads.element, boxes.element, locked.element,
      el("label", { class: "uwaga-lines-slider" }, "from weight", slider, least), note),
    el("div", { class: "uwaga-lines-main" },
      el("div", { class: "uwaga-lines-figure" }, el("div", { class: "uwaga-lines-titles" }, titles.query, titles.key), stage), list));
  return { element, switchHeads, boxes, locked, slider, least, canvas, stage, titles, list, note };
}
