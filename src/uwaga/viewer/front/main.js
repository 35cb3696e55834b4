// The explorer: one front end for the server's page, for notebooks and for saved pages.

import { makeClient } from "./client.js";
import { makeHelp } from "./commands.js";
import { el } from "./dom.js";
import { answerView } from "./answer/view.js";
import { exploreView } from "./explore/view.js";
import { makeExportMenu } from "./export/menu.js";
import { savedHost, servedHost, widgetHost } from "./hosts.js";
import { tr } from "./languages.js";
import { overviewView } from "./overview/view.js";
import { pictureView } from "./picture/view.js";
import { hasMaps, makeApp, resolvedTheme } from "./shell/app.js";
import { addPageCommands } from "./shell/head_navigation.js";
import { makeHeadBar, makeHeader } from "./shell/header.js";
import { focusKeeper, makePageFrame, makeTabPanel } from "./shell/page.js";
import { keepSelection } from "./shell/selection.js";
import { syncUrl } from "./shell/url_state.js";
import { isEqual } from "./store.js";
import { tableView } from "./table/view.js";
import { hostOfRun, makeSession, typedOfHash, completeRequest } from "./typing/session.js";
/** @import { WidgetModel } from "./hosts.js" */
/** @import { About, App, Client, ClientEvent, Host, RunRequest, State, Tab, View } from "./types.js" */

/** @typedef {ReturnType<typeof makePageFrame>} Frame */

/** @typedef {{name: Tab, title: string, make: (app: App) => View}} TabView */

/** @typedef {(app: App) => View} MakeView */

/** Every view, in the order of its tab. @param {About} about @param {MakeView | undefined} lesson @returns {TabView[]} */
function explorerViews({ sides, answer, picture }, lesson) {
  /** @type {TabView[]} */
  const ofMaps = [
    { name: "explore", title: tr("Explore"), make: exploreView },
    { name: "overview", title: tr("All heads"), make: overviewView },
    { name: "table", title: tr("Table"), make: tableView },
  ];
  return [...(answer ? [{ name: /** @type {Tab} */ ("answer"), title: tr("Answer"), make: answerView }] : []), ...(picture ? [{ name: /** @type {Tab} */ ("picture"), title: tr("Picture"), make: pictureView }] : []), ...(sides.length ? ofMaps : []), ...(lesson ? [{ name: /** @type {Tab} */ ("lesson"), title: tr("Lesson"), make: lesson }] : [])];
}

/**
 * The lesson of a served page whose script is without it: the page is loaded again, with the script that has it.
 * @type {MakeView}
 */
const lessonElsewhere = () => ({
  element: el("p", { class: "uwaga-loading", text: tr("Opening…") }),
  // In a task of its own: the address has the tab by then.
  show: () => void setTimeout(() => {
    const query = new URLSearchParams(window.location.search);
    query.set("lesson", "");
    window.location.replace(`?${query}${window.location.hash}`);
  }),
  hide() {},
  dispose() {},
});

/**
 * Shows the explorer in `root`. If the host refuses, the page shows the error and the promise rejects.
 * @param {HTMLElement} root @param {Host} host
 * @param {MakeView} [lesson]  its view, if the script has it
 * @returns {Promise<{dispose: () => void, app: () => App}>}
 */
export async function start(root, host, lesson) {
  const opening = makePageFrame(root, host.mode), hash = host.mode === "served" ? window.location.hash : "";
  root.dataset.theme = resolvedTheme("auto");
  /** @type {{dispose: () => void, app: App} | null} */
  let opened = null;
  /** @type {App["history"]} */
  const history = { past: [], future: [], first: null };
  /** @type {App["rows"]} */
  const rows = { cross: "written" };
  let endFocus = () => {};
  const session = makeSession(host, show), kept = { session, history, rows, reopen };

  /** The client of a result, and what it says of itself. @param {number} run @param {Frame} frame  that shows errors of the connection */
  async function connect(run, frame) {
    const client = makeClient(hostOfRun(host, run));
    const shown = { frame };
    client.subscribe((event) => showConnection(shown.frame, event));
    const { meta } = await client.ask({ request: "about" }, { priority: 10 });
    return { client, about: /** @type {About} */ ({ ...meta, lesson: lesson !== undefined }), shown };
  }

  /** Shows a result in place of the one that is shown. @param {number} run @param {RunRequest} typed @param {boolean} keep */
  async function show(run, typed, keep) {
    const before = opened?.app.store.get(), old = opened?.app.about, { client, about, shown } = await connect(run, opening);
    if (!keep && !typed.edits) { history.past.length = 0; history.future.length = 0; }
    const refocus = keep ? focusKeeper(root) : null, isWriting = root.querySelector(".uwaga-typing:not([hidden])") !== null;
    opened?.dispose();
    shown.frame = makePageFrame(root, host.mode);
    opened = openExplorer(root, hostOfRun(host, run), client, about, shown.frame, kept, lesson, before && old && carriedState(before, old, about, keep));
    endFocus();
    endFocus = refocus?.() ?? endFocus;
    if (isWriting && !typed.edits) opened.app.commands.run("typing.write");
    opened.app.announce(typed.edits ? tr("The model was changed.") : tr("The text was run."));
  }

  /** The same result, after a change of what outlives it. */
  async function reopen() {
    const about = opened?.app.about;
    if (about) await show(about.run ?? 0, about.typed ?? completeRequest({}), true);
  }

  try {
    const { client, about, shown } = await connect(0, opening);
    history.first = about.typed ?? null;
    const typed = about.typing ? typedOfHash(hash) : null;
    if (typed && !isEqual(typed, about.typed)) await session.run(typed);
    opened ??= openExplorer(root, host, client, about, shown.frame, kept, lesson);
  } catch (error) {
    opening.panel.replaceChildren(el("p", { class: "uwaga-loading", text: tr("This page cannot be opened.") }));
    throw error;
  }
  return {
    app: () => /** @type {{app: App}} */ (opened).app,
    dispose() {
      session.dispose();
      endFocus();
      opened?.dispose();
      host.dispose?.();
    },
  };
}

/**
 * What stays when another text or a changed model is shown.
 * @param {Readonly<State>} state
 * @param {About} old  what was shown
 * @param {About} about
 * @param {boolean} keep  the head and the picked words too
 * @returns {Partial<State>}
 */
function carriedState(state, old, about, keep) {
  const { theme, colour, pooling, specials, shortcuts, overviewScale, wide, tab, step, example } = state;
  // Words or tokens: what a reader has chosen stays, else it is as the length of the text suggests.
  const merge = keep || state.merge !== old.start?.merge ? state.merge : about.start?.merge ?? state.merge;
  const always = { theme, colour, pooling, merge, specials, shortcuts, overviewScale, wide, tab, step, example };
  if (!keep) return always;
  const { kind, layer, head, query, key, view } = state;
  const there = about.sides.some(({ id }) => id === state.side), changed = Boolean(about.python);
  // After a change the page shows what came of it, unless it shows the difference.
  const side = changed && state.side === "0" ? "1" : there ? state.side : "0";
  return { ...always, kind, layer, head, query, key, view, side,
    compare: side === "difference" ? "difference" : state.compare === "both" && about.sides.length > 1 ? "both" : "one" };
}

/**
 * Starts a page of its own: a served one, or a saved one that holds its replies.
 * @param {HTMLElement} root @param {MakeView} [lesson]
 */
export function startPage(root, lesson) {
  const host = document.querySelector("script[data-uwaga-saved]") ? savedHost() : servedHost();
  start(root, host, lesson).catch((error) => console.error(error));
}

/**
 * The render function that anywidget calls; returns the cleanup function.
 * @param {{model: WidgetModel, el: HTMLElement}} context @param {MakeView} [lesson]
 */
export function render({ model, el: place }, lesson) {
  const root = el("div", { class: "uwaga" });
  place.append(root);
  const opened = start(root, widgetHost(model), lesson);
  opened.catch((error) => console.error(error));
  return () => opened.then(({ dispose }) => dispose(), () => undefined);
}

/**
 * @param {HTMLElement} root @param {Host} host @param {Client} client @param {About} about @param {Frame} frame
 * @param {Pick<App, "session" | "history" | "rows" | "reopen">} kept  what outlives a text
 * @param {MakeView | undefined} lesson
 * @param {Partial<State>} [carried]  of the text before; the address is then that of this text
 * @returns {{dispose: () => void, app: App}}
 */
function openExplorer(root, host, client, about, frame, kept, lesson, carried) {
  const typed = about.run ? about.typed : null;
  if (carried && host.mode !== "notebook" && !isEqual(typed, typedOfHash(window.location.hash))) window.history.pushState(null, "", "#");
  const app = makeApp(root, host, client, about, frame, kept);
  const views = explorerViews(about, lesson ?? (host.mode === "served" ? lessonElsewhere : undefined));
  const tabs = views.map(({ name, title }) => ({ name, title }));
  const cleanups = [followSystemTheme(app), ...(about.sides.length ? [keepSelection(app)] : [])];
  // The URL of a notebook belongs to the notebook.
  if (host.mode === "notebook") app.store.set(carried ?? {});
  else cleanups.push(syncUrl(app, window, carried));
  if (about.sides.length && !hasMaps(app, {})) app.store.set({ merge: "tokens", specials: "show", pooling: "sum" });
  if (!tabs.length) throw new Error(tr("There is nothing to show."));
  if (about.answer && app.isFresh && !carried && app.store.get().tab === "explore") app.store.set({ tab: "answer" });
  if (!tabs.some(({ name }) => name === app.store.get().tab)) app.store.set({ tab: tabs[0].name });

  const headBar = about.sides.length ? makeHeadBar(app) : el("div");
  const tabPanel = makeTabPanel(app, frame.panel, headBar, views);
  const help = makeHelp(app);
  app.commands.add({ id: "shell.help", title: tr("This help"), keys: ["?"], group: tr("Views"), run: () => { tabPanel.createAll(); help.toggle(); } });
  addPageCommands(app, tabs);
  // The table is a part of "All heads".
  const header = makeHeader(app, tabs.filter(({ name }) => name !== "table"), makeExportMenu(app, tabPanel.current), frame.statusElement);
  frame.header.replaceChildren(...header.elements);
  frame.note(about.left_out ?? "");
  frame.panel.id = header.panelId;
  frame.panel.setAttribute("role", "tabpanel");
  root.append(help.element);
  const keydown = (/** @type {KeyboardEvent} */ event) => void app.commands.handle(event);
  root.addEventListener("keydown", keydown);
  tabPanel.start();
  if (host.mode !== "notebook") root.focus({ preventScroll: true });
  return {
    app,
    dispose() {
      tabPanel.dispose();
      cleanups.forEach((end) => end());
      client.dispose();
      root.removeEventListener("keydown", keydown);
      root.replaceChildren();
    },
  };
}

/** @param {Frame} frame @param {ClientEvent} event */
function showConnection(frame, event) {
  if (event.type === "failed") frame.fail(event.message);
  if (event.type === "busy") frame.setBusy(event.inFlight > 0);
  if (event.type === "recovered") { frame.setConnectionError(null); frame.announce(tr("The program answers again.")); }
  if (event.type === "slow") frame.setConnectionError(tr("No answer for ten seconds. The program is busy or was stopped."));
  if (event.type === "unreachable") frame.setConnectionError(tr("The program that computes this page does not answer. Was it stopped? Trying again…"));
}

/** @param {App} app @returns {() => void} */
function followSystemTheme(app) {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const draw = () => {
    app.root.dataset.theme = app.theme();
    app.store.set({ dark: app.theme() === "dark" });
  };
  dark.addEventListener("change", draw);
  const unsubscribe = app.store.subscribe(["theme"], draw);
  draw();
  return () => {
    unsubscribe();
    dark.removeEventListener("change", draw);
  };
}
