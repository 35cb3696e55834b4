// The menu "Share": pictures of the view, weights in view, the page as one file.

import { menuButton } from "../controls.js";
import { el, tokenText } from "../dom.js";
import { kindTitle } from "../format.js";
import { isAbort, messageOf } from "../hosts.js";
import { tr } from "../languages.js";
import { scenePng } from "./canvas.js";
import { shareScene, titledScene } from "./share.js";
import { svgFile } from "./svg.js";
import { blockCsv, fileName, savePage } from "./weights.js";
/** @import { App, View } from "../types.js" */

/** @typedef {{name: string, blob: Blob, note?: string}} ExportFile */
/** @typedef {{id: string, title: string, hint: string, key: string, live: boolean, can?: (view: View) => boolean, make: (view: View) => Promise<ExportFile>}} FileFormat */

/** The button "Share" and its menu. @param {App} app @param {() => View} currentView @returns {HTMLElement} */
export function makeExportMenu(app, currentView) {
  const formats = fileFormats(app).filter(({ live }) => !live || app.about.live);
  const menu = el("div", { class: "uwaga-export-menu", role: "group", "aria-label": tr("Save as a file") });
  const { element, button, open } = menuButton(tr("Share"), menu, () => updateMenu(menu, formats, currentView()));
  let busy = ""; // the announcement while a file is being made
  const run = async (/** @type {FileFormat} */ format) => {
    if (busy) return void app.announce(busy);
    busy = tr("Please wait: {title} is being made.", { title: format.title });
    open(false);
    app.status(tr("Making {title}…", { title: format.title }));
    try {
      const { name, blob, note } = await format.make(currentView());
      app.host.download(name, blob);
      const message = note ? tr("Saved {name}: {note}", { name, note }) : tr("Saved {name}", { name });
      app.status(message);
      app.announce(message);
    } catch (error) {
      app.status("");
      // The client has already reported what the host refuses.
      if (!isAbort(error) && !(error instanceof Error && error.name === "HostError"))
        app.fail(messageOf(error));
    } finally {
      busy = "";
    }
  };
  menu.append(...formats.map((format) =>
    el("button", { type: "button", "data-export": format.id, title: format.hint, on: { click: () => { button.focus(); run(format); } } },
    format.title, el("kbd", { text: format.key }))));
  for (const format of formats) {
    app.commands.add({ id: `export.${format.id}`, title: tr("Save {title}", { title: format.title }), keys: [format.key], group: tr("Files"), run: () => run(format),
      when: () => format.can?.(currentView()) ?? true });
  }
  return element;
}

/** @param {HTMLElement} menu @param {FileFormat[]} formats @param {View} view */
function updateMenu(menu, formats, view) {
  formats.forEach((format, index) => {
    /** @type {HTMLButtonElement} */ (menu.children[index]).disabled = !(format.can?.(view) ?? true);
  });
}

/** @param {App} app @returns {FileFormat[]} */
function fileFormats(app) {
  /** @param {string} what @param {string} ending @param {BlobPart} data @param {string} [note] @param {boolean} [isOfHead]  else it is of all heads, and named after the text */
  const file = (what, ending, data, note, isOfHead = true) => ({ note, name: fileName({ model: app.side().model, ...(isOfHead ? { where: app.where() } : { text: app.side().text_title }), what, ending }),
    blob: new Blob([data], { type: ending === "svg" ? "image/svg+xml" : "image/png" }) });
  const card = async (/** @type {boolean} */ isSquare) => {
    const { scene, alt } = await shareScene(app, isSquare), { blob } = await scenePng(scene, 1);
    return file(isSquare ? "square" : "share", "png", blob, alt);
  };
  /** The scene of a view under its title. @param {View} view */
  const titled = async (view) => {
    if (!view.scene) throw new Error(tr("This view cannot be saved as a picture."));
    const style = getComputedStyle(app.root), paint = (/** @type {string} */ custom) => style.getPropertyValue(custom).trim();
    const title = titleOf(app), text = tokenText(app.side().text_title), { tab } = app.store.get();
    return { scene: titledScene(await view.scene(), { title, text, ink: paint("--text"), muted: paint("--muted") }), alt: `${title}: ${text}`, tab };
  };
  const some = () => app.about.sides.length > 0, isDrawn = (/** @type {View} */ { scene }) => scene !== undefined;
  return [
    { id: "share", title: tr("Picture to share"), hint: tr("the sentence with its arcs, {size}", { size: "1200 × 630" }), key: "Shift+S", live: true, can: some, make: () => card(false) },
    { id: "square", title: tr("Square picture to share"), hint: tr("the sentence with its arcs, {size}", { size: "1080 × 1080" }), key: "Shift+E", live: true, can: some, make: () => card(true) },
    { id: "drawing", title: tr("Drawing to share"), hint: tr("the sentence with its arcs as an SVG, with a description"), key: "Shift+A", live: true, can: some, async make() {
      const { scene, alt } = await shareScene(app);
      return file("share", "svg", svgFile(scene, alt), alt);
    } },
    { id: "png", title: tr("PNG"), hint: tr("a picture of this view, at twice its size"), key: "Shift+P", live: false, can: isDrawn, async make(view) {
      const { scene, tab } = await titled(view), { blob, scale } = await scenePng(scene);
      return file(tab, "png", blob, scale < 2 ? tr("at {scale}% of the size on screen, the most that a browser draws", { scale: Math.round(scale * 100) }) : "", tab === "explore");
    } },
    { id: "svg", title: tr("SVG"), hint: tr("a drawing of this view, with text as text"), key: "Shift+V", live: false, can: isDrawn, async make(view) {
      const { scene, alt, tab } = await titled(view);
      return file(tab, "svg", svgFile(scene, alt), "", tab === "explore");
    } },
    { id: "csv", title: tr("CSV"), hint: tr("the weights in view as a table, with tokens as names; of the table of heads its rows"),
      key: "Shift+C", live: false, can: some, make: (view) => (view.csv ? Promise.resolve(view.csv()) : blockCsv(app, view)) },
    { id: "page", title: tr("Page"), hint: tr("this page as one file that works without the program, with the exact tiles seen so far"),
      key: "Shift+G", live: true, make: () => savePage(app) },
  ];
}

/** @param {App} app @returns {string} */
function titleOf(app) {
  const { kind, layer, head } = app.where(), { tab } = app.store.get();
  const which = tab === "overview" || tab === "table" ? tr("all heads") : tab === "lesson" ? "lesson" : tr("{kind} layer {layer}, head {head}", { kind: kindTitle(kind), layer, head });
  return tokenText([app.side().model, which].filter(Boolean).join(", "));
}
