// Mouse, pen, touch, wheel and keyboard input of the map. Handlers change numbers and request a frame; they neither draw nor measure.

import { tr } from "../languages.js";
/** @import { App } from "../types.js" */

/**
 * @typedef {object} Handlers  called by the gestures; coordinates are CSS pixels from the top left of the map
 * @property {(x: number, y: number) => void} hover
 * @property {() => void} leave
 * @property {(dx: number, dy: number) => void} pan
 * @property {(factor: number, x: number, y: number) => void} zoom
 * @property {(x: number, y: number) => void} click
 * @property {() => boolean} takesWheel  whether a wheel without Ctrl is for the map
 */

const minDragDistance = 4;
const wheelZoomRate = 0.0022;
const pinchZoomRate = 0.012;
/** Pixels per line of wheel events in lines. */
const wheelLinePixels = 16;
/** Milliseconds for which the measured position of the map is reused. */
const measureInterval = 250;

/** @param {HTMLElement} element @param {Handlers} inputs @returns {() => void} ends it */
export function addInput(element, inputs) {
  /** @type {Map<number, {x: number, y: number}>} */
  const down = new Map();
  let moved = false, pinched = false, startX = 0, startY = 0, left = 0, top = 0, measured = -Infinity;

  /** Measures the position of the map, at most once per interval: each measurement forces a layout. @param {MouseEvent} event */
  function place(event) {
    if (event.timeStamp < measured + measureInterval && event.type !== "pointerdown") return;
    measured = event.timeStamp;
    ({ left, top } = element.getBoundingClientRect());
  }

  /** @param {PointerEvent} event */
  function onDown(event) {
    if (event.button !== 0) return;
    place(event);
    element.setPointerCapture(event.pointerId);
    down.set(event.pointerId, { x: event.clientX - left, y: event.clientY - top });
    if (down.size > 1) {
      pinched = true;
      return;
    }
    moved = false;
    pinched = false;
    startX = event.clientX - left;
    startY = event.clientY - top;
    if (event.pointerType === "touch") inputs.hover(startX, startY);
  }

  /** @param {PointerEvent} event */
  function onMove(event) {
    place(event);
    const x = event.clientX - left;
    const y = event.clientY - top;
    const at = down.get(event.pointerId);
    if (!at) {
      if (event.pointerType !== "touch") inputs.hover(x, y);
      return;
    }
    if (!moved && Math.hypot(x - startX, y - startY) < minDragDistance && !pinched) return;
    moved = true;
    if (down.size === 1) inputs.pan(x - at.x, y - at.y);
    else if (down.size === 2) onPinch(down, event.pointerId, x, y, inputs);
    at.x = x;
    at.y = y;
    if (down.size === 1 && event.pointerType !== "touch") inputs.hover(x, y);
  }

  /** @param {PointerEvent} event */
  function onUp(event) {
    if (!down.delete(event.pointerId)) return;
    if (event.type === "pointerup" && !moved && !pinched && down.size === 0)
      inputs.click(event.clientX - left, event.clientY - top);
  }

  /** @param {MouseEvent} event */
  function onDouble(event) {
    event.preventDefault();
    place(event);
    inputs.zoom(event.shiftKey ? 0.5 : 2, event.clientX - left, event.clientY - top);
  }

  /** @param {WheelEvent} event */
  function onWheel(event) {
    const pinch = event.ctrlKey || event.metaKey;
    if (!pinch && !inputs.takesWheel()) return;
    event.preventDefault();
    place(event);
    const unit = event.deltaMode === 1 ? wheelLinePixels : event.deltaMode === 2 ? 400 : 1;
    const dx = event.deltaX * unit;
    const dy = event.deltaY * unit;
    if (!pinch && (event.shiftKey || Math.abs(dx) > Math.abs(dy))) {
      // Shift and wheel pan sideways; some browsers swap the deltas themselves.
      inputs.pan(-(dx || dy), event.shiftKey ? 0 : -dy);
      return;
    }
    // A wheel notch is about a hundred pixels, a pinch event only a few.
    const rate = pinch && Math.abs(dy) < 50 ? pinchZoomRate : wheelZoomRate;
    inputs.zoom(Math.exp(-Math.max(-300, Math.min(300, dy)) * rate), event.clientX - left, event.clientY - top);
  }

  const leave = () => { if (!down.size) inputs.leave(); };
  /** @type {[string, any, AddEventListenerOptions?][]} */
  const listeners = [
    ["pointerdown", onDown], ["pointermove", onMove], ["pointerup", onUp], ["pointercancel", onUp], ["pointerleave", leave],
    ["dblclick", onDouble], ["wheel", onWheel, { passive: false }],
  ];
  for (const [name, listener, options] of listeners) element.addEventListener(name, listener, options);
  return () => { for (const [name, listener] of listeners) element.removeEventListener(name, listener); };
}

/**
 * A pinch with two fingers: what is between them stays between them.
 * @param {Map<number, {x: number, y: number}>} down
 * @param {number} moved  the finger that moved
 * @param {number} x  where it is now
 * @param {number} y @param {Handlers} inputs
 */
function onPinch(down, moved, x, y, inputs) {
  const before = /** @type {{x: number, y: number}} */ (down.get(moved));
  for (const [id, other] of down) {
    if (id === moved) continue;
    const was = Math.hypot(before.x - other.x, before.y - other.y);
    const is = Math.hypot(x - other.x, y - other.y);
    inputs.pan((x - before.x) / 2, (y - before.y) / 2);
    if (was > 1 && is > 1) inputs.zoom(is / was, (x + other.x) / 2, (y + other.y) / 2);
  }
}

// Keyboard commands.

/**
 * @param {App} app @param {ReturnType<typeof import("./viewport.js").makeNavigation>} navigation @param {() => boolean} shown
 * @param {() => void} used  called when a key moves the hovered cell
 * @returns {(() => void)[]} removes them
 */
export function addCommands(app, navigation, shown, used) {
  /** @type {[string, string, string[], () => void][]} */
  const commands = [
    ["left", tr("Cell to the left"), ["ArrowLeft"], () => navigation.step(0, -1)],
    ["right", tr("Cell to the right"), ["ArrowRight"], () => navigation.step(0, 1)],
    ["up", tr("Cell above"), ["ArrowUp"], () => navigation.step(-1, 0)],
    ["down", tr("Cell below"), ["ArrowDown"], () => navigation.step(1, 0)],
    ["pan.left", tr("Move the map left"), ["Shift+ArrowLeft"], () => navigation.pan(keyPanPixels, 0)],
    ["pan.right", tr("Move the map right"), ["Shift+ArrowRight"], () => navigation.pan(-keyPanPixels, 0)],
    ["pan.up", tr("Move the map up"), ["Shift+ArrowUp"], () => navigation.pan(0, keyPanPixels)],
    ["pan.down", tr("Move the map down"), ["Shift+ArrowDown"], () => navigation.pan(0, -keyPanPixels)],
    ["page.up", tr("A window's height up"), ["PageUp"], () => navigation.pan(0, navigation.page().h * 0.9)],
    ["page.down", tr("A window's height down"), ["PageDown"], () => navigation.pan(0, -navigation.page().h * 0.9)],
    ["page.left", tr("A window's width left"), ["Shift+PageUp"], () => navigation.pan(navigation.page().w * 0.9, 0)],
    ["page.right", tr("A window's width right"), ["Shift+PageDown"], () => navigation.pan(-navigation.page().w * 0.9, 0)],
    ["home", tr("First key of the query"), ["Home"], () => navigation.go(navigation.start()[0], 0)],
    ["end", tr("Last key of the query"), ["End"], () => navigation.go(navigation.start()[0], Infinity)],
    ["first", tr("First query and key"), ["Ctrl+Home"], () => navigation.go(0, 0)],
    ["last", tr("Last query and key"), ["Ctrl+End"], () => navigation.go(Infinity, Infinity)],
    ["in", tr("Zoom in (wheel or pinch up, double click)"), ["+", "="], () => navigation.zoomMiddle(1.6)],
    ["out", tr("Zoom out (wheel or pinch down, Shift and double click)"), ["-", "_"], () => navigation.zoomMiddle(1 / 1.6)],
    ["fit", tr("Whole map"), ["0"], navigation.fit],
    ["pick", tr("Pick the cell, or unpick it (click)"), ["Enter"], navigation.selectCursor],
  ];
  const moves = new Set(["left", "right", "up", "down", "home", "end", "first", "last"]);
  const removes = commands.map(([id, title, keys, run]) => app.commands.add({
    id: `map.${id}`, title, keys, group: tr("Map"), when: shown,
    run() {
      if (moves.has(id)) used();
      run();
    },
  }));
  const something = () => shown() && (app.store.get().query !== null || app.store.get().key !== null);
  const release = () => app.store.set({ query: null, key: null });
  removes.push(app.commands.add({ id: "map.release", title: tr("Unpick the cell"),
    keys: ["Escape"], group: tr("Map"), when: something, run: release }));
  return removes;
}

/** CSS pixels of a keyboard pan. */
const keyPanPixels = 80;
