// Beside the map, where it leaves room: the strongest keys of the picked query, and the strongest queries of the picked key.

import { el, tokenElement } from "../dom.js";
import { TextReading } from "../text/readings.js";
import { makeStrongest } from "../text/strongest.js";

/** @typedef {import("./panel.js").MapPanel} MapPanel */

const besideAlone = 18;
const besideBoth = 9;

/**
 * @param {object} options
 * @param {import("../types.js").App} options.app
 * @param {(query: number | null, key: number | null) => void} options.go  to a cell
 */
export function makeMapBeside({ app, go }) {
  const hint = el("p", { class: "uwaga-map-beside-hint",
    text: "Pick a cell: here are then the strongest keys of its query, and the strongest queries of its key." });
  const keys = makeStrongest((item) => go(app.store.get().query, item));
  const queries = makeStrongest((item) => go(item, app.store.get().key));
  const element = el("aside", { class: "uwaga-map-beside", "aria-label": "Strongest of the picked cell" },
    hint, keys.element, queries.element);
  const row = new TextReading(app, "row", draw);
  const column = new TextReading(app, "column", draw);
  /** @type {MapPanel | null} */
  let panel = null;
  // Nothing is asked for what a narrow page has no room for.
  const visible = () => element.offsetParent !== null;

  function draw() {
    const { query, key } = app.store.get();
    const count = query !== null && key !== null ? besideBoth : besideAlone;
    keys.show(besideList(panel?.queries, panel?.keys, query, row, count, "query", ["What ", " attends to"]));
    queries.show(besideList(panel?.keys, panel?.queries, key, column, count, "key", ["What attends to ", ""]));
    hint.hidden = !keys.element.hidden || !queries.element.hidden;
  }

  return {
    element,
    /** @param {MapPanel[]} panels  lists are of one map: of several there are none */
    show(panels) {
      panel = panels.length === 1 && !panels[0].missing ? panels[0] : null;
      const { query, key } = app.store.get();
      const wanted = panel !== null && visible();
      row.want(wanted ? query : null);
      column.want(wanted ? key : null);
      draw();
    },
    dispose() {
      row.drop();
      column.drop();
    },
  };
}

/**
 * @param {import("./axis.js").MapAxis | null | undefined} own  of the picked item
 * @param {import("./axis.js").MapAxis | null | undefined} others  of the list
 * @param {number | null} item
 * @param {TextReading} reading
 * @param {number} count
 * @param {"query" | "key"} hue
 * @param {[string, string]} words  around the token's name
 * @returns {import("../text/strongest.js").StrongestShown | null}
 */
function besideList(own, others, item, { weights, absent }, count, hue, [before, behind]) {
  if (!own || !others || item === null || item >= own.items.total) return null;
  const note = weights ? "" : absent ? "This saved page holds no weights of it." : "Reading\u2026";
  return { hue, weights, items: others.items, count, note, title: [before, tokenElement(own.items.labels[item]), ` (${item})${behind}`] };
}
