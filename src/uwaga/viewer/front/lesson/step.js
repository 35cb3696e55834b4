// One step of the lesson: its text, matrices and charts, and the head of the loaded model that shows it best.

import { messageOf } from "../hosts.js";
import { el, tokenText } from "../dom.js";
import { numberText } from "../format.js";
import { tr } from "../languages.js";
import { statisticsRequest } from "../requests.js";
import { makeChart } from "./chart.js";
import { makeSetting } from "./controls.js";
import { makeDrawing } from "./drawing.js";
import { makeMatrixTable } from "./matrix_table.js";
import { formulaText, sentenceText } from "./numbers.js";
import { makePicture } from "./pictures.js";
import { makeLedger } from "./problems.js";
import { ledgerAt, matrixOf } from "./reply.js";
/** @import { App, Kind } from "../types.js" */
/** @import { SettingActions } from "./controls.js" */
/** @import { MatrixActions, MatrixTable } from "./matrix_table.js" */
/** @import { PictureActions } from "./pictures.js" */
/** @import { Cell, Finding, Head, Lesson, Question, Section } from "./reply.js" */

/**
 * @typedef {object} StepPage
 * @property {HTMLElement} element
 * @property {string} step  its id
 * @property {string} structure  a page can be updated in place to another of the same structure
 * @property {HTMLElement} heading
 * @property {MatrixTable[]} grids
 * @property {(lesson: Lesson, query: number) => void} update
 * @property {() => void} dispose
 */
/**
 * @typedef {MatrixActions & SettingActions & {
 *   asks: (id: string) => boolean, answered: (id: string) => void, explainAnswer: (cell: Cell) => void, open: (id: string) => void, highlight: (cells: Cell[]) => void, app: App} & PictureActions} StepActions
 */

/**
 * The structure of a step's page: equal if only numbers and text differ.
 * @param {Lesson} lesson @param {number} step @returns {string}
 */
export function stepStructure(lesson, step) {
  const { id, question, sections, pictures } = lesson.steps[step];
  return JSON.stringify([id, !question, pictures.map(({ kind, matrices }) => [kind, matrices]), sections.map((section) => [section.form, section.controls, section.charts.length,
    section.pictures.map(({ kind, matrices }) => [kind, matrices]),
    section.matrices.map((name) => {
      const matrix = matrixOf(lesson, name);
      return [name, matrix.rows.length, matrix.columns.length, matrix.sliced];
    })])]);
}

/** @typedef {{lesson: Lesson, step: number, query: number, actions: StepActions}} StepState  what a page draws; lesson and query are replaced in place */
/** @typedef {ReturnType<typeof makeParts>} Parts */
/** @typedef {ReturnType<typeof makeSection>} StepSection */

/** @param {Lesson} lesson @param {number} step @param {number} query @param {StepActions} actions @returns {StepPage} */
export function makeStepPage(lesson, step, query, actions) {
  /** @type {StepState} */
  const state = { lesson, step, query, actions };
  const parts = makeParts(state, () => showNumbers(parts, state)), { element, heading, drawing, pictures, sections, heads } = parts;
  drawStep(parts, state);
  return {
    element, heading,
    update(next, token) {
      Object.assign(state, { lesson: next, query: token });
      drawStep(parts, state);
    },
    structure: stepStructure(lesson, step), step: lesson.steps[step].id,
    grids: sections.flatMap((section) => section.grids),
    dispose() {
      for (const part of [drawing, ...pictures, ...sections.flatMap(({ pictures }) => pictures), ...heads]) part?.dispose();
    },
  };
}

/** What the page is made of. @param {StepState} state @param {() => void} answered  called after an answer */
function makeParts(state, answered) {
  const { lesson, step, actions } = state, { id, pictures: shown, drawing: plan, question: asked } = lesson.steps[step], { isNarrow } = actions.place();
  const heading = el("h2", { class: "lesson-title", tabindex: "-1" }), words = el("div", { class: "lesson-words" }), told = el("div", { class: "lesson-words lesson-told" });
  const code = el("code", {}), codeLine = el("details", { class: "lesson-folded lesson-code", open: !isNarrow }, el("summary", { text: tr("In Python:") }), code);
  const sections = lesson.steps[step].sections.map((_, at) => makeSection(state, at));
  // Of several pictures each has its part of the width.
  const shared = { ...actions, place() {
    const whole = actions.place();
    return whole.isNarrow ? whole : { ...whole, room: whole.room / Math.min(2, shown.length) - 20 };
  } };
  const pictures = shown.map((picture) => makePicture(picture, shared));
  const pictureGroup = el("div", { class: "lesson-pictures lesson-stage" }, pictures.map((picture) => picture.element));
  // Without a model, the last step alone says how to load one.
  const isLast = id === "model", isMissing = noModelText(actions.app) !== "";
  const heads = isLast || !isMissing ? stepHeads(lesson, step).slice(0, isMissing ? 1 : undefined).map((head) => makeModelHead(actions.app, head)) : [];
  const drawing = plan ? makeDrawing(actions.open, isNarrow) : null, ledger = makeLedger();
  const question = asked ? makeQuestion(actions, answered, !!asked.tap && shown.some(({ matrices }) => matrices[0] === asked.tap)) : null;
  const element = el("article", { class: "lesson-page" }, heading, words, pictures.length ? pictureGroup : null, question?.element, told, drawing?.element,
    placeSections(sections, lesson.steps[step].sections, isNarrow), ledger.element, codeLine,
    heads.length ? el("section", { class: "lesson-section", "aria-label": tr("In a real model") },
      el("h3", { text: tr("In a real model") }),
      isLast && !isMissing ? el("p", { text: tr("These heads of the model that is loaded show most clearly what you have seen. Open one.") }) : null,
      heads.map((head) => head.element)) : null);
  return { element, heading, words, told, code, codeLine, sections, pictures, pictureGroup, heads, drawing, question, ledger };
}

/** @param {Parts} parts @param {StepState} state */
function drawStep(parts, state) {
  const { heading, words, told, code, codeLine, drawing, question, sections } = parts;
  const now = state.lesson.steps[state.step];
  told.replaceChildren(...now.told.map((paragraph) => el("p", {}, sentenceText(paragraph))));
  heading.replaceChildren(...formulaText(now.title));
  words.replaceChildren(...now.text.map((paragraph) => el("p", {}, sentenceText(paragraph))));
  code.textContent = now.code;
  codeLine.hidden = now.code === "";
  if (now.drawing) drawing?.update(now.drawing);
  sections.forEach((section, at) => drawSection(section, at, state));
  question?.update(now.id, now.question);
  showNumbers(parts, state);
}

/** Covers what would tell the answer, or uncovers it. @param {Parts} parts @param {StepState} state */
function showNumbers(parts, state) {
  const { element, told, drawing, question, sections, ledger } = parts, now = state.lesson.steps[state.step];
  const isAsking = !!now.question && state.actions.asks(now.id), asked = isAsking ? now.question : null;
  element.classList.toggle("lesson-asking", isAsking);
  sections.forEach((section, at) => coverSection(section, at, state, asked));
  drawPictures(parts, state, asked);
  told.hidden = isAsking || !told.childElementCount;
  drawing?.ask(isAsking);
  // What a step removes is part of its answer.
  ledger.update(ledgerAt(state.lesson, isAsking ? state.step - 1 : state.step), isAsking);
  question?.element.classList.toggle("lesson-answered", !isAsking);
}

/** Draws the pictures above the question; a word of them may be the guess. @param {Parts} parts @param {StepState} state @param {Question | null} asked */
function drawPictures({ pictureGroup, pictures, question }, { lesson, step, query }, asked) {
  pictures.forEach((picture, at) => {
    const shown = lesson.steps[step].pictures[at], isCovered = !!asked && picture.matrices.some((matrix) => asked.covers.includes(matrix));
    const guess = asked?.tap && asked.tap === picture.matrices[0] && question ? { row: asked.cells[0][1], say: question.say } : null;
    picture.element.hidden = isCovered && asked.about_sizes;
    if (!picture.element.hidden) picture.update(lesson, asked ? { ...shown, covered: asked.covers } : shown, query, isCovered, guess);
  });
  pictureGroup.hidden = pictures.every((picture) => picture.element.hidden);
}

/**
 * A question before the numbers: a choice shows them, the right answer and why; so does "Show me".
 * @param {StepActions} actions
 * @param {() => void} changed  after an answer
 * @param {boolean} isTapped  whether a word of the picture above is tapped, in place of a button
 * @returns {{element: HTMLElement, update: (id: string, question: Question | null) => void, say: (which: number) => void}}
 */
function makeQuestion(actions, changed, isTapped) {
  const text = el("p", { class: "lesson-question-text" });
  const choices = el("div", { class: "lesson-control", role: "group", "aria-label": tr("Answers") });
  const answer = el("p", { class: "lesson-answer", role: "status", tabindex: "-1" });
  let step = "";
  /** @type {number | null} */
  let guess = null;
  /** @type {Question | null} */
  let asked = null;

  /** @param {number | null} which  null: it is shown without a guess */
  function say(which) {
    if (!asked || !actions.asks(step)) return;
    guess = which;
    const isFocused = choices.contains(document.activeElement);
    actions.answered(step);
    draw(asked);
    changed();
    // Its button is gone, and the next Tab goes on from here.
    if (isFocused) answer.focus({ preventScroll: true });
    const [first] = asked.cells;
    if (!first) return;
    if (asked.tap) actions.choose(asked.token);
    actions.explainAnswer({ of: first[0], row: first[1], column: first[2], slice: null });
  }

  /** @param {Question} question */
  function draw(question) {
    const isAsking = actions.asks(step);
    asked = question;
    text.replaceChildren(...sentenceText(question.text));
    choices.replaceChildren(
      isAsking && isTapped ? el("span", { class: "lesson-note", text: tr("Tap the word in the picture, or") }) : "",
      ...(isTapped ? [] : question.choices).map((choice, at) => el("button", {
        type: "button", disabled: !isAsking,
        class: isAsking ? "" : question.answers.includes(at) ? "lesson-right" : at === guess ? "lesson-guess" : "",
        on: { click: () => say(at) },
      }, sentenceText(choice))),
      isAsking ? el("button", { type: "button", class: "lesson-show", text: tr("Show me"), on: { click: () => say(null) } }) : "");
    const first = guess !== null && question.answers.includes(guess) ? tr("Right.") : tr("Not quite.");
    const explanation = guess === null ? question.why : tr("{first} {second}", { first, second: question.why });
    choices.hidden = isTapped && !isAsking;
    answer.replaceChildren(...(isAsking ? [] : sentenceText(explanation)));
  }

  return {
    say,
    element: el("section", { class: "lesson-question", "aria-label": tr("Predict") }, text, choices, answer),
    update(id, question) {
      if (!question) return;
      step = id;
      // The guess was one at other numbers.
      if (JSON.stringify(question) !== JSON.stringify(asked)) guess = null;
      draw(question);
    },
  };
}

/**
 * The statistics by which a step looks for a head of the loaded model; for the step of a real model, those of all steps.
 * @param {Lesson} lesson @param {number} step @returns {Head[]}
 */
function stepHeads(lesson, step) {
  const steps = lesson.steps[step].id === "model" ? lesson.steps : [lesson.steps[step]];
  return steps.flatMap(({ head }) => (head ? [head] : []));
}

/** Sections of a narrow page that stand for themselves, at most, where others are folded. */
const mostSections = 5;

/**
 * Places the sections: the matrix form and the form token by token side by side; on a narrow page those that are folded anyway together.
 * @param {StepSection[]} parts @param {Section[]} sections @param {boolean} isNarrow @returns {HTMLElement[]}
 */
function placeSections(parts, sections, isNarrow) {
  /** @type {HTMLElement[]} */
  const placed = [];
  if (isNarrow && parts.length > mostSections) {
    const folded = parts.filter((_, at) => sections[at].folded), count = folded.reduce((sum, { grids }) => sum + grids.length, 0);
    if (folded.length > 1) {
      return [...parts.filter((part) => !folded.includes(part)).map(({ element }) => element), el("section", { class: "lesson-section" }, el("details", { class: "lesson-folded" },
        el("summary", {}, el("h3", { text: tr("Every number (tables: {count})", { count }) })), folded.map(({ element }) => element)))];
    }
  }
  for (let at = 0; at < parts.length; at++) {
    const next = parts[at + 1];
    if (parts[at].form && next?.form) {
      placed.push(el("div", { class: "lesson-side-by-side" }, parts[at].element, next.element));
      at++;
    } else placed.push(parts[at].element);
  }
  return placed;
}

/** @param {StepState} state @param {number} at */
function makeSection({ lesson, step, query, actions }, at) {
  const section = lesson.steps[step].sections[at];
  const heading = section.title || section.folded ? el("h3", {}) : null;
  const words = el("div", { class: "lesson-words" });
  const controls = section.controls.map((name) => makeSetting(name, actions));
  const grids = section.matrices.map((id) => makeMatrixTable(lesson, id, query, actions));
  const isSliced = section.matrices.some((id) => matrixOf(lesson, id).sliced);
  const chooser = isSliced ? makeQuerySelect(actions) : null;
  const charts = el("div", { class: "lesson-charts" });
  const pictures = section.pictures.map((picture) => makePicture(picture, actions));
  const tables = grids.map((grid) => {
    const matrix = matrixOf(lesson, grid.id), { rows, shade, source, data } = matrix;
    // What is drawn as a curve, and differences that have nothing but rounding errors.
    const isFolded = rows.length > 12 || (shade === "none" && source.op === "minus" && data.every((value) => Math.abs(value) < 1e-5)) || section.charts.some((chart) => chart.matrix === grid.id);
    return isFolded ? el("details", { class: "lesson-folded lesson-as-table" },
      el("summary", {}, sentenceText(tr("As table: {title}", { title: matrix.title }))), grid.element) : grid.element;
  });
  const findings = el("ul", { class: "lesson-findings" });
  const content = [words, ...controls.map((control) => control.element), chooser?.element,
    el("div", { class: "lesson-pictures" }, pictures.map((picture) => picture.element)), findings, charts,
    el("div", { class: "lesson-matrices" }, tables)];
  const isOpen = isSectionOpen(lesson, step, at, actions.place().isNarrow);
  const element = el("section", { class: "lesson-section" },
    heading ? el("details", { class: "lesson-folded", open: isOpen }, el("summary", {}, heading), content) : content);
  return { element, heading, words, controls, grids, tables, chooser, charts, pictures, findings, form: section.form };
}

/** @param {StepSection} parts @param {number} at @param {StepState} state @param {Question | null} asked  covers the numbers that would tell its answer */
function coverSection({ element, grids, tables, pictures }, at, { lesson, step, query }, asked) {
  const section = lesson.steps[step].sections[at], covers = (/** @type {string} */ id) => !!asked && asked.covers.includes(id);
  // What is drawn as a chart would be an empty fold.
  element.hidden = !!asked && (section.told || ((asked.about_sizes || section.charts.length > 0) && section.matrices.length > 0 && section.matrices.every(covers)));
  grids.forEach((grid, which) => {
    grid.cover(covers(grid.id));
    tables[which].hidden = !!asked?.about_sizes && covers(grid.id);
  });
  pictures.forEach((picture, which) => {
    const isCovered = picture.matrices.some(covers);
    picture.update(lesson, { ...section.pictures[which], covered: asked?.covers ?? [] }, query, isCovered);
    picture.element.hidden = isCovered && !!asked?.about_sizes;
  });
}

/** All but what a question may cover. @param {StepSection} parts @param {number} at @param {StepState} state */
function drawSection({ heading, words, controls, grids, chooser, charts, findings }, at, { lesson, step, query, actions }) {
  const section = lesson.steps[step].sections[at];
  heading?.replaceChildren(...sentenceText(section.title));
  words.replaceChildren(...section.text.map((text) => el("p", {}, sentenceText(text))));
  controls.forEach((control) => control.update(lesson));
  grids.forEach((grid) => grid.update(lesson, query));
  chooser?.update(lesson, query);
  charts.replaceChildren(...section.charts.map((chart) => makeChart(lesson, chart)));
  findings.replaceChildren(...section.findings.map((finding) => makeFinding(finding, actions)));
  findings.hidden = !section.findings.length;
}

/**
 * Whether a section is open at first: the one that answers the question, with the other form of the same calculation; on a narrow
 * page none, if there is a picture above.
 * @param {Lesson} lesson @param {number} step @param {number} at @param {boolean} isNarrow @returns {boolean}
 */
export function isSectionOpen(lesson, step, at, isNarrow) {
  const { question, sections, pictures, drawing } = lesson.steps[step], of = question?.cells[0]?.[0];
  if (sections[at].folded || (isNarrow && (pictures.length || drawing))) return false;
  const answers = sections.findIndex(({ matrices, folded, told }) => !folded && !told && matrices.includes(of ?? ""));
  const open = answers < 0 ? sections.findIndex(({ folded, told }) => !folded && !told) : answers;
  return at === open || (!isNarrow && (sections[at].told || (!!sections[at].form && !!sections[open].form)));
}

/** @param {Finding} finding @param {StepActions} actions @returns {HTMLElement} */
function makeFinding(finding, actions) {
  const cells = finding.cells.map(([of, row, column]) => ({ of, row, column, slice: null }));
  const text = sentenceText(finding.text);
  if (!cells.length) return el("li", {}, text);
  return el("li", {}, el("button",
    { type: "button", class: "lesson-finding", title: tr("Show the numbers"), on: { click: () => actions.highlight(cells) } }, text));
}

/** @param {StepActions} actions @returns {{element: HTMLElement, update: (lesson: Lesson, query: number) => void}} */
function makeQuerySelect(actions) {
  const select = el("select", { "data-setting": "query", on: { change: () => actions.choose(Number(select.value)) } });
  return {
    element: el("label", { class: "lesson-control" }, `${tr("Query")} `, select),
    update(lesson, query) {
      select.replaceChildren(...lesson.request.tokens.map((/** @type {string} */ token, /** @type {number} */ place) =>
        el("option", { value: place, text: `${place + 1}: ${tokenText(token)}`, selected: place === query })));
    },
  };
}

// The head of the loaded model that shows most clearly what a step explains.

/** @typedef {{kind: Kind, layer: number, head: number, value: number}} FoundHead */

/** Why there is no model to open a head of. @param {App} app @returns {string} "" if a model is loaded */
export function noModelText(app) {
  const side = app.about.sides[0];
  return side && side.maps.length ? "" : tr("No model is loaded. “uwaga view TEXT” opens a text in one, with this lesson beside it.");
}

/**
 * The best of all heads of one kind by a statistic; null if the model has no such statistic.
 * @param {{layer: number, columns: {[name: string]: (number | null)[]}}[]} tables @param {Head} criterion
 * @returns {{layer: number, head: number, value: number} | null}
 */
export function bestHead(tables, criterion) {
  /** @type {{layer: number, head: number, value: number} | null} */
  let best = null;
  for (const { layer, columns } of tables) {
    (columns[criterion.statistic] ?? []).forEach((value, head) => {
      if (value === null || Number.isNaN(value)) return;
      const better = !best || (criterion.sense === "largest" ? value > best.value : value < best.value);
      if (better) best = { layer, head, value };
    });
  }
  return best;
}

/** @param {App} app @param {Head} criterion @param {AbortSignal} signal @returns {Promise<FoundHead | null>} */
async function findBestHead(app, criterion, signal) {
  const side = app.about.sides[0];
  const kind = app.about.start?.kind;
  if (!side || !kind) return null;
  const tables = await Promise.all(side.maps.filter((map) => map.kind === kind).map(async ({ layer }) => {
    /** @type {{[name: string]: (number | null)[]}} */
    let columns = {};
    await app.client.follow(statisticsRequest({ side: side.id, kind, layer }),
      (reply) => { columns = reply.meta.columns; }, { signal, priority: -1 });
    return { layer, columns };
  }));
  const best = bestHead(tables, criterion);
  return best && { kind, ...best };
}

/** @param {App} app @param {Head} criterion @returns {{element: HTMLElement, dispose: () => void}} */
function makeModelHead(app, criterion) {
  const missing = noModelText(app);
  const text = el("p", { text: missing });
  const button = el("button", { type: "button", class: "lesson-open", text: tr("Open this head in the real model"), disabled: true });
  const controller = new AbortController();
  /** @type {FoundHead | null} */
  let found = null;

  async function search() {
    text.textContent = tr("Searching all heads for {why}…", { why: criterion.why });
    try {
      found = await findBestHead(app, criterion, controller.signal);
    } catch (error) {
      if (controller.signal.aborted) return;
      text.textContent = tr("The heads could not be compared: {value}", { value: messageOf(error) });
      return;
    }
    if (!found) {
      text.textContent = tr("This model's table has no {statistic}.", { statistic: statisticTitle(app, criterion.statistic) });
      return;
    }
    button.disabled = false;
    const measured = `${statisticTitle(app, criterion.statistic)} ${numberText(found.value)}`;
    text.textContent = tr("Layer {layer}, head {head}: {why} ({measured}).", { layer: found.layer, head: found.head, why: criterion.why, measured });
  }

  function open() {
    const side = app.about.sides[0];
    if (found) app.openHead(side.id, found.kind, found.layer, found.head);
  }

  button.addEventListener("click", open);
  if (!missing) void search();
  return {
    element: el("div", { class: "lesson-real" }, text, button),
    dispose: () => controller.abort(),
  };
}

/** @param {App} app @param {string} name @returns {string} */
function statisticTitle(app, name) {
  return tr(app.about.statistics.find((one) => one.name === name)?.title ?? name.replaceAll("_", " "));
}
