// The film of the layers: for each layer the three widest links of each word, in the mean of its heads.

import { maxLineWords } from "./arcs.js";
import { hasExactCells, hasLayers } from "./every_head.js";
import { el } from "../dom.js";
import { percentText } from "../format.js";
import { tr } from "../languages.js";
import { makePlayer } from "../player.js";
/** @import { App, Items } from "../types.js" */
/** @import { LayerCells } from "./every_head.js" */

/** @typedef {{query: number, key: number, weight: number}} FilmLink */

const stopTime = 1500, linksOfWord = 3;
export const leastLink = 0.04;

/** @param {App} app @returns {boolean} whether there is a film: a text on one line, of which each layer's weights are known word by word */
export function hasFilm(app) {
  const { kinds, stacks, signed } = app.side(), { kind, merge } = app.store.get(), { queries, keys } = kinds[kind] ?? {};
  return hasLayers(app) && queries === keys && !signed && stacks[queries][merge] - stacks[queries].specials <= maxLineWords && hasExactCells(app);
}

/** @param {LayerCells} cells @returns {Float32Array} (rows, columns): the mean over the heads */
export function meanOfHeads({ data, heads, rows, columns }) {
  const mean = new Float32Array(rows * columns);
  for (let at = 0; at < data.length; at++) mean[at % mean.length] += data[at] / heads;
  return mean;
}

/** @param {ArrayLike<number>} mean @param {number} rows @param {number} columns @param {ReadonlySet<number>} sinks @returns {FilmLink[]} */
export function filmLinks(mean, rows, columns, sinks) {
  return Array.from({ length: rows }, (_, query) => Array.from({ length: columns }, (_, key) => ({ query, key, weight: mean[query * columns + key] }))
    .filter(({ key, weight }) => weight >= leastLink && !sinks.has(key) && !sinks.has(query) && key !== query).sort((one, other) => other.weight - one.weight).slice(0, linksOfWord)).flat();
}

/**
 * Where the weight of a layer's words goes, special tokens left out as words: to their neighbours, farther, to themselves, and to rest.
 * @param {ArrayLike<number>} mean @param {Pick<Items, "specials" | "total">} items @param {ReadonlySet<number>} sinks
 */
export function layerShares(mean, { specials, total }, sinks) {
  const shares = { near: 0, far: 0, self: 0, rest: 0 }, words = total - specials.size;
  for (let query = 0; query < total; query++) for (let key = 0; key < total && !specials.has(query); key++) {
    const distance = Math.abs(query - key);
    shares[sinks.has(key) ? "rest" : distance > 1 ? "far" : distance ? "near" : "self"] += mean[query * total + key] / words;
  }
  return shares;
}

/** Play, and a stop for each layer. @param {(layer: number | null) => void} show  null: the film has ended */
export function makeLayerFilm(show) {
  /** @type {number[]} */
  let layers = [];
  let shown = /** @type {number | null} */ (null);
  const player = makePlayer(stopTime, (at) => (at < layers.length ? to(layers[at]) : stop()));
  const play = el("button", { type: "button", class: "uwaga-pill", on: { click: () => (player.isOn() ? stop() : player.start()) } });
  const dots = el("div", { class: "uwaga-dots", role: "group", "aria-label": tr("Layer") });
  const element = el("div", { class: "uwaga-row uwaga-film", on: { keydown: (/** @type {KeyboardEvent} */ event) => {
    if (event.key !== "Escape" || shown === null) return;
    event.stopPropagation();
    stop();
  } } }, play, dots);

  function stop() {
    player.stop();
    if (shown !== null) to(null);
    draw();
  }
  /** @param {number | null} layer */
  function to(layer) {
    shown = layer;
    draw();
    show(layer);
  }
  function draw() {
    play.textContent = player.isOn() ? tr("■ Stop") : tr("▶ Play the layers");
    [...dots.children].forEach((button, at) => button.setAttribute("aria-pressed", String(layers[at] === shown)));
  }
  draw();
  return {
    element, stop,
    layer: () => shown,
    /** @param {number[]} next */
    setLayers(next) {
      if (next.join() === layers.join()) return;
      layers = next;
      dots.replaceChildren(...layers.map((layer) => el("button", { type: "button", "aria-label": tr("layer {layer}", { layer }), text: String(layer), on: { click() {
        player.stop();
        to(shown === layer ? null : layer);
      } } })));
      draw();
    },
  };
}

/** @param {number} layer @param {ReturnType<typeof layerShares>} shares @param {string} sinks  their names @returns {string} */
export function filmText(layer, shares, sinks) {
  const values = { layer, sinks, ...Object.fromEntries(Object.entries(shares).map(([name, share]) => [name, percentText(share)])) };
  return sinks ? tr("Layer {layer}: of the words’ weight {near} is on neighbours, {far} farther off, {self} on themselves, {rest} at rest on {sinks}", values)
    : tr("Layer {layer}: of the words’ weight {near} is on neighbours, {far} farther off, {self} on themselves", values);
}
