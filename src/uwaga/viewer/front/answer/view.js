// The answer of a soft database: the question, the passages in full in order of their shares, and what is left for the others.

import { el } from "../dom.js";
import { percentText } from "../format.js";
import { tr, trN } from "../languages.js";
/** @import { Answer, App, View } from "../types.js" */

/** @param {App} app @returns {View} */
export function answerView(app) {
  const { question, passages, others, unlisted } = /** @type {Answer} */ (app.about.answer);
  const list = el("ol", { class: "uwaga-passages", "aria-label": tr("Passages in order of their shares") }, passages.map(passageElement));
  const element = el("article", { class: "uwaga-answer" },
    el("h2", { dir: "auto", text: question }),
    el("p", { class: "uwaga-answer-note", text: tr("Each passage with its share of all attention, which is 100% over the whole database.") }),
    list,
    others > 0 && el("p", { class: "uwaga-answer-others" }, el("b", { text: percentText(unlisted) }), ` ${trN("on {count} other passage", "on {count} other passages", others)}`));

  /** @param {Answer["passages"][number]} passage */
  function passageElement({ key, share, text, origin }) {
    const bar = el("i", { class: "uwaga-share-bar", "aria-hidden": "true" });
    bar.style.setProperty("width", `${100 * share}%`);
    const show = el("button", { type: "button", class: "uwaga-link", text: tr("In the text"), on: { click: () => app.store.set({ tab: "explore", query: 0, key }) } });
    return el("li", { "data-key": key },
      el("div", { class: "uwaga-share" }, el("b", { text: percentText(share) }), origin && el("bdi", { class: "uwaga-origin", text: origin }), show), bar,
      el("div", { class: "uwaga-answer-text", dir: "auto", text }));
  }

  return { element, show() {}, hide() {}, dispose() {} };
}
