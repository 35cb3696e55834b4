// The page's fixed parts, there before anything is known: a heading, the panel of the view, errors, the status line.

import { el } from "../dom.js";

/**
 * @param {HTMLElement} root
 * @param {"served" | "notebook" | "saved"} mode
 */
export function makeFrame(root, mode) {
  root.classList.add("uwaga");
  root.dataset.mode = mode;
  // Jupyter's own single keys shall not run while this page has the focus.
  root.dataset.lmSuppressShortcuts = "true";
  root.tabIndex = 0;
  root.setAttribute("role", "group");
  root.setAttribute("aria-label", "Attention explorer");

  const header = el("header", { class: "uwaga-header" });
  const opening = el("p", { class: "uwaga-opening", text: "Opening\u2026" });
  const panel = el("div", { class: "uwaga-panel" }, opening);
  const live = el("div", { class: "uwaga-unseen", "aria-live": "polite", role: "status" });
  const trouble = el("div", { class: "uwaga-trouble" });
  const text = el("span", { class: "uwaga-status-text" });
  const activity = el("span", { class: "uwaga-activity", "aria-hidden": "true" });
  root.replaceChildren(header, panel,
    el("footer", { class: "uwaga-footer" }, trouble, el("div", { class: "uwaga-status" }, text, activity), live));

  /** @type {Map<string, HTMLElement>} */
  const told = new Map();
  /** @type {HTMLElement | null} */
  let gone = null;

  /** @param {string} message */
  function fail(message) {
    const again = told.get(message);
    again?.remove();
    const close = el("button", { type: "button", text: "Dismiss", "aria-label": `Dismiss: ${message}`, on: { click: dismiss } });
    const note = el("div", { class: "uwaga-error", role: "alert" }, el("span", { text: message }), close);
    function dismiss() {
      note.remove();
      told.delete(message);
      root.focus({ preventScroll: true });
    }
    told.set(message, note);
    trouble.append(note);
    // Many errors at once shall not cover what still works.
    if (told.size > 3) {
      const [oldest, element] = [...told][0];
      element.remove();
      told.delete(oldest);
    }
  }

  return {
    header, panel, fail,
    announce(/** @type {string} */ message) {
      // The same words twice are read twice only if they differ.
      live.textContent = live.textContent === message ? `${message}\u00a0` : message;
    },
    status: (/** @type {string} */ message) => void (text.textContent = message),
    active: (/** @type {boolean} */ on) => void (activity.textContent = on ? "computing\u2026" : ""),
    /** @param {string | null} message  null: all is well again */
    absent(message) {
      gone?.remove();
      gone = message ? el("div", { class: "uwaga-error", role: "alert" }, el("span", { text: message })) : null;
      if (gone) trouble.prepend(gone);
    },
  };
}
