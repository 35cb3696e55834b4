// Requests that several views make, and a set of requests that is followed while it is in view.

import { isComplete } from "./client.js";
/** @import { App, Request, Where } from "./types.js" */

/** @param {{side: string, kind: string, layer: number}} row @returns {Request} */
export function statisticsRequest({ side, kind, layer }) {
  return { request: "statistics", side, kind, layer };
}

/**
 * @param {{where: Where, pooling: "sum" | "max"}} layer
 * @param {number} level
 * @param {number} row
 * @param {number} column
 * @returns {Request}
 */
export function tileRequest(layer, level, row, column) {
  // Exact weights are not pooled: both kinds of pooling share one request.
  return { request: "tile", ...layer.where, pooling: level === 0 ? "sum" : layer.pooling, level, row, column };
}

/**
 * Follows a set of requests: those requested last are followed until their replies are complete, the others are cancelled.
 * @param {App} app
 * @param {number} priority
 * @param {() => void} onChange  called when a reply has arrived or a request was refused
 */
export function makeRequestSet(app, priority, onChange) {
  /** @type {Map<string, AbortController>} */
  const pending = new Map();
  /** @type {Set<string>} */
  const refused = new Set();
  const nameOf = (/** @type {Request} */ request) => JSON.stringify(request);
  const isUnavailable = (/** @type {Request} */ request) => refused.has(nameOf(request)) || !app.host.has(request);

  /** @param {string} name @param {AbortController} controller */
  function end(name, controller) {
    if (pending.get(name) === controller) pending.delete(name);
  }

  return {
    /** @param {Request} request @returns {boolean} whether there will never be a reply */
    isUnavailable,
    /** @param {Request[]} requests */
    request(requests) {
      const byName = new Map(requests.map((request) => [nameOf(request), request]));
      for (const [name, controller] of pending) {
        if (byName.has(name)) continue;
        controller.abort();
        pending.delete(name);
      }
      for (const [name, request] of byName) {
        const reply = app.client.peek(request);
        if (pending.has(name) || isUnavailable(request) || (reply && isComplete(reply))) continue;
        const controller = new AbortController();
        pending.set(name, controller);
        app.client.follow(request, onChange, { signal: controller.signal, priority }).then(() => end(name, controller), () => {
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
    /** @returns {number} how many requests are pending */
    pending: () => pending.size,
  };
}
