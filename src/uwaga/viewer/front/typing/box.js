// The text box: Enter runs what is typed. A page without a program behind it shows the command in its place.

import { menuButton } from "../controls.js";
import { el } from "../dom.js";
import { countText } from "../format.js";
import { tr } from "../languages.js";
import { completeRequest } from "./session.js";
/** @import { App, RunRequest, Typing } from "../types.js" */

const boxNames = { text: tr("Text"), second: tr("Second text"), target: tr("Text of the decoder") };
const boxHints = { text: tr("Type a text"), second: tr("A second text, shown beside the first"), target: tr("What the decoder reads; empty: the model writes") };

/**
 * @param {App} app
 * @returns {{element: HTMLElement | null, button: HTMLElement | null, dispose: () => void}}  null: no text can be run; the button opens the box
 */
export function makeTextBox(app) {
  const { typing } = app.about;
  if (!typing) return { element: null, button: null, dispose() {} };
  if (app.host.mode === "saved") return { element: savedCommand(app, typing), button: null, dispose() {} };
  const session = app.session, typed = completeRequest(app.about.typed ?? {});
  const boxes = /** @type {("text" | "second" | "target")[]} */ (typing.boxes);
  const fields = Object.fromEntries(boxes.map((name) => [name, makeField(name, typed[name] ?? "")]));
  const note = el("p", { class: "uwaga-typing-note", role: "status" }), ways = el("div", { class: "uwaga-typing-actions", hidden: true });
  const run = el("button", { type: "submit", class: "uwaga-run", text: tr("Run"),
    title: tr("Run {model} on this text (Enter): up to {maxtokens} tokens and {maxseconds} seconds", { model: typing.model, maxtokens: countText(typing.max_tokens), maxseconds: typing.max_seconds }) });
  const stop = el("button", { type: "button", text: tr("Stop"), on: { click: () => session.stop() } });
  const more = el("button", { type: "button", text: tr("Second text"), title: boxHints.second, on: { click() {
    const hide = !fields.second.hidden;
    fields.second.hidden = hide;
    if (hide) inputOf(fields.second).value = "";
    more.setAttribute("aria-pressed", String(!hide));
    if (!hide) inputOf(fields.second).focus();
  } } });
  if (fields.second) fields.second.hidden = !typed.second || Boolean(app.about.python);
  more.setAttribute("aria-pressed", String(!(fields.second?.hidden ?? true)));
  const list = el("ul", { class: "uwaga-typing-list" });
  const texts = menuButton(tr("Texts"), list, drawTexts);
  const button = el("button", { type: "button", class: "uwaga-pill", text: tr("Write a text"), "aria-expanded": "false", on: { click: () => open(element.hidden) } });
  const element = el("form", { class: "uwaga-typing", "aria-label": tr("Text"), hidden: true, on: { submit, keydown } },
    ...boxes.filter((name) => name !== "second").map((name) => fields[name]), fields.second ?? null,
    el("div", { class: "uwaga-typing-actions" }, run, stop, texts.element, boxes.includes("second") && more), note, ways);

  /** @param {"text" | "second" | "target"} name @param {string} value */
  function makeField(name, value) {
    const input = el("textarea", { rows: 1, spellcheck: "false", "aria-label": boxNames[name], placeholder: boxHints[name],
      maxlength: typing?.max_characters ?? 0, dir: "auto", on: { input: () => fit(input) } });
    input.value = value;
    return el("div", { class: "uwaga-typing-field" }, boxes.length > 2 || name === "second" ? el("span", { class: "uwaga-label", "aria-hidden": "true",
      text: boxNames[name] }) : null, input);
  }

  /** @param {boolean} on */
  function open(on) {
    element.hidden = !on;
    button.setAttribute("aria-expanded", String(on));
    if (!on) return;
    Object.values(fields).forEach((field) => fit(inputOf(field)));
    inputOf(fields.text).focus();
  }

  /** One to four lines. @param {HTMLTextAreaElement} input */
  function fit(input) {
    input.style.height = "auto";
    if (input.scrollHeight) input.style.height = `${Math.min(input.scrollHeight, 4 * 26 + 12) + 2}px`;
  }

  /** @param {Event} [event] */
  function submit(event) {
    event?.preventDefault();
    const value = (/** @type {string} */ name) => (fields[name] && !fields[name].hidden ? inputOf(fields[name]).value : "");
    const next = completeRequest({ text: value("text"), second: value("second"), target: value("target") });
    if (!next.text.trim()) {
      note.textContent = tr("There is no text yet.");
      inputOf(fields.text).focus();
      return;
    }
    void session.run(next);
  }

  /** @param {KeyboardEvent} event */
  function keydown(event) {
    if (event.isComposing || !(event.target instanceof HTMLTextAreaElement)) return;
    if (event.key === "Enter" && !event.shiftKey && !event.altKey) {
      event.preventDefault();
      event.stopPropagation();
      submit();
    }
    if (event.key === "Escape") {
      event.stopPropagation();
      if (session.isRunning()) return session.stop();
      open(false);
      button.focus();
    }
  }

  function drawTexts() {
    const item = (/** @type {RunRequest} */ one) => el("li", {}, el("button", { type: "button", on: { click() {
      texts.open(false);
      void session.run(one);
    } } }, el("bdi", { text: shortText(one.text) }), one.second ? el("small", {}, " | ", el("bdi", { text: shortText(one.second) })) : null));
    const examples = (typing?.examples ?? []).map((text) => completeRequest({ text }));
    list.replaceChildren(...(session.recent.length ? [el("li", { class: "uwaga-label", text: tr("Run before") }), ...session.recent.map(item)] : []),
      el("li", { class: "uwaga-label", text: tr("Examples") }), ...examples.map(item));
  }

  function draw() {
    const on = session.isRunning();
    run.disabled = on;
    stop.hidden = !on;
    element.toggleAttribute("data-running", on);
    note.toggleAttribute("data-wrong", Boolean(session.error()) && !on);
    note.textContent = on ? tr("computing…") : session.error();
    const long = on ? null : session.tooLong();
    ways.replaceChildren(...(long ? [el("button", { type: "button", text: tr("Read the first {count} tokens", { count: countText(long.most) }),
      on: { click: () => void session.run(completeRequest({ ...long.typed, long: "first" })) } })] : []));
    ways.hidden = !long;
    // What went wrong is said where the text was written, also of one that was chosen elsewhere.
    if (session.error() && !on && element.hidden) open(true);
  }
  const unsubscribe = session.subscribe(draw);
  const removeCommands = [
    app.commands.add({ id: "typing.write", title: tr("Write a text"), keys: [], group: tr("Text and changes"), run: () => open(true) }),
    app.commands.add({ id: "typing.focus", title: tr("Type a text"), keys: ["/"], group: tr("Text and changes"), run() {
      app.store.set({ tab: "explore" });
      open(true);
      inputOf(fields.text).select();
    } })];
  draw();
  return {
    element, button,
    dispose() {
      unsubscribe();
      removeCommands.forEach((remove) => remove());
    },
  };
}

/** @param {HTMLElement} field @returns {HTMLTextAreaElement} */
function inputOf(field) {
  return /** @type {HTMLTextAreaElement} */ (field.querySelector("textarea"));
}

/** @param {string} text @returns {string} */
function shortText(text) {
  const line = text.replace(/\s+/g, " ").trim();
  return line.length > 70 ? `${line.slice(0, 69)}\u2026` : line;
}

/** @param {App} app @param {Typing} typing */
function savedCommand(app, { command }) {
  const text = app.about.typed?.text ?? "";
  const shown = command.replace("TEXT", text.length <= 60 && !/["\\$`!\n]/.test(text) && text ? `"${text}"` : '"another text"');
  return el("p", { class: "uwaga-typing-command" }, el("span", { text: `${tr("Try another text:")} ` }), el("code", { text: shown }), " ", copyButton(app, tr("Copy"), () => shown));
}

/** @param {App} app @param {string} title @param {() => string} text */
export function copyButton(app, title, text) {
  return el("button", { type: "button", text: title, on: { async click() {
    try {
      await navigator.clipboard.writeText(text());
      app.announce(tr("Copied"));
      app.status(tr("Copied"));
    } catch {
      // A page that is a file may not use the clipboard.
      app.fail(tr("This browser does not let the page copy: {text}", { text: text() }));
    }
  } } });
}
