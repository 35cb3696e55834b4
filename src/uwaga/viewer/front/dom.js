// HTML and SVG elements without markup: text is always text.

/** @import { Items } from "./types.js" */

/** @typedef {Node | string | number | null | undefined | false} DomChild */

const domSvg = "http://www.w3.org/2000/svg";
const briefLetters = 60;
const domInvisible = /[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Cs}\p{Co}\p{Cn}\u115f\u1160\u3164\uffa0\u034f\u17b4\u17b5\ufe00-\ufe0f]/u;

/**
 * An HTML element. Props: class, text, on: {click: fn}, style: {name: value}, any attribute; true: present, false or null: absent.
 * @template {keyof HTMLElementTagNameMap} Tag
 * @param {Tag} tag
 * @param {{[name: string]: any}} [props]
 * @param {...(DomChild | DomChild[])} children
 * @returns {HTMLElementTagNameMap[Tag]}
 */
export function el(tag, props, ...children) {
  return domFill(document.createElement(tag), props ?? {}, children);
}

/**
 * An SVG element, with the same props.
 * @template {keyof SVGElementTagNameMap} Tag
 * @param {Tag} tag
 * @param {{[name: string]: any}} [props]
 * @param {...(DomChild | DomChild[])} children
 * @returns {SVGElementTagNameMap[Tag]}
 */
export function svgEl(tag, props, ...children) {
  return domFill(/** @type {any} */ (document.createElementNS(domSvg, tag)), props ?? {}, children);
}

/**
 * @template {Element} Made
 * @param {Made} element
 * @param {{[name: string]: any}} props
 * @param {(DomChild | DomChild[])[]} children
 * @returns {Made}
 */
function domFill(element, props, children) {
  for (const [name, value] of Object.entries(props)) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "on") {
      for (const [event, listener] of Object.entries(value)) element.addEventListener(event, /** @type {any} */ (listener));
    } else if (name === "style") {
      for (const [property, part] of Object.entries(value)) {
        /** @type {any} */ (element).style.setProperty(property, String(part));
      }
    } else if (name === "text") element.textContent = String(value);
    else if (/^on/i.test(name)) throw new Error(`el: ${name}: put event listeners into on: {}`);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat()) {
    if (child === undefined || child === null || child === false) continue;
    element.append(typeof child === "number" ? String(child) : child);
  }
  return element;
}

/** @returns {string} an id, or the beginning of several, that no other element has */
export const uniqueName = () => `uwaga-${Math.random().toString(36).slice(2)}`;

/** @param {KeyboardEvent} event @param {boolean} [orShift] @returns {boolean} whether a key is a shortcut of the browser or of the page */
export const isModified = (event, orShift = false) => event.ctrlKey || event.altKey || event.metaKey || (orShift && event.shiftKey);

/** Opens what an element is folded in. @param {Element | null | undefined} element */
export function openAround(element) {
  for (let at = element?.parentElement?.closest("details"); at; at = at.parentElement?.closest("details")) at.open = true;
}

/**
 * A token's string with invisible characters made visible: a newline and a tab as arrows, which fonts have where they lack the
 * pictures of control characters; other invisible ones and bidirectional controls as <U+202E>, the empty string as the empty-set sign, leading and trailing spaces as open boxes.
 * @param {string} token
 * @returns {string}
 */
export function tokenText(token) {
  if (token === "") return "\u2205";
  let shown = "";
  for (const letter of token) shown += visibleCharacter(letter);
  return shown.replace(/^ +| +$/g, (spaces) => "\u2423".repeat(spaces.length));
}

/** @param {Items} items @param {number} item @returns {string} a word in one line; a special token without its brackets */
export function wordText({ labels, specials }, item) {
  return specials.has(item) ? briefText(labels[item]).replace(/^\[|\]$/gu, "") : briefText(labels[item]);
}

/** @param {Items} items @param {number} item @returns {string} the class of a word that the model does not know */
export const unknownClass = (items, item) => (items.unknown?.has(item) ? "uwaga-unknown" : "");

/** @param {Event} event @returns {number} the item of the word under it; -1: none */
export function itemOf({ target }) {
  const word = target instanceof Element ? target.closest("[data-item]") : null;
  return word instanceof HTMLElement ? Number(word.dataset.item) : -1;
}

/**
 * What a mouse points at by moving (`pointermove`): a word that comes to lie under one at rest, as pages change, is not pointed at.
 * @param {(item: number) => void} point  -1: no word @returns {(event: PointerEvent) => void}
 */
export const movingMouse = (point) => (event) => { if (event.pointerType === "mouse") point(itemOf(event)); };

/**
 * The colours of a link, from the word that looks to the one that is looked at.
 * @param {string} id @param {{[name: string]: any}} [ends]  x1, x2, y1, y2
 */
export function linkGradient(id, ends) {
  return svgEl("linearGradient", { id, gradientUnits: "userSpaceOnUse", ...ends }, ["asks", "between", "asked"].map((name, at) => svgEl("stop", { offset: at / 2, class: `uwaga-stop-${name}` })));
}

/** The filled part of a bar. @param {string} hue @param {number} percent */
export function barFill(hue, percent) {
  return el("i", { class: "uwaga-bar-fill", "data-hue": hue, style: { width: `${percent}%` } });
}

/**
 * The beginning of a token that is a passage, in one line; a shorter one as it is.
 * @param {string} token
 * @returns {string}
 */
export function briefText(token) {
  const line = token.trim() ? token.replace(/\s*\n\s*/g, " ") : token;
  return tokenText(line.length <= briefLetters ? line : `${line.slice(0, briefLetters).trimEnd()}\u2026`);
}

/**
 * @param {string} letter  one code point
 * @returns {string}
 */
function visibleCharacter(letter) {
  const code = /** @type {number} */ (letter.codePointAt(0));
  if (letter === "\n") return "\u21b5";
  if (letter === "\t") return "\u21e5";
  if (code >= 0x20 && code !== 0x7f && code !== 0xa0 && !domInvisible.test(letter)) return letter;
  return `<U+${code.toString(16).toUpperCase().padStart(4, "0")}>`;
}

/**
 * A token as a <bdi> element: its text direction does not affect its neighbours.
 * @param {string} token
 * @returns {HTMLElement}
 */
export function tokenElement(token) {
  return el("bdi", { class: "uwaga-token", text: tokenText(token) });
}

/**
 * @param {string[]} labels
 * @returns {boolean} whether most letters are of a right-to-left script
 */
export function isRightToLeft(labels) {
  let [right, left] = [0, 0];
  for (let i = 0; i < labels.length && right + left < 2000; i++) {
    right += (labels[i].match(/[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]/g) ?? []).length;
    left += (labels[i].match(/[A-Za-z\u00c0-\u058f\u0900-\u1fff\u3040-\u9fff\uac00-\ud7a3]/g) ?? []).length;
  }
  return right > left;
}
