// Small maps as images in an LRU cache, their drawing in view with layer and head numbers.

import {
  colourPosition, colourScaleMax, colourTable, signedColourPosition, signedColourTable, unknownColour,
} from "../colours.js";
import { layerCells } from "../explore/every_head.js";
import { recordingContext } from "../export/record.js";
import { tr } from "../languages.js";
import { sinkColumns, sinksOf } from "../weights.js";
/** @import { App, Colour, Kind, Reply, Scene, SideId } from "../types.js" */
/** @import { Layout, Row } from "./layout.js" */
/** @import { Place } from "./view.js" */

const maxCachedImages = 40;
/** CSS pixels of the strip beside a small map. */
const sinkStripWidth = 3;
const imageTimeBudget = 6; // milliseconds per frame for new images, so that scrolling stays smooth

/**
 * @typedef {{app: App, canvas: HTMLCanvasElement, loading: Loading, images: ReturnType<typeof makeImageCache>, sharedScale: {key: string, max: number}}} DrawingState
 *   sharedScale: only grows while layers arrive, so that colours do not jump back and forth, and is reset with the request
 */

/** @param {App} app @param {HTMLCanvasElement} canvas @param {Loading} loading */
export function makeDrawing(app, canvas, loading) {
  /** @type {DrawingState} */
  const state = { app, canvas, loading, images: makeImageCache(maxCachedImages), sharedScale: { key: "", max: 0 } };
  return {
    /**
     * @param {Layout} layout @param {HTMLElement} scroll
     * @param {[number, number]} visible  rows
     * @param {Place} selected  its head has a thicker frame
     * @returns {boolean} false: another frame is needed
     */
    draw: (layout, scroll, visible, selected) => drawFrame(state, layout, scroll, visible, selected),
    scene: (/** @type {Layout} */ layout) => drawScene(state, layout),
    dispose: () => state.images.clear(),
  };
}

/** @param {DrawingState} state @param {Layout} layout @param {HTMLElement} scroll @param {[number, number]} visible @param {Place} selected @returns {boolean} */
function drawFrame(state, layout, scroll, visible, selected) {
  const { canvas } = state, ratio = window.devicePixelRatio || 1, width = scroll.clientWidth, height = scroll.clientHeight;
  const context = canvas.getContext("2d");
  if (!context) return true;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    Object.assign(canvas.style, { width: `${width}px`, height: `${height}px` });
  }
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return drawMaps(state, context, layout, scroll, visible, selected, performance.now() + imageTimeBudget);
}

/** As a file: all layers, not only those in view. @param {DrawingState} state @param {Layout} layout @returns {Promise<Scene>} */
async function drawScene(state, layout) {
  const { canvas, loading } = state, { width, height, rows } = layout;
  await loading.loadAll(rows);
  const context = recordingContext(/** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d")));
  drawMaps(state, context, layout, { scrollTop: 0, scrollLeft: 0, clientWidth: width, clientHeight: height }, [0, rows.length], { row: -1, head: -1 }, Infinity);
  return { width, height, background: getComputedStyle(canvas).getPropertyValue("--bg").trim(), items: context.items };
}

/**
 * @param {DrawingState} state @param {CanvasRenderingContext2D} context @param {Layout} layout @param {Scrolled} scroll
 * @param {[number, number]} visible @param {Place} selected
 * @param {number} until  when no more images are made
 * @returns {boolean} false: some are still to be made
 */
function drawMaps(state, context, layout, scroll, [first, end], selected, until) {
  const style = getComputedStyle(state.canvas), paint = (/** @type {string} */ name) => style.getPropertyValue(name).trim();
  const colours = { bg: paint("--bg"), line: paint("--line"), muted: paint("--muted"), text: paint("--text"), edge: paint("--edge"), surface: paint("--raised") };
  const rows = layout.rows.slice(first, end);
  updateSharedScale(state, rows);
  let isWhole = true;
  for (const [i, row] of rows.entries()) {
    const image = rowImage(state, row, i === 0 || performance.now() < until);
    if (image?.stale) isWhole = false;
    drawRow(context, layout, row, image, scroll, colours, first + i === selected.row ? selected.head : -1, state.loading.isUnavailable(row));
  }
  drawEdges(context, layout, rows, scroll, colours, style.fontFamily);
  return isWhole;
}

/** @param {DrawingState} state @param {Row[]} rows */
function updateSharedScale(state, rows) {
  const { app, loading } = state, { pooling, merge, specials, colour, compare, side } = app.store.get();
  const key = [pooling, merge, specials, colour.hideSink, compare === "difference", side === "difference"].join();
  if (key !== state.sharedScale.key) state.sharedScale = { key, max: 0 };
  for (const row of rows) {
    const cells = layerCells(loading.peek(row));
    if (cells) state.sharedScale.max = Math.max(state.sharedScale.max, ...headNumbers(cells, hiddenColumns(app, row, cells.columns)).maxima);
  }
}

/** @param {DrawingState} state @param {Row} row @param {boolean} mayDraw @returns {RowImage | null} */
function rowImage({ app, loading, images, sharedScale }, row, mayDraw) {
  const reply = loading.peek(row), cells = layerCells(reply), { colour, overviewScale } = app.store.get();
  if (!cells) return null;
  const hidden = hiddenColumns(app, row, cells.columns), { maxima, shares } = headNumbers(cells, hidden), isShared = overviewScale === "all";
  const colouring = { colour, signed: app.side(row.side).signed, theme: app.theme(), hidden };
  const scaleMax = (/** @type {number} */ head) => colour.high ?? (isShared ? sharedScale.max : maxima[head]);
  const key = [JSON.stringify(colouring), overviewScale, isShared ? sharedScale.max : "", reply?.meta.complete, maxima.join()];
  return { cells, shares, ...images.get(loading.name(row), key, cells, () => layerPixels(cells, colouring, scaleMax), mayDraw) };
}

/**
 * @param {CanvasRenderingContext2D} context @param {Layout} layout @param {Row} row @param {RowImage | null} image
 * @param {Scrolled} scroll @param {{[name: string]: string}} colours
 * @param {number} selected  head, -1: none
 * @param {boolean} isUnavailable
 */
function drawRow(context, { left, pitch, cell }, row, image, scroll, colours, selected, isUnavailable) {
  const y = row.y - scroll.scrollTop, first = Math.max(0, Math.floor(scroll.scrollLeft / pitch) - 1);
  for (let head = first; head < row.heads; head++) {
    const x = left + head * pitch - scroll.scrollLeft;
    if (x > scroll.clientWidth) break;
    if (image?.canvas) {
      const { rows, columns } = image.cells;
      // Enlarged cells have sharp edges; reduced ones are averaged.
      context.imageSmoothingEnabled = Math.max(rows, columns) > cell * (window.devicePixelRatio || 1);
      context.drawImage(image.canvas, head * columns, 0, columns, rows, x, y, cell, cell);
    } else {
      context.fillStyle = colours.surface;
      context.fillRect(x, y, cell, cell);
      if (isUnavailable) { context.fillStyle = colours.muted; context.fillText("\u2013", x + cell / 2, y + cell / 2); }
    }
    const sinkShare = image?.shares[head] ?? 0;
    if (sinkShare > 0) {
      context.fillStyle = colours.edge;
      context.fillRect(x - sinkStripWidth - 1, y + cell * (1 - sinkShare), sinkStripWidth, cell * sinkShare);
    }
    const margin = head === selected ? 1 : 0.5;
    context.lineWidth = 2 * margin;
    context.strokeStyle = head === selected ? colours.text : colours.line;
    context.strokeRect(x - margin, y - margin, cell + 2 * margin, cell + 2 * margin);
  }
}

/**
 * Layer and head numbers over the maps, always in view.
 * @param {CanvasRenderingContext2D} context @param {Layout} layout
 * @param {Row[]} rows  in view
 * @param {Scrolled} scroll @param {{[name: string]: string}} colours @param {string} family
 */
function drawEdges(context, layout, rows, scroll, colours, family) {
  const { clientWidth: width, clientHeight: height } = scroll, { left, top, pitch, cell, bands } = layout, font = Math.min(13, Math.max(9, top * 0.52));
  context.fillStyle = colours.bg;
  context.fillRect(0, 0, left - 4, height);
  context.font = `${font}px ${family}`;
  context.textBaseline = "middle";
  context.textAlign = "right";
  context.fillStyle = colours.muted;
  for (const row of rows) context.fillText(String(row.layer), left - 10, row.y + cell / 2 - scroll.scrollTop);
  context.textAlign = "left";
  context.font = `600 ${font + 1}px ${family}`;
  context.fillStyle = colours.text;
  for (const band of bands) {
    const y = band.y + top * 0.7 - scroll.scrollTop;
    if (y > -top && y < height + top) context.fillText(band.title, 12, y);
  }
  context.fillStyle = colours.bg;
  context.fillRect(0, 0, width, top - 2);
  context.font = `${font}px ${family}`;
  context.textAlign = "center";
  context.fillStyle = colours.muted;
  const heads = Math.max(0, ...layout.rows.map((row) => row.heads)), every = Math.max(1, Math.ceil((font * 2) / pitch));
  for (let head = 0; head < heads; head += every) {
    const x = left + head * pitch + cell / 2 - scroll.scrollLeft;
    if (x > left - cell / 4 && x < width + cell) context.fillText(String(head), x, top / 2);
  }
  context.textAlign = "left";
  context.fillStyle = colours.bg;
  context.fillRect(0, 0, left - 4, top - 2);
  context.fillStyle = colours.muted;
  context.font = `${font * 0.85}px ${family}`;
  context.fillText(tr("layer"), 4, top / 2);
}

// Images of small maps: one canvas per layer, its heads beside each other, in an LRU cache.

/** @typedef {Pick<HTMLElement, "scrollTop" | "scrollLeft" | "clientWidth" | "clientHeight">} Scrolled */
/** @typedef {{data: Float32Array, heads: number, rows: number, columns: number}} Cells */
/** @typedef {{cells: Cells, shares: number[], canvas: HTMLCanvasElement | null, stale: boolean}} RowImage  shares: of each head's weight, on sinks */
/**
 * @typedef {{name: (row: Row) => string, peek: (row: Row) => Reply | undefined,
 *   isUnavailable: (row: Row) => boolean, loadAll: (rows: Row[]) => Promise<void>}} Loading
 */
/** @typedef {{colour: Colour, signed: boolean, theme: "light" | "dark", hidden: Uint8Array | null}} Colouring  hidden: columns of sinks */

/**
 * The end of the colour scale of some heads, without hidden columns.
 * @param {Cells} cells @param {Uint8Array | null} hidden @param {number} [first] @param {number} [end] @returns {number}
 */
export function headScaleMax({ data, heads, rows, columns }, hidden, first = 0, end = heads) {
  return colourScaleMax(data, first * rows * columns, end * rows * columns, hidden);
}

/**
 * The share of each head's weight that is in hidden columns.
 * @param {Cells} cells @param {Uint8Array | null} hidden
 * @returns {number[]} 0 if no weight has arrived
 */
export function sinkShares({ data, heads, rows, columns }, hidden) {
  return Array.from({ length: heads }, (_, head) => {
    let [onSinks, total] = [0, 0];
    for (let i = head * rows * columns; i < (head + 1) * rows * columns; i++) {
      if (Number.isNaN(data[i])) continue;
      total += data[i];
      if (hidden?.[i % columns]) onSinks += data[i];
    }
    return total > 0 ? onSinks / total : 0;
  });
}

/** What is computed for each head, by the cells that it was computed from. @type {WeakMap<Float32Array, {hidden: string, maxima: number[], shares: number[]}>} */
const headNumbersCache = new WeakMap();

/** The end of each head's colour scale, and its share on sinks. @param {Cells} cells @param {Uint8Array | null} hidden */
function headNumbers(cells, hidden) {
  const name = String(hidden), cached = headNumbersCache.get(cells.data);
  if (cached?.hidden === name) return cached;
  const maxima = Array.from({ length: cells.heads }, (_, head) => headScaleMax(cells, hidden, head, head + 1));
  const numbers = { hidden: name, maxima, shares: sinkShares(cells, hidden) };
  headNumbersCache.set(cells.data, numbers);
  return numbers;
}

/**
 * The columns of a small map that contain sinks, unless these are colours too; null: none.
 * @param {App} app @param {{side: SideId, kind: Kind}} row @param {number} columns @returns {Uint8Array | null}
 */
function hiddenColumns(app, { side, kind }, columns) {
  const shown = app.side(side), items = app.peekItems(side, shown.kinds[kind].keys);
  if (!app.store.get().colour.hideSink || !items || shown.signed) return null;
  return sinkColumns(sinksOf(items, kind), columns, (cell) => Math.floor((cell * items.total) / columns));
}

/**
 * The pixels of all heads of a layer, beside each other: heads * columns wide, rows high.
 * @param {Cells} cells @param {Colouring} colouring
 * @param {(head: number) => number} highOf  the weight that gets the last colour
 * @returns {Uint8ClampedArray<ArrayBuffer>}
 */
export function layerPixels({ data, heads, rows, columns }, colouring, highOf) {
  const table = new Uint32Array((colouring.signed ? signedColourTable(colouring.theme) : colourTable(colouring.colour.scheme, colouring.theme)).buffer);
  const unknown = new Uint32Array(new Uint8Array(unknownColour(colouring.theme)).buffer)[0];
  const pixels = new Uint8ClampedArray(heads * rows * columns * 4), words = new Uint32Array(pixels.buffer);
  const positionOf = colouring.signed ? signedColourPosition : colourPosition;
  for (let head = 0; head < heads; head++) {
    const high = highOf(head);
    for (let i = 0; i < rows; i++) {
      for (let j = 0; j < columns; j++) {
        const weight = colouring.hidden?.[j] ? 0 : data[(head * rows + i) * columns + j];
        const position = positionOf(weight, colouring.colour, high);
        words[i * heads * columns + head * columns + j] = Number.isNaN(position) ? unknown : table[Math.round(position * 255)];
      }
    }
  }
  return pixels;
}

/** An LRU cache of images by layer. @param {number} maxImages */
function makeImageCache(maxImages) {
  /** @type {Map<string, {key: unknown, canvas: HTMLCanvasElement}>} */
  const entries = new Map();
  return {
    /**
     * @param {string} name
     * @param {unknown[]} key  another key: the image is drawn again
     * @param {Cells} cells @param {() => Uint8ClampedArray<ArrayBuffer>} pixels
     * @param {boolean} mayDraw  false: the cached image is returned even if it is stale
     * @returns {{canvas: HTMLCanvasElement | null, stale: boolean}}  stale: the image must be drawn again
     */
    get(name, key, cells, pixels, mayDraw) {
      const text = key.join(" "), cached = entries.get(name), stale = cached?.key !== text && !mayDraw;
      if (stale) return { canvas: cached?.canvas ?? null, stale };
      entries.delete(name);
      const canvas = cached?.canvas ?? document.createElement("canvas");
      if (cached?.key !== text) {
        canvas.width = cells.heads * cells.columns;
        canvas.height = cells.rows;
        canvas.getContext("2d")?.putImageData(new ImageData(pixels(), canvas.width, canvas.height), 0, 0);
      }
      entries.set(name, { key: text, canvas });
      if (entries.size > maxImages) entries.delete([...entries.keys()][0]);
      return { canvas, stale };
    },
    clear: () => entries.clear(),
  };
}
