// What a change of the model moved: where the weight of a cut link went, and which links of other heads changed most.

import { briefText, el } from "../dom.js";
import { hasExactCells, headCells, layerCells, rowCells, shownLayers, smallMapsRequest } from "../explore/every_head.js";
import { headText, percentText } from "../format.js";
import { tr, trParts } from "../languages.js";
import { makeRequestSet } from "../requests.js";
import { tokensOfItem } from "./changes.js";
import { flowParts } from "./flow.js";
/** @import { LayerCells } from "../explore/every_head.js" */
/** @import { App, Items, Links } from "../types.js" */

const mostMoved = 5, leastMoved = 0.001;

/**
 * The keys of a word whose links are cut in a head.
 * @param {Links[]} links @param {{kind: string, layer: number, head: number}} place @param {Items} queries @param {Items} keys @param {number} query
 * @returns {Set<number>}
 */
export function cutKeys(links, { kind, layer, head }, queries, keys, query) {
  const covers = (/** @type {Items} */ items, /** @type {number} */ item, /** @type {number[] | null} */ tokens) => tokens === null || tokensOfItem(items, item).every((token) => tokens.includes(token));
  const cuts = links.filter((one) => one.kind === kind && one.layer === layer && one.head === head && covers(queries, query, one.queries));
  return new Set(cuts.length ? Array.from({ length: keys.total }, (_, key) => key).filter((key) => cuts.some((one) => covers(keys, key, one.keys))) : []);
}

/**
 * The link of each head that moved most, the largest first.
 * @param {LayerCells} before @param {LayerCells} after
 * @returns {{head: number, query: number, key: number, before: number, after: number}[]}
 */
export function movedLinks(before, after) {
  return Array.from({ length: Math.min(before.heads, after.heads) }, (_, head) => {
    const [one, other] = [headCells(before, head), headCells(after, head)];
    let best = 0;
    for (let at = 1; at < one.length; at++) if (Math.abs(other[at] - one[at]) > Math.abs(other[best] - one[best])) best = at;
    return { head, query: Math.floor(best / before.columns), key: best % before.columns, before: one[best], after: other[best] };
  }).sort((one, other) => Math.abs(other.after - other.before) - Math.abs(one.after - one.before));
}

/** @param {App} app @param {() => void} onChange */
export function makeMoved(app, onChange) {
  const element = el("div", { class: "uwaga-moved", hidden: true }), flow = el("div", { class: "uwaga-flow-part", hidden: true }), { store } = app, edits = app.about.typed?.edits;
  const requests = makeRequestSet(app, 1, onChange), isOn = Boolean(app.about.python && edits);
  const layers = () => shownLayers(app).map(({ layer }) => layer);
  const cells = (/** @type {"0" | "1"} */ side, /** @type {number} */ layer) => {
    const found = layerCells(app.client.peek(smallMapsRequest(app, layer, side)));
    return found?.complete === 1 ? found : null;
  };

  return {
    element, flow,
    stop: requests.stop,
    request() {
      if (isOn && hasExactCells(app)) requests.request(layers().flatMap((layer) => [smallMapsRequest(app, layer, "0"), smallMapsRequest(app, layer, "1")]));
    },
    /** The row of the open head on a side; null: it is not known. @param {"0" | "1"} side @param {number} query @returns {Float32Array | null} */
    row(side, query) {
      const { layer, head } = store.get(), found = isOn && hasExactCells(app) ? cells(side, layer) : null;
      return found && rowCells(found, head, query);
    },
    /** @param {Items} queries @param {Items} keys @param {number} query @returns {Set<number>} */
    cut: (queries, keys, query) => (edits && isOn ? cutKeys(edits.scores, store.get(), queries, keys, query) : new Set()),
    /** @param {{queries: Items, keys: Items}} texts @param {number | null} query @param {ReadonlySet<number>} sinks */
    show({ queries, keys }, query, sinks) {
      const parts = query === null ? [] : went(queries, keys, query, sinks);
      flow.hidden = !parts.length;
      flow.replaceChildren(...parts);
      element.hidden = !isOn || !hasExactCells(app) || layers().some((layer) => !cells("0", layer) || !cells("1", layer));
      if (element.hidden) return;
      const state = store.get(), word = (/** @type {Items} */ items, /** @type {number} */ item) => el("bdi", { class: items === queries && items !== keys ? "uwaga-asks" : "", text: briefText(items.labels[item]) });
      const moved = layers().flatMap((layer) => movedLinks(/** @type {LayerCells} */ (cells("0", layer)), /** @type {LayerCells} */ (cells("1", layer))).map((one) => ({ layer, ...one })))
        .filter(({ layer, head, before, after }) => Math.abs(after - before) >= leastMoved && !(layer === state.layer && head === state.head))
        .sort((one, other) => Math.abs(other.after - other.before) - Math.abs(one.after - one.before)).slice(0, mostMoved);
      element.replaceChildren(el("h2", { text: tr("What moved in other heads") }), moved.length ? el("ul", { class: "uwaga-moved-list" }, moved.map(({ layer, head, query: from, key, before, after }) => el("li", {}, el("button", { type: "button", class: "uwaga-link",
          text: headText(state.kind, layer, head), on: { click: () => store.set({ layer, head, query: from, key }) } }), " ",
        word(queries, from), " \u2192 ", word(keys, key), el("b", { text: `${percentText(before)} \u2192 ${percentText(after)}` }))))
        : el("p", { class: "uwaga-sub", text: tr("No link of another head moved by 0.1% or more.") }));
    },
  };

  /** Where the weight of what is cut went. @param {Items} queries @param {Items} keys @param {number} query @param {ReadonlySet<number>} sinks @returns {HTMLElement[]} */
  function went(queries, keys, query, sinks) {
    if (!edits || !isOn || !hasExactCells(app)) return [];
    const state = store.get(), cut = cutKeys(edits.scores, state, queries, keys, query);
    const [one, other] = [cells("0", state.layer), cells("1", state.layer)].map((found) => found && rowCells(found, state.head, query));
    if (cut.size && one && other) return flowParts(keys, cut, sinks, one, other);
    // A map is of weights as the softmax makes them; what is cut behind it is still in the row.
    const behind = cutKeys(edits.weights.filter(({ factor }) => factor === 0), state, queries, keys, query), gone = [...behind].reduce((sum, key) => sum + (other?.[key] ?? 0), 0);
    return !behind.size || !other ? [] : [el("h2", {}, trParts("Where the {share} went", { share: percentText(gone) })),
      el("p", { class: "uwaga-sub", text: tr("Nowhere: the link is cut after the softmax. The other shares stay as they are, and the head sums up {rest} of its values.", { rest: percentText(1 - gone) }) })];
  }
}
