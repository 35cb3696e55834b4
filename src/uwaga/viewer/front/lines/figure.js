// What the lines view shows at a moment: lines, the weights beside tokens, the list of the strongest.
import { tokenElement } from "../dom.js";
import { makeShade, weightText } from "../text/shade.js";
import { gatherLines } from "./gather.js";
import { headColour } from "./hues.js";
import { showLineList } from "./strongest.js";

/** @typedef {import("./view.js").LinesView} LinesView */
/** @typedef {import("./pair.js").LineAxis} LineAxis */
/** @typedef {ReturnType<typeof linePicture>} LineFigure */

/**
 * All that the figure shows at the moment.
 * @param {LinesView} view
 */
export function linePicture(view) {
  const { app } = view;
  const { kind, layer, colour } = app.store.get();
  const total = app.side().maps.find((map) => map.kind === kind && map.layer === layer)?.heads ?? 1;
  const heads = view.heads();
  const only = view.only();
  const { lines, high } = gatherLines({
    heads, rows: view.pair.query.range(), columns: view.pair.key.range(), threshold: view.threshold(), only, hideSink: colour.hideSink,
    weight: (head, query, key) => view.weights.weight(head, query, key), outside: (...of) => view.outside.of(...of),
  });
  const shade = makeShade([high], { ...colour, hideSink: false });
  const opacity = (/** @type {number} */ weight) =>
    Math.abs(makeShade([weight], { ...colour, high: shade.high, hideSink: false, threshold: 0 }).of(0));
  const hue = (/** @type {number} */ head) => (view.all ? headColour(head, total, app.theme()) : "");
  return { lines, high: shade.high, heads, only, opacity, hue, query: view.pair.query, key: view.pair.key, all: view.all };
}

/** @param {LinesView} view @param {LineFigure} picture */
export function drawLineTokens(view, { lines, only, heads }) {
  const { query, key } = view.app.store.get();
  const beside = (/** @type {LineAxis} */ axis) => {
    if (!only || only.axis === axis || heads.length !== 1) return () => "";
    const known = new Map(lines.map((line) => [axis === "query" ? line.query : line.key, line.weight]));
    return (/** @type {number} */ item) => (known.has(item) ? weightText(known.get(item) ?? 0) : "");
  };
  for (const column of [view.pair.query, view.pair.key]) {
    const [picked, aside] = [column.axis === "query" ? query : key, beside(column.axis)];
    column.render((item) => ({ picked: item === picked || (only?.axis === column.axis && only.item === item), aside: aside(item) }));
    if (column.caret >= 0) column.list.setAttribute("aria-activedescendant", `${column.prefix}${column.caret}`);
  }
}

/** @param {LinesView} view @param {LineFigure} picture */
export function drawLineList(view, { lines, only, hue }) {
  const own = only && view.pair.column(only.axis).items.labels[only.item];
  showLineList(view.frame.list, lines, {
    queries: view.pair.query.items, keys: view.pair.key.items, one: only !== null, colour: (head) => hue(head) || "var(--accent)",
    title: only && own !== null ? [only.axis === "query" ? "From " : "To ", tokenElement(own), ` (${only.item})`]
      : ["Strongest lines in view"],
  });
}
