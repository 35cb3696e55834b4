// From the lesson to the model that is loaded: the head that does most clearly what a step shows.

import { el } from "../dom.js";
import { numberText } from "../shell/pieces.js";

/** @typedef {import("../types.js").App} App */
/** @typedef {import("./reply.js").LessonHead} LessonHead */
/** @typedef {{kind: import("../types.js").Kind, layer: number, head: number, value: number}} FoundHead */

/**
 * Whether there is a model to open a head of, or why not.
 * @param {App} app
 * @returns {string} "" where there is one
 */
export function realMissing(app) {
  const side = app.about.sides[0];
  return side && side.maps.length ? "" : "No model is loaded. \u201cuwaga view TEXT\u201d opens a text in one, with this lesson beside it.";
}

/**
 * The best of all heads of one kind by a statistic; null where the model's table has no such number.
 * @param {{layer: number, columns: {[name: string]: (number | null)[]}}[]} tables
 * @param {LessonHead} wanted
 * @returns {{layer: number, head: number, value: number} | null}
 */
export function realBest(tables, wanted) {
  /** @type {{layer: number, head: number, value: number} | null} */
  let best = null;
  for (const { layer, columns } of tables) {
    (columns[wanted.statistic] ?? []).forEach((value, head) => {
      if (value === null || Number.isNaN(value)) return;
      const better = !best || (wanted.sense === "largest" ? value > best.value : value < best.value);
      if (better) best = { layer, head, value };
    });
  }
  return best;
}

/**
 * @param {App} app
 * @param {LessonHead} wanted
 * @param {AbortSignal} signal
 * @returns {Promise<FoundHead | null>}
 */
async function realFind(app, wanted, signal) {
  const side = app.about.sides[0];
  const kind = app.about.start?.kind;
  if (!side || !kind) return null;
  const tables = await Promise.all(side.maps.filter((map) => map.kind === kind).map(async ({ layer }) => {
    /** @type {{[name: string]: (number | null)[]}} */
    let columns = {};
    await app.client.follow({ ask: "statistics", side: side.id, kind, layer },
      (reply) => { columns = reply.meta.columns; }, { signal, priority: -1 });
    return { layer, columns };
  }));
  const best = realBest(tables, wanted);
  return best && { kind, ...best };
}

/**
 * @param {App} app
 * @param {LessonHead} wanted
 * @returns {{element: HTMLElement, dispose: () => void}}
 */
export function realHead(app, wanted) {
  const missing = realMissing(app);
  const text = el("p", { text: missing });
  const button = el("button", { type: "button", class: "lesson-open", text: "Open this head in the real model", disabled: true });
  const controller = new AbortController();
  /** @type {FoundHead | null} */
  let found = null;

  async function look() {
    text.textContent = `Looking through all heads for ${wanted.why}\u2026`;
    try {
      found = await realFind(app, wanted, controller.signal);
    } catch (error) {
      if (controller.signal.aborted) return;
      text.textContent = `The heads could not be compared: ${error instanceof Error ? error.message : String(error)}`;
      return;
    }
    if (!found) {
      text.textContent = `This model's table has no ${realTitle(app, wanted.statistic)}.`;
      return;
    }
    button.disabled = false;
    const measured = `${realTitle(app, wanted.statistic)} ${numberText(found.value)}`;
    text.textContent = `Layer ${found.layer}, head ${found.head}: ${wanted.why} (${measured}).`;
  }

  function open() {
    const side = app.about.sides[0];
    if (found) app.openHead(side.id, found.kind, found.layer, found.head);
  }

  button.addEventListener("click", open);
  if (!missing) void look();
  return {
    element: el("div", { class: "lesson-real" }, text, button),
    dispose: () => controller.abort(),
  };
}

/** @param {App} app @param {string} name @returns {string} */
function realTitle(app, name) {
  return app.about.statistics.find((one) => one.name === name)?.title ?? name.replaceAll("_", " ");
}
