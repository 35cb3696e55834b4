// The parts of the text view, put together.
import { el } from "../dom.js";
import { segments } from "../shell/pieces.js";
import { makeFinder } from "./finder.js";
import { makeStrongest } from "./strongest.js";
import { makeTip } from "./tip.js";

/** @typedef {"row" | "column" | "both"} Direction */

/**
 * @param {object} told
 * @param {(direction: Direction) => void} told.turn
 * @param {(range: import("./ranges.js").Range | null) => void} told.found
 * @param {(axis: "query" | "key", item: number) => void} told.go
 */
export function textFrame({ turn, found, go }) {
  /** @type {{name: Direction, title: string, hint: string}[]} */
  const choices = [
    { name: "row", title: "attends to", hint: "shade every token by what the picked token gives it (a)" },
    { name: "column", title: "attended by", hint: "shade every token by what it gives the picked token (b)" },
    { name: "both", title: "both", hint: "both, in two colours (x)" },
  ];
  const direction = segments("What is shown of the picked token", choices, turn);
  const finder = makeFinder(found);
  const hint = el("span", { class: "uwaga-text-hint" });
  const progress = el("progress", { class: "uwaga-text-progress", max: 1, "aria-label": "Part of the text that is read", hidden: true });
  const places = el("div", { class: "uwaga-text-panes" });
  const spans = el("section", { class: "uwaga-text-spans", "aria-label": "Spans" });
  const row = makeStrongest((item) => go("key", item));
  const column = makeStrongest((item) => go("query", item));
  const side = el("aside", { class: "uwaga-text-side", "aria-label": "Strongest tokens and spans" }, row.element, column.element, spans);
  const element = el("div", { class: "uwaga-text" },
    el("div", { class: "uwaga-text-bar" }, direction.element, finder.element, hint, progress),
    el("div", { class: "uwaga-text-main" }, places, side));
  return { element, direction, finder, hint, progress, places, spans, row, column, tip: makeTip(element) };
}
