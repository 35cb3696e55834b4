// The lesson's tab: the calculation of attention step by step, on numbers that can be changed.

import { el, openAround } from "../dom.js";
import { isAbort, messageOf } from "../hosts.js";
import { languageOfRequest, tr } from "../languages.js";
import { sourcesOf, makeExplanation, stepShows } from "./explanation.js";
import { formulaText } from "./numbers.js";
import { makePipeline } from "./pipeline.js";
import {
  cellKey, hasCell, openingToken, sentenceOf, withNumber, withSetting, withText, readLesson,
} from "./reply.js";
import { lessonScene } from "./scene.js";
import { makeStepPage, stepStructure } from "./step.js";
/** @import { App, Request, State, View } from "../types.js" */
/** @import { Cell, Lesson } from "./reply.js" */
/** @import { StepActions, StepPage } from "./step.js" */

/** Debounce of edits in milliseconds. */
const inputPause = 200;
/** Under this width in pixels words stand in a column, and sections are folded. */
const narrowWidth = 620;
const readOnlyNote = tr("This is a saved page, without a program that could calculate other numbers. “uwaga lesson” opens one where you can change them.");

/**
 * @param {App} app
 * @returns {View}
 */
export function lessonView(app) {
  const isReadOnly = app.host.mode === "saved" || !app.about.live;
  /** @type {Request} */
  const start = { request: "lesson", ...languageOfRequest() };
  /** @type {Lesson | null} */
  let lesson = null;
  /** @type {Request} the latest edit, which may not be answered yet */
  let requested = (!isReadOnly && readExample(app.store.get().example)) || start;
  /** @type {Cell[]} */
  let chain = [];
  let isAnswer = false; // whether the chain began with the answer of the step's question
  /** @type {StepPage | null} */
  let page = null;
  /** @type {StepPage[]} shown in place of the page while they are printed */
  let printed = [];
  /** @type {{focused: Element | null, top: number}} */
  let beforePrint = { focused: null, top: 0 };
  let step = 0, query = 0, visible = false;
  let shownExample = app.store.get().example, addressError = "";
  let pendingRequest = new AbortController();
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let timer;

  const message = el("p", { class: "lesson-error lesson-message", role: "alert", hidden: true });
  const sentence = makeSentenceInput({ write: (text) => lesson && change(withText(editedRequest(), text), 0), reset, isReadOnly });
  const steps = makeStepNavigation(goToStep, { print: printAll, ask: setAsking, number: (all) => main.classList.toggle("lesson-all-numbers", all) });
  const place = el("div", { class: "lesson-place" });
  const explanation = makeExplanation({ follow, back, close, go: showCellInStep, mark, isNarrow: () => actions.place().isNarrow });
  const pipeline = makePipeline({ open: showMatrix });
  const own = isReadOnly ? el("p", { class: "lesson-own lesson-note", text: readOnlyNote })
    : el("details", { class: "lesson-own lesson-folded", open: innerWidth >= narrowWidth }, el("summary", {}, el("h3", { text: tr("Your own sentence") })), sentence.element);
  const map = el("details", { class: "lesson-folded lesson-whole" }, el("summary", {}, el("h3", { text: tr("The whole calculation") })), pipeline.element);
  const main = el("div", { class: "lesson-main" }, steps.element, message, place, map, own, steps.footer);
  const element = el("div", { class: "lesson-view" }, main);

  /** Steps whose question was answered, or whose numbers were asked for. @type {Set<string>} */
  const answered = new Set();
  let isAsking = true;

  /** @param {boolean} asks */
  function setAsking(asks) {
    isAsking = asks;
    if (asks) answered.clear();
    if (lesson && page) page.update(lesson, query);
    drawPipeline();
    showSelection();
  }

  const editedRequest = () => (requested.settings ? requested : /** @type {Lesson} */ (lesson).request);
  /** @type {StepActions} */
  const actions = {
    app, select, highlight,
    write: (field, row, column, value) => change(withNumber(editedRequest(), field, row, column, value), inputPause),
    set: (name, value) => change(withSetting(editedRequest(), name, value), inputPause),
    say: (text) => app.announce(text),
    readOnly: () => isReadOnly,
    choose(next) {
      if (lesson && next < lesson.request.tokens.length) query = next;
      follow(null);
    },
    asks: (id) => isAsking && !answered.has(id),
    answered(id) {
      answered.add(id);
      drawPipeline();
    },
    explainAnswer(cell) {
      // Of what is a picture alone there is nothing to calculate.
      if (!lesson || !stepShows(lesson, step, cell.of)) return;
      isAnswer = true;
      chain = [cell];
      explain();
    },
    place() {
      const whole = main.clientWidth || innerWidth, isNarrow = whole < narrowWidth;
      // Without the padding of the page and of what scrolls.
      return { room: Math.min(1080, whole) - (isNarrow ? 46 : 86), isNarrow };
    },
    open(id) { if (lesson) goToStep(lesson.steps.findIndex((one) => one.id === id)); },
  };

  /** @param {Request} next @param {number} pause */
  function change(next, pause) {
    if (isReadOnly) return;
    requested = next;
    element.setAttribute("aria-busy", "true");
    clearTimeout(timer);
    timer = setTimeout(ask, pause);
  }

  function reset() {
    chain = [];
    // A new page is built, without invalid inputs.
    if (page) page.structure = "";
    change(start, 0);
  }

  async function ask() {
    timer = undefined;
    pendingRequest.abort();
    pendingRequest = new AbortController();
    const { signal } = pendingRequest;
    element.setAttribute("aria-busy", "true");
    try {
      const reply = await app.client.ask(requested, { signal, priority: 5 });
      if (signal.aborted) return;
      message.hidden = !addressError;
      message.textContent = addressError;
      addressError = "";
      receive(readLesson(reply));
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

  /** @param {Lesson} next */
  function receive(next) {
    const isFirst = !lesson, asked = lesson ? openingToken(lesson, step) : -1;
    lesson = next;
    if (isFirst) step = Math.max(0, next.steps.findIndex(({ id }) => id === app.store.get().step));
    // With other numbers the question may be about another token; else the reader's own pick stays.
    if (openingToken(next, step) !== asked) query = openingToken(next, step);
    shownExample = requested === start ? "" : JSON.stringify(next.request);
    app.store.set({ example: shownExample });
    query = Math.min(query, next.request.tokens.length - 1);
    chain = chain.filter((cell) => hasCell(next, cell));
    sentence.update(next);
    steps.update(next, step);
    draw();
    explanation.show(next, chain, step);
    if (!isFirst) app.announce(tr("The numbers have been calculated again."));
  }

  /** Builds or updates the page of the step, and marks the selection in it. */
  function draw() {
    if (!lesson) return;
    if (page && page.structure === stepStructure(lesson, step)) page.update(lesson, query);
    else {
      const before = page?.step === lesson.steps[step].id ? page.element : null;
      page?.dispose();
      page = makeStepPage(lesson, step, query, actions);
      if (before) keepOpen(before, page.element);
      place.replaceChildren(page.element);
    }
    drawPipeline();
    placeExplanation();
    showSelection();
  }

  function drawPipeline() {
    if (!lesson) return;
    const { id, question } = lesson.steps[step];
    pipeline.update(lesson, step, query, question && actions.asks(id) ? question.covers : []);
  }

  /** Puts the explanation under the matrices that the first number followed is in; without one, under the words of the step. */
  function placeExplanation() {
    if (!page) return;
    explanation.element.hidden = !page.grids.length;
    const grid = page.grids.find(({ id }) => id === chain[0]?.of);
    // Behind the question, whose answer it explains, or under the matrices that the number was picked in.
    const above = isAnswer && chain.length ? page.element.querySelector(".lesson-question") : grid?.element.closest(".lesson-matrices");
    if (!above) page.element.querySelector(".lesson-ledger")?.before(explanation.element);
    else if (above.nextElementSibling !== explanation.element) above.after(explanation.element);
  }

  /** Goes to a matrix: on this page, or in the first step that has it. @param {string} id */
  function showMatrix(id) {
    if (!lesson) return;
    const now = lesson;
    if (!stepShows(now, step, id)) goToStep(now.steps.findIndex((_, at) => stepShows(now, at, id)));
    const grid = page?.grids.find((one) => one.id === id);
    openAround(grid?.element);
    grid?.element.scrollIntoView({ block: "nearest" });
  }

  /** @param {Cell[]} [also]  cells to mark instead of the sources */
  function showSelection(also) {
    if (!lesson || !page) return;
    const cell = chain.at(-1) ?? null;
    const sources = also ?? (cell ? sourcesOf(lesson, cell) : []);
    const keys = new Set(sources.map(cellKey));
    for (const grid of page.grids) grid.showSelection(cell, keys);
    pipeline.showSelection(cell, sources);
  }

  /** @param {Cell} cell */
  function select(cell) {
    if (lesson && page && actions.asks(lesson.steps[step].id) && lesson.steps[step].question?.covers.includes(cell.of)) {
      actions.say(tr("Not shown yet: answer the question, or choose Show me."));
      return;
    }
    isAnswer = false;
    chain = [cell];
    explain();
  }

  /** @param {Cell | null} cell  appended to the chain; null: the chain stays */
  function follow(cell) {
    if (cell) {
      chain = [...chain, cell];
      if (cell.slice !== null) query = cell.slice;
    }
    if (lesson && page) page.update(lesson, query);
    drawPipeline();
    explain();
    if (cell) explanation.heading.focus({ preventScroll: true });
  }

  function back() {
    if (chain.length < 2) return;
    chain = chain.slice(0, -1);
    explain();
    explanation.heading.focus();
  }

  function explain() {
    if (!lesson) return;
    explanation.show(lesson, chain, step);
    placeExplanation();
    if (chain.length) explanation.element.scrollIntoView({ block: "nearest" });
    showSelection();
  }

  function close() {
    const [first] = chain, hasFocus = explanation.element.contains(document.activeElement);
    chain = [];
    explain();
    if (!hasFocus || !page || !first) return;
    // Back to what it explained.
    const answer = isAnswer ? page.element.querySelector(".lesson-answer") : null;
    if (answer) /** @type {HTMLElement} */ (answer).focus({ preventScroll: true });
    else page.grids.find((grid) => grid.id === first.of)?.reveal(first);
  }

  /** @param {Cell[] | null} cells  marked instead of the sources */
  function mark(cells) {
    showSelection(cells ?? undefined);
  }

  /** @param {Cell[]} cells */
  function highlight(cells) {
    isAnswer = false;
    chain = cells.slice(0, 1);
    const grid = page?.grids.find((one) => one.id === cells[0]?.of);
    openAround(grid?.element);
    explain();
    showSelection(cells);
    grid?.element.scrollIntoView({ block: "nearest" });
  }

  /** @param {number} next @param {number | null} [pick]  the token that is picked there; that of the step's question by default */
  function openStep(next, pick = null) {
    if (!lesson || next < 0 || next >= lesson.steps.length) return;
    step = next;
    query = pick ?? openingToken(lesson, step);
    app.store.set({ step: lesson.steps[step].id });
    steps.update(lesson, step);
    draw();
    explanation.show(lesson, chain, step);
    // Which of the two elements scrolls depends on the width.
    main.scrollTo({ top: 0 });
    element.scrollTo({ top: 0 });
    app.announce(tr("Step {step} of {length}: {title}", { step: step + 1, length: lesson.steps.length, title: lesson.steps[step].title }));
  }

  /** @param {number} next  and clears the chain of followed numbers */
  function goToStep(next) {
    if (!lesson || next < 0 || next >= lesson.steps.length) return;
    chain = [];
    openStep(next);
    page?.heading.focus({ preventScroll: true });
  }

  /** @param {number} next  shows the step that contains the followed number, and focuses its cell */
  function showCellInStep(next) {
    const cell = chain.at(-1);
    openStep(next, cell?.slice);
    if (cell) page?.grids.find((grid) => grid.id === cell.of)?.reveal(cell);
  }

  /** Steps as they are printed: with their answers, and unfolded. @param {number[]} which */
  function showPrinted(which) {
    if (!lesson || printed.length) return;
    const now = lesson;
    beforePrint = { focused: document.activeElement, top: element.scrollTop };
    printed = which.map((at) => makeStepPage(now, at, at === step ? query : openingToken(now, at), { ...actions, asks: () => false }));
    place.replaceChildren(...printed.map((one) => one.element));
    for (const part of place.querySelectorAll("details")) part.open = true;
  }

  function hidePrinted() {
    if (!printed.length || !page) return;
    for (const one of printed) one.dispose();
    printed = [];
    place.replaceChildren(page.element);
    if (beforePrint.focused instanceof HTMLElement) beforePrint.focused.focus({ preventScroll: true });
    element.scrollTop = beforePrint.top;
  }

  const printOne = () => { if (visible) showPrinted([step]); };

  function printAll() {
    showPrinted(lesson ? [...lesson.steps.keys()] : []);
    window.print();
    hidePrinted();
  }

  /** The address has changed: back, forward, or a link. @param {Readonly<State>} state */
  function followAddress(state) {
    if (!lesson) return;
    const at = lesson.steps.findIndex(({ id }) => id === state.step);
    if (Math.max(0, at) !== step) openStep(Math.max(0, at));
    if (state.example !== shownExample && !isReadOnly) {
      shownExample = state.example;
      change(readExample(state.example) ?? start, 0);
    }
  }

  /** @param {number} by */
  function nextQuery(by) {
    if (!lesson) return;
    const count = lesson.request.tokens.length;
    actions.choose((query + by + count) % count);
    app.announce(tr("Query {tokens}", { tokens: lesson.request.tokens[query] }));
  }

  const when = () => visible && !!lesson;
  const unsubscribe = app.store.subscribe(["step", "example"], followAddress);
  window.addEventListener("beforeprint", printOne);
  window.addEventListener("afterprint", hidePrinted);
  // What is wider than its place is scrolled by the keyboard too: where nothing in it takes the focus, it does.
  const watcher = new ResizeObserver(() => {
    for (const box of /** @type {NodeListOf<HTMLElement>} */ (place.querySelectorAll(".lesson-scroll"))) reachScrolled(box);
  });
  watcher.observe(place);
  const removeCommands = [
    app.commands.add({ id: "lesson.next", title: tr("Next step"), keys: ["n"], group: tr("Lesson"), when, run: () => goToStep(step + 1) }),
    app.commands.add({ id: "lesson.previous", title: tr("Previous step"), keys: ["p"], group: tr("Lesson"), when, run: () => goToStep(step - 1) }),
    app.commands.add({ id: "lesson.query", title: tr("Next query"), keys: ["q"], group: tr("Lesson"), when, run: () => nextQuery(1) }),
    app.commands.add({ id: "lesson.query.before", title: tr("Previous query"), keys: ["Shift+Q"],
      group: tr("Lesson"), when, run: () => nextQuery(-1) }),
    app.commands.add({ id: "lesson.back", title: tr("Back to the previous number"), keys: ["Backspace"],
      group: tr("Lesson"), when: () => when() && chain.length > 1, run: back }),
    app.commands.add({ id: "lesson.close", title: tr("Unmark the number"), keys: ["Escape"], group: tr("Lesson"),
      when: () => when() && chain.length > 0, run: close }),
    app.commands.add({ id: "lesson.reset", title: tr("Reset sentence and numbers"), keys: ["Shift+R"],
      group: tr("Lesson"), when: () => when() && !isReadOnly, run: reset }),
  ];

  return {
    element,
    show() {
      visible = true;
      if (!lesson) void ask();
    },
    hide() { visible = false; },
    dispose() {
      clearTimeout(timer);
      pendingRequest.abort();
      page?.dispose();
      watcher.disconnect();
      window.removeEventListener("beforeprint", printOne);
      window.removeEventListener("afterprint", hidePrinted);
      unsubscribe();
      for (const remove of removeCommands) remove();
    },
    scene: async () => lessonScene(lesson, step, query, element),
  };
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

/** What the reader has opened and folded stays so, where the same step is built again. @param {HTMLElement} before @param {HTMLElement} after */
function keepOpen(before, after) {
  const named = (/** @type {HTMLElement} */ page) => [...page.querySelectorAll("details")].map((one) => ({ one, name: one.firstElementChild?.textContent }));
  const known = named(before);
  for (const { one, name } of named(after)) one.open = known.find((each) => each.name === name)?.one.open ?? one.open;
}

/**
 * The lesson's question in an address; null where there is none. Python checks what is in it.
 * @param {string} text
 * @returns {Request | null}
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
 * @param {{write: (text: string) => void, reset: () => void, isReadOnly: boolean}} actions
 * @returns {{element: HTMLElement, update: (lesson: Lesson) => void}}
 */
function makeSentenceInput({ write, reset, isReadOnly }) {
  let shown = "";
  const input = el("input", { type: "text", class: "lesson-sentence", autocomplete: "off", spellcheck: "false", readonly: isReadOnly });
  const button = el("button",
    { type: "button", text: tr("Reset"), title: tr("Reset sentence and numbers (Shift+R)"), disabled: isReadOnly, on: { click: reset } });

  function read() {
    if (input.value !== shown) write(input.value);
  }
  input.addEventListener("change", read);
  input.addEventListener("keydown", (event) => { if (event.key === "Enter") { event.preventDefault(); read(); } });
  return {
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
  const before = el("button", { type: "button", class: "lesson-before", title: tr("Previous step (p)"), on: { click: () => go(at - 1) } });
  const after = el("button", { type: "button", class: "lesson-after", title: tr("Next step (n)"), on: { click: () => go(at + 1) } });

  /** @param {boolean} isOpen */
  function show(isOpen) {
    list.hidden = !isOpen;
    thread.setAttribute("aria-expanded", String(isOpen));
    if (isOpen) list.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest" });
  }

  const element = el("nav", { class: "lesson-nav", "aria-label": tr("Steps of the lesson") }, thread,
    el("div", { class: "lesson-tools" },
      el("label", { class: "lesson-control", title: tr("Each step asks a question before it shows the numbers that answer it") }, asks, ` ${tr("Predict first")}`),
      el("label", { class: "lesson-control", title: tr("Every circle with its number; without, those of the chosen word") }, numbers, ` ${tr("All numbers")}`),
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
