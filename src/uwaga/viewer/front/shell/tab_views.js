// One view at a time: made when it is first shown, told when it is hidden.

/** @typedef {import("../types.js").View} View */

/**
 * @param {import("../types.js").App} app
 * @param {HTMLElement} panel
 * @param {{name: import("../types.js").Tab, title: string, make: (app: import("../types.js").App) => View}[]} views
 */
export function makeTabViews(app, panel, views) {
  /** @type {Map<string, View>} */
  const made = new Map();
  /** @type {View | null} */
  let current = null;

  /** @param {string} name @returns {View} */
  function viewOf(name) {
    const there = made.get(name);
    if (there) return there;
    const entry = views.find((view) => view.name === name) ?? views[0];
    const view = entry.make(app);
    view.element.classList.add("uwaga-view");
    made.set(name, view);
    panel.append(view.element);
    view.element.hidden = true;
    return view;
  }

  function draw() {
    const { tab } = app.store.get(), next = viewOf(tab);
    if (next === current) return;
    if (current) {
      const focused = /** @type {Document | ShadowRoot} */ (panel.getRootNode()).activeElement;
      // What is hidden loses the focus, and the keys would go nowhere.
      if (current.element.contains(focused)) app.root.focus({ preventScroll: true });
      current.hide();
      current.element.hidden = true;
    }
    current = next;
    next.element.hidden = false;
    panel.setAttribute("aria-label", views.find(({ name }) => name === tab)?.title ?? tab);
    app.status("");
    next.show();
  }

  return {
    /** Makes those that were not shown yet, so that the help can list what they do. */
    all: () => views.forEach(({ name }) => viewOf(name)),
    current: () => /** @type {View} */ (current),
    start() {
      panel.replaceChildren();
      app.store.subscribe(["tab"], draw);
      draw();
    },
    dispose() {
      current?.hide();
      for (const view of made.values()) view.dispose();
      made.clear();
    },
  };
}
