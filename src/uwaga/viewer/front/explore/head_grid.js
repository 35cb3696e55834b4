// Every head of a kind of attention as a drawing of its arcs, a row for each layer. The line beneath is its share at rest.

import { headArcs, headRibbons } from "./arcs.js";
import { headCells, shownLayers } from "./every_head.js";
import { el, isModified, svgEl } from "../dom.js";
import { headText } from "../format.js";
import { tr, trN, trParts } from "../languages.js";
import { sinkColumns, sinksOf } from "../weights.js";
/** @import { App, Items } from "../types.js" */
/** @import { Glyph } from "./arcs.js" */
/** @import { DistinctiveHeads } from "./distinctive.js" */
/** @import { LayerCells } from "./every_head.js" */

/** Heads that are all drawn; of more, so many of the most informative. */
const mostDrawn = 144, mostTelling = 72;
const glyph = { width: 60, height: 34, foot: 6 };

/**
 * @param {App} app @param {ReturnType<typeof import("./every_head.js").makeEveryHead>} every
 * @param {(layer: number, head: number) => void} open
 */
export function makeHeadGrid(app, every, open) {
  const title = el("h2"), grid = el("div", { class: "uwaga-wall", role: "group", "aria-label": tr("All heads"), on: { keydown } }), note = el("p", { class: "uwaga-sub" });
  const all = el("button", { type: "button", class: "uwaga-link", text: tr("all heads"), on: { click: () => app.store.set({ tab: "overview" }) } });
  const element = el("section", { class: "uwaga-wall-section" }, title, el("p", { class: "uwaga-sub", text: tr("The same words, as each head sees them. Click one, and the arcs above follow.") }), grid, note);
  /** @type {Map<string, HTMLButtonElement>} */
  const buttons = new Map();
  let madeFor = "";

  /** @param {DistinctiveHeads | null} distinctive @returns {{layer: number, head: number}[]} */
  function heads(distinctive) {
    const every = shownLayers(app).flatMap(({ layer, heads: count }) => Array.from({ length: count }, (_, head) => ({ layer, head })));
    if (every.length <= mostDrawn || !distinctive) return every.slice(0, mostDrawn);
    return distinctive.all.slice(0, mostTelling).sort((a, b) => a.layer - b.layer || a.head - b.head);
  }

  /** @param {DistinctiveHeads | null} distinctive @param {{queries: Items, keys: Items, name: string}} texts */
  function show(distinctive, texts) {
    const layers = shownLayers(app), count = layers.reduce((sum, { heads: of }) => sum + of, 0), drawn = heads(distinctive), isWhole = drawn.length === count;
    const columns = isWhole ? Math.max(...layers.map(({ heads: of }) => of)) : 12;
    const name = `${texts.name} ${drawn.map(({ layer, head }) => `${layer}.${head}`).join()}`;
    title.textContent = trN("{count} head, one text", "All {count} heads, one text", count);
    if (name !== madeFor) {
      madeFor = name;
      buttons.clear();
      grid.style.setProperty("--uwaga-columns", String(columns));
      grid.toggleAttribute("data-whole", isWhole);
      grid.replaceChildren(...(isWhole ? [el("i"), ...Array.from({ length: columns }, (_, head) => el("i", { "aria-hidden": "true", text: String(head) }))] : []));
      for (const { layer, head } of drawn) {
        if (isWhole && head === 0) grid.append(el("i", { "aria-hidden": "true", style: { "grid-column": 1 }, text: String(layer) }));
        const button = el("button", { type: "button", "data-layer": layer, "data-head": head, on: { click: () => open(layer, head) } });
        buttons.set(`${layer} ${head}`, button);
        grid.append(button);
      }
    }
    let resting = 0;
    for (const { layer, head } of drawn) {
      const button = /** @type {HTMLButtonElement} */ (buttons.get(`${layer} ${head}`)), cells = every.layer(layer);
      const state = app.store.get(), isOpen = state.layer === layer && state.head === head;
      const distinctiveHead = distinctive?.all.find((one) => one.layer === layer && one.head === head);
      button.setAttribute("aria-pressed", String(isOpen));
      button.tabIndex = isOpen || (!buttons.has(`${state.layer} ${state.head}`) && button === grid.querySelector("button")) ? 0 : -1;
      button.title = [headText(state.kind, layer, head), distinctiveHead?.label && distinctiveHead.sentence].filter(Boolean).join(": ");
      button.setAttribute("aria-label", button.title);
      // Of cells of several words the share of the sinks alone is in the head's label.
      const labelRest = cells && texts.keys.total > cells.columns ? distinctive?.rests.get(`${layer} ${head}`) : undefined, drawnOf = cells && `${cells.rows} ${cells.columns} ${cells.complete} ${labelRest}`;
      if (!cells || !drawnOf || button.dataset.of === drawnOf || head >= cells.heads) { resting += Number(button.dataset.rest ?? 0) > 0.5 ? 1 : 0; continue; }
      button.dataset.of = drawnOf;
      const { rest: measured, paths } = headGlyph(cells, head, texts.keys, state.kind), rest = labelRest ?? measured;
      button.dataset.rest = String(rest);
      if (rest > 0.5) resting += 1;
      button.replaceChildren(svgEl("svg", { viewBox: `0 0 ${glyph.width} ${glyph.height + glyph.foot}`, "aria-hidden": "true" },
        paths.map(({ d, width }) => svgEl("path", { d: d.map((one) => one.join(" ")).join(""), "stroke-width": width })),
        svgEl("rect", { x: 0, y: glyph.height + 3, width: glyph.width * Math.min(1, Math.abs(rest)), height: 1.6 })));
    }
    const sinks = distinctive?.sinks;
    note.replaceChildren(...(sinks && resting ? [...trParts("{count} of {total} heads mostly rest on {sink}: the line under a drawing is the share at rest.",
      { count: resting, total: drawn.length, sink: el("bdi", { text: sinks }) }), " "] : []), all);
  }

  /** @param {KeyboardEvent} event */
  function keydown(event) {
    const list = [...grid.querySelectorAll("button")], at = list.findIndex((button) => button === event.target);
    const columns = getComputedStyle(grid).gridTemplateColumns.split(" ").length - (grid.hasAttribute("data-whole") && list.length ? (getComputedStyle(/** @type {Element} */ (grid.querySelector("i"))).display === "none" ? 0 : 1) : 0);
    const by = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns }[event.key], to = list[at + (by ?? 0)];
    if (by === undefined || isModified(event, true)) return;
    event.preventDefault();
    event.stopPropagation();
    if (!to) return;
    to.focus();
    open(Number(to.dataset.layer), Number(to.dataset.head));
  }

  return {
    element, show,
    /** Lights the row of a layer, while the film shows it; null: all. @param {number | null} layer */
    light(layer) {
      for (const button of buttons.values()) button.toggleAttribute("data-dim", layer !== null && button.dataset.layer !== String(layer));
    },
  };
}

/**
 * @param {LayerCells} cells @param {number} head @param {Items} keys @param {string} kind
 * @returns {{rest: number, paths: Glyph[]}} its share at rest, and its drawing
 */
function headGlyph(cells, head, keys, kind) {
  const weights = headCells(cells, head), hidden = sinkColumns(sinksOf(keys, kind), cells.columns, (column) => Math.floor((column * keys.total) / cells.columns));
  const atRest = new Set(hidden ? [...hidden.keys()].filter((column) => hidden[column]) : []);
  let rest = 0;
  for (let row = 0; row < cells.rows; row++) for (const column of atRest) rest += weights[row * cells.columns + column] || 0;
  return { rest: rest / Math.max(1, cells.rows), paths: (kind === "cross" ? headRibbons : headArcs)(weights, cells.rows, cells.columns, atRest, glyph) };
}
