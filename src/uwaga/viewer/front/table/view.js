// The table of every statistic of every head.

import { el } from "../dom.js";
import { fileNameSlug } from "../export/weights.js";
import { kindTitle, numberText } from "../format.js";
import { tr, trN } from "../languages.js";
import { makeRequestSet, statisticsRequest } from "../requests.js";
import { kindsOf, makeAllHeadsSwitch } from "../shell/head_navigation.js";
import { makeGrid } from "./grid.js";
import { nextOrder, sortedRows, rangesOf, rowsOf, textOf } from "./rows.js";
/** @import { App, Kind, Scene, SceneItem, SideId, View } from "../types.js" */
/** @import { Column, Row } from "./rows.js" */

/** @param {App} app @returns {View} */
export function tableView(app) {
  const { store, about } = app;
  let order = { name: "layer", falling: false }, shown = false, frame = 0, anew = true;
  const names = about.statistics.map(({ name }) => name);
  const kind = el("select", { on: { change: filter } }, el("option", { value: "", text: tr("all kinds") }),
    kindsOf(about).map((name) => el("option", { value: name, text: kindTitle(name) })));
  const layers = [...new Set(about.sides.flatMap(({ maps }) => maps.map(({ layer }) => layer)))].sort((a, b) => a - b);
  const layer = el("select", { on: { change: filter } }, el("option", { value: "", text: tr("all layers") }),
    layers.map((number) => el("option", { value: number, text: tr("layer {number}", { number }) })));
  const bar = el("progress", { max: 1, value: 0, "aria-label": tr("Loaded statistics") }), statusText = el("span", { class: "uwaga-hint" });
  const copy = el("button", { type: "button", text: tr("Copy"), title: tr("Copy the rows shown, for a spreadsheet"), on: { click: copyRows } });
  const save = el("button",
    { type: "button", text: tr("CSV"), "aria-label": tr("Save the table as CSV"), title: tr("Save the rows shown as CSV"), on: { click: saveRows } });
  const grid = makeGrid({
    sort(column) {
      order = nextOrder(order, column);
      anew = true;
      draw();
      app.announce(order.falling ? tr("Sorted by {title}, falling", { title: column.title }) : tr("Sorted by {title}, rising", { title: column.title }));
    },
    open: (row) => app.openHead(row.side, row.kind, row.layer, row.head),
    status: app.status,
    sideTitle: (id) => app.side(/** @type {any} */ (id)).title,
  });
  const element = el("section", { class: "uwaga-table", "aria-label": tr("Table") },
    el("div", { class: "uwaga-table-bar", role: "group", "aria-label": tr("Rows of the table") }, makeAllHeadsSwitch(app, "table"),
      kindsOf(about).length > 1 && el("label", {}, el("span", { class: "uwaga-label", text: `${tr("Show")} ` }), kind),
      el("label", {}, el("span", { class: "uwaga-visually-hidden", text: `${tr("Layers")} ` }), layer), bar,
      statusText, el("span", { class: "uwaga-segments" }, copy, save)),
    grid.element);
  const loading = makeStatisticsLoader(app, schedule);
  const sizes = new ResizeObserver(schedule);

  const several = () => store.get().compare === "both";

  function maps() {
    const sides = several() ? about.sides.filter(({ id }) => id !== "difference") : [app.side()];
    return sides.flatMap(({ id, maps: all }) => all.map((map) => ({ side: id, ...map })))
      .filter((map) => (!kind.value || map.kind === kind.value) && (!layer.value || map.layer === Number(layer.value)));
  }

  /**
   * The columns; a statistic that no head has, such as that of learned sinks, is left out.
   * @param {Row[]} all @returns {Column[]}
   */
  function columns(all) {
    const loaded = all.filter((row) => row.isLoaded);
    const has = (/** @type {string} */ name) => !loaded.length || loaded.some((row) => name in row.values);
    return [
      ...(several() ? [{ name: "side", title: tr("side"), meaning: "", statistic: false }] : []),
      ...(kindsOf(about).length > 1 ? [{ name: "kind", title: tr("kind"),
        meaning: tr("encoder and decoder self-attention, or the decoder's attention to the encoder"), statistic: false }] : []),
      { name: "layer", title: tr("layer"), meaning: "", statistic: false }, { name: "head", title: tr("head"), meaning: "", statistic: false },
      ...about.statistics.filter(({ name }) => has(name)).map((one) => ({ ...one, title: tr(one.title), meaning: tr(one.meaning), statistic: true })),
    ];
  }

  function rows() {
    return sortedRows(rowsOf(maps(), (side, which, number) => {
      const meta = loading.reply({ side, kind: which, layer: number })?.meta;
      return meta && { columns: meta.columns, complete: meta.complete, sampled: meta.sampled ?? null };
    }), order);
  }

  function draw() {
    if (!shown) return;
    const shownMaps = maps(), all = rows(), { side, kind: which, layer: number, head } = store.get();
    grid.show({ rows: all, ranges: rangesOf(all, names), columns: columns(all), order,
      chosen: (row) => row.side === side && row.kind === which && row.layer === number && row.head === head }, anew);
    anew = false;
    const { done, total, share, missing } = loading.progress(shownMaps);
    bar.hidden = done === total;
    bar.value = share;
    const samples = [...new Set(all.map(({ sampled }) => sampled).filter((sampled) => sampled !== null))].sort((a, b) =>
      Number(a) - Number(b));
    statusText.textContent = [
      done < total ? tr("{done} of {total} layers", { done, total }) : trN("{count} head", "{count} heads", all.length),
      samples.length ? tr("from a sample of {sampled} queries", { sampled: samples.join(" to ") }) : "",
      missing ? trN("{count} layer is not known", "{count} layers are not known", missing) : "",
    ].filter(Boolean).join(" \u00b7 ");
  }

  function schedule() {
    if (!shown || frame) return;
    frame = requestAnimationFrame(() => { frame = 0; draw(); });
  }
  function filter() {
    anew = true;
    loading.request(maps());
    draw();
  }
  async function copyRows() {
    try {
      await navigator.clipboard.writeText(textOf(rows(),
        columns(rows()).filter(({ statistic }) => statistic).map(({ name }) => name), several(), "\t"));
      app.announce(tr("Copied"));
      app.status(tr("Copied {length} rows", { length: rows().length }));
    } catch (error) {
      if (!(error instanceof DOMException || error instanceof TypeError)) throw error;
      app.fail(tr("The browser does not allow this page to copy. Save the table as CSV instead."));
    }
  }
  function csv() {
    const { model } = app.side();
    return { name: ["uwaga", fileNameSlug(model.split("/").pop() ?? ""), "heads.csv"].filter((part) => part !== "").join("_"),
      blob: new Blob([textOf(rows(), columns(rows()).filter(({ statistic }) => statistic).map(({ name }) => name), several(), ",")],
        { type: "text/csv" }) };
  }
  function saveRows() {
    const { name, blob } = csv();
    app.host.download(name, blob);
  }

  const isShown = () => store.get().tab === "table";
  const removeCommands = [
    app.commands.add({ id: "table.rows", title: tr("Go to the rows"), keys: ["ArrowDown"],
      group: tr("Table"), when: isShown, run: () => grid.focus() }),
    app.commands.add({ id: "table.copy", title: tr("Copy the table"), keys: ["y"], group: tr("Table"), when: isShown, run: () => void copyRows() }),
    app.commands.add({ id: "table.csv", title: tr("Save the table as CSV"), keys: ["v"], group: tr("Table"), when: isShown, run: saveRows }),
  ];
  const unsubscribe = [
    store.subscribe(["side", "compare"], () => { anew = true; if (shown) filter(); }),
    store.subscribe(["kind", "layer", "head"], schedule),
  ];
  return {
    element,
    show() {
      shown = true;
      sizes.observe(element);
      loading.request(maps());
      draw();
    },
    hide() {
      shown = false;
      cancelAnimationFrame(frame);
      frame = 0;
      sizes.disconnect();
      loading.stop();
    },
    dispose() {
      loading.stop();
      removeCommands.forEach((remove) => remove());
      unsubscribe.forEach((leave) => leave());
    },
    csv,
    scene: async () => tableScene(app.root, rows(), columns(rows()), rangesOf(rows(), names),
      (id) => app.side(/** @type {any} */ (id)).title),
  };
}

/** @typedef {{side: SideId, kind: Kind, layer: number, heads: number}} TableMap */

/** The statistics of layers: requested while the table is shown. @param {App} app @param {() => void} onChange */
function makeStatisticsLoader(app, onChange) {
  const requests = makeRequestSet(app, -1, onChange);
  const reply = (/** @type {{side: string, kind: string, layer: number}} */ map) => app.client.peek(statisticsRequest(map));
  const share = (/** @type {TableMap} */ map) => {
    const meta = reply(map)?.meta;
    return requests.isUnavailable(statisticsRequest(map)) ? 1 : meta ? (meta.complete ?? 1) : 0;
  };
  return {
    reply,
    /** @param {TableMap[]} maps */
    request: (maps) => requests.request(maps.map(statisticsRequest)),
    /** @param {TableMap[]} maps @returns {{done: number, total: number, share: number, missing: number}} */
    progress(maps) {
      const shares = maps.map(share);
      return {
        done: shares.filter((one) => one >= 1).length, total: maps.length,
        share: shares.reduce((sum, one) => sum + one, 0) / Math.max(1, maps.length),
        missing: maps.filter((map) => !reply(map) && share(map) >= 1).length,
      };
    },
    stop: requests.stop,
  };
}

// The table as a scene, for files.

const sceneRow = 20;
const maxSceneRows = 2000; // rows of a picture

/**
 * @param {HTMLElement} root @param {Row[]} rows @param {Column[]} columns
 * @param {{[name: string]: [number, number]}} ranges @param {(id: string) => string} sideTitle @returns {Scene}
 */
function tableScene(root, rows, columns, ranges, sideTitle) {
  const style = getComputedStyle(root), paint = (/** @type {string} */ name) => style.getPropertyValue(name).trim();
  const widths = columns.map(({ title, statistic }) => Math.max(statistic ? 84 : 56, title.length * 7 + 16));
  const shown = rows.slice(0, maxSceneRows), width = widths.reduce((sum, one) => sum + one, 0) + 16;
  /** @type {SceneItem[]} */
  const items = [];
  const line = (/** @type {number} */ y) =>
    items.push({ kind: "line", x1: 8, x2: width - 8, y1: y, y2: y, stroke: paint("--line"), width: 1, opacity: 1 });
  let x = 8;
  columns.forEach((column, at) => {
    const end = x + widths[at] - 8, left = x;
    items.push({ kind: "text", x: end, y: 20, text: column.title, size: 12, anchor: "end", fill: paint("--muted") });
    shown.forEach((row, i) => {
      const y = 32 + i * sceneRow, value = row.values[column.name], [low, high] = ranges[column.name] ?? [0, 0];
      if (column.statistic && typeof value === "number" && high > low) {
        const zero = -low / (high - low), place = (value - low) / (high - low), room = widths[at] - 8;
        items.push({ kind: "rect", x: left + 4 + Math.min(zero, place) * room, y: y + 3,
          w: Math.abs(place - zero) * room, h: sceneRow - 6, fill: paint("--raised") });
      }
      const text = column.statistic ? numberText(value) : column.name === "side"
        ? sideTitle(row.side) : String(/** @type {any} */ (row)[column.name]);
      items.push({ kind: "text", x: end, y: y + 14, text, size: 12, anchor: "end", fill: paint("--text") });
    });
    x += widths[at];
  });
  line(29);
  return { width, height: 40 + shown.length * sceneRow, background: paint("--bg"), items };
}
