// Keys of the map. The help lists them.

/**
 * @param {import("../types.js").App} app
 * @param {ReturnType<typeof import("./navigation.js").mapNavigation>} navigation
 * @param {() => boolean} shown
 * @param {() => void} used  a key moved the place pointed at
 * @returns {(() => void)[]} what removes them
 */
export function addMapCommands(app, navigation, shown, used) {
  /** @type {[string, string, string[], () => void][]} */
  const commands = [
    ["left", "Cell to the left", ["ArrowLeft"], () => navigation.step(0, -1)],
    ["right", "Cell to the right", ["ArrowRight"], () => navigation.step(0, 1)],
    ["up", "Cell above", ["ArrowUp"], () => navigation.step(-1, 0)],
    ["down", "Cell below", ["ArrowDown"], () => navigation.step(1, 0)],
    ["pan.left", "Move the map left", ["Shift+ArrowLeft"], () => navigation.pan(mapKeyPan, 0)],
    ["pan.right", "Move the map right", ["Shift+ArrowRight"], () => navigation.pan(-mapKeyPan, 0)],
    ["pan.up", "Move the map up", ["Shift+ArrowUp"], () => navigation.pan(0, mapKeyPan)],
    ["pan.down", "Move the map down", ["Shift+ArrowDown"], () => navigation.pan(0, -mapKeyPan)],
    ["page.up", "A window's height up", ["PageUp"], () => navigation.pan(0, navigation.page().h * 0.9)],
    ["page.down", "A window's height down", ["PageDown"], () => navigation.pan(0, -navigation.page().h * 0.9)],
    ["page.left", "A window's width left", ["Shift+PageUp"], () => navigation.pan(navigation.page().w * 0.9, 0)],
    ["page.right", "A window's width right", ["Shift+PageDown"], () => navigation.pan(-navigation.page().w * 0.9, 0)],
    ["home", "First key of the query", ["Home"], () => navigation.go(navigation.start()[0], 0)],
    ["end", "Last key of the query", ["End"], () => navigation.go(navigation.start()[0], Infinity)],
    ["first", "First query and key", ["Ctrl+Home"], () => navigation.go(0, 0)],
    ["last", "Last query and key", ["Ctrl+End"], () => navigation.go(Infinity, Infinity)],
    ["in", "Zoom in (wheel or pinch up, double click)", ["+", "="], () => navigation.zoomMiddle(1.6)],
    ["out", "Zoom out (wheel or pinch down, Shift and double click)", ["-", "_"], () => navigation.zoomMiddle(1 / 1.6)],
    ["fit", "Whole map", ["0"], navigation.fit],
    ["pick", "Pick the cell, or let it go (click)", ["Enter"], navigation.pickCursor],
  ];
  const moves = new Set(["left", "right", "up", "down", "home", "end", "first", "last"]);
  const removes = commands.map(([id, title, keys, run]) => app.commands.add({
    id: `map.${id}`, title, keys, group: "Map", when: shown,
    run() {
      if (moves.has(id)) used();
      run();
    },
  }));
  const something = () => shown() && (app.store.get().query !== null || app.store.get().key !== null);
  const release = () => app.store.set({ query: null, key: null });
  removes.push(app.commands.add({ id: "map.release", title: "Let the picked cell go",
    keys: ["Escape"], group: "Map", when: something, run: release }));
  return removes;
}

/** CSS pixels of a step. */
const mapKeyPan = 80;
