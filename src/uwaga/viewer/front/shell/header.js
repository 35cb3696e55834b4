// The header: the model, the tabs, "Share", "View" and "?"; and the bar that chooses what is compared and the kind of attention.

import { colourSchemes, colourTable, signedColourTable } from "../colours.js";
import { menuButton, segmentedControl } from "../controls.js";
import { el, isModified, uniqueName } from "../dom.js";
import { kindTitle, numberText } from "../format.js";
import { currentLanguage, tr } from "../languages.js";
import { initialState } from "../store.js";
import { hasMaps } from "./app.js";
import { goTo, kindsOf, layersOf } from "./head_navigation.js";
/** @import { App, Colour, Tab } from "../types.js" */

/**
 * @param {App} app @param {{name: Tab, title: string}[]} tabs
 * @param {HTMLElement} share  the menu of files
 * @param {HTMLElement} status  what the page is doing
 * @returns {{elements: HTMLElement[], panelId: string}}
 */
export function makeHeader(app, tabs, share, status) {
  const model = el("h1"), read = el("p", { class: "uwaga-read", dir: "auto" });
  const help = el("button", { type: "button", text: "?", "aria-label": tr("Help"), title: tr("What one sees, and the keys"),
    on: { click: () => app.commands.run("shell.help") } });
  const bar = makeTabs(app, tabs);

  function draw() {
    const state = app.store.get(), both = state.compare !== "one";
    const sides = app.about.sides.filter(({ id }) => (both ? id !== "difference" : id === state.side));
    const join = state.compare === "both" ? " | " : " \u2212 ";
    const text = [...new Set(sides.map((one) => one.text_title))].join(join);
    model.textContent = [...new Set(sides.map((one) => one.model))].join(join) || (sides.length ? app.about.title : tr("Lesson"));
    model.title = [model.textContent, text].join("\n");
    // Where no text is typed, as of a recording, nothing else says which text this is.
    read.textContent = app.about.typing || model.textContent === text ? "" : text;
  }
  app.store.subscribe(["side", "compare"], draw);
  draw();
  return {
    elements: [el("div", { class: "uwaga-title" }, model, read), bar.element, status,
      el("div", { class: "uwaga-actions" }, share, makeSettings(app), help)],
    panelId: bar.panelId,
  };
}

/** The bar that chooses what is compared and the kind of attention. @param {App} app @returns {HTMLElement} */
export function makeHeadBar(app) {
  const { store } = app;
  const choices = app.about.sides.map(({ id, title }) => ({ id, title, compare: "one" }));
  if (choices.length > 1) choices.splice(2, 0, { id: "0", title: tr("side by side"), compare: "both" });
  const side = segmentedControl(tr("Compare"), choices.map(({ id, title, compare }) => ({ name: compare === "both" ? "both" : id, title, hint: title })), (name) => goTo.compare(app, name));
  const kinds = segmentedControl(tr("Kind of attention"), kindsOf(app.about).map((name) => ({ name, title: kindTitle(name) })),
    (name) => goTo.kind(app, name));

  function draw() {
    const state = store.get(), shown = app.side();
    side.show(state.compare === "both" ? "both" : state.side);
    kinds.show(state.kind);
    kinds.element.querySelectorAll("button").forEach((button, i) => { button.disabled = !layersOf(shown, kindsOf(app.about)[i]).length; });
  }
  store.subscribe(["side", "compare", "kind"], draw);
  draw();
  return el("div", { class: "uwaga-head-bar", role: "group", "aria-label": tr("What is shown") },
    // Before, after and difference of a changed model are in the bar of changes.
    choices.length > 1 && !app.about.python && side.element,
    kindsOf(app.about).length > 1 && kinds.element);
}

/** @param {App} app @param {{name: Tab, title: string}[]} tabs */
function makeTabs(app, tabs) {
  const prefix = uniqueName(), panelId = `${prefix}-panel`;
  const buttons = tabs.map(({ name, title }) =>
    el("button", { type: "button", role: "tab", id: `${prefix}-${name}`, "aria-controls": panelId, text: title, "data-title": title,
    on: { click: () => app.store.set({ tab: name }) } }));
  const element = el("div", { class: "uwaga-tabs", role: "tablist", "aria-label": tr("Views"), on: { keydown } }, buttons);

  /** @param {KeyboardEvent} event */
  function keydown(event) {
    const at = tabs.findIndex(({ name }) => name === tabOf(app.store.get().tab)), last = tabs.length - 1;
    const to = { ArrowRight: at === last ? 0 : at + 1, ArrowLeft: at ? at - 1 : last, Home: 0, End: last }[event.key];
    if (to === undefined || isModified(event)) return;
    event.preventDefault();
    app.store.set({ tab: tabs[to].name });
    buttons[to].focus();
  }
  function draw() {
    const tab = tabOf(app.store.get().tab);
    tabs.forEach(({ name }, i) => {
      buttons[i].setAttribute("aria-selected", String(name === tab));
      buttons[i].tabIndex = name === tab ? 0 : -1;
    });
  }
  app.store.subscribe(["tab"], draw);
  draw();
  return { element, panelId };
}

/** @param {Tab} view @returns {Tab} the tab that shows it: "All heads" has small maps and a table */
function tabOf(view) {
  return view === "table" ? "overview" : view;
}

// "View": words, special tokens, sink, cells, scale, colours, theme. A dot on the button marks what differs from the standard.

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

/** @param {number} weight @returns {number} the nearest slider position */
export function weightToSlider(weight) {
  if (weight <= 0) return 0;
  return Math.min(sliderSteps, Math.max(1, Math.round(sliderSteps * (Math.log10(weight) / sliderDecades + 1))));
}

/** @param {App} app @returns {HTMLElement} */
function makeSettings(app) {
  const { store } = app, some = app.about.sides.length > 0;
  const change = (/** @type {Partial<Colour>} */ part) => store.set({ colour: { ...store.get().colour, ...part } });
  const words = segmentedControl(tr("Items"), [{ name: "tokens", title: tr("Tokens") },
    { name: "words", title: tr("Words"), hint: tr("Merge the tokens of a word") }],
  (name) => { if (name !== store.get().merge) app.commands.run("shell.words"); });
  const specials = segmentedControl(tr("Special tokens"), [{ name: "show", title: tr("Shown") },
    { name: "hide", title: tr("Left out"), hint: tr("Leave them out and divide the other weights by their sum: they are then no longer the model's weights") }],
  (name) => { if (name !== store.get().specials) app.commands.run("shell.specials"); });
  const sink = segmentedControl(tr("Sink"), [
    { name: "bar", title: tr("Grey bar"), hint: tr("Weight on special tokens and on the first token is a grey bar: the colours are for the rest") },
    { name: "colour", title: tr("Colour"), hint: tr("As every other weight") }], (name) => change({ hideSink: name === "bar" }));
  const rows = segmentedControl(tr("Rows of cross-attention"), [
    { name: /** @type {"written"} */ ("written"), title: tr("Written"), hint: tr("A row is named by the token that is written there") },
    { name: /** @type {"read"} */ ("read"), title: tr("Read"), hint: tr("A row is named by the token that the decoder reads, the one before") },
  ], (name) => { if (name !== app.rows.cross) { app.rows.cross = name; void app.reopen(); } });
  const hasCross = app.about.sides.some(({ stacks }) => "written" in stacks);
  const pooling = segmentedControl(tr("Cells of many weights"), [
    { name: /** @type {"sum"} */ ("sum"), title: tr("Mass"), hint: tr("A cell is the weight that its queries give to its keys, on average") },
    { name: /** @type {"max"} */ ("max"), title: tr("Max"), hint: tr("A cell is its largest weight") },
  ], (name) => store.set({ pooling: name }));
  const log = segmentedControl(tr("Scale"), [{ name: "linear", title: tr("Linear") }, { name: "log", title: tr("Logarithm") }],
    (name) => change({ log: name === "log" }));
  const theme = segmentedControl(tr("Theme"), [{ name: /** @type {"auto"} */ ("auto"), title: tr("System") },
    { name: /** @type {"light"} */ ("light"), title: tr("Light") }, { name: /** @type {"dark"} */ ("dark"), title: tr("Dark") }],
  (name) => store.set({ theme: name }));
  const scheme = el("select", { on: { change: () => change({ scheme: scheme.value }) } },
    colourSchemes().map(({ name, title }) => el("option", { value: name, text: title })));
  const low = weightSlider((step) => change({ low: sliderToWeight(step) }));
  // The last position means: chosen from the weights in view.
  const high = weightSlider((step) => change({ high: step >= sliderSteps ? null : sliderToWeight(Math.max(1, step)) }));
  const threshold = weightSlider((step) => change({ threshold: sliderToWeight(step) }));
  const ramp = el("canvas", { class: "uwaga-ramp", width: 256, height: 1, "aria-hidden": "true" });
  const standard = { ...initialState(), ...app.about.start };
  const reset = el("button", { type: "button", text: tr("Reset"), "aria-label": tr("Reset the view"), on: { click: () => {
    const { pooling: cells, colour, merge, specials: hidden } = standard;
    store.set({ pooling: cells, colour, theme: standard.theme,
      ...(some && hasMaps(app, { merge, specials: hidden, pooling: cells }) && { merge, specials: hidden }) });
  } } });

  const setting = (/** @type {string} */ title, /** @type {HTMLElement} */ control) =>
    el("div", { class: "uwaga-setting" }, el("span", { class: "uwaga-label", "aria-hidden": "true", text: title }), control);
  const slider = (/** @type {string} */ title, /** @type {ReturnType<typeof weightSlider>} */ { input, output }) =>
    el("label", {}, el("span", { class: "uwaga-label", text: title }), el("span", { class: "uwaga-slider" }, input, output));
  const missing = el("p", { class: "uwaga-label", text: tr("This saved page does not contain the other settings.") });
  /** What a saved page may lack. @type {{element: HTMLElement, changes: Parameters<typeof hasMaps>[1][]}[]} */
  const stored = [{ element: words.element, changes: [{ merge: "tokens" }, { merge: "words" }] },
    { element: specials.element, changes: [{ specials: "show" }, { specials: "hide" }] },
    { element: pooling.element, changes: [{ pooling: "sum" }, { pooling: "max" }] }];
  const content = el("div", { class: "uwaga-settings", role: "group", "aria-label": tr("View") },
    some && [setting(tr("Items"), words.element), setting(tr("Specials"), specials.element), missing, setting(tr("Sink"), sink.element),
      hasCross && setting(tr("Cross rows"), rows.element),
      setting(tr("Cells"), pooling.element), setting(tr("Scale"), log.element),
      el("label", {}, el("span", { class: "uwaga-label", text: tr("Colours") }), el("span", { class: "uwaga-slider" }, scheme, ramp)),
      slider(tr("From"), low), slider(tr("To"), high), slider(tr("Hide below"), threshold)],
    setting(tr("Theme"), theme.element), languageSetting(setting), el("div", { class: "uwaga-setting" }, el("span"), reset));
  const menu = menuButton(tr("View"), content);
  app.commands.add({ id: "shell.colours", title: tr("View: words, sink, scale, colours, theme"), keys: ["o"], group: tr("Display"), run() {
    menu.open(content.hidden);
    if (!content.hidden) content.querySelector("button")?.focus();
  } });

  function draw() {
    const { colour, merge, specials: hidden, pooling: cells, theme: named } = store.get();
    theme.show(named);
    const differs = ["pooling", "merge", "specials", "theme", "colour"].some((name) =>
      JSON.stringify(/** @type {any} */ (store.get())[name]) !== JSON.stringify(/** @type {any} */ (standard)[name]));
    menu.button.toggleAttribute("data-changed", differs);
    menu.button.setAttribute("aria-label", differs ? tr("View, changed") : tr("View"));
    if (!some) return;
    words.show(merge);
    specials.show(hidden);
    missing.hidden = true;
    for (const { element, changes } of stored) {
      element.querySelectorAll("button").forEach((button, i) => {
        button.disabled = !hasMaps(app, changes[i]);
        missing.hidden &&= !button.disabled;
      });
    }
    rows.show(app.rows.cross);
    sink.show(colour.hideSink ? "bar" : "colour");
    pooling.show(cells);
    log.show(colour.log ? "log" : "linear");
    scheme.value = colour.scheme;
    scheme.disabled = app.side().signed;
    low.show(weightToSlider(colour.low), numberText(colour.low));
    high.show(colour.high === null ? sliderSteps : weightToSlider(colour.high), colour.high === null ? tr("largest") : numberText(colour.high));
    threshold.show(weightToSlider(colour.threshold), colour.threshold ? numberText(colour.threshold) : tr("nothing"));
    const table = app.side().signed ? signedColourTable(app.theme()) : colourTable(colour.scheme, app.theme());
    ramp.getContext("2d")?.putImageData(new ImageData(new Uint8ClampedArray(table), 256, 1), 0, 0);
  }
  store.subscribe(["colour", "theme", "dark", "side", "kind", "merge", "specials", "pooling"], draw);
  draw();
  return menu.element;
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

/**
 * The choice of the page's language, if the program that serves it has others.
 * @param {(title: string, control: HTMLElement) => HTMLElement} setting @returns {HTMLElement | null}
 */
function languageSetting(setting) {
  const { language, names } = currentLanguage();
  if (!names) return null;
  const select = el("select", { "aria-label": tr("Language"), on: { change() {
    const { location } = window;
    const query = new URLSearchParams(location.search);
    query.set("language", select.value);
    location.assign(`${location.pathname}?${query}${location.hash}`);
  } } }, Object.entries(names).map(([code, name]) => el("option", { value: code, lang: code, text: name, selected: code === language })));
  return setting(tr("Language"), select);
}
