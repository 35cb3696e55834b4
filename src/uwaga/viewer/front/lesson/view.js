// The lesson's tab: the calculation of attention step by step, on numbers that can be changed.

import { el, openAround } from "../dom.js";
import { isAbort, messageOf } from "../hosts.js";
import { languageOfRequest, tr } from "../languages.js";
import { makeExplanation, stepShows } from "./explanation.js";
import { formulaText } from "./numbers.js";
import { makePipeline } from "./pipeline.js";
import { cellKey, hasCell, openingToken, readLesson, sentenceOf, withNumber, withSetting, withText } from "./reply.js";
import { recomputed, sourcesOf } from "./rules.js";
import { lessonScene } from "./scene.js";
import { makeStepPage, stepStructure } from "./step.js";
/** @import { App, Request, View } from "../types.js" */
/** @import { Cell, Lesson } from "./reply.js" */
/** @import { StepActions, StepPage } from "./step.js" */

/** Debounce of edits in milliseconds. */
const inputPause = 200;
/** Under this width in pixels words stand in a column, and sections are folded. */
const narrowWidth = 620;
const savedNote = tr("This is a saved page. If you change a number in a table, the page calculates what follows from it, and hides questions and other parts that it cannot calculate. “uwaga lesson” opens a page where you can also change the sentence and the settings.");

/** @param {App} app @returns {View} */
export function lessonView(app) {
  const message = el("p", { class: "lesson-error lesson-message", role: "alert", hidden: true }), main = el("div", { class: "lesson-main" }, message);
  const element = el("div", { class: "lesson-view" }, main);
  /** @type {Reader | null} */
  let reader = null, isShown = false;
  const numbers = makeNumbers(app, element, message, (lesson) => {
    if (reader) receive(reader, lesson);
    else reader = makeReader(app, element, main, message, lesson, numbers);
  });
  const when = () => isShown && reader !== null, hasChain = (/** @type {number} */ count) => () => when() && (reader?.chain.length ?? 0) >= count;
  /** @param {(reader: Reader) => void} act */
  const withReader = (act) => () => { if (reader) act(reader); };
  const printOne = withReader((one) => { if (isShown) showPrinted(one, false); }), afterPrint = withReader(hidePrinted);
  window.addEventListener("beforeprint", printOne);
  window.addEventListener("afterprint", afterPrint);
  const ends = [
    app.store.subscribe(["step", "example"], ({ step, example }) => {
      // The address has changed: back, forward, or a link.
      if (!reader) return;
      showStep(reader, step);
      numbers.follow(example);
    }),
    ...[{ id: "lesson.next", title: tr("Next step"), keys: ["n"], when, run: withReader((one) => goToStep(one, one.step + 1)) },
      { id: "lesson.previous", title: tr("Previous step"), keys: ["p"], when, run: withReader((one) => goToStep(one, one.step - 1)) },
      { id: "lesson.query", title: tr("Next query"), keys: ["q"], when, run: withReader((one) => nextQuery(one, 1)) },
      { id: "lesson.query.before", title: tr("Previous query"), keys: ["Shift+Q"], when, run: withReader((one) => nextQuery(one, -1)) },
      { id: "lesson.back", title: tr("Back to the previous number"), keys: ["Backspace"], when: hasChain(2), run: withReader(back) },
      { id: "lesson.close", title: tr("Unmark the number"), keys: ["Escape"], when: hasChain(1), run: withReader(unmark) },
      { id: "lesson.reset", title: tr("Reset sentence and numbers"), keys: ["Shift+R"], when, run: withReader(reset) },
    ].map((command) => app.commands.add({ group: tr("Lesson"), ...command })),
  ];
  return {
    element,
    show() {
      isShown = true;
      if (!reader) void numbers.ask();
    },
    hide() { isShown = false; },
    dispose() {
      numbers.dispose();
      reader?.page.dispose();
      reader?.watcher.disconnect();
      window.removeEventListener("beforeprint", printOne);
      window.removeEventListener("afterprint", afterPrint);
      for (const end of ends) end();
    },
    async scene() {
      if (!reader) throw new Error(tr("This view cannot be saved as a picture."));
      return lessonScene(reader.lesson, reader.step, reader.query, element);
    },
  };
}

/**
 * The numbers of the lesson as they are edited: calculated by Python, in a saved page by the rules of its reply.
 * @param {App} app @param {HTMLElement} element  that is busy meanwhile @param {HTMLElement} message
 * @param {(lesson: Lesson) => void} receive
 */
function makeNumbers(app, element, message, receive) {
  const isSaved = app.host.mode === "saved";
  /** @type {Request} */
  const start = { request: "lesson", ...languageOfRequest() };
  /** @type {Request} the latest edit, which may not be answered yet */
  let requested = (!isSaved && readExample(app.store.get().example)) || start;
  /** @type {Lesson | null} */
  let lesson = null;
  /** @type {Lesson | null} as it was saved */
  let opened = null;
  let example = app.store.get().example, addressError = "", asked = new AbortController();
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let timer;

  /** @param {Request} next @param {number} pause */
  function change(next, pause) {
    requested = next;
    element.setAttribute("aria-busy", "true");
    clearTimeout(timer);
    timer = setTimeout(ask, pause);
  }

  async function ask() {
    timer = undefined;
    asked.abort();
    asked = new AbortController();
    const { signal } = asked;
    element.setAttribute("aria-busy", "true");
    try {
      const next = isSaved && opened && requested !== start ? recomputed(opened, requested) : readLesson(await app.client.ask(requested, { signal, priority: 5 }));
      if (signal.aborted) return;
      message.hidden = !addressError;
      message.textContent = addressError;
      addressError = "";
      lesson = next;
      opened ??= lesson;
      example = isSaved || requested === start ? "" : JSON.stringify(lesson.request);
      app.store.set({ example });
      receive(lesson);
    } catch (error) {
      if (isAbort(error)) return;
      message.hidden = false;
      if (!lesson && requested !== start) {
        requested = start;
        addressError = tr("The numbers in the address are not shown: {value}", { value: messageOf(error) });
        void ask();
        return;
      }
      requested = lesson ? lesson.request : start;
      message.textContent = lesson
        ? tr("{value}. The numbers shown are the previous ones.", { value: messageOf(error) })
        : tr("The lesson could not be opened: {value}", { value: messageOf(error) });
    } finally {
      if (!signal.aborted && !timer) element.removeAttribute("aria-busy");
    }
  }

  return {
    isSaved, ask,
    /** @param {(request: Request) => Request} edit @param {number} pause */
    edit: (edit, pause) => change(edit(requested.settings ? requested : /** @type {Lesson} */ (lesson).request), pause),
    reset: () => change(start, 0),
    /** @param {string} address  an example */
    follow(address) {
      if (address === example || isSaved) return;
      example = address;
      change(readExample(address) ?? start, 0);
    },
    dispose() {
      clearTimeout(timer);
      asked.abort();
    },
  };
}

/**
 * What a reader sees and does: the functions below draw it and change it.
 * @typedef {object} Reader
 * @property {App} app
 * @property {ReturnType<typeof makeNumbers>} numbers
 * @property {HTMLElement} element
 * @property {HTMLElement} main
 * @property {HTMLElement} place  of the step's page
 * @property {Lesson} lesson
 * @property {number} step
 * @property {number} query  the token that is picked
 * @property {boolean} isAsking  whether steps ask their questions
 * @property {Set<string>} answered  steps whose question was answered, or whose numbers were asked for
 * @property {Cell[]} chain  the numbers that were followed
 * @property {boolean} isAnswer  whether the chain began with the answer of the step's question
 * @property {StepPage} page
 * @property {StepPage[]} printed  shown in place of the page while they are printed
 * @property {{focused: Element | null, top: number}} beforePrint
 * @property {StepActions} actions
 * @property {ReturnType<typeof makeSentenceInput>} sentence
 * @property {ReturnType<typeof makeStepNavigation>} steps
 * @property {ReturnType<typeof makeExplanation>} explanation
 * @property {ReturnType<typeof makePipeline>} pipeline
 * @property {ResizeObserver} watcher
 */

/**
 * @param {App} app @param {HTMLElement} element @param {HTMLElement} main @param {HTMLElement} message @param {Lesson} lesson
 * @param {ReturnType<typeof makeNumbers>} numbers @returns {Reader}
 */
function makeReader(app, element, main, message, lesson, numbers) {
  const step = stepNamed(lesson, app.store.get().step), query = Math.min(openingToken(lesson, step), lesson.request.tokens.length - 1);
  const place = el("div", { class: "lesson-place" });
  const reader = /** @type {Reader} */ (/** @type {unknown} */ ({ app, numbers, element, main, place, lesson, step, query, isAsking: true, answered: new Set(), chain: [],
    isAnswer: false, printed: [], beforePrint: { focused: null, top: 0 } }));
  const actions = stepActions(reader), explanation = makeExplanation({ follow: (cell) => follow(reader, cell), back: () => back(reader),
    close: () => unmark(reader), go: (next) => showCellInStep(reader, next), mark: (cells) => showSelection(reader, cells ?? undefined), isNarrow: () => actions.place().isNarrow });
  const sentence = makeSentenceInput({ write: (text) => numbers.edit((request) => withText(request, text), 0), reset: () => reset(reader) });
  const steps = makeStepNavigation((next) => goToStep(reader, next), { print: () => { showPrinted(reader, true); window.print(); hidePrinted(reader); },
    ask: (asks) => setAsking(reader, asks), number: (all) => main.classList.toggle("lesson-all-numbers", all) });
  const pipeline = makePipeline({ open: (id) => showMatrix(reader, id) });
  // Tables that are wider than their place scroll by the keyboard too: a table takes the focus if nothing in it does.
  const watcher = new ResizeObserver(() => {
    for (const box of /** @type {NodeListOf<HTMLElement>} */ (place.querySelectorAll(".lesson-scroll"))) reachScrolled(box);
  });
  watcher.observe(place);
  const sentencePart = numbers.isSaved ? el("div", { class: "lesson-own" }, el("p", { class: "lesson-note", text: savedNote }), sentence.button)
    : el("details", { class: "lesson-own lesson-folded", open: innerWidth >= narrowWidth }, el("summary", {}, el("h3", { text: tr("Your own sentence") })), sentence.element);
  const whole = el("details", { class: "lesson-folded lesson-whole" }, el("summary", {}, el("h3", { text: tr("The whole calculation") })), pipeline.element);
  main.replaceChildren(steps.element, message, place, whole, sentencePart, steps.footer);
  Object.assign(reader, { actions, explanation, sentence, steps, pipeline, watcher, page: makeStepPage(lesson, step, query, actions) });
  place.replaceChildren(reader.page.element);
  drawAll(reader);
  return reader;
}

/** What the page of a step can ask for. @param {Reader} reader @returns {StepActions} */
function stepActions(reader) {
  const { app, main, numbers } = reader;
  return {
    app,
    select: (cell) => select(reader, cell),
    highlight: (cells) => highlight(reader, cells),
    write: (field, row, column, value) => numbers.edit((request) => withNumber(request, field, row, column, value), inputPause),
    set: (name, value) => numbers.edit((request) => withSetting(request, name, value), inputPause),
    say: (text) => app.announce(text),
    readOnly: () => numbers.isSaved,
    choose(next) {
      if (next < reader.lesson.request.tokens.length) reader.query = next;
      follow(reader, null);
    },
    asks: (id) => reader.isAsking && !reader.answered.has(id),
    answered(id) {
      reader.answered.add(id);
      drawPipeline(reader);
    },
    explainAnswer(cell) {
      // Of what is a picture alone there is nothing to calculate.
      if (!stepShows(reader.lesson, reader.step, cell.of)) return;
      reader.isAnswer = true;
      explain(reader, [cell]);
    },
    place() {
      const whole = main.clientWidth || innerWidth, isNarrow = whole < narrowWidth;
      // Without the padding of the page and of what scrolls.
      return { room: Math.min(1080, whole) - (isNarrow ? 46 : 86), isNarrow };
    },
    open: (id) => goToStep(reader, reader.lesson.steps.findIndex((one) => one.id === id)),
  };
}

/** @param {Reader} reader @param {Lesson} next */
function receive(reader, next) {
  const asked = openingToken(reader.lesson, reader.step), opening = openingToken(next, reader.step);
  reader.lesson = next;
  // With other numbers the question may be about another token; else the reader's own pick stays.
  reader.query = Math.min(opening === asked ? reader.query : opening, next.request.tokens.length - 1);
  reader.chain = reader.chain.filter((cell) => hasCell(next, cell));
  drawAll(reader);
  reader.app.announce(tr("The numbers have been calculated again."));
}

/** @param {Reader} reader @param {boolean} asks */
function setAsking(reader, asks) {
  reader.isAsking = asks;
  if (asks) reader.answered.clear();
  reader.page.update(reader.lesson, reader.query);
  drawPipeline(reader);
  showSelection(reader);
}

/** @param {Reader} reader */
function reset(reader) {
  reader.chain = [];
  // A new page is built, without invalid inputs.
  reader.page.structure = "";
  reader.numbers.reset();
}

/** @param {Reader} reader */
function drawAll(reader) {
  reader.sentence.update(reader.lesson);
  drawStep(reader);
}

/** @param {Reader} reader */
function drawStep(reader) {
  const { lesson, step, chain, steps, explanation } = reader;
  steps.update(lesson, step);
  drawPage(reader);
  explanation.show(lesson, chain, step);
}

/** Builds or updates the page of the step, and marks the selection in it. @param {Reader} reader */
function drawPage(reader) {
  const { lesson, step, query, page: before } = reader, focused = document.activeElement;
  if (before.structure === stepStructure(lesson, step)) before.update(lesson, query);
  else {
    before.dispose();
    reader.page = makeStepPage(lesson, step, query, reader.actions);
    reader.place.replaceChildren(reader.page.element);
  }
  drawPipeline(reader);
  placeExplanation(reader);
  showSelection(reader);
  if (reader.page !== before && reader.page.step === before.step) keepPlace(before.element, reader.page.element, focused);
}

/** @param {Reader} reader */
function drawPipeline({ lesson, step, query, actions, pipeline }) {
  const { id, question } = lesson.steps[step];
  pipeline.update(lesson, step, query, question && actions.asks(id) ? question.covers : []);
}

/** Puts the explanation under the matrices that the first number followed is in; without one, under the words of the step. @param {Reader} reader */
function placeExplanation(reader) {
  const { page, chain, isAnswer, explanation: { element } } = reader;
  element.hidden = !page.grids.length;
  const grid = gridOf(reader, chain[0]?.of);
  // Behind the question, whose answer it explains, or under the matrices that the number was picked in.
  const above = isAnswer && chain.length ? page.element.querySelector(".lesson-question") : grid?.element.closest(".lesson-matrices");
  if (!above) page.element.querySelector(".lesson-ledger")?.before(element);
  else if (above.nextElementSibling !== element) above.after(element);
}

/** @param {Reader} reader @param {string | undefined} id  of a matrix */
function gridOf(reader, id) {
  return reader.page.grids.find((grid) => grid.id === id);
}

/** Goes to a matrix: on this page, or in the first step that has it. @param {Reader} reader @param {string} id */
function showMatrix(reader, id) {
  const { lesson, step } = reader;
  if (!stepShows(lesson, step, id)) goToStep(reader, lesson.steps.findIndex((_, at) => stepShows(lesson, at, id)));
  revealGrid(reader, id);
}

/** @param {Reader} reader @param {string | undefined} id  of a matrix */
function revealGrid(reader, id) {
  const grid = gridOf(reader, id);
  openAround(grid?.element);
  grid?.element.scrollIntoView({ block: "nearest" });
}

/** @param {Reader} reader @param {Cell[]} [also]  cells to mark instead of the sources */
function showSelection({ lesson, chain, page, pipeline }, also) {
  const cell = chain.at(-1) ?? null, sources = also ?? (cell ? sourcesOf(lesson, cell) : []), keys = new Set(sources.map(cellKey));
  for (const grid of page.grids) grid.showSelection(cell, keys);
  pipeline.showSelection(cell, sources);
}

/** @param {Reader} reader @param {Cell} cell */
function select(reader, cell) {
  const { id, question } = reader.lesson.steps[reader.step];
  if (reader.actions.asks(id) && question?.covers.includes(cell.of)) {
    reader.app.announce(tr("Not shown yet: answer the question, or choose Show me."));
    return;
  }
  reader.isAnswer = false;
  explain(reader, [cell]);
}

/** @param {Reader} reader @param {Cell | null} cell  appended to the chain; null: the chain stays */
function follow(reader, cell) {
  if (cell && cell.slice !== null) reader.query = cell.slice;
  reader.page.update(reader.lesson, reader.query);
  drawPipeline(reader);
  explain(reader, cell ? [...reader.chain, cell] : reader.chain);
  if (cell) reader.explanation.heading.focus({ preventScroll: true });
}

/** @param {Reader} reader */
function back(reader) {
  if (reader.chain.length < 2) return;
  explain(reader, reader.chain.slice(0, -1));
  reader.explanation.heading.focus();
}

/** @param {Reader} reader @param {Cell[]} chain */
function explain(reader, chain) {
  const { explanation } = reader;
  reader.chain = chain;
  explanation.show(reader.lesson, chain, reader.step);
  placeExplanation(reader);
  if (chain.length) explanation.element.scrollIntoView({ block: "nearest" });
  showSelection(reader);
}

/** @param {Reader} reader */
function unmark(reader) {
  const [start] = reader.chain, hasFocus = reader.explanation.element.contains(document.activeElement);
  explain(reader, []);
  if (!hasFocus || !start) return;
  // Back to what it explained.
  const answer = reader.isAnswer ? reader.page.element.querySelector(".lesson-answer") : null;
  if (answer) /** @type {HTMLElement} */ (answer).focus({ preventScroll: true });
  else gridOf(reader, start.of)?.reveal(start);
}

/** @param {Reader} reader @param {Cell[]} cells */
function highlight(reader, cells) {
  reader.isAnswer = false;
  openAround(gridOf(reader, cells[0]?.of)?.element);
  explain(reader, cells.slice(0, 1));
  showSelection(reader, cells);
  revealGrid(reader, cells[0]?.of);
}

/** @param {Reader} reader @param {number} next @param {number | null} [pick]  the token that is picked there; that of the step's question by default */
function openStep(reader, next, pick = null) {
  const { app, lesson: { steps }, main, element } = reader;
  if (next < 0 || next >= steps.length) return;
  reader.step = next;
  reader.query = pick ?? openingToken(reader.lesson, next);
  app.store.set({ step: steps[next].id });
  drawStep(reader);
  // Which of the two elements scrolls depends on the width.
  main.scrollTo({ top: 0 });
  element.scrollTo({ top: 0 });
  app.announce(tr("Step {step} of {length}: {title}", { step: next + 1, length: steps.length, title: steps[next].title }));
}

/** @param {Reader} reader @param {number} next  and clears the chain of followed numbers */
function goToStep(reader, next) {
  if (next < 0 || next >= reader.lesson.steps.length) return;
  reader.chain = [];
  openStep(reader, next);
  reader.page.heading.focus({ preventScroll: true });
}

/** @param {Reader} reader @param {number} next  shows the step that contains the followed number, and focuses its cell */
function showCellInStep(reader, next) {
  const cell = reader.chain.at(-1);
  openStep(reader, next, cell?.slice);
  if (cell) gridOf(reader, cell.of)?.reveal(cell);
}

/** @param {Reader} reader @param {string} id  of the step that an address names */
function showStep(reader, id) {
  const at = stepNamed(reader.lesson, id);
  if (at !== reader.step) openStep(reader, at);
}

/** @param {Lesson} lesson @param {string} id  @returns {number} the first step if it has no such step */
function stepNamed(lesson, id) {
  return Math.max(0, lesson.steps.findIndex((one) => one.id === id));
}

/** @param {Reader} reader @param {number} by */
function nextQuery(reader, by) {
  const { tokens } = reader.lesson.request;
  reader.actions.choose((reader.query + by + tokens.length) % tokens.length);
  reader.app.announce(tr("Query {tokens}", { tokens: tokens[reader.query] }));
}

/** Shows steps as they are printed: with their answers, and unfolded. @param {Reader} reader @param {boolean} all  else the one that is open */
function showPrinted(reader, all) {
  const { lesson, step, query, actions, place } = reader;
  if (reader.printed.length) return;
  reader.beforePrint = { focused: document.activeElement, top: reader.element.scrollTop };
  reader.printed = (all ? [...lesson.steps.keys()] : [step]).map((at) => makeStepPage(lesson, at, at === step ? query : openingToken(lesson, at), { ...actions, asks: () => false }));
  place.replaceChildren(...reader.printed.map((one) => one.element));
  for (const part of place.querySelectorAll("details")) part.open = true;
}

/** @param {Reader} reader */
function hidePrinted(reader) {
  const { printed, place, page, element, beforePrint: { focused, top } } = reader;
  if (!printed.length) return;
  for (const one of printed) one.dispose();
  reader.printed = [];
  place.replaceChildren(page.element);
  if (focused instanceof HTMLElement) focused.focus({ preventScroll: true });
  element.scrollTop = top;
}

/** @param {HTMLElement} box */
function reachScrolled(box) {
  const isReached = box.scrollWidth > box.clientWidth && !box.querySelector("[tabindex='0'], button, input");
  if (isReached === (box.tabIndex === 0)) return;
  const attributes = { tabindex: "0", role: "group", "aria-label": box.querySelector("[aria-label]")?.getAttribute("aria-label") ?? "" };
  for (const [name, value] of Object.entries(attributes)) {
    if (isReached) box.setAttribute(name, value);
    else box.removeAttribute(name);
  }
}

/**
 * Keeps what the reader has opened and folded if the same step is built again, and the input that has the focus, with what is typed in it.
 * @param {HTMLElement} before @param {HTMLElement} after @param {Element | null} focused
 */
function keepPlace(before, after, focused) {
  const named = (/** @type {HTMLElement} */ page) => [...page.querySelectorAll("details")].map((one) => ({ one, name: one.firstElementChild?.textContent }));
  const folds = named(before);
  for (const { one, name } of named(after)) one.open = folds.find((fold) => fold.name === name)?.one.open ?? one.open;
  const inputs = (/** @type {HTMLElement} */ page) => [.../** @type {NodeListOf<HTMLInputElement>} */ (page.querySelectorAll(".lesson-editable input"))];
  const typed = inputs(before).find((input) => input === focused), input = inputs(after).find((one) => typed && one.name === typed.name);
  if (!typed || !input) return;
  input.value = typed.value;
  input.focus({ preventScroll: true });
  input.setSelectionRange(typed.selectionStart, typed.selectionEnd);
}

/**
 * The lesson's example in an address; null if there is none. Python checks what is in it.
 * @param {string} text @returns {Request | null}
 */
function readExample(text) {
  try {
    const found = JSON.parse(text || "null");
    return found && typeof found === "object" && !Array.isArray(found) ? { ...found, request: "lesson", ...languageOfRequest() } : null;
  } catch {
    return null; // An address that somebody has cut: the lesson as it opens.
  }
}

// The input of the sentence, and the reset button.

/**
 * @param {{write: (text: string) => void, reset: () => void}} actions
 * @returns {{element: HTMLElement, button: HTMLElement, update: (lesson: Lesson) => void}}
 */
function makeSentenceInput({ write, reset }) {
  let shown = "";
  const input = el("input", { type: "text", class: "lesson-sentence", autocomplete: "off", spellcheck: "false" });
  const button = el("button",
    { type: "button", text: tr("Reset"), title: `${tr("Reset sentence and numbers")} (Shift+R)`, on: { click: reset } });

  function read() {
    if (input.value !== shown) write(input.value);
  }
  input.addEventListener("change", read);
  input.addEventListener("keydown", (event) => { if (event.key === "Enter") { event.preventDefault(); read(); } });
  return {
    button,
    element: el("div", { class: "lesson-top" },
      el("label", { class: "lesson-control" }, `${tr("Sentence")} `, input), button),
    update(lesson) {
      shown = input.value = sentenceOf(lesson.request);
    },
  };
}

// Step navigation: a dot for each step, which open the list of their names; previous and next step.

/**
 * @param {(step: number) => void} go
 * @param {{print: () => void, ask: (asks: boolean) => void, number: (all: boolean) => void}} actions
 * @returns {{element: HTMLElement, footer: HTMLElement, update: (lesson: Lesson, step: number) => void}}
 */
function makeStepNavigation(go, actions) {
  let at = 0;
  const list = el("ol", { class: "lesson-list", hidden: true });
  const dots = el("span", { class: "lesson-dots", "aria-hidden": "true" }), count = el("span", { class: "lesson-count" });
  const thread = el("button", { type: "button", class: "lesson-thread", "aria-expanded": "false", on: { click: () => show(list.hidden) } }, dots, count);
  const asks = el("input", { type: "checkbox", checked: true, on: { change: () => actions.ask(asks.checked) } });
  const numbers = el("input", { type: "checkbox", on: { change: () => actions.number(numbers.checked) } });
  const before = el("button", { type: "button", class: "lesson-before", title: `${tr("Previous step")} (p)`, on: { click: () => go(at - 1) } });
  const after = el("button", { type: "button", class: "lesson-after", title: `${tr("Next step")} (n)`, on: { click: () => go(at + 1) } });

  /** @param {boolean} isOpen */
  function show(isOpen) {
    list.hidden = !isOpen;
    thread.setAttribute("aria-expanded", String(isOpen));
    if (isOpen) list.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest" });
  }

  const element = el("nav", { class: "lesson-nav", "aria-label": tr("Steps of the lesson") }, thread,
    el("div", { class: "lesson-tools" },
      el("label", { class: "lesson-control", title: tr("Each step asks a question before it shows the numbers that answer it") }, asks, ` ${tr("Predict first")}`),
      el("label", { class: "lesson-control", title: tr("Show the number of every circle, not only of the chosen word") }, numbers, ` ${tr("All numbers")}`),
      el("button", { type: "button", class: "lesson-print", text: tr("Print all steps"), on: { click: actions.print } })),
    list);
  element.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || list.hidden) return;
    event.stopPropagation();
    show(false);
    thread.focus();
  });
  return {
    element,
    footer: el("div", { class: "lesson-footer" }, before, after),
    update(lesson, step) {
      at = step;
      show(false);
      const { steps } = lesson;
      count.textContent = tr("Step {step} of {length}", { step: step + 1, length: steps.length });
      if (list.childElementCount !== steps.length) {
        list.replaceChildren(...steps.map((_, place) => el("li", {}, el("button", { type: "button", on: { click: () => go(place) } }))));
        dots.replaceChildren(...steps.map(() => el("i", {})));
      }
      steps.forEach((one, place) => {
        const button = /** @type {HTMLElement} */ (list.children[place].firstElementChild);
        button.replaceChildren(...formulaText(one.title));
        if (place === step) button.setAttribute("aria-current", "step");
        else button.removeAttribute("aria-current");
        dots.children[place].className = place === step ? "lesson-dot-here" : place < step ? "lesson-dot-past" : "";
      });
      before.disabled = step === 0;
      after.disabled = step === steps.length - 1;
      before.hidden = before.disabled;
      before.replaceChildren(...formulaText(`\u2190 ${steps[step - 1]?.title ?? ""}`));
      after.replaceChildren(...formulaText(step < steps.length - 1 ? `${steps[step + 1].title}\u00a0\u2192` : tr("The end")));
    },
  };
}
