// Questions that several views ask, and a set of questions that is followed while it is in view.

import { isComplete } from "./client.js";

/** @typedef {import("./types.js").Where} Where */
/** @typedef {import("./types.js").Question} Question */

/** @param {{side: string, kind: string, layer: number}} row @returns {Question} */
export function statisticsQuestion({ side, kind, layer }) {
  return { ask: "statistics", side, kind, layer };
}

/**
 * @param {{where: Where, pooling: "sum" | "max"}} layer
 * @param {number} level
 * @param {number} row
 * @param {number} column
 * @returns {Question}
 */
export function tileQuestion(layer, level, row, column) {
  // Exact weights are not pooled: both kinds of pooling share one question.
  return { ask: "tile", ...layer.where, pooling: level === 0 ? "sum" : layer.pooling, level, row, column };
}

/**
 * Follows a set of questions: those requested last are followed until their replies are complete, the others are cancelled.
 * @param {import("./types.js").App} app
 * @param {number} priority
 * @param {() => void} onChange  called when a reply has arrived or a question was refused
 */
export function makeQuestionSet(app, priority, onChange) {
  /** @type {Map<string, AbortController>} */
  const pending = new Map();
  /** @type {Set<string>} */
  const refused = new Set();
  const nameOf = (/** @type {Question} */ question) => JSON.stringify(question);
  const isUnavailable = (/** @type {Question} */ question) => refused.has(nameOf(question)) || !app.host.has(question);

  /** @param {string} name @param {AbortController} controller */
  function end(name, controller) {
    if (pending.get(name) === controller) pending.delete(name);
  }

  return {
    /** @param {Question} question @returns {boolean} whether there will never be a reply */
    isUnavailable,
    /** @param {Question[]} questions */
    request(questions) {
      const wanted = new Map(questions.map((question) => [nameOf(question), question]));
      for (const [name, controller] of pending) {
        if (wanted.has(name)) continue;
        controller.abort();
        pending.delete(name);
      }
      for (const [name, question] of wanted) {
        const known = app.client.peek(question);
        if (pending.has(name) || isUnavailable(question) || (known && isComplete(known))) continue;
        const controller = new AbortController();
        pending.set(name, controller);
        app.client.follow(question, onChange, { signal: controller.signal, priority }).then(() => end(name, controller), () => {
          end(name, controller);
          refused.add(name);
          onChange();
        });
      }
    },
    stop() {
      for (const controller of pending.values()) controller.abort();
      pending.clear();
    },
    /** @returns {number} how many questions are pending */
    pending: () => pending.size,
  };
}
