// The canvas of the map: one of cells under another of lines and text, for one, two or three panels. One frame draws both.

import { el } from "../dom.js";
import { drawCross, drawOver, drawSampledFrames } from "./overlay.js";
import { levelFor, topLevel } from "./pyramid.js";
import { canvasRenderer, glRenderer } from "./renderer.js";
import { drawTiles, setPanelTiles } from "./tile_drawing.js";
/** @import { ViewBox } from "../types.js" */
/** @import { Style } from "./colours.js" */
/** @import { Renderer } from "./renderer.js" */
/** @import { Panel } from "./tile_drawing.js" */
/** @import { Tile } from "./tiles.js" */

/**
 * @typedef {object} Display  the state that a frame draws; mutated in place
 * @property {Panel[]} panels
 * @property {{queries: number, keys: number}} sizes  of the longest axes
 * @property {ViewBox} view  of the map
 * @property {boolean} fit
 * @property {number} query  hovered; -1: none
 * @property {number} key
 * @property {number | null} selectedQuery
 * @property {number | null} selectedKey
 * @property {number} ratio
 * @property {Style | null} style
 * @property {boolean} live  missing tiles will arrive; false in a saved page
 */

/** Milliseconds after which a lost WebGL context that is not restored is replaced by a 2D canvas. */
const contextLostTimeout = 1500;

/**
 * @param {object} options @param {Display} options.display @param {"auto" | "canvas"} options.renderer
 * @param {(level: number) => void} options.onBeforeFrame  before each frame, with the level whose scale colours its panels
 * @param {() => void} options.onFrame  after each frame
 */
export function makeMapCanvas({ display, renderer: preferred, onBeforeFrame, onFrame }) {
  const overlay = el("canvas", { class: "uwaga-map-overlay", "aria-hidden": "true" });
  const context = /** @type {CanvasRenderingContext2D} */ (overlay.getContext("2d"));
  const element = el("div", { class: "uwaga-map-stage" });
  /** @type {Renderer} */
  let renderer = makeRenderer();
  element.append(renderer.canvas, overlay);
  let width = 0, height = 0, frame = 0, frameRequest = 0, running = false;
  let cellsDue = true; // false: only the overlay has changed

  function makeRenderer() {
    const made = preferred === "canvas" ? null : glRenderer(cellsCanvas(), requestFrame);
    if (!made) return canvasRenderer(cellsCanvas());
    made.canvas.addEventListener("webglcontextlost", () => setTimeout(useCanvas, contextLostTimeout, made.canvas));
    return made;
  }

  /** @param {HTMLCanvasElement} canvas */
  function useCanvas(canvas) {
    const gl = canvas.getContext("webgl2");
    if (renderer.canvas !== canvas || !gl?.isContextLost() || !running) return;
    const next = canvasRenderer(cellsCanvas());
    renderer.dispose();
    canvas.replaceWith(next.canvas);
    // The textures of the lost context are invalid.
    for (const panel of display.panels) panel.layer?.levels.forEach((tiles) => tiles.forEach((tile) => { tile.drawn = null; }));
    renderer = next;
    renderer.resize(width, height);
    requestFrame();
  }

  function requestFrame() {
    cellsDue = true;
    requestOverlay();
  }

  function requestOverlay() {
    if (!frameRequest && running) frameRequest = requestAnimationFrame(draw);
  }

  function draw() {
    frameRequest = 0;
    const { style, panels, view, sizes, ratio } = display;
    if (!running || !style || !width || !height) return;
    const now = levelFor(view.scale, ratio, topLevel(sizes));
    for (let i = 0; i < panels.length; i++) setPanelTiles(panels[i], view, ratio, now);
    onBeforeFrame(now);
    if (cellsDue) drawCells(style);
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, width, height);
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.font = style.font;
    for (let i = 0; i < panels.length; i++) {
      drawOver(context, panels[i], display, style);
      if (!panels[i].layer) continue;
      drawSampledFrames(context, panels[i], view, style, display.live);
      drawCross(context, panels[i], view, display.query, display.key, style.text, style.text, 1);
      drawCross(context, panels[i], view, display.selectedQuery ?? -1, display.selectedKey ?? -1, style.query, style.key, 2);
    }
    onFrame();
  }

  /** @param {Style} style */
  function drawCells(style) {
    const { panels, view, ratio } = display;
    cellsDue = false;
    frame += 1;
    renderer.begin(style.backgroundPixel);
    for (let i = 0; i < panels.length; i++) drawTiles(renderer, panels[i], view, ratio, frame);
    renderer.end();
  }

  return {
    element,
    context,
    requestFrame,
    /** Requests a frame that draws only the overlay. */
    requestOverlay,
    /** Counts the frames that drew cells. */
    frame: () => frame,
    /** @param {Tile} tile */
    forget: (tile) => renderer.forget(tile),
    kind: () => renderer.kind,
    /** @param {number} deviceWidth @param {number} deviceHeight */
    resize(deviceWidth, deviceHeight) {
      width = deviceWidth;
      height = deviceHeight;
      renderer.resize(width, height);
      if (overlay.width !== width) overlay.width = width;
      if (overlay.height !== height) overlay.height = height;
    },
    /** Draws at once: resizing clears a canvas, which would be blank until the next frame. */
    now() {
      if (frameRequest) cancelAnimationFrame(frameRequest);
      cellsDue = true;
      draw();
    },
    /** @param {boolean} on */
    run(on) {
      running = on;
      if (on) requestFrame();
      else if (frameRequest) {
        cancelAnimationFrame(frameRequest);
        frameRequest = 0;
      }
    },
    dispose() {
      this.run(false);
      renderer.dispose();
    },
  };
}

function cellsCanvas() {
  return el("canvas", { class: "uwaga-map-cells", "aria-hidden": "true" });
}
