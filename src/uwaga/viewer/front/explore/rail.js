// The rail: a card for each of the most distinctive heads, a list box of which the open head is selected.

import { briefText, el, tokenText } from "../dom.js";
import { headText, percentText } from "../format.js";
import { tr, trNParts } from "../languages.js";
import { makeOverviewDrawing } from "../overview/drawing.js";

/** @typedef {import("../types.js").App} App */
/** @typedef {import("../types.js").Items} Items */
/** @typedef {import("./distinctive.js").DistinctiveHeads} DistinctiveHeads */
/** @typedef {import("./distinctive.js").DistinctiveHead} DistinctiveHead */

const thumbnailSide = 56; // CSS pixels

/**
 * @param {App} app
 * @param {(head: DistinctiveHead) => void} open
 */
export function makeRail(app, open) {
  const title = el("h2", { text: tr("Most distinctive heads") });
  const list = el("div", { class: "uwaga-rail-list", role: "listbox", "aria-label": tr("Most distinctive heads"), tabindex: 0, on: { keydown } });
  const rest = el("p", { class: "uwaga-rail-rest" });
  const element = el("aside", { class: "uwaga-rail", "aria-label": tr("Most distinctive heads") }, title, list, rest);
  // Images are those of "All heads".
  const drawing = makeOverviewDrawing(app, el("canvas"), {
    name: (row) => JSON.stringify(row), peek: (row) => app.client.peek(overviewRequest(app, row)), isUnavailable: () => false,
  });
  const prefix = `uwaga-${Math.random().toString(36).slice(2)}`;
  /** @type {DistinctiveHeads | null} */
  let distinctive = null;
  /** @type {{queries: Items, keys: Items} | null} */
  let texts = null;

  function isOpen(/** @type {DistinctiveHead} */ { kind, layer, head }) {
    const state = app.store.get();
    return state.kind === kind && state.layer === layer && state.head === head;
  }

  function draw() {
    const shown = distinctive?.heads ?? [];
    title.textContent = distinctive ? tr("Distinctive heads, {length} of {total}", { length: shown.length, total: distinctive.total }) : tr("Most distinctive heads");
    list.replaceChildren(...shown.map((one, at) => card(one, at)));
    if (distinctive && !shown.length) list.append(el("p", { class: "uwaga-rail-rest", text: tr("No head stands out in this text.") }));
    rest.replaceChildren(
      ...(distinctive?.resting && distinctive.sink
        ? [...trNParts("{count} head rests on {sink}", "{count} heads rest on {sink}", distinctive.resting,
          { sink: el("bdi", { text: tokenText(distinctive.sink) }) }), " \u00b7 "] : []),
      el("button", { type: "button", class: "uwaga-link", text: tr("all heads"), on: { click: () => app.store.set({ tab: "overview" }) } }));
    mark();
  }

  /** @param {DistinctiveHead} one @param {number} at */
  function card(one, at) {
    const { kind, layer, head, sentence, link } = one;
    const picture = el("canvas", { width: thumbnailSide, height: thumbnailSide, "aria-hidden": "true" });
    drawThumbnail(picture, one);
    const name = (/** @type {Items | undefined} */ items, /** @type {number} */ item) => el("bdi", { text: briefText(items?.labels[item] ?? String(item)) });
    return el("div", { class: "uwaga-rail-card", role: "option", id: `${prefix}-${at}`, "aria-selected": "false",
      on: { click: () => open(one) } }, picture,
    el("div", {}, el("strong", { text: sentence }),
      el("small", {}, name(texts?.queries, link.query), " \u2192 ", name(texts?.keys, link.key), ` ${percentText(link.weight)}`),
      el("small", { text: headText(kind, layer, head) })));
  }

  /** @param {HTMLCanvasElement} canvas @param {DistinctiveHead} one */
  function drawThumbnail(canvas, { kind, layer, head }) {
    const heads = app.side().maps.find((map) => map.kind === kind && map.layer === layer)?.heads ?? 0;
    const image = drawing.imageOf({ side: app.store.get().side, kind, layer, heads, band: 0, y: 0 });
    const context = canvas.getContext("2d"), ratio = window.devicePixelRatio || 1;
    if (!image?.canvas || !context) return;
    canvas.width = canvas.height = Math.round(thumbnailSide * ratio);
    const { rows, columns } = image.cells;
    context.imageSmoothingEnabled = Math.max(rows, columns) > canvas.width;
    context.drawImage(image.canvas, head * columns, 0, columns, rows, 0, 0, canvas.width, canvas.height);
  }

  /** Marks the card of the open head. */
  function mark() {
    let active = "";
    (distinctive?.heads ?? []).forEach((one, at) => {
      const element = list.children[at], on = isOpen(one);
      element.setAttribute("aria-selected", String(on));
      if (on) active = element.id;
    });
    if (active) list.setAttribute("aria-activedescendant", active);
    else list.removeAttribute("aria-activedescendant");
  }

  /** @param {KeyboardEvent} event */
  function keydown(event) {
    const heads = distinctive?.heads ?? [], at = heads.findIndex(isOpen), last = heads.length - 1;
    const to = { ArrowDown: Math.min(last, at + 1), ArrowRight: Math.min(last, at + 1), ArrowUp: Math.max(0, at - 1),
      ArrowLeft: Math.max(0, at - 1), Home: 0, End: last }[event.key];
    if (to === undefined || last < 0 || event.ctrlKey || event.altKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    event.stopPropagation();
    open(heads[to]);
    list.children[to].scrollIntoView({ block: "nearest", inline: "nearest" });
  }

  draw();
  return {
    element, draw, mark,
    /** @param {DistinctiveHeads | null} next @param {{queries: Items, keys: Items} | null} of */
    show(next, of) {
      distinctive = next;
      texts = of;
      draw();
    },
    dispose: drawing.dispose,
  };
}

/** @param {App} app @param {{side: string, kind: string, layer: number}} row @returns {import("../types.js").Request} */
function overviewRequest(app, { side, kind, layer }) {
  const { pooling, merge, specials } = app.store.get();
  return { request: "overview", side, kind, layer, pooling, merge, specials };
}
