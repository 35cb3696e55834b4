import assert from "node:assert/strict";
import { test } from "node:test";
import { keyName, makeCommands } from "../commands.js";
import { keyTitle } from "../commands.js";

/** @param {string} key */
function press(key, more = {}) {
  const event = { key, defaultPrevented: false, stopPropagation() {},
    preventDefault() { this.defaultPrevented = true; }, target: null, ...more };
  return /** @type {any} */ (event);
}
const target = (tagName, type, role) => ({ tagName, getAttribute: (name) => ({ type, role })[name] ?? null });

function counting(keys, more = {}, shortcuts = () => true) {
  const commands = makeCommands(shortcuts), ran = [];
  commands.add({ id: "one", title: "One", keys, group: "Test", run: () => ran.push("one"), ...more });
  return { commands, ran };
}

test("keys are matched by name", () => {
  assert.equal(keyName(press("H", { shiftKey: true })), "shift+h");
  assert.equal(keyName(press("?", { shiftKey: true })), "?");
  assert.equal(keyName(press("ArrowUp", { shiftKey: true, ctrlKey: true })), "ctrl+shift+arrowup");
  assert.equal(keyName(press(" ")), "space");
  assert.equal(keyName(press("Shift", { shiftKey: true })), "");
});

test("a command runs on its key and stops the event", () => {
  const { commands, ran } = counting(["h", "Shift+ArrowUp"]), event = press("h");
  assert.equal(commands.handle(event), true);
  assert.equal(event.defaultPrevented, true);
  assert.equal(commands.handle(press("ArrowUp", { shiftKey: true })), true);
  assert.equal(commands.handle(press("ArrowUp")), false);
  assert.deepEqual(ran, ["one", "one"]);
});

test("keys of the browser and of screen readers are not handled", () => {
  const { commands } = counting(["h"]);
  for (const more of [{ ctrlKey: true }, { altKey: true }, { metaKey: true }, { isComposing: true }, { defaultPrevented: true }]) {
    assert.equal(commands.handle(press("h", more)), false);
  }
});

test("no command but Escape runs while a text field or a list has the focus", () => {
  const { commands, ran } = counting(["h", "Escape"]);
  for (const at of [target("INPUT", "text"), target("INPUT", "number"), target("TEXTAREA"),
    target("SELECT"), { ...target("DIV"), isContentEditable: true }]) {
    assert.equal(commands.handle(press("h", { target: at })), false);
  }
  assert.equal(commands.handle(press("Escape", { target: target("INPUT", "text") })), true);
  assert.equal(commands.handle(press("h", { target: target("INPUT", "checkbox") })), true);
  assert.equal(ran.length, 2);
});

test("buttons handle Enter and space themselves, sliders the arrow keys", () => {
  const { commands } = counting(["Enter", "Space", "ArrowLeft"]);
  assert.equal(commands.handle(press("Enter", { target: target("BUTTON") })), false);
  assert.equal(commands.handle(press(" ", { target: target("DIV", "", "tab") })), false);
  assert.equal(commands.handle(press("ArrowLeft", { target: target("INPUT", "range") })), false);
  assert.equal(commands.handle(press("ArrowLeft", { target: target("BUTTON") })), true);
});

test("of two commands with one key, the one with a true `when` runs", () => {
  const { commands, ran } = counting(["h"]);
  let may = true;
  commands.add({ id: "two", title: "Two", keys: ["h"], group: "Test", when: () => may, run: () => ran.push("two") });
  commands.handle(press("h"));
  may = false;
  commands.handle(press("h"));
  assert.deepEqual(ran, ["two", "one"]);
  assert.equal(commands.run("two"), false);
});

test("single-letter keys can be turned off; help, arrows and Escape still work", () => {
  const { commands, ran } = counting(["h", "Shift+H", "?", "ArrowUp", "Escape"], {}, () => false);
  assert.equal(commands.handle(press("h")), false);
  assert.equal(commands.handle(press("H", { shiftKey: true })), false);
  for (const key of ["?", "ArrowUp", "Escape"]) assert.equal(commands.handle(press(key)), true);
  assert.equal(ran.length, 3);
});

test("a command name is unique, and available again after removal", () => {
  const commands = makeCommands(), command = { id: "one", title: "", keys: [], group: "", run() {} };
  const remove = commands.add(command);
  assert.throws(() => commands.add(command), { message: "commands: one already exists" });
  remove();
  commands.add(command);
  assert.deepEqual(commands.list().map(({ id }) => id), ["one"]);
});

test("key names as the help shows them", () => {
  assert.deepEqual(["Shift+ArrowUp", "h", "+", "Escape", "Ctrl++"].map(keyTitle), ["Shift+\u2191", "H", "+", "Esc", "Ctrl++"]);
});
