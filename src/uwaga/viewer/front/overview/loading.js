// Asks for the overviews of the layers in view, and forgets to ask for those that left it.

/** @typedef {import("../types.js").Reply} Reply */
/** @typedef {import("./layout.js").OverviewRow} OverviewRow */

/**
 * @param {import("../types.js").App} app
 * @param {(row: OverviewRow) => void} arrived
 */
export function overviewLoading(app, arrived) {
  /** @type {Map<string, AbortController>} */
  const asking = new Map();
  /** @type {Set<string>} */
  const refused = new Set();

  /** @param {OverviewRow} row */
  const question = ({ side, kind, layer }) => {
    const { how, merge, specials } = app.store.get();
    return { ask: "overview", side, kind, layer, how, merge, specials };
  };
  return {
    name: (/** @type {OverviewRow} */ row) => JSON.stringify(question(row)),
    /** @param {OverviewRow} row @returns {Reply | undefined} the best that is known */
    peek: (row) => app.client.peek(question(row)),
    /** @param {OverviewRow} row */
    missing: (row) => refused.has(JSON.stringify(question(row))) || !app.host.has(question(row)),
    /** @param {OverviewRow[]} rows  in view */
    want(rows) {
      const wanted = new Map(rows.map((row) => [JSON.stringify(question(row)), row]));
      for (const [name, controller] of asking) {
        if (wanted.has(name)) continue;
        controller.abort();
        asking.delete(name);
      }
      for (const [name, row] of wanted) {
        if (asking.has(name) || refused.has(name) || !app.host.has(question(row))) continue;
        const known = app.client.peek(question(row));
        if (known && !(known.meta.complete < 1)) continue;
        const controller = new AbortController();
        asking.set(name, controller);
        app.client.follow(question(row), () => arrived(row), { signal: controller.signal, priority: 1 })
          .then(() => asking.delete(name), () => { asking.delete(name); refused.add(name); arrived(row); });
      }
    },
    /** @param {OverviewRow[]} rows  of which something is known afterwards, unless the host refuses it */
    async some(rows) {
      const unknown = rows.map(question).filter((asked) => !app.client.peek(asked) && app.host.has(asked));
      await Promise.allSettled(unknown.map((asked) => app.client.ask(asked, { priority: 1 })));
    },
    stop() {
      for (const controller of asking.values()) controller.abort();
      asking.clear();
    },
    /** @returns {number} questions that are still open */
    open: () => asking.size,
  };
}
