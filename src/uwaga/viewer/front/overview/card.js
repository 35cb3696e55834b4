// What is known of one head, beside its small map.

import { el } from "../dom.js";
import { kindTitle, numberText } from "../shell/pieces.js";

/** @typedef {import("./layout.js").OverviewRow} OverviewRow */

/** @param {OverviewRow} row @param {number} head @param {import("../types.js").App} app @returns {string} */
export function headTitle({ side, kind, layer }, head, app) {
  const several = app.about.sides.length > 1 ? `${app.side(side).title}, ` : "";
  return `${several}${kindTitle(kind)} layer ${layer}, head ${head}`;
}

/**
 * @param {import("../types.js").App} app
 * @param {() => void} changed  statistics have come
 */
export function headCard(app, changed) {
  const title = el("strong"), list = el("dl"), note = el("p", { class: "uwaga-card-note" });
  const element = el("div", { class: "uwaga-card", role: "tooltip", hidden: true }, title, list, note);
  /** @type {AbortController | null} */
  let asking = null;
  let shown = "";

  /** @param {OverviewRow} row @param {number} head */
  function fill(row, head) {
    const question = statisticsQuestion(row), reply = app.client.peek(question);
    title.textContent = headTitle(row, head, app);
    const values = reply?.meta.columns ?? {};
    list.replaceChildren(...app.about.statistics.filter(({ name }) => (values[name]?.[head] ?? null) !== null)
      .flatMap(({ name, title: what }) => [el("dt", { text: what }), el("dd", { text: numberText(values[name][head]) })]));
    const sampled = reply?.meta.sampled;
    note.textContent = sampled ? `from a sample of ${sampled} queries` : reply
      ? "" : app.host.has(question) ? "statistics are coming\u2026" : "";
  }
  return {
    element,
    /**
     * @param {OverviewRow} row
     * @param {number} head
     * @param {{left: number, right: number, top: number, bottom: number, width: number, height: number}} place
     */
    show(row, head, place) {
      fill(row, head);
      element.hidden = false;
      const { offsetWidth: width, offsetHeight: height } = element;
      const left = place.right + width + 8 <= place.width ? place.right + 8 : Math.max(4, place.left - width - 8);
      element.style.setProperty("left", `${Math.min(left, Math.max(4, place.width - width - 4))}px`);
      element.style.setProperty("top", `${Math.max(4, Math.min(place.top, place.height - height - 4))}px`);
      const question = statisticsQuestion(row), name = JSON.stringify(question);
      if (name === shown && asking) return;
      asking?.abort();
      asking = null;
      shown = name;
      if (!app.host.has(question)) return;
      const controller = (asking = new AbortController());
      app.client.follow(question, () => { if (!controller.signal.aborted) changed(); }, { signal: controller.signal, priority: 3 })
        .then(() => {}, () => {});
    },
    hide() {
      element.hidden = true;
      asking?.abort();
      asking = null;
      shown = "";
    },
    /** @param {OverviewRow} row @param {number} head @returns {string} in words, for screen readers */
    words(row, head) {
      const values = app.client.peek(statisticsQuestion(row))?.meta.columns;
      const known = values ? app.about.statistics.filter(({ name }) => (values[name]?.[head] ?? null) !== null).map(({ name,
        title: what }) => `${what} ${numberText(values[name][head])}`) : [];
      return [headTitle(row, head, app), ...known].join("; ");
    },
    fill,
  };
}

/** @param {{side: string, kind: string, layer: number}} row @returns {import("../types.js").Question} */
export function statisticsQuestion({ side, kind, layer }) {
  return { ask: "statistics", side, kind, layer };
}
