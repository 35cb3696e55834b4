// The elements of the tab around the stage: zoom buttons, scales of colours, what is read off.

import { el } from "../dom.js";

/**
 * @param {object} parts
 * @param {HTMLElement} parts.stage
 * @param {HTMLElement[]} parts.bars
 * @param {HTMLElement[]} parts.lines
 * @param {HTMLElement} parts.beside
 * @param {(factor: number) => void} parts.zoom
 * @param {() => void} parts.fit
 * @returns {{element: HTMLElement, frame: HTMLElement, note: HTMLElement}} frame: what has the focus; note: over the stage
 */
export function makeMapChrome({ stage, bars, lines, beside, zoom, fit }) {
  const button = (/** @type {string} */ text, /** @type {string} */ name, /** @type {() => void} */ click) =>
    el("button", { type: "button", text, "aria-label": name, title: name, on: { click } });
  const note = el("p", { class: "uwaga-map-note", hidden: true });
  const frame = el("div", { class: "uwaga-map-frame", tabindex: 0, role: "application", "aria-roledescription": "map" }, stage, note);
  const element = el("section", { class: "uwaga-map", "aria-label": "Map" },
    el("div", { class: "uwaga-map-bar" },
      el("div", { class: "uwaga-map-zoom", role: "group", "aria-label": "Zoom" },
        button("\u2212", "Zoom out", () => zoom(1 / 1.6)), button("+", "Zoom in", () => zoom(1.6)),
        button("Whole map", "Show the whole map", fit)),
      bars, el("span", { class: "uwaga-map-hint", text: "Drag to move, wheel or pinch to zoom, click to pick" })),
    el("div", { class: "uwaga-map-main" }, frame, beside), el("div", { class: "uwaga-map-readout" }, lines));
  stage.addEventListener("pointerdown", () => frame.focus({ preventScroll: true }));
  return { element, frame, note };
}
