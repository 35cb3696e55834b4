// The page's fixed parts: header, tab panel, error messages, status; and the views in the tab panel, one at a time.

import { el } from "../dom.js";
import { tr } from "../languages.js";
/** @import { App, Tab, View } from "../types.js" */

/** @param {HTMLElement} root @param {"served" | "notebook" | "saved"} mode */
export function makePageFrame(root, mode) {
  root.classList.add("uwaga");
  root.dataset.mode = mode;
  // Jupyter's single-key shortcuts must not run while the explorer has the focus.
  root.dataset.lmSuppressShortcuts = "true";
  root.tabIndex = 0;
  // In a notebook it is a part of another page.
  root.setAttribute("role", mode === "notebook" ? "group" : "main");
  root.setAttribute("aria-label", tr("Attention explorer"));

  const header = el("div", { class: "uwaga-header" });
  const opening = el("p", { class: "uwaga-loading", text: tr("Opening…") });
  const panel = el("div", { class: "uwaga-panel" }, opening);
  const note = el("p", { class: "uwaga-left-out", hidden: true });
  const live = el("div", { class: "uwaga-visually-hidden", "aria-live": "polite", role: "status" });
  const errors = el("div", { class: "uwaga-errors" });
  const text = el("span", { class: "uwaga-status-text" });
  const activity = el("span", { class: "uwaga-activity", "aria-hidden": "true" });
  const status = el("div", { class: "uwaga-status" }, text, activity);
  root.replaceChildren(header, note, panel, errors, live);

  /** @type {Map<string, HTMLElement>} */
  const shownErrors = new Map();
  /** @type {HTMLElement | null} */
  let connectionError = null;

  /** @param {string} message */
  function fail(message) {
    const again = shownErrors.get(message);
    again?.remove();
    const close = el("button", { type: "button", text: tr("Dismiss"), "aria-label": tr("Dismiss: {message}", { message }), on: { click: dismiss } });
    const note = el("div", { class: "uwaga-error", role: "alert" }, el("span", { text: message }), close);
    function dismiss() {
      note.remove();
      shownErrors.delete(message);
      root.focus({ preventScroll: true });
    }
    shownErrors.set(message, note);
    errors.append(note);
    // At most three errors, so that they do not cover the page.
    if (shownErrors.size > 3) {
      const [oldest, element] = [...shownErrors][0];
      element.remove();
      shownErrors.delete(oldest);
    }
  }

  return {
    header, panel, fail, statusElement: status,
    announce(/** @type {string} */ message) {
      // Screen readers repeat a message only if the text changes.
      live.textContent = live.textContent === message ? `${message}\u00a0` : message;
    },
    /** @param {string} message  what is missing in this page; "": nothing */
    note(message) {
      note.textContent = message;
      note.hidden = !message;
    },
    status: (/** @type {string} */ message) => void (text.textContent = message),
    setBusy: (/** @type {boolean} */ on) => void (activity.textContent = on ? tr("computing…") : ""),
    /** @param {string | null} message  null: the connection has recovered */
    setConnectionError(message) {
      connectionError?.remove();
      connectionError = message ? el("div", { class: "uwaga-error", role: "alert" }, el("span", { text: message })) : null;
      if (connectionError) errors.prepend(connectionError);
    },
  };
}

/**
 * Remembers which element has the focus, by its last class and its number among those of the class, or of an element without one by the nearest
 * around it.
 * @param {HTMLElement} root
 * @returns {() => () => void} to call when the page was drawn again: it gives the focus back as soon as the element is there, unless the reader
 *   has moved the focus; returns what ends the wait
 */
export function focusKeeper(root) {
  const active = () => /** @type {Document | ShadowRoot} */ (root.getRootNode()).activeElement;
  const focused = active(), named = root.contains(focused) ? focused?.closest("[class^=uwaga-]") : null;
  if (!focused || !named || focused === root) return () => () => {};
  const selector = `.${[...named.classList].at(-1)}${named === focused ? "" : ` ${focused.localName}`}`;
  const number = [...root.querySelectorAll(selector)].indexOf(focused);
  return () => {
    const seek = () => {
      const found = /** @type {HTMLElement[]} */ ([...root.querySelectorAll(selector)])[number];
      if (active() === root) found?.focus({ preventScroll: true });
      if (active() !== root) seeking.disconnect();
    };
    const seeking = new MutationObserver(seek);
    seeking.observe(root, { subtree: true, childList: true, attributes: true, attributeFilter: ["hidden", "disabled"] });
    seek();
    return () => seeking.disconnect();
  };
}

// The tab panel: one view at a time, made when first shown. Tabs may share a view.

/**
 * @param {App} app @param {HTMLElement} panel
 * @param {HTMLElement} headBar  above the views that have none of their own
 * @param {{name: Tab, title: string, make: (app: App) => View}[]} views
 */
export function makeTabPanel(app, panel, headBar, views) {
  /** @type {Map<string, View>} */
  const made = new Map();
  /** @type {View | null} */
  let current = null;

  /** @param {string} name @returns {View} */
  function viewOf(name) {
    const existing = made.get(name);
    if (existing) return existing;
    const entry = views.find((view) => view.name === name) ?? views[0];
    const view = entry.make(app);
    if (![...made.values()].includes(view)) {
      view.element.classList.add("uwaga-view");
      view.element.hidden = true;
      panel.append(view.element);
    }
    made.set(name, view);
    return view;
  }

  function draw() {
    const { tab } = app.store.get(), next = viewOf(tab);
    panel.setAttribute("aria-label", views.find(({ name }) => name === tab)?.title ?? tab);
    headBar.hidden = !["overview", "table"].includes(tab);
    if (next === current) return;
    if (current) {
      const focused = /** @type {Document | ShadowRoot} */ (panel.getRootNode()).activeElement;
      // A hidden element loses the focus, and key presses would no longer reach the page.
      if (current.element.contains(focused)) app.root.focus({ preventScroll: true });
      current.hide();
      current.element.hidden = true;
    }
    current = next;
    next.element.hidden = false;
    app.status("");
    next.show();
  }

  return {
    /** Makes the views that were not shown yet, so that the help lists their commands. */
    createAll: () => views.forEach(({ name }) => viewOf(name)),
    current: () => /** @type {View} */ (current),
    start() {
      panel.replaceChildren(headBar);
      app.store.subscribe(["tab"], draw);
      draw();
    },
    dispose() {
      current?.hide();
      for (const view of new Set(made.values())) view.dispose();
      made.clear();
    },
  };
}
