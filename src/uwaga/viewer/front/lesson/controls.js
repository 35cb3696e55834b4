// The settings of a step, each with a label and an error message for invalid input.

import { el, tokenText } from "../dom.js";
import { tr } from "../languages.js";
import { formulaText, parseNumber } from "./numbers.js";
/** @import { Lesson } from "./reply.js" */

/**
 * @typedef {object} SettingActions
 * @property {(name: string, value: unknown) => void} set
 * @property {() => boolean} readOnly
 * @property {(least: number, most: number) => number} [random]  an integer
 */
/** @typedef {{element: HTMLElement, update: (lesson: Lesson) => void}} Setting */

/** Settings that are numbers: what they are called, from where to where they go, and whether they are whole. @type {{[name: string]: [string, (lesson: Lesson) => [number, number], boolean]}} */
const numberSettings = {
  window: [tr("Visible keys before the query's own"), (lesson) => [0, lesson.limits.tokens], true],
  length: [tr("Keys that are not padding"), (lesson) => [0, lesson.request.tokens.length], true],
  limit: [tr("Tokens that the model reads"), (lesson) => [1, lesson.limits.tokens], true],
  sharpness: [tr("Scores are multiplied by"), (lesson) => [-lesson.limits.number, lesson.limits.number], false],
  rate: [tr("Learning rate"), (lesson) => [0.01, lesson.limits.rate], false],
  seed: [tr("Seed of the random numbers"), () => [0, 2 ** 31 - 1], true],
};

/** @type {{[name: string]: (actions: SettingActions) => Setting}} */
const otherSettings = { scaled: makeScaled, order: makeOrder, written: makeWritten, steps: makeSteps,
  sentences: (actions) => makeTyped("sentences", tr("Sentences, one in each line"), el("textarea", { rows: 4, cols: 40, spellcheck: "false" }), parseSentences,
    (/** @type {string[][]} */ sentences) => sentences.map((words) => words.join(" ")).join("\n"), actions),
  heads: (actions) => makeSelect("heads", tr("Heads"), ({ limits }) => Array.from({ length: limits.heads }, (_, n) => [n + 1, String(n + 1)]), actions),
  norm: (actions) => makeSelect("norm", tr("LayerNorm"), () => [["post", tr("after each sum (post-norm)")], ["pre", tr("before each part (pre-norm)")]], actions) };

/** @param {string} name @param {SettingActions} actions @returns {Setting} */
export function makeSetting(name, actions) {
  if (name in numberSettings) {
    const [label, range, whole] = numberSettings[name], input = el("input", { type: "text", inputmode: whole ? "numeric" : "decimal", size: 6, autocomplete: "off" });
    return makeTyped(name, label, input, (text, lesson) => {
      const [least, most] = range(lesson);
      return parseNumber(text, { least, most, whole });
    }, String, actions);
  }
  if (!(name in otherSettings)) throw new Error(`lesson: unknown control ${name}`);
  return otherSettings[name](actions);
}

/**
 * What is typed, with what is wrong in it.
 * @param {string} name @param {string} label @param {HTMLInputElement | HTMLTextAreaElement} input
 * @param {(text: string, lesson: Lesson) => {value: unknown} | {error: string}} parse
 * @param {(value: any) => string} written @param {SettingActions} actions @returns {Setting}
 */
function makeTyped(name, label, input, parse, written, actions) {
  const error = el("span", { class: "lesson-error", role: "alert", hidden: true });
  /** @type {Lesson | null} */
  let shown = null;
  input.dataset.setting = name;
  input.addEventListener("input", () => {
    if (!shown) return;
    const found = parse(input.value, shown), isWrong = "error" in found;
    input.setAttribute("aria-invalid", String(isWrong));
    error.hidden = !isWrong;
    error.textContent = isWrong ? found.error : "";
    if (!isWrong) actions.set(name, found.value);
  });
  return {
    element: el("label", { class: "lesson-control" }, `${label} `, input, error),
    update(lesson) {
      shown = lesson;
      input.readOnly = actions.readOnly();
      if (input !== input.ownerDocument.activeElement) input.value = written(lesson.request.settings[name]);
    },
  };
}

/**
 * @param {string} name @param {string} label @param {(lesson: Lesson) => [string | number, string][]} choices
 * @param {SettingActions} actions @returns {Setting}
 */
function makeSelect(name, label, choices, actions) {
  /** @type {[string | number, string][]} */
  let shown = [];
  const select = el("select", { "data-setting": name, on: { change: () => actions.set(name, shown[select.selectedIndex][0]) } });
  return {
    element: el("label", { class: "lesson-control" }, `${label} `, select),
    update(lesson) {
      shown = choices(lesson);
      select.replaceChildren(...shown.map(([value, text]) => el("option", { value, text, selected: value === lesson.request.settings[name] })));
      select.disabled = actions.readOnly();
    },
  };
}

/** @param {SettingActions} actions @returns {Setting} */
function makeScaled(actions) {
  const input = el("input", { type: "checkbox", "data-setting": "scaled", on: { change: () => actions.set("scaled", input.checked) } });
  return {
    element: el("label", { class: "lesson-control" }, input, el("span", {}, formulaText(tr("Scale by 1/√d_k (everywhere in the lesson)")))),
    update(lesson) {
      input.checked = lesson.request.settings.scaled;
      input.disabled = actions.readOnly();
    },
  };
}

/** @param {SettingActions} actions @returns {Setting} */
function makeOrder(actions) {
  let tokens = /** @type {string[]} */ ([]);
  const places = () => tokens.map((_, place) => place);
  const shown = el("span", {});
  const button = (/** @type {string} */ text, /** @type {() => number[]} */ order) =>
    el("button", { type: "button", text, on: { click: () => actions.set("order", order()) } });
  const buttons = [
    button(tr("From last to first"), () => places().reverse()),
    button(tr("By one place"), () => places().map((place) => (place + 1) % tokens.length)),
    button(tr("At random"), () => shuffled(places())),
    button(tr("As it stands"), places),
  ];
  return {
    element: el("div", { class: "lesson-control", role: "group", "aria-label": tr("Order of the shuffled tokens") },
      `${tr("Shuffled:")} `, shown, buttons),
    update(lesson) {
      tokens = lesson.request.tokens;
      shown.replaceChildren(el("q",
        { text: lesson.request.settings.order.map((/** @type {number} */ at) => tokenText(tokens[at])).join(" ") }));
      for (const one of buttons) one.disabled = actions.readOnly();
    },
  };
}

/** @param {number[]} places @returns {number[]} */
function shuffled(places) {
  for (let last = places.length - 1; last > 0; last--) {
    const other = Math.floor(Math.random() * (last + 1));
    [places[last], places[other]] = [places[other], places[last]];
  }
  return places;
}

/** @param {SettingActions} actions @returns {Setting} */
function makeWritten(actions) {
  const input = el("input", { type: "text", class: "lesson-sentence", autocomplete: "off", spellcheck: "false", "data-setting": "written",
    on: { change: () => { if (input.value.trim()) actions.set("written", input.value); } } });
  return {
    element: el("label", { class: "lesson-control" }, `${tr("Written so far")} `, input),
    update(lesson) {
      input.readOnly = actions.readOnly();
      if (input !== input.ownerDocument.activeElement) input.value = lesson.request.settings.written.join(" ");
    },
  };
}

/** @param {SettingActions} actions @returns {Setting} */
function makeSteps(actions) {
  let steps = 0, most = 0;
  const shown = el("strong", { "data-setting": "steps" });
  const button = (/** @type {string} */ text, /** @type {() => number} */ next) =>
    el("button", { type: "button", text, on: { click: () => {
      // The next click counts from here, also before the reply to this one.
      steps = Math.min(most, next());
      shown.textContent = String(steps);
      actions.set("steps", steps);
    } } });
  const buttons = [button(tr("One step"), () => steps + 1), button(tr("Ten steps"), () => steps + 10), button(tr("From the start"), () => 0)];
  return {
    element: el("div", { class: "lesson-control", role: "group", "aria-label": tr("Gradient steps:") }, `${tr("Gradient steps:")} `, shown, buttons),
    update(lesson) {
      ({ steps } = lesson.request.settings);
      most = lesson.limits.steps;
      shown.textContent = String(steps);
      buttons.forEach((one, at) => { one.disabled = actions.readOnly() || (at < 2 ? steps >= most : steps === 0); });
    },
  };
}

/** @param {string} text @param {Lesson} lesson @returns {{value: string[]} | {error: string}} */
function parseSentences(text, lesson) {
  const lines = text.split("\n").filter((line) => line.trim());
  if (!lines.length) return { error: tr("Write at least one sentence.") };
  if (lines.length > lesson.limits.sentences) return { error: tr("The lesson takes at most {sentences} sentences.", { sentences: lesson.limits.sentences }) };
  return { value: lines };
}
