// Tiles drawn without WebGL2: the same pixels, by a colour per cell and rows that are copied.

import { mapShadeCells } from "./shade.js";

/** @typedef {import("./tiles.js").MapTile} MapTile */

/**
 * @param {HTMLCanvasElement} canvas
 * @returns {import("./gl.js").MapRenderer}
 */
export function mapCanvasRenderer(canvas) {
  const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d", { alpha: false }));
  let image = new ImageData(1, 1);
  let pixels = new Uint32Array(image.data.buffer);
  let columnOf = new Int32Array(1);

  return {
    kind: "canvas",
    canvas,
    resize(width, height) {
      if (canvas.width === width && canvas.height === height && image.width === width && image.height === height) return;
      canvas.width = width;
      canvas.height = height;
      image = new ImageData(Math.max(1, width), Math.max(1, height));
      pixels = new Uint32Array(image.data.buffer);
      columnOf = new Int32Array(Math.max(1, width));
    },
    begin(colour) {
      pixels.fill(colour);
    },
    fill(left, top, right, bottom, colour) {
      for (let y = top; y < bottom; y++) pixels.fill(colour, y * image.width + left, y * image.width + right);
    },
    paint(tile, x, y, cell, left, top, right, bottom, shade, factor, through) {
      if (right <= left || bottom <= top) return;
      const colours = mapCanvasColours(tile, shade, factor, through);
      mapCanvasBlit(pixels, image.width, columnOf, colours, tile.columns, tile.rows, x, y, cell, left, top, right, bottom, through);
    },
    end() {
      context.putImageData(image, 0, 0);
    },
    forget(tile) {
      tile.drawn = null;
    },
    dispose() {},
  };
}

/**
 * A tile's cells as colours, kept until its numbers or the look change.
 * @param {MapTile} tile
 * @param {import("./shade.js").MapShade} shade
 * @param {number} factor
 * @param {boolean} through
 * @returns {Uint32Array}
 */
function mapCanvasColours(tile, shade, factor, through) {
  let drawn = tile.drawn;
  if (!drawn || drawn.colours.length !== tile.data.length) {
    drawn = tile.drawn = { colours: new Uint32Array(tile.data.length), version: -1, look: -1, factor: 0, through: false };
  }
  if (drawn.version !== tile.version || drawn.look !== shade.version || drawn.factor !== factor || drawn.through !== through) {
    mapShadeCells(shade, tile.data, tile.columns, tile.column === 0, factor, drawn.colours, through);
    drawn.version = tile.version;
    drawn.look = shade.version;
    drawn.factor = factor;
    drawn.through = through;
  }
  return drawn.colours;
}

/**
 * Cells to pixels: a pixel has the colour of the cell that its middle is in. Colours of 0 leave what is there.
 * @param {Uint32Array} pixels
 * @param {number} width  of the image
 * @param {Int32Array} columnOf  at least as long as the image is wide; overwritten
 * @param {Uint32Array} colours
 * @param {number} columns
 * @param {number} rows
 * @param {number} x
 * @param {number} y
 * @param {number} cell
 * @param {number} left
 * @param {number} top
 * @param {number} right
 * @param {number} bottom
 * @param {boolean} through
 */
export function mapCanvasBlit(pixels, width, columnOf, colours, columns, rows, x, y, cell, left, top, right, bottom, through) {
  for (let px = left; px < right; px++) columnOf[px] = Math.min(Math.max(Math.floor((px + 0.5 - x) / cell), 0), columns - 1);
  let before = -1;
  for (let py = top; py < bottom; py++) {
    const row = Math.min(Math.max(Math.floor((py + 0.5 - y) / cell), 0), rows - 1);
    const start = py * width;
    if (through) {
      for (let px = left; px < right; px++) {
        const colour = colours[row * columns + columnOf[px]];
        if (colour !== 0) pixels[start + px] = colour;
      }
    } else if (row === before) {
      pixels.copyWithin(start + left, start - width + left, start - width + right);
    } else {
      for (let px = left; px < right; px++) pixels[start + px] = colours[row * columns + columnOf[px]];
    }
    before = row;
  }
}
