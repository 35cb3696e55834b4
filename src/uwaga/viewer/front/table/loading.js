// Statistics, layer by layer, while the table is in view.

import { statisticsQuestion } from "../overview/card.js";

/** @typedef {{side: import("../types.js").SideId, kind: import("../types.js").Kind, layer: number, heads: number}} TableMap */

/**
 * @param {import("../types.js").App} app
 * @param {() => void} arrived
 */
export function tableLoading(app, arrived) {
  /** @type {Map<string, AbortController>} */
  const asking = new Map();
  /** @type {Set<string>} */
  const refused = new Set();
  const nameOf = (/** @type {TableMap} */ map) => JSON.stringify(statisticsQuestion(map));
  const reply = (/** @type {{side: string, kind: string, layer: number}} */ map) => app.client.peek(statisticsQuestion(map));
  const share = (/** @type {TableMap} */ map) => {
    const meta = reply(map)?.meta;
    return refused.has(nameOf(map)) || !app.host.has(statisticsQuestion(map)) ? 1 : meta ? (meta.complete ?? 1) : 0;
  };
  return {
    reply,
    /** @param {TableMap[]} maps */
    want(maps) {
      const wanted = new Set(maps.map(nameOf));
      for (const [name, controller] of asking) {
        if (wanted.has(name)) continue;
        controller.abort();
        asking.delete(name);
      }
      for (const map of maps) {
        const name = nameOf(map);
        if (asking.has(name) || share(map) >= 1) continue;
        const controller = new AbortController();
        asking.set(name, controller);
        app.client.follow(statisticsQuestion(map), arrived, { signal: controller.signal, priority: -1 })
          .then(() => asking.delete(name), () => { asking.delete(name); refused.add(name); arrived(); });
      }
    },
    /** @param {TableMap[]} maps @returns {{done: number, total: number, share: number, missing: number}} */
    progress(maps) {
      const shares = maps.map(share);
      return {
        done: shares.filter((one) => one >= 1).length, total: maps.length,
        share: shares.reduce((sum, one) => sum + one, 0) / Math.max(1, maps.length),
        missing: maps.filter((map) => !reply(map) && share(map) >= 1).length,
      };
    },
    stop() {
      for (const controller of asking.values()) controller.abort();
      asking.clear();
    },
  };
}
