// Keeps the selected query and key while items are renumbered: words merged, special tokens hidden, another axis.

import { stackOfAxis } from "./app.js";
/** @import { App, Items, SideId } from "../types.js" */

/**
 * The item that contains a token, or the next item if none does; null after the last.
 * @param {Int32Array} spans  (total, 2), ascending
 * @param {number} token @returns {number | null}
 */
export function itemOfToken(spans, token) {
  let low = 0, high = spans.length / 2;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (spans[2 * middle + 1] > token) high = middle;
    else low = middle + 1;
  }
  return low < spans.length / 2 ? low : null;
}

/** @param {number | null} item @param {Items} from @param {Items} to @returns {number | null} */
export function renumberedItem(item, from, to) {
  return item === null || item >= from.total ? null : itemOfToken(to.spans, from.spans[2 * item]);
}

/** @param {App} app @returns {() => void} unsubscribes */
export function keepSelection(app) {
  const axes = () => {
    const { side, kind, merge, specials } = app.store.get(), axis = app.side().kinds[kind], [queries, keys] = [axis.queries, axis.keys].map(stackOfAxis);
    return { side, queries, keys, numbering: `${merge} ${specials}`,
      // Before and after a change of the model the text is the same.
      text: `${app.about.python ? "" : app.side().text_title} ${JSON.stringify(app.side().stacks)}` };
  };
  let before = axes();
  let items = itemsLoader(app, before);
  return app.store.subscribe(["side", "kind", "merge", "specials"], (_, changed) => {
    const old = before, oldItems = items, state = app.store.get();
    before = axes();
    const sameText = old.text === before.text;
    if (sameText && old.queries === before.queries && old.keys === before.keys && old.numbering === before.numbering) return;
    // A selection that is set together with the axes, as the URL does, refers to the new items.
    if (["query", "key", "view"].some((name) => changed.has(name))) {
      items = itemsLoader(app, before);
      return;
    }
    const hasSelection = state.query !== null || state.key !== null;
    app.store.set({ query: null, key: null, view: { x: 0, y: 0, scale: 0 } });
    items = itemsLoader(app, before);
    if (!hasSelection || !sameText) return;
    const [query, key] = [old.queries === before.queries, old.keys === before.keys];
    const now = app.store.get(), newItems = items;
    Promise.all([oldItems(), newItems()]).then(([[fromQueries, fromKeys], [toQueries, toKeys]]) => {
      const later = app.store.get();
      // A selection made meanwhile wins.
      if (items !== newItems || later.query !== now.query || later.key !== now.key) return;
      app.store.set({
        query: query ? renumberedItem(state.query, fromQueries, toQueries) : null, key: key ? renumberedItem(state.key, fromKeys, toKeys) : null,
      });
    }, () => {});
  });
}

/**
 * A function that loads both axes' items with the present settings of merge and specials.
 * @param {App} app @param {{side: SideId, queries: string, keys: string}} axes @returns {() => Promise<[Items, Items]>}
 */
function itemsLoader(app, { side, queries, keys }) {
  const { merge, specials } = app.store.get();
  return () => Promise.all([app.items(side, queries, { merge, specials }), app.items(side, keys, { merge, specials })]);
}
