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

/** @type {{[name: string]: {label: string, range: (lesson: Lesson) => [number, number], whole: boolean}}} */
const numberSettings = {
  window: { label: tr("Visible keys before the query's own"), range: (lesson) => [0, lesson.limits.tokens], whole: true },
  length: { label: tr("Keys that are not padding"), range: (lesson) => [0, lesson.request.tokens.length], whole: true },
  limit: { label: tr("Tokens that the model reads"), range: (lesson) => [1, lesson.limits.tokens], whole: true },
  sharpness: { label: tr("Scores are multiplied by"), range: (lesson) => [-lesson.limits.number, lesson.limits.number], whole: false },
  rate: { label: tr("Learning rate"), range: (lesson) => [0.01, lesson.limits.rate], whole: false },
  seed: { label: tr("Seed of the random numbers"), range: () => [0, 2 ** 31 - 1], whole: true },
};

/**
 * @param {string} name
 * @param {SettingActions} actions
 * @returns {Setting}
 */
export function makeSetting(name, actions) {
  if (name in numberSettings) return makeNumberSetting(name, actions);
  if (name === "scaled") return makeScaledSetting(actions);
  if (name === "heads") return makeHeadsSetting(actions);
  if (name === "order") return makeOrderSetting(actions);
  if (name === "sentences") return makeSentencesSetting(actions);
  if (name === "norm") return makeNormSetting(actions);
  if (name === "written") return makeWrittenSetting(actions);
  if (name === "steps") return makeStepsSetting(actions);
  throw new Error(`lesson: unknown control ${name}`);
}

/** @param {string} name @param {SettingActions} actions @returns {Setting} */
function makeNumberSetting(name, actions) {
  const { label, range, whole } = numberSettings[name];
  const error = el("span", { class: "lesson-error", role: "alert", hidden: true });
  const input = el("input", { type: "text", inputmode: whole ? "numeric" : "decimal", size: 6, autocomplete: "off", "data-setting": name });
  /** @type {Lesson | null} */
  let shown = null;
  input.addEventListener("input", () => {
    if (!shown) return;
    const [least, most] = range(shown);
    const found = parseNumber(input.value, { least, most, whole });
    const isWrong = "error" in found;
    input.setAttribute("aria-invalid", String(isWrong));
    error.hidden = !isWrong;
    error.textContent = "error" in found ? found.error : "";
    if ("value" in found) actions.set(name, found.value);
  });
  return {
    element: el("label", { class: "lesson-control" }, `${label} `, input, error),
    update(lesson) {
      shown = lesson;
      input.readOnly = actions.readOnly();
      if (input !== input.ownerDocument.activeElement) input.value = String(lesson.request.settings[name]);
    },
  };
}

/** @param {SettingActions} actions @returns {Setting} */
function makeScaledSetting(actions) {
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
function makeHeadsSetting(actions) {
  const select = el("select", { "data-setting": "heads", on: { change: () => actions.set("heads", Number(select.value)) } });
  return {
    element: el("label", { class: "lesson-control" }, `${tr("Heads")} `, select),
    update(lesson) {
      const { heads } = lesson.request.settings;
      select.replaceChildren(...Array.from({ length: lesson.limits.heads }, (_, n) => el("option", { value: n + 1, text: String(n + 1), selected: n + 1 === heads })));
      select.disabled = actions.readOnly();
    },
  };
}

/** @param {SettingActions} actions @returns {Setting} */
function makeOrderSetting(actions) {
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
function makeSentencesSetting(actions) {
  const error = el("span", { class: "lesson-error", role: "alert", hidden: true });
  const area = el("textarea", { rows: 4, cols: 40, "data-setting": "sentences", spellcheck: "false" });
  /** @type {Lesson | null} */
  let shown = null;
  area.addEventListener("input", () => {
    if (!shown) return;
    const found = parseSentences(area.value, shown);
    area.setAttribute("aria-invalid", String("error" in found));
    error.hidden = !("error" in found);
    error.textContent = "error" in found ? found.error : "";
    if ("sentences" in found) actions.set("sentences", found.sentences);
  });
  return {
    element: el("label", { class: "lesson-control" }, `${tr("Sentences, one in each line")} `, area, error),
    update(lesson) {
      shown = lesson;
      area.readOnly = actions.readOnly();
      if (area !== area.ownerDocument.activeElement) {
        area.value = lesson.request.settings.sentences.map((/** @type {string[]} */ words) => words.join(" ")).join("\n");
      }
    },
  };
}

/** @param {SettingActions} actions @returns {Setting} */
function makeNormSetting(actions) {
  const select = el("select", { "data-setting": "norm", on: { change: () => actions.set("norm", select.value) } },
    el("option", { value: "post", text: tr("after each sum (post-norm)") }), el("option", { value: "pre", text: tr("before each part (pre-norm)") }));
  return {
    element: el("label", { class: "lesson-control" }, `${tr("LayerNorm")} `, select),
    update(lesson) {
      select.value = lesson.request.settings.norm;
      select.disabled = actions.readOnly();
    },
  };
}

/** @param {SettingActions} actions @returns {Setting} */
function makeWrittenSetting(actions) {
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
function makeStepsSetting(actions) {
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
    element: el("div", { class: "lesson-control", role: "group", "aria-label": tr("Gradient steps") }, `${tr("Gradient steps:")} `, shown, buttons),
    update(lesson) {
      ({ steps } = lesson.request.settings);
      most = lesson.limits.steps;
      shown.textContent = String(steps);
      buttons.forEach((one, at) => { one.disabled = actions.readOnly() || (at < 2 ? steps >= most : steps === 0); });
    },
  };
}

/** @param {string} text @param {Lesson} lesson @returns {{sentences: string[]} | {error: string}} */
function parseSentences(text, lesson) {
  const lines = text.split("\n").filter((line) => line.trim());
  if (!lines.length) return { error: tr("Write at least one sentence.") };
  if (lines.length > lesson.limits.sentences) return { error: tr("The lesson takes at most {sentences} sentences.", { sentences: lesson.limits.sentences }) };
  return { sentences: lines };
}
