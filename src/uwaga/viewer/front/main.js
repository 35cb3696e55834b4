// The explorer: one front end for the server's page, for notebooks and for saved pages.

import { makeClient } from "./client.js";
import { makeHelp } from "./commands.js";
import { el } from "./dom.js";
import { exportControls } from "./export/menu.js";
import { savedHost, servedHost, widgetHost } from "./hosts.js";
import { lessonView } from "./lesson/view.js";
import { linesView } from "./lines/view.js";
import { mapView } from "./map/view.js";
import { overviewView } from "./overview/view.js";
import { hasItems, makeApp, shownTheme } from "./shell/app.js";
import { addMoves } from "./shell/head_navigation.js";
import { makeHeader } from "./shell/header.js";
import { makeFrame, makeTabViews } from "./shell/page.js";
import { keepPicks } from "./shell/selection.js";
import { besideView } from "./shell/side_by_side.js";
import { followAddress } from "./shell/url_state.js";
import { tableView } from "./table/view.js";
import { textView } from "./text/view.js";

/** @typedef {import("./types.js").App} App */
/** @typedef {import("./types.js").Tab} Tab */

/** @typedef {ReturnType<typeof makeFrame>} Frame */

/**
 * Every view, in the order of its tab.
 * @type {{name: Tab, title: string, make: (app: App) => import("./types.js").View, when?: (about: import("./types.js").About) =>
 *   boolean}[]}
 */
const mainViews = [
  { name: "overview", title: "Overview", make: overviewView },
  { name: "map", title: "Map", make: mapView },
  { name: "text", title: "Text", make: (app) => besideView(app, textView) },
  { name: "lines", title: "Lines", make: (app) => besideView(app, linesView) },
  { name: "table", title: "Table", make: tableView },
  { name: "lesson", title: "Lesson", make: lessonView, when: ({ lesson }) => lesson },
];

/**
 * Shows the explorer in `root`. What the host refuses is said there, and rejects.
 * @param {HTMLElement} root
 * @param {import("./types.js").Host} host
 * @returns {Promise<{dispose: () => void, app: App}>}
 */
export async function start(root, host) {
  const frame = makeFrame(root, host.mode);
  root.dataset.theme = shownTheme("auto");
  const client = makeClient(host);
  const unwatch = client.watch((event) => mainTell(frame, event));
  try {
    const { meta } = await client.ask({ ask: "about" }, { priority: 10 });
    return mainOpen(root, host, client, /** @type {import("./types.js").About} */ (meta), frame);
  } catch (error) {
    frame.panel.replaceChildren(el("p", { class: "uwaga-opening", text: "This page cannot be opened." }));
    unwatch();
    throw error;
  }
}

/**
 * A page of its own: a server's, or one that holds its replies. What goes wrong is said in the page.
 * @param {HTMLElement} root
 */
export function startPage(root) {
  const host = document.querySelector("script[data-uwaga-saved]") ? savedHost() : servedHost();
  start(root, host).catch((error) => console.error(error));
}

/**
 * What anywidget calls to show a widget; returns what ends it.
 * @param {{model: import("./hosts.js").WidgetModel, el: HTMLElement}} context
 */
export function render({ model, el: place }) {
  const root = el("div", { class: "uwaga" });
  place.append(root);
  const opened = start(root, widgetHost(model));
  opened.catch((error) => console.error(error));
  return () => opened.then(({ dispose }) => dispose(), () => undefined);
}

/**
 * @param {HTMLElement} root
 * @param {import("./types.js").Host} host
 * @param {import("./types.js").Client} client
 * @param {import("./types.js").About} about
 * @param {Frame} frame
 */
function mainOpen(root, host, client, about, frame) {
  const app = makeApp(root, host, client, about, frame);
  // Without a recording there is the lesson alone.
  const views = mainViews.filter(({ name, when }) => (about.sides.length || name === "lesson") && (!when || when(about)));
  const tabs = views.map(({ name, title }) => ({ name, title }));
  const ends = [mainTheme(app), ...(about.sides.length ? [keepPicks(app)] : [])];
  // A notebook's address is not ours.
  if (host.mode !== "notebook") ends.push(followAddress(app, window));
  if (about.sides.length && !hasItems(app, {})) app.store.set({ merge: "tokens", specials: "show" });
  if (!tabs.length) throw new Error("There is nothing to show.");
  if (!tabs.some(({ name }) => name === app.store.get().tab)) app.store.set({ tab: tabs[0].name });

  const shown = makeTabViews(app, frame.panel, views);
  const help = makeHelp(app);
  app.commands.add({ id: "shell.help", title: "This help", keys: ["?"], group: "Views", run: () => { shown.all(); help.toggle(); } });
  addMoves(app, tabs);
  const header = makeHeader(app, tabs, [exportControls(app, shown.current)]);
  frame.header.replaceChildren(...header.elements);
  frame.panel.id = header.panelId;
  frame.panel.setAttribute("role", "tabpanel");
  root.append(help.element);
  const keydown = (/** @type {KeyboardEvent} */ event) => void app.commands.handle(event);
  root.addEventListener("keydown", keydown);
  shown.start();
  if (host.mode !== "notebook") root.focus({ preventScroll: true });
  return {
    app,
    dispose() {
      shown.dispose();
      ends.forEach((end) => end());
      client.dispose();
      host.dispose?.();
      root.removeEventListener("keydown", keydown);
      root.replaceChildren();
    },
  };
}

/**
 * @param {Frame} frame
 * @param {import("./types.js").ClientEvent} event
 */
function mainTell(frame, event) {
  if (event.type === "failed") frame.fail(event.message);
  if (event.type === "busy") frame.active(event.flights > 0);
  if (event.type === "back") { frame.absent(null); frame.announce("The program answers again."); }
  if (event.type === "silent") frame.absent("No answer for ten seconds. The program is busy with something else, or was stopped.");
  if (event.type === "gone") frame.absent("The program that computes this page does not answer. Was it stopped? Trying again\u2026");
}

/** @param {App} app @returns {() => void} */
function mainTheme(app) {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const draw = () => {
    app.root.dataset.theme = app.theme();
    app.store.set({ dark: app.theme() === "dark" });
  };
  dark.addEventListener("change", draw);
  const leave = app.store.subscribe(["theme"], draw);
  draw();
  return () => {
    leave();
    dark.removeEventListener("change", draw);
  };
}
