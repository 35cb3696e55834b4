// The header: titles, pickers of layer and head, switches, colour settings, tabs.

import { colourSchemes, colourTable, signedColourTable } from "../colours.js";
import { segmentedControl, stepper, toggle } from "../controls.js";
import { el } from "../dom.js";
import { kindTitle, numberText } from "../format.js";
import { hasItems } from "./app.js";
import { goTo, headsOf, kindsOf, layersOf } from "./head_navigation.js";

/**
 * @param {import("../types.js").App} app
 * @param {{name: import("../types.js").Tab, title: string}[]} tabs
 * @param {(HTMLElement | null)[]} extra  further buttons
 * @returns {{elements: HTMLElement[], panelId: string}}
 */
export function makeHeader(app, tabs, extra) {
  const model = el("h1"), text = el("span", { class: "uwaga-text-title" });
  const some = app.about.sides.length > 0;
  const fold = el("button", { type: "button", class: "uwaga-controls-button", text: "Controls", "aria-expanded": "false", on: { click() {
    toolbar.toggleAttribute("data-folded");
  } } });
  const theme = el("button", { type: "button", on: { click: () => app.commands.run("shell.theme") } });
  const help = el("button", { type: "button", text: "?", "aria-label": "Keyboard help", title: "Keyboard help",
    on: { click: () => app.commands.run("shell.help") } });
  const toolbar = some ? makeToolbar(app, makeColourSettings(app).element) : el("div", { hidden: true });
  toolbar.dataset.folded = "";
  new MutationObserver(() => fold.setAttribute("aria-expanded", String(!toolbar.hasAttribute("data-folded"))))
    .observe(toolbar, { attributeFilter: ["data-folded"] });
  const bar = makeTabs(app, tabs);

  function draw() {
    const state = app.store.get(), both = state.compare !== "one";
    const sides = app.about.sides.filter(({ id }) => (both ? id !== "difference" : id === state.side));
    const join = state.compare === "both" ? " | " : " \u2212 ";
    model.textContent = [...new Set(sides.map((one) => one.model))].join(join) || app.about.title;
    text.textContent = [...new Set(sides.map((one) => one.text_title))].join(join);
    text.hidden = text.textContent === model.textContent;
    text.title = text.textContent;
    const name = { auto: "as the system", light: "light", dark: "dark" }[state.theme];
    theme.textContent = { auto: "\u25d0", light: "\u25cb", dark: "\u25cf" }[state.theme];
    theme.title = `Theme: ${name}`;
    theme.setAttribute("aria-label", theme.title);
  }
  app.store.subscribe(["side", "compare", "theme"], draw);
  draw();
  return {
    elements: [
      el("div", { class: "uwaga-heading" }, model, text, el("div", { class: "uwaga-actions" }, some && fold, extra, theme, help)),
      toolbar, bar.element,
    ],
    panelId: bar.panelId,
  };
}

/** @param {import("../types.js").App} app @param {HTMLElement} colours @returns {HTMLElement} */
function makeToolbar(app, colours) {
  const { store } = app;
  const choices = app.about.sides.map(({ id, title }) => ({ id, title, compare: "one" }));
  if (choices.length > 1) choices.splice(2, 0, { id: "0", title: "side by side", compare: "both" });
  const side = el("select", { on: { change: () => goTo.compare(app, side.value) } },
    choices.map(({ id, title, compare }) => el("option", { value: compare === "both" ? "both" : id, text: title })));
  const kinds = segmentedControl("Kind of attention", kindsOf(app.about).map((name) => ({ name, title: kindTitle(name) })),
    (name) => goTo.kind(app, name));
  const layer = stepper("Layer", (value) => goTo.layer(app, value));
  const head = stepper("Head", (value) => goTo.head(app, value));
  const words = toggle("Words", "Merge subwords into words", () => void app.commands.run("shell.words"));
  const specials = toggle("Hide specials", "Leave special tokens out and renormalise the rest",
    () => void app.commands.run("shell.specials"));
  const how = segmentedControl("Pooling", [
    { name: /** @type {"mass"} */ ("mass"), title: "Mass", hint: "A cell is the weight that its queries give to its keys, on average" },
    { name: /** @type {"max"} */ ("max"), title: "Max", hint: "A cell is its largest weight" },
  ], (name) => store.set({ how: name }));
  const colour = el("button",
    { type: "button", text: "Colours", "aria-expanded": "false", on: { click: () => app.commands.run("shell.colours") } });
  app.commands.add({ id: "shell.colours", title: "Colours: show or hide", keys: ["o"], group: "Display", run() {
    const toolbar = colours.parentElement;
    // On a narrow page the controls may be collapsed, and the colours with them.
    colours.hidden = !colours.hidden && !toolbar?.hasAttribute("data-folded");
    if (!colours.hidden) toolbar?.removeAttribute("data-folded");
    colour.setAttribute("aria-expanded", String(!colours.hidden));
  } });

  function draw() {
    const state = store.get(), shown = app.side();
    side.value = state.compare === "both" ? "both" : state.side;
    kinds.show(state.kind);
    kinds.element.querySelectorAll("button").forEach((button, i) => { button.disabled = !layersOf(shown, kindsOf(app.about)[i]).length; });
    layer.show(layersOf(shown, state.kind), state.layer);
    head.show(headsOf(shown, state.kind, state.layer), state.head);
    words.show(state.merge === "words");
    specials.show(state.specials === "hide");
    words.element.disabled = !hasItems(app, { merge: state.merge === "words" ? "tokens" : "words" });
    specials.element.disabled = !hasItems(app, { specials: state.specials === "hide" ? "show" : "hide" });
    how.show(state.how);
    // The lesson has its own numbers; only maps have pooled cells.
    element.hidden = state.tab === "lesson";
    how.element.hidden = state.tab !== "overview" && state.tab !== "map";
  }
  const element = el("div", { class: "uwaga-toolbar", role: "group", "aria-label": "What is shown" },
    choices.length > 1 && el("label", {}, el("span", { class: "uwaga-label", text: "Compare " }), side),
    kindsOf(app.about).length > 1 && kinds.element, layer.element, head.element,
    el("span", { class: "uwaga-segments" }, words.element, specials.element), colour, how.element, colours);
  store.subscribe(["side", "compare", "kind", "layer", "head", "merge", "specials", "how", "tab"], draw);
  draw();
  return element;
}

/** @param {import("../types.js").App} app @param {{name: import("../types.js").Tab, title: string}[]} tabs */
function makeTabs(app, tabs) {
  const prefix = `uwaga-${Math.random().toString(36).slice(2)}`, panelId = `${prefix}-panel`;
  const buttons = tabs.map(({ name, title }) =>
    el("button", { type: "button", role: "tab", id: `${prefix}-${name}`, "aria-controls": panelId, text: title, "data-title": title,
    on: { click: () => app.store.set({ tab: name }) } }));
  const element = el("div", { class: "uwaga-tabs", role: "tablist", "aria-label": "Views", on: { keydown } }, buttons);

  /** @param {KeyboardEvent} event */
  function keydown(event) {
    const at = tabs.findIndex(({ name }) => name === app.store.get().tab), last = tabs.length - 1;
    const to = { ArrowRight: at === last ? 0 : at + 1, ArrowLeft: at ? at - 1 : last, Home: 0, End: last }[event.key];
    if (to === undefined || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    app.store.set({ tab: tabs[to].name });
    buttons[to].focus();
  }
  function draw() {
    const { tab } = app.store.get();
    tabs.forEach(({ name }, i) => {
      buttons[i].setAttribute("aria-selected", String(name === tab));
      buttons[i].tabIndex = name === tab ? 0 : -1;
    });
  }
  app.store.subscribe(["tab"], draw);
  draw();
  return { element, panelId };
}

// Colour settings: scheme, logarithmic scale, ends of the scale, threshold, hiding the first key.

const sliderSteps = 100;
const sliderDecades = 5;

/**
 * The weight of a slider position: 0 at the start, then logarithmic from 10^-5 to 1.
 * @param {number} step  0 to 100
 * @returns {number}
 */
export function sliderToWeight(step) {
  return step <= 0 ? 0 : 10 ** (sliderDecades * (step / sliderSteps - 1));
}

/**
 * @param {number} weight
 * @returns {number} the nearest slider position
 */
export function weightToSlider(weight) {
  if (weight <= 0) return 0;
  return Math.min(sliderSteps, Math.max(1, Math.round(sliderSteps * (Math.log10(weight) / sliderDecades + 1))));
}

/**
 * @param {import("../types.js").App} app
 * @returns {{element: HTMLElement}}
 */
function makeColourSettings(app) {
  const { store } = app;
  const change = (/** @type {Partial<import("../types.js").Colour>} */ part) => store.set({ colour: { ...store.get().colour, ...part } });
  const scheme = el("select", { on: { change: () => change({ scheme: scheme.value }) } },
    colourSchemes().map(({ name, title }) => el("option", { value: name, text: title })));
  const log = el("input", { type: "checkbox", on: { change: () => change({ log: log.checked }) } });
  const sink = el("input", { type: "checkbox", on: { change: () => change({ hideSink: sink.checked }) } });
  const low = weightSlider((step) => change({ low: sliderToWeight(step) }));
  // The last position means: chosen from the weights in view.
  const high = weightSlider((step) => change({ high: step >= sliderSteps ? null : sliderToWeight(Math.max(1, step)) }));
  const threshold = weightSlider((step) => change({ threshold: sliderToWeight(step) }));
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
    low.show(weightToSlider(colour.low), numberText(colour.low));
    high.show(colour.high === null ? sliderSteps : weightToSlider(colour.high), colour.high === null ? "largest" : numberText(colour.high));
    threshold.show(weightToSlider(colour.threshold), colour.threshold ? numberText(colour.threshold) : "nothing");
    const table = app.side().signed ? signedColourTable(app.theme()) : colourTable(colour.scheme, app.theme());
    ramp.getContext("2d")?.putImageData(new ImageData(new Uint8ClampedArray(table), 256, 1), 0, 0);
  }
  store.subscribe(["colour", "theme", "dark", "side"], draw);
  draw();
  return { element };
}

/** @param {(step: number) => void} slid */
function weightSlider(slid) {
  const input = el("input", { type: "range", min: 0, max: sliderSteps, step: 1, on: { input: () => slid(Number(input.value)) } });
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
