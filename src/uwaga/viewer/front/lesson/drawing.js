// The whole architecture as a drawing: its parts open steps, light up in the order of the data, and show what a model leaves out.

import { el, svgEl } from "../dom.js";
import { tr } from "../languages.js";
import { makePlayer } from "../player.js";
import { pressable, wordWidth } from "./arcs.js";
/** @import { Drawing, Part } from "./reply.js" */

/** Milliseconds that each part is lit. */
const pause = 600;
/** The font size of labels of a narrow page, in the drawing's units. */
const letterSize = 19;
const whole = { width: 550, height: 672 };

/**
 * @param {(step: string) => void} open
 * @param {boolean} isNarrow  whether labels are large, for a phone, and without the shapes
 * @returns {{element: HTMLElement, update: (drawing: Drawing) => void, ask: (asks: boolean) => void, dispose: () => void}}
 */
export function makeDrawing(open, isNarrow) {
  const picture = svgEl("svg", { class: `lesson-drawing${isNarrow ? " lesson-drawing-narrow" : ""}`, viewBox: `0 0 ${whole.width} ${whole.height}`, role: "group" });
  const models = el("div", { class: "lesson-control", role: "group", "aria-label": tr("Model") });
  const words = el("p", { class: "lesson-model-words" });
  const say = el("p", { class: "lesson-note", role: "status" });
  const play = el("button", { type: "button", class: "lesson-play", on: { click: () => (player.isOn() ? stop() : player.start()) } });
  /** @type {Drawing | null} */
  let shown = null;
  let model = 0, lit = -1, isAsking = false;
  const player = makePlayer(pause, (at) => {
    if (at >= kept().length) return stop();
    lit = at;
    light();
  });

  const kept = () => shown?.parts.filter(({ id }) => !shown?.models[model].without.includes(id)) ?? [];

  function stop() {
    player.stop();
    lit = -1;
    light();
  }

  function draw() {
    if (!shown) return;
    const { parts, arrows, bypasses, repeated } = shown, present = isAsking ? parts : kept();
    const has = (/** @type {string} */ id) => present.some((part) => part.id === id);
    const byId = new Map(parts.map((part) => [part.id, part]));
    picture.setAttribute("aria-label", shown.title);
    picture.replaceChildren(
      ...arrows.map(([from, to]) => arrowElement(/** @type {Part} */ (byId.get(from)), /** @type {Part} */ (byId.get(to)),
        !has(from) || !has(to))),
      ...bypasses.map(([from, to]) => bypassElement(/** @type {Part} */ (byId.get(from)), /** @type {Part} */ (byId.get(to)),
        !has(from) || !has(to))),
      ...repeated.map(([from, to]) => repeatedFrame(/** @type {Part} */ (byId.get(from)), /** @type {Part} */ (byId.get(to)), !has(from))),
      ...parts.map((part) => partElement(part, !has(part.id), isNarrow, open)));
    models.replaceChildren(...shown.models.map(({ name }, at) => el("button", { type: "button", text: name, "aria-pressed": String(at === model),
      on: { click: () => { model = at; stop(); draw(); /** @type {HTMLElement} */ (models.children[at]).focus(); } } })));
    words.textContent = isAsking ? "" : shown.models[model].text;
    models.hidden = isAsking;
    light();
  }

  /** Marks the part that the tokens are in; the elements stay, and with them the focus. */
  function light() {
    const part = kept()[lit];
    for (const box of picture.querySelectorAll(".lesson-part")) box.classList.toggle("lesson-lit", box.getAttribute("data-part") === part?.id);
    play.textContent = player.isOn() ? tr("Stop") : tr("Send tokens through");
    say.textContent = part ? `${part.label}: ${part.shape}` : "";
  }

  return {
    element: el("figure", { class: "lesson-architecture" }, models, words, el("div", { class: "lesson-control" }, play, say), picture),
    update(drawing) {
      shown = drawing;
      draw();
    },
    ask(asks) {
      if (asks === isAsking) return;
      isAsking = asks;
      draw();
    },
    dispose: player.stop,
  };
}

/**
 * A residual connection: around the sublayers, on the outer side.
 * @param {Part} from @param {Part} to @param {boolean} isLeftOut @returns {Element}
 */
function bypassElement(from, to, isLeftOut) {
  const isLeft = from.x < whole.width / 2, side = isLeft ? from.x : from.x + from.width, out = side + (isLeft ? -22 : 22);
  const y1 = from.y - 7, middle = from.x + from.width / 2, y2 = to.y + to.height / 2, end = isLeft ? to.x : to.x + to.width;
  const head = isLeft ? `M${end - 7} ${y2 - 4}L${end} ${y2}L${end - 7} ${y2 + 4}` : `M${end + 7} ${y2 - 4}L${end} ${y2}L${end + 7} ${y2 + 4}`;
  return svgEl("path", { class: `lesson-arrow lesson-bypass${isLeftOut ? " lesson-left-out" : ""}`,
    d: `M${middle} ${y1}L${out} ${y1}L${out} ${y2}L${end} ${y2}${head}` });
}

/** The frame of what is stacked N times. @param {Part} first @param {Part} last @param {boolean} isLeftOut @returns {Element} */
function repeatedFrame(first, last, isLeftOut) {
  const isLeft = first.x < whole.width / 2, x = first.x - (isLeft ? 32 : 12), width = first.width + 44;
  return svgEl("g", { class: isLeftOut ? "lesson-left-out" : "" },
    svgEl("rect", { class: "lesson-repeated", x, y: last.y - 10, width, height: first.y + first.height - last.y + 26, rx: 10 }),
    svgEl("text", { class: "lesson-times", x: isLeft ? x + 8 : x + width - 8, y: last.y - 16, "text-anchor": isLeft ? "start" : "end", text: "N \u00d7" }));
}

/**
 * @param {Part} part @param {boolean} isLeftOut @param {boolean} isNarrow @param {(step: string) => void} open @returns {Element}
 */
function partElement(part, isLeftOut, isNarrow, open) {
  const { x, y, width, height, label, shape, step } = part;
  return svgEl("g", {
    class: `lesson-part${isLeftOut ? " lesson-left-out" : ""}`, ...pressable(() => open(step)),
    "data-part": part.id, "aria-label": isLeftOut ? tr("{label}, {shape}, left out: open its step", { label, shape }) : tr("{label}, {shape}: open its step", { label, shape }),
  },
  svgEl("rect", { x, y, width, height, rx: 6 }),
  (isNarrow ? labelLines(label, width) : [label]).map((line, at, lines) => svgEl("text", { x: x + width / 2, y: y + (lines.length > 1 ? 17 + 19 * at : isNarrow ? 28 : 18), "text-anchor": "middle", text: `${line} ` })),
  isNarrow ? null : svgEl("text", { class: "lesson-shape", x: x + width / 2, y: y + 34, "text-anchor": "middle", text: shape }));
}

/** A label in one line or in two, of which the longer is as short as it can be. @param {string} label @param {number} width @returns {string[]} */
function labelLines(label, width) {
  if (wordWidth(label) * letterSize <= width - 8) return [label];
  const isSpaced = label.includes(" "), words = isSpaced ? label.split(" ") : [...label], between = isSpaced ? " " : "";
  const cuts = words.slice(1).map((_, at) => [words.slice(0, at + 1).join(between), words.slice(at + 1).join(between)]);
  const size = (/** @type {string[]} */ cut) => Math.max(...cut.map(wordWidth));
  return cuts.sort((a, b) => size(a) - size(b))[0] ?? [label];
}

/**
 * An arrow from the top of a part to the bottom of one above it, or across to its side.
 * @param {Part} from @param {Part} to @param {boolean} isLeftOut @returns {Element}
 */
function arrowElement(from, to, isLeftOut) {
  const across = from.x !== to.x;
  const [x1, y1] = across ? [from.x + from.width, from.y + from.height / 2] : [from.x + from.width / 2, from.y];
  const [x2, y2] = across ? [to.x, to.y + to.height / 2] : [to.x + to.width / 2, to.y + to.height];
  const head = across ? `M${x2 - 7} ${y2 - 4}L${x2} ${y2}L${x2 - 7} ${y2 + 4}` : `M${x2 - 4} ${y2 + 7}L${x2} ${y2}L${x2 + 4} ${y2 + 7}`;
  return svgEl("path", { class: `lesson-arrow${isLeftOut ? " lesson-left-out" : ""}`, d: `M${x1} ${y1}L${x2} ${y2}${head}` });
}
