// Words with arcs to the words that they look at: in a line, or on a narrow page in a column; and ribbons between two sentences.

import { el, svgEl, tokenText } from "../dom.js";
import { arcsOfWord, pathOfArc } from "../explore/arcs.js";
import { tr } from "../languages.js";
import { makePlayer } from "../player.js";
import { lessonNumber } from "./numbers.js";
import { matrixOf, valueAt } from "./reply.js";
/** @import { PictureActions, PictureBody, PictureGuess } from "./pictures.js" */
/** @import { Lesson, Matrix, Picture } from "./reply.js" */

/** Pixels that all arcs of a word have together, where they leave from it. */
const wholeBar = 44, tallest = 236;
/** Sizes of words in pixels; the gap between them and the height of a row of a column. */
const wordSize = { most: 50, least: 22, narrow: 25 }, wordGap = 0.5, rowHeight = 38;
/** Shares under it have no ribbon, and under the second no number on their arc. */
const leastShare = 0.004, leastLabelled = 0.08;

/** The props of an element of a drawing that is a button. @param {() => void} run @param {{[event: string]: (event: any) => void}} [on] */
export const pressable = (run, on) => ({ role: "button", tabindex: 0, on: { ...on, click: run, keydown(/** @type {KeyboardEvent} */ event) {
  if (event.key !== "Enter" && event.key !== " ") return;
  event.preventDefault();
  run();
} } });

/** About how wide a word is, in its font size. @param {string} word @returns {number} */
export const wordWidth = (word) => [...word].reduce((sum, letter) => sum + (letter > "\u2e80" ? 1 : "il.,;:'!|tfj".includes(letter) ? 0.36 : "mwMW".includes(letter) ? 0.92 : 0.6), 0);

/** @param {number[]} values @returns {number[]} as shares of their sum; hidden and negative ones are 0 */
export function sharesOf(values) {
  const sizes = values.map((value) => (Number.isFinite(value) ? Math.max(0, value) : 0)), sum = sizes.reduce((total, size) => total + size, 0) || 1;
  return sizes.map((size) => size / sum);
}

/**
 * The place of a ribbon's end at each word: the ribbons of the word that looks leave from one bar, in the order of the words, as wide
 * as their numbers.
 * @param {number[]} values
 * @param {number} most  pixels of the whole bar
 * @returns {{to: number, width: number, start: number}[]}  start: the middle of the ribbon's end on the bar, from the bar's middle
 */
export function ribbonSpans(values, most) {
  let at = -most / 2;
  return sharesOf(values).map((share, to) => {
    const width = share * most;
    at += width;
    return { to, width, start: at - width / 2 };
  });
}

/** Words with arcs from the one that looks to those it looks at; a word is chosen by a click. @param {PictureActions} actions @returns {PictureBody} */
export function makeArcs(actions) {
  const picture = svgEl("svg", { class: "lesson-arcs", role: "group" });
  const slider = el("input", { type: "range", min: 0, step: 1, class: "lesson-moment" });
  const label = el("span", { class: "lesson-moment-label" });
  const choice = el("label", { class: "lesson-control" }, slider, label);
  let slice = -1, asks = 0, hovered = -1, built = "";
  /** @type {ReturnType<typeof makeArcDrawing> | null} */
  let drawing = null;
  /** @type {[Lesson, Picture, number, boolean, PictureGuess | null] | null} */
  let last = null;
  slider.addEventListener("input", () => { slice = Number(slider.value); if (last) draw(...last); });

  /** @param {number} to */
  function press(to) {
    if (!last) return;
    const [lesson, shown, , covered, guess] = last, matrix = matrixOf(lesson, shown.matrices[0]);
    hovered = -1;
    if (guess) guess.say(to);
    else if (covered) return;
    else if (!shown.labels.length && isOfTokens(lesson, matrix)) actions.choose(to % matrix.rows.length);
    else { asks = to % matrix.rows.length; draw(...last); }
  }

  /** @param {number} to  -1: none */
  function hover(to) {
    hovered = to;
    if (last && !last[3]) draw(...last);
  }

  /** @param {Lesson} lesson @param {Picture} shown @param {number} query @param {boolean} covered @param {PictureGuess | null} guess */
  function draw(lesson, shown, query, covered, guess) {
    last = [lesson, shown, query, covered, guess];
    const matrix = matrixOf(lesson, shown.matrices[0]);
    const isSliced = shown.labels.length > 0; // words of another sentence, with a slider of their own
    if (isSliced && slice < 0) [slice, asks] = shown.sizes[0];
    const row = guess ? guess.row : hovered >= 0 ? hovered % matrix.rows.length : !isSliced && isOfTokens(lesson, matrix) ? query : asks;
    const from = Math.min(row, matrix.rows.length - 1);
    choice.hidden = !isSliced || covered;
    slider.max = String(shown.labels.length - 1);
    slider.value = String(slice);
    slider.setAttribute("aria-label", shown.title);
    label.textContent = isSliced ? shown.labels[slice] : "";
    const words = matrix.columns.map(tokenText);
    const values = words.map((_, to) => valueAt(lesson, { of: matrix.id, row: from, column: to, slice: isSliced ? slice : null }));
    const { room, isNarrow } = actions.place();
    const key = JSON.stringify([words, isNarrow, Math.round(room / 40)]);
    if (key !== built || !drawing) {
      drawing = makeArcDrawing(words, room, isNarrow, { press, hover });
      built = key;
      picture.replaceChildren(...drawing.elements);
      picture.setAttribute("viewBox", `0 0 ${drawing.width} ${drawing.height}`);
      picture.setAttribute("width", String(drawing.width));
      picture.setAttribute("height", String(drawing.height));
    }
    picture.setAttribute("aria-label", `${shown.title}: ${words[from]}`);
    drawing.update(values, from, { covered, digits: matrix.digits, isShare: matrix.shade === "share",
      name: (word) => (guess ? tr("Guess {token}", { token: word }) : tr("{token} looks", { token: word })) });
  }
  return { element: el("div", { class: "lesson-arcs-stage" }, choice, el("div", { class: "lesson-scroll lesson-wide" }, picture)), update: draw };
}

/** Whether the rows are the sentence's tokens. @param {Lesson} lesson @param {Matrix} matrix @returns {boolean} */
const isOfTokens = (lesson, matrix) => matrix.rows.length === lesson.request.tokens.length && matrix.rows.every((name, at) => name === lesson.request.tokens[at]);

/**
 * The elements of words and arcs. They stay while the word that looks changes, so that the arcs move to it.
 * @param {string[]} words
 * @param {number} room  pixels across
 * @param {boolean} isColumn @param {{press: (to: number) => void, hover: (to: number) => void}} events
 */
function makeArcDrawing(words, room, isColumn, { press, hover }) {
  const ems = words.map(wordWidth);
  const whole = ems.reduce((sum, one) => sum + one, 0) + wordGap * (words.length + 1);
  const size = isColumn ? wordSize.narrow : Math.max(wordSize.least, Math.min(wordSize.most, room / whole));
  const most = isColumn ? 34 : wholeBar;
  let at = wordGap * size;
  const places = words.map((_, to) => {
    if (isColumn) return (to + 0.5) * rowHeight;
    const middle = at + ems[to] * size / 2;
    at += (ems[to] + wordGap) * size;
    return middle;
  });
  const base = isColumn ? Math.max(...ems) * size + 74 : Math.min(tallest, 48 + 0.3 * (places[places.length - 1] - places[0]));
  const width = isColumn ? Math.max(base + 96, Math.min(room, base + 220)) : Math.max(at, 60), height = isColumn ? words.length * rowHeight + 6 : base + size + 36;
  const ids = words.map(() => `lesson-arc-${++drawingCount}`);
  const gradients = ids.map((id) => svgEl("linearGradient", { id, gradientUnits: "userSpaceOnUse" },
    svgEl("stop", { offset: 0, class: "lesson-looks" }), svgEl("stop", { offset: 1, class: "lesson-looked-at" })));
  const paths = ids.map((id) => svgEl("path", { class: "lesson-arc", stroke: `url(#${id})` }));
  const labels = words.map(() => svgEl("text", { class: "lesson-arc-label", "text-anchor": "middle" }));
  const bar = svgEl("rect", { class: "lesson-bar" }), stub = svgEl("rect", { class: "lesson-stub", rx: 4 });
  const names = words.map((word, to) => svgEl("text", { class: "lesson-word", style: { "font-size": `${size.toFixed(1)}px` }, text: word,
    ...pressable(() => press(to), { pointerenter: (event) => { if (event.pointerType === "mouse") hover(to); }, pointerleave: () => hover(-1) }),
    ...(isColumn ? { x: 4, y: places[to] + size * 0.32 } : { x: places[to], y: base + size * 0.92, "text-anchor": "middle" }) }));
  const numbers = words.map((_, to) => svgEl("text", { class: "lesson-share", ...(isColumn ? { x: base - 14, y: places[to] + 5, "text-anchor": "end" }
    : { x: places[to], y: base + size + 26, "text-anchor": "middle" }) }));

  const arcRoom = { height: isColumn ? width - base - 28 : base - 24, scale: most, far: places[places.length - 1] - places[0] };
  /** A point as text. @param {number} along @param {number} above */
  const point = (along, above) => (isColumn ? [base + above, along] : [along, base - above]).map((number) => number.toFixed(1)).join(" ");

  /**
   * @param {number[]} values @param {number} from
   * @param {{covered: boolean, digits: number, isShare: boolean, name: (word: string) => string}} how
   */
  function update(values, from, { covered, digits, isShare, name }) {
    const middle = places[from], arcs = covered ? [] : arcsOfWord(sharesOf(values), from, places, arcRoom), selfArc = arcs.find(({ isSelf }) => isSelf);
    setAll(bar, isColumn ? { x: base - 3, y: middle - most / 2, width: 3, height: most } : { x: middle - most / 2, y: base - 3, width: most, height: 3 });
    const wide = selfArc?.width ?? 0, start = (selfArc?.from ?? middle) - wide / 2;
    setAll(stub, isColumn ? { x: base, y: start, width: wide > 0.5 ? 22 : 0, height: wide } : { x: start, y: base - 24, width: wide, height: wide > 0.5 ? 22 : 0 });
    words.forEach((word, to) => {
      // A word without an arc keeps its path, from which the next one grows.
      const arc = arcs.find(({ key, isSelf }) => key === to && !isSelf), drawn = arc ?? { key: to, from: middle, to: middle, rise: 0, width: 0, weight: 0, isSelf: false };
      const path = pathOfArc(drawn, point);
      paths[to].setAttribute("d", path);
      /** @type {SVGElement} */ (paths[to]).style.setProperty("d", `path("${path}")`);
      /** @type {SVGElement} */ (paths[to]).style.strokeWidth = drawn.width.toFixed(2);
      setAll(gradients[to], isColumn ? { x1: 0, x2: 0, y1: middle, y2: places[to] } : { y1: 0, y2: 0, x1: middle, x2: places[to] });
      const isLabelled = arc && !isColumn && arc.weight > leastLabelled && Math.abs(places[to] - middle) > 70;
      labels[to].textContent = isLabelled ? shareText(values[to], digits, isShare) : "";
      setAll(labels[to], { x: (drawn.from + drawn.to) / 2, y: base - drawn.rise + 20 + drawn.width / 2 });
      names[to].setAttribute("class", `lesson-word${to === from ? " lesson-word-asks" : ""}`);
      names[to].setAttribute("aria-label", name(word));
      names[to].setAttribute("aria-pressed", String(to === from));
      numbers[to].textContent = covered ? "?" : shareText(values[to], digits, isShare);
    });
  }
  return { width, height, update, elements: [svgEl("defs", {}, gradients), ...paths, bar, stub, ...names, ...numbers, ...labels] };
}
let drawingCount = 0;

/** A share under half of a hundredth has its hairline alone. @param {number} value @param {number} digits @param {boolean} isShare @returns {string} */
const shareText = (value, digits, isShare) => (isShare && value === 0 ? "0" : isShare && value < 0.005 ? "" : lessonNumber(value, digits));

/** @param {Element} element @param {{[name: string]: number}} attributes */
function setAll(element, attributes) {
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value.toFixed(1));
}

/** Milliseconds that a row is alone before the next. */
const rowPause = 700, ribbonBar = 26;

/** All weights between two sentences, each as wide as it is; a word of the first is picked. @param {PictureActions} actions @returns {PictureBody} */
export function makeRibbonPicture(actions) {
  const picture = svgEl("svg", { class: "lesson-ribbons", role: "group" });
  const caption = el("p", { class: "lesson-film-said", role: "status" });
  const watch = el("button", { type: "button", class: "lesson-watch", on: { click: () => (player.isOn() ? stop() : start()) } });
  const control = el("div", { class: "lesson-control" }, watch, caption);
  let picked = -1, until = -1;
  /** @type {[Lesson, Picture, number, boolean, PictureGuess | null] | null} */
  let last = null;

  const rowsOf = () => (last ? matrixOf(last[0], last[1].matrices[0]).rows.length : 0);

  const player = makePlayer(rowPause, (at) => {
    if (at >= rowsOf()) return stop();
    until = picked = at;
    if (last) draw(...last);
  });

  function stop() {
    player.stop();
    until = -1;
    if (last) draw(...last);
  }

  function start() {
    if (last && !last[3]) player.start();
  }

  /** @param {Lesson} lesson @param {Picture} shown @param {number} query @param {boolean} covered @param {PictureGuess | null} guess */
  function draw(lesson, shown, query, covered, guess) {
    last = [lesson, shown, query, covered, guess];
    const matrix = matrixOf(lesson, shown.matrices[0]), rows = matrix.rows.map(plainName), columns = matrix.columns.map(plainName);
    const { room, isNarrow } = actions.place();
    const most = Math.max(rows.length, columns.length);
    const size = isNarrow ? 22 : Math.max(18, Math.min(34, room / most / 3.2));
    const slot = isNarrow ? rowHeight : Math.min(150, room / most);
    const side = isNarrow ? Math.max(...rows.map(wordWidth)) * size + 16 : size + 12, deep = isNarrow ? 120 : 130;
    const far = side + deep;
    const width = isNarrow ? far + Math.max(...columns.map(wordWidth)) * size + 60 : most * slot + 8;
    const height = isNarrow ? most * slot + 6 : far + size + 34;
    const middle = (/** @type {number} */ at, /** @type {number} */ count) => (at + 0.5 + (most - count) / 2) * slot + 4;
    const row = guess ? guess.row : picked;
    if (row >= rows.length) picked = -1;
    const value = (/** @type {number} */ from, /** @type {number} */ to) => valueAt(lesson, { of: matrix.id, row: from, column: to, slice: null });
    const isDrawn = (/** @type {number} */ from) => !covered && (until < 0 || from <= until);
    control.hidden = covered || !shown.labels.length;
    watch.textContent = player.isOn() ? tr("Stop") : tr("Watch it write");
    caption.textContent = shown.labels.length && until >= 0 ? shown.labels.slice(0, until + 1).join(" ") : shown.labels.join(" ");
    picture.setAttribute("viewBox", `0 0 ${width} ${height}`);
    picture.setAttribute("width", String(width));
    picture.setAttribute("height", String(height));
    picture.setAttribute("aria-label", shown.title);
    const word = (/** @type {string} */ name, /** @type {string} */ kind, /** @type {number} */ at, /** @type {boolean} */ isFirst, /** @type {{[name: string]: any}} */ props) => {
      const [x, y] = isNarrow ? [isFirst ? side - 10 : far + 10, at + size * 0.32] : [at, isFirst ? size : far + size * 1.05];
      return svgEl("text", { class: `lesson-word ${kind}`, style: { "font-size": `${size}px` }, x, y, "text-anchor": isNarrow ? (isFirst ? "end" : "start") : "middle", text: name, ...props });
    };
    picture.replaceChildren(
      svgEl("defs", {}, svgEl("linearGradient", { id: "lesson-ribbon", ...(isNarrow ? { x1: side, x2: far } : { y1: side, y2: far, x1: 0, x2: 0 }), gradientUnits: "userSpaceOnUse" },
        svgEl("stop", { offset: 0, class: "lesson-looks" }), svgEl("stop", { offset: 1, class: "lesson-looked-at" }))),
      ...rows.flatMap((_, from) => (!isDrawn(from) ? [] : ribbonSpans(columns.map((__, to) => value(from, to)), ribbonBar).flatMap(({ to, width: wide, start: begin }) => {
        if (wide < leastShare * ribbonBar) return [];
        const a = middle(from, rows.length) + begin, b = middle(to, columns.length), half = (side + far) / 2;
        return [svgEl("path", { class: `lesson-ribbon${row >= 0 && row !== from ? " lesson-faded" : ""}`, stroke: "url(#lesson-ribbon)", "stroke-width": Math.max(0.5, wide).toFixed(1),
          // A straight gradient needs a path that is not.
          d: isNarrow ? `M${side} ${a}C${half} ${a} ${half} ${b + 0.01} ${far} ${b + 0.01}` : `M${a} ${side}C${a} ${half} ${b + 0.01} ${half} ${b + 0.01} ${far}` })];
      }))),
      ...rows.map((name, from) => word(name, from === row ? "lesson-word-asks" : "", middle(from, rows.length), true, { "aria-label": tr("{token} looks", { token: name }), ...pressable(() => {
        if (covered || player.isOn()) return;
        picked = picked === from ? -1 : from;
        if (last) draw(...last);
        /** @type {SVGElement | undefined} */ (picture.querySelectorAll(".lesson-word")[from])?.focus();
      }) })),
      ...columns.map((name, to) => word(name, "", middle(to, columns.length), false, guess ? { "aria-label": tr("Guess {token}", { token: name }), ...pressable(() => guess.say(to)) } : {})),
      ...(row < 0 && !covered ? [] : columns.map((_, to) => {
        const [x, y] = isNarrow ? [width, middle(to, columns.length) + 5] : [middle(to, columns.length), far + size * 1.05 + 24];
        return svgEl("text", { class: "lesson-share", x, y, "text-anchor": isNarrow ? "end" : "middle", text: covered ? "?" : shareText(value(row, to), matrix.digits, true) });
      })));
  }
  return { element: el("div", {}, el("div", { class: "lesson-scroll" }, picture), control), update: draw, dispose: player.stop };
}

/** A word without the number of its place. @param {string} name @returns {string} */
const plainName = (name) => tokenText(name.replace(/^\d+: (?=.)/, ""));
