// Every statistic of every head.

import { el } from "../dom.js";
import { kindTitle } from "../shell/pieces.js";
import { kindsOf } from "../shell/moves.js";
import { makeTableGrid } from "./grid.js";
import { tableLoading } from "./loading.js";
import { nextOrder, sortedRows, tableRanges, tableRows, tableText } from "./rows.js";
import { tableScene } from "./scene.js";

/** @typedef {import("./rows.js").TableColumn} TableColumn */

/**
 * @param {import("../types.js").App} app
 * @returns {import("../types.js").View}
 */
export function tableView(app) {
  const { store, about } = app;
  let order = { name: "layer", falling: false }, shown = false, frame = 0, anew = true;
  const names = about.statistics.map(({ name }) => name);
  const kind = el("select", { on: { change: filter } }, el("option", { value: "", text: "all kinds" }),
    kindsOf(about).map((name) => el("option", { value: name, text: kindTitle(name) })));
  const layers = [...new Set(about.sides.flatMap(({ maps }) => maps.map(({ layer }) => layer)))].sort((a, b) => a - b);
  const layer = el("select", { on: { change: filter } }, el("option", { value: "", text: "all layers" }),
    layers.map((number) => el("option", { value: number, text: `layer ${number}` })));
  const bar = el("progress", { max: 1, value: 0, "aria-label": "Statistics that have come" }), told = el("span", { class: "uwaga-hint" });
  const copy = el("button", { type: "button", text: "Copy", title: "Copy the rows shown, for a spreadsheet", on: { click: copyRows } });
  const save = el("button",
    { type: "button", text: "CSV", "aria-label": "Save the table as CSV", title: "Save the rows shown as CSV", on: { click: saveRows } });
  const grid = makeTableGrid({
    sort(column) {
      order = nextOrder(order, column);
      anew = true;
      draw();
      app.announce(`Sorted by ${column.title}, ${order.falling ? "falling" : "rising"}`);
    },
    open: (row) => app.openHead(row.side, row.kind, row.layer, row.head),
    status: app.status,
    sideTitle: (id) => app.side(/** @type {any} */ (id)).title,
  });
  const element = el("section", { class: "uwaga-table", "aria-label": "Table" },
    el("div", { class: "uwaga-table-bar", role: "group", "aria-label": "Rows of the table" },
      kindsOf(about).length > 1 && el("label", {}, el("span", { class: "uwaga-label", text: "Show " }), kind),
      el("label", {}, el("span", { class: "uwaga-unseen", text: "Layers " }), layer), bar,
      told, el("span", { class: "uwaga-segments" }, copy, save)),
    grid.element);
  const loading = tableLoading(app, schedule);
  const sizes = new ResizeObserver(schedule);

  const several = () => store.get().compare === "both";

  function maps() {
    const sides = several() ? about.sides.filter(({ id }) => id !== "difference") : [app.side()];
    return sides.flatMap(({ id, maps: all }) => all.map((map) => ({ side: id, ...map })))
      .filter((map) => (!kind.value || map.kind === kind.value) && (!layer.value || map.layer === Number(layer.value)));
  }

  /**
   * Statistics that no head has, such as that of learned sinks, take no room.
   * @param {import("./rows.js").TableRow[]} all
   * @returns {TableColumn[]}
   */
  function columns(all) {
    const known = all.filter((row) => row.known);
    const has = (/** @type {string} */ name) => !known.length || known.some((row) => name in row.values);
    return [
      ...(several() ? [{ name: "side", title: "side", meaning: "", statistic: false }] : []),
      ...(kindsOf(about).length > 1 ? [{ name: "kind", title: "kind",
        meaning: "encoder and decoder self-attention, or the decoder's attention to the encoder", statistic: false }] : []),
      { name: "layer", title: "layer", meaning: "", statistic: false }, { name: "head", title: "head", meaning: "", statistic: false },
      ...about.statistics.filter(({ name }) => has(name)).map((one) => ({ ...one, statistic: true })),
    ];
  }

  function rows() {
    return sortedRows(tableRows(maps(), (side, which, number) => {
      const meta = loading.reply({ side, kind: which, layer: number })?.meta;
      return meta && { columns: meta.columns, complete: meta.complete, sampled: meta.sampled ?? null };
    }), order);
  }

  function draw() {
    if (!shown) return;
    const wanted = maps(), all = rows(), { side, kind: which, layer: number, head } = store.get();
    grid.show({ rows: all, ranges: tableRanges(all, names), columns: columns(all), order,
      chosen: (row) => row.side === side && row.kind === which && row.layer === number && row.head === head }, anew);
    anew = false;
    const { done, total, share, missing } = loading.progress(wanted);
    bar.hidden = done === total;
    bar.value = share;
    const samples = [...new Set(all.map(({ sampled }) => sampled).filter((sampled) => sampled !== null))].sort((a, b) =>
      Number(a) - Number(b));
    told.textContent = [
      done < total ? `${done} of ${total} layers` : `${all.length} ${all.length === 1 ? "head" : "heads"}`,
      samples.length ? `from a sample of ${samples.join(" to ")} queries` : "",
      missing ? `${missing} ${missing === 1 ? "layer is" : "layers are"} not known` : "",
    ].filter(Boolean).join(" \u00b7 ");
  }

  function schedule() {
    if (!shown || frame) return;
    frame = requestAnimationFrame(() => { frame = 0; draw(); });
  }
  function filter() {
    anew = true;
    loading.want(maps());
    draw();
  }
  async function copyRows() {
    try {
      await navigator.clipboard.writeText(tableText(rows(),
        columns(rows()).filter(({ statistic }) => statistic).map(({ name }) => name), several(), "\t"));
      app.announce("Copied");
      app.status(`Copied ${rows().length} rows`);
    } catch (error) {
      if (!(error instanceof DOMException || error instanceof TypeError)) throw error;
      app.fail("The browser does not let this page copy. Save the table as CSV instead.");
    }
  }
  function saveRows() {
    app.host.download("heads.csv", new Blob([tableText(rows(),
      columns(rows()).filter(({ statistic }) => statistic).map(({ name }) => name), several(), ",")], { type: "text/csv" }));
  }

  const here = () => store.get().tab === "table";
  const removes = [
    app.commands.add({ id: "table.rows", title: "Go to the rows", keys: ["ArrowDown"],
      group: "Table", when: here, run: () => grid.focus() }),
    app.commands.add({ id: "table.copy", title: "Copy the table", keys: ["y"], group: "Table", when: here, run: () => void copyRows() }),
    app.commands.add({ id: "table.csv", title: "Save the table as CSV", keys: ["v"], group: "Table", when: here, run: saveRows }),
  ];
  const leaves = [
    store.subscribe(["side", "compare"], () => { anew = true; if (shown) filter(); }),
    store.subscribe(["kind", "layer", "head"], schedule),
  ];
  return {
    element,
    show() {
      shown = true;
      sizes.observe(element);
      loading.want(maps());
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
      removes.forEach((remove) => remove());
      leaves.forEach((leave) => leave());
    },
    scene: async () => tableScene(app.root, rows(), columns(rows()), tableRanges(rows(), names),
      (id) => app.side(/** @type {any} */ (id)).title),
  };
}
