// The explorer: one front end for the server's page, for notebooks and for pages that are one file.

import { el } from "./dom.js";
import { makeClient } from "./client.js";
import { savedHost } from "./hosts/saved.js";
import { servedHost } from "./hosts/served.js";
import { widgetHost } from "./hosts/widget.js";
import { makeApp } from "./shell/app.js";

/**
 * Shows the explorer in `root`. Rejects with what the host refuses.
 * @param {HTMLElement} root
 * @param {import("./types.js").Host} host
 * @returns {Promise<{dispose: () => void, app: import("./types.js").App}>}
 */
export async function start(root, host) {
  root.classList.add("uwaga");
  const client = makeClient(host);
  const about = /** @type {import("./types.js").About} */ ((await client.ask({ ask: "about" }, { priority: 10 })).meta);
  const app = makeApp(root, host, client, about, { announce() {}, status() {}, fail() {} });
  root.append(el("p", { text: about.title }));
  return { app, dispose: () => client.dispose() };
}

/**
 * The page of the server, or a saved one: whichever this document is.
 * @param {HTMLElement} root
 * @returns {Promise<{dispose: () => void, app: import("./types.js").App}>}
 */
export function startPage(root) {
  return start(root, document.querySelector("script[data-uwaga-saved]") ? savedHost() : servedHost());
}

/**
 * The view of a notebook's widget, as anywidget calls it.
 * @param {{model: import("./hosts/widget.js").WidgetModel, el: HTMLElement}} widget
 * @returns {Promise<() => void>}
 */
export async function render({ model, el: place }) {
  const host = widgetHost(model);
  const root = el("div");
  place.append(root);
  const started = await start(root, host);
  return () => started.dispose();
}
