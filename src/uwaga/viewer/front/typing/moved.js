// What a change of the model moved: where the weight of a cut link went, and which links of other heads changed most.

import { barFill, briefText, el } from "../dom.js";
import { hasExactCells, headCells, layerCells, rowCells, shownLayers, smallMapsRequest } from "../explore/every_head.js";
import { headText, percentText } from "../format.js";
import { tr, trParts } from "../languages.js";
import { makeRequestSet } from "../requests.js";
import { tokensOfItem } from "./changes.js";

/** @typedef {import("../types.js").App} App */
/** @typedef {import("../types.js").Items} Items */
/** @typedef {import("../explore/every_head.js").LayerCells} LayerCells */

const mostGains = 6, mostMoved = 5, leastMoved = 0.001;

/**
 * The keys of a word whose links are cut in a head.
 * @param {import("../types.js").Edits} edits @param {{kind: string, layer: number, head: number}} place @param {Items} queries @param {Items} keys @param {number} query
 * @returns {Set<number>}
 */
export function cutKeys(edits, { kind, layer, head }, queries, keys, query) {
  const covers = (/** @type {Items} */ items, /** @type {number} */ item, /** @type {number[] | null} */ tokens) => tokens === null || tokensOfItem(items, item).every((token) => tokens.includes(token));
  const own = edits.scores.filter((one) => one.kind === kind && one.layer === layer && one.head === head && covers(queries, query, one.queries));
  return new Set(own.length ? Array.from({ length: keys.total }, (_, key) => key).filter((key) => own.some((one) => covers(keys, key, one.keys))) : []);
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
  const element = el("div", { class: "uwaga-moved", hidden: true }), { store } = app, edits = app.about.typed?.edits;
  const requests = makeRequestSet(app, 1, onChange), isOn = Boolean(app.about.python && edits);
  const layers = () => shownLayers(app).map(({ layer }) => layer);
  const cells = (/** @type {"0" | "1"} */ side, /** @type {number} */ layer) => {
    const found = layerCells(app.client.peek(smallMapsRequest(app, layer, side)));
    return found?.complete === 1 ? found : null;
  };

  return {
    element,
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
    cut: (queries, keys, query) => (edits && isOn ? cutKeys(edits, store.get(), queries, keys, query) : new Set()),
    /** @param {{queries: Items, keys: Items}} texts @param {number | null} query */
    show({ queries, keys }, query) {
      element.hidden = !isOn || !hasExactCells(app) || layers().some((layer) => !cells("0", layer) || !cells("1", layer));
      if (element.hidden) return;
      const state = store.get(), word = (/** @type {Items} */ items, /** @type {number} */ item) => el("bdi", { class: items === queries && items !== keys ? "uwaga-asks" : "", text: briefText(items.labels[item]) });
      const moved = layers().flatMap((layer) => movedLinks(/** @type {LayerCells} */ (cells("0", layer)), /** @type {LayerCells} */ (cells("1", layer))).map((one) => ({ layer, ...one })))
        .filter(({ layer, head, before, after }) => Math.abs(after - before) >= leastMoved && !(layer === state.layer && head === state.head))
        .sort((one, other) => Math.abs(other.after - other.before) - Math.abs(one.after - one.before)).slice(0, mostMoved);
      const parts = [...(query === null ? [] : went(queries, keys, query)), el("h2", { text: tr("What moved in other heads") }),
        moved.length ? el("ul", { class: "uwaga-moved-list" }, moved.map(({ layer, head, query: from, key, before, after }) => el("li", {}, el("button", { type: "button", class: "uwaga-link",
          text: headText(state.kind, layer, head), on: { click: () => store.set({ layer, head, query: from, key }) } }), " ",
        word(queries, from), " \u2192 ", word(keys, key), el("b", { text: `${percentText(before)} \u2192 ${percentText(after)}` }))))
          : el("p", { class: "uwaga-sub", text: tr("No link of another head moved by 0.1% or more.") })];
      element.replaceChildren(...parts);
    },
  };

  /** Where the weight of what is cut went. @param {Items} queries @param {Items} keys @param {number} query @returns {HTMLElement[]} */
  function went(queries, keys, query) {
    const { layer, head } = store.get(), cut = cutKeys(/** @type {import("../types.js").Edits} */ (edits), store.get(), queries, keys, query);
    const [one, other] = [cells("0", layer), cells("1", layer)].map((found) => found && rowCells(found, head, query));
    if (!cut.size || !one || !other) return [];
    const lost = [...cut].reduce((sum, key) => sum + one[key] - other[key], 0);
    const gains = Array.from({ length: keys.total }, (_, key) => ({ key, gain: other[key] - one[key] })).filter(({ key, gain }) => !cut.has(key) && Math.abs(gain) >= leastMoved)
      .sort((a, b) => b.gain - a.gain);
    const rest = gains.slice(mostGains).reduce((sum, { gain }) => sum + gain, 0), most = Math.max(1e-9, ...gains.map(({ gain }) => gain));
    const bar = (/** @type {Node} */ name, /** @type {number} */ gain) => el("li", { class: "uwaga-bar-row" }, name, el("span", { class: "uwaga-bar" }, barFill("key", Math.max(0, (100 * gain) / most))),
      el("span", { class: "uwaga-bar-number", text: `${gain < 0 ? "" : "+"}${percentText(gain)}` }));
    return [el("h2", {}, trParts("Where the {share} went", { share: percentText(lost) })),
      el("p", { class: "uwaga-sub", text: tr("The link was cut before the softmax: what is left of the row is divided again, so that it adds up to 100%.") }),
      el("ul", { class: "uwaga-bars" }, gains.slice(0, mostGains).map(({ key, gain }) => bar(word(keys, key), gain)), Math.abs(rest) >= leastMoved ? bar(el("span", { text: tr("others") }), rest) : [])];
  }

  /** @param {Items} items @param {number} item */
  function word(items, item) {
    return el("bdi", { class: "uwaga-token", text: briefText(items.labels[item]) });
  }
}
