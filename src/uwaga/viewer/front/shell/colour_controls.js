// How weights become colours: scheme, logarithm, ends of the scale, threshold, the first key.

import { el } from "../dom.js";
import { colourSchemes, colourTable, signedColourTable } from "./colours.js";
import { numberText } from "./pieces.js";

const colourSteps = 100;
const colourDecades = 5;

/**
 * A weight from a slider's step: 0 at its start, then logarithmic from 10^-5 to 1.
 * @param {number} step  0 to 100
 * @returns {number}
 */
export function stepWeight(step) {
  return step <= 0 ? 0 : 10 ** (colourDecades * (step / colourSteps - 1));
}

/**
 * @param {number} weight
 * @returns {number} the step nearest to it
 */
export function weightStep(weight) {
  if (weight <= 0) return 0;
  return Math.min(colourSteps, Math.max(1, Math.round(colourSteps * (Math.log10(weight) / colourDecades + 1))));
}

/**
 * @param {import("../types.js").App} app
 * @returns {{element: HTMLElement}}
 */
export function colourControls(app) {
  const { store } = app;
  const change = (/** @type {Partial<import("../types.js").Colour>} */ part) => store.set({ colour: { ...store.get().colour, ...part } });
  const scheme = el("select", { on: { change: () => change({ scheme: scheme.value }) } },
    colourSchemes().map(({ name, title }) => el("option", { value: name, text: title })));
  const log = el("input", { type: "checkbox", on: { change: () => change({ log: log.checked }) } });
  const sink = el("input", { type: "checkbox", on: { change: () => change({ hideSink: sink.checked }) } });
  const low = colourSlider((step) => change({ low: stepWeight(step) }));
  // The last step of this one means: the largest weight in view.
  const high = colourSlider((step) => change({ high: step >= colourSteps ? null : stepWeight(Math.max(1, step)) }));
  const threshold = colourSlider((step) => change({ threshold: stepWeight(step) }));
  const ramp = el("canvas", { class: "uwaga-ramp", width: 256, height: 1, "aria-hidden": "true" });
  const reset = el("button", { type: "button", text: "Reset", "aria-label": "Reset colours",
    on: { click: () => change({ log: false, low: 0, high: null, threshold: 0, hideSink: false }) } });

  const element = el("div", { class: "uwaga-colours", role: "group", "aria-label": "Colours", hidden: true },
    el("label", {}, el("span", { text: "Scheme" }), scheme), ramp,
    el("label", {}, log, el("span", { text: "Logarithm" })),
    el("label", {}, el("span", { text: "From" }), low.input, low.output),
    el("label", {}, el("span", { text: "To" }), high.input, high.output),
    el("label", {}, el("span", { text: "Hide below" }), threshold.input, threshold.output),
    el("label", { title: "Many heads give most weight to the first key" }, sink, el("span", { text: "Hide first key" })), reset);

  function draw() {
    const { colour } = store.get();
    scheme.value = colour.scheme;
    scheme.disabled = app.side().signed;
    log.checked = colour.log;
    sink.checked = colour.hideSink;
    low.show(weightStep(colour.low), numberText(colour.low));
    high.show(colour.high === null ? colourSteps : weightStep(colour.high), colour.high === null ? "largest" : numberText(colour.high));
    threshold.show(weightStep(colour.threshold), colour.threshold ? numberText(colour.threshold) : "nothing");
    const table = app.side().signed ? signedColourTable(app.theme()) : colourTable(colour.scheme, app.theme());
    ramp.getContext("2d")?.putImageData(new ImageData(new Uint8ClampedArray(table), 256, 1), 0, 0);
  }
  store.subscribe(["colour", "theme", "dark", "side"], draw);
  draw();
  return { element };
}

/** @param {(step: number) => void} slid */
function colourSlider(slid) {
  const input = el("input", { type: "range", min: 0, max: colourSteps, step: 1, on: { input: () => slid(Number(input.value)) } });
  const output = el("output");
  return {
    input, output,
    show(/** @type {number} */ step, /** @type {string} */ text) {
      if (Number(input.value) !== step) input.value = String(step);
      input.setAttribute("aria-valuetext", text);
      output.textContent = text;
    },
  };
}
