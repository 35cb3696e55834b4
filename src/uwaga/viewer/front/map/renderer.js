// Renderers of tiles: WebGL2 with the colours as uniforms, and a 2D canvas where WebGL2 is missing.

import { colourCells, logFloor } from "./colours.js";
import { tileSide } from "./pyramid.js";
/** @import { Colouring } from "./colours.js" */
/** @import { Tile } from "./tiles.js" */

/**
 * @typedef {object} Renderer  coordinates are device pixels from the top left of the canvas
 * @property {"webgl2" | "canvas"} kind
 * @property {HTMLCanvasElement} canvas
 * @property {(width: number, height: number) => void} resize
 * @property {(colour: number) => void} begin  starts a frame, filled with one colour (0xAABBGGRR)
 * @property {(left: number, top: number, right: number, bottom: number, colour: number) => void} fill
 * @property {(tile: Tile, x: number, y: number, cell: number, left: number, top: number, right: number, bottom: number,
 *   colouring: Colouring, factor: number, transparent: boolean) => void} paint  the part of a tile between left, top, right and bottom
 *   (whole pixels); its corner is at x, y and a cell is `cell` wide; transparent: unknown cells show what is below
 * @property {() => void} end
 * @property {(tile: Tile) => void} forget
 * @property {() => void} dispose
 */

/**
 * The WebGL2 renderer; null if the browser has no WebGL2.
 * @param {HTMLCanvasElement} canvas
 * @param {() => void} onRestored  called when a lost context is restored: everything must be drawn again
 * @returns {Renderer | null}
 */
export function glRenderer(canvas, onRestored) {
  const got = canvas.getContext("webgl2", { alpha: false, antialias: false, depth: false, stencil: false, premultipliedAlpha: false });
  if (!got) return null;
  const gl = got;
  const made = glProgram(gl);
  if (!made) return null;
  /** @type {NonNullable<ReturnType<typeof glProgram>>} */
  let program = made;
  let age = 1; // generation of the context: textures of a lost one are invalid
  let lost = false;
  /** @type {Uint8Array | Uint8ClampedArray | null} */
  let table = null;
  const onLost = (/** @type {Event} */ event) => {
    event.preventDefault();
    lost = true;
  };
  const onBack = () => {
    const again = glProgram(gl);
    if (!again) return;
    program = again;
    age += 1;
    table = null;
    colouringVersion = -1;
    lost = false;
    onRestored();
  };
  let colouringVersion = -1;
  const scratch = new Float32Array(tileSide * tileSide);
  canvas.addEventListener("webglcontextlost", onLost);
  canvas.addEventListener("webglcontextrestored", onBack);

  /** @param {Tile} tile */
  function texture(tile) {
    gl.activeTexture(gl.TEXTURE0);
    let drawn = tile.drawn;
    if (!drawn || drawn.age !== age) drawn = tile.drawn = { texture: glTexture(gl), version: -1, age };
    gl.bindTexture(gl.TEXTURE_2D, drawn.texture);
    if (drawn.version === tile.version) return;
    gl.texImage2D(gl.TEXTURE_2D, 0, gl.R32F, tile.columns, tile.rows, 0, gl.RED, gl.FLOAT, glNumbers(tile, scratch));
    drawn.version = tile.version;
  }

  /** @param {Colouring} colouring */
  function setColouring(colouring) {
    if (colouring.version === colouringVersion) return;
    colouringVersion = colouring.version;
    gl.uniform4f(program.u_range, colouring.low, colouring.high, colouring.threshold, logFloor(colouring));
    const { unknown } = colouring;
    gl.uniform4f(program.u_unknown, (unknown & 255) / 255, ((unknown >> 8) & 255) / 255, ((unknown >> 16) & 255) / 255, 1);
    if (colouring.table === table) return;
    table = colouring.table;
    gl.activeTexture(gl.TEXTURE1);
    gl.texImage2D(gl.TEXTURE_2D, 0, gl.RGBA8, 256, 1, 0, gl.RGBA, gl.UNSIGNED_BYTE, new Uint8Array(table.buffer, table.byteOffset, 1024));
  }

  return {
    kind: "webgl2",
    canvas,
    resize(width, height) {
      if (canvas.width !== width) canvas.width = width;
      if (canvas.height !== height) canvas.height = height;
    },
    begin(colour) {
      if (lost) return;
      gl.viewport(0, 0, canvas.width, canvas.height);
      gl.useProgram(program.program);
      gl.uniform1f(program.u_height, canvas.height);
      this.fill(0, 0, canvas.width, canvas.height, colour);
    },
    fill(left, top, right, bottom, colour) {
      if (lost || right <= left || bottom <= top) return;
      gl.enable(gl.SCISSOR_TEST);
      gl.scissor(left, canvas.height - bottom, right - left, bottom - top);
      gl.clearColor((colour & 255) / 255, ((colour >> 8) & 255) / 255, ((colour >> 16) & 255) / 255, 1);
      gl.clear(gl.COLOR_BUFFER_BIT);
    },
    paint(tile, x, y, cell, left, top, right, bottom, colouring, factor, transparent) {
      if (lost || right <= left || bottom <= top) return;
      setColouring(colouring);
      texture(tile);
      gl.scissor(left, canvas.height - bottom, right - left, bottom - top);
      // Relative to the first cell in view: with a corner a million pixels away float32 is too inexact.
      const column = Math.min(Math.max(Math.floor((left + 0.5 - x) / cell), 0), tile.columns - 1);
      const row = Math.min(Math.max(Math.floor((top + 0.5 - y) / cell), 0), tile.rows - 1);
      gl.uniform2f(program.u_origin, x + column * cell, y + row * cell);
      gl.uniform2i(program.u_first, column, row);
      gl.uniform2i(program.u_size, tile.columns, tile.rows);
      gl.uniform1f(program.u_cell, cell);
      gl.uniform1f(program.u_factor, factor);
      gl.uniform3i(program.u_flags, colouring.log ? 1 : 0, colouring.signed ? 1 : 0, transparent ? 1 : 0);
      gl.drawArrays(gl.TRIANGLES, 0, 3);
    },
    end() {},
    forget(tile) {
      if (tile.drawn && tile.drawn.age === age && !lost) gl.deleteTexture(tile.drawn.texture);
      tile.drawn = null;
    },
    dispose() {
      canvas.removeEventListener("webglcontextlost", onLost);
      canvas.removeEventListener("webglcontextrestored", onBack);
      // Browsers limit the number of WebGL contexts: a notebook with many views needs this one released.
      gl.getExtension("WEBGL_lose_context")?.loseContext();
    },
  };
}

// The shader program, textures and uniforms of WebGL2.

const vertexShader = `#version 300 es
void main() {
  // One triangle that covers the canvas; the scissor limits it.
  gl_Position = vec4(gl_VertexID == 1 ? 3.0 : -1.0, gl_VertexID == 2 ? 3.0 : -1.0, 0.0, 1.0);
}`;

const fragmentShader = `#version 300 es
precision highp float;
precision highp int;
precision highp sampler2D;
uniform sampler2D u_tile;
uniform sampler2D u_table;
uniform float u_height;   // of the canvas
uniform vec2 u_origin;    // corner of the cell u_first
uniform ivec2 u_first;    // column and row
uniform ivec2 u_size;     // columns and rows of the tile
uniform float u_cell;     // pixels
uniform float u_factor;
uniform vec4 u_range;     // low, high, threshold, low end of the logarithm
uniform ivec3 u_flags;    // log, signed, unknown left transparent
uniform vec4 u_unknown;
out vec4 colour;

float position(float size) {
  float high = u_range.y, from = u_flags.x == 1 ? u_range.w : u_range.x;
  if (size < u_range.z || high <= 0.0) return 0.0;
  if (high <= from) return size >= high ? 1.0 : 0.0;
  float place = u_flags.x == 1 ? (size > 0.0 ? log(size / from) / log(high / from) : 0.0) : (size - from) / (high - from);
  return clamp(place, 0.0, 1.0);
}

void main() {
  vec2 at = vec2(gl_FragCoord.x, u_height - gl_FragCoord.y);
  ivec2 cell = u_first + ivec2(floor((at - u_origin) / u_cell));
  cell = clamp(cell, ivec2(0), u_size - 1);
  float value = texelFetch(u_tile, cell, 0).r;
  if (value < -1e30) { // not known yet
    if (u_flags.z == 1) discard;
    colour = u_unknown;
    return;
  }
  value *= u_factor;
  float place = u_flags.y == 1 ? 0.5 + 0.5 * sign(value) * position(abs(value)) : position(value);
  colour = texelFetch(u_table, ivec2(int(floor(place * 255.0 + 0.5)), 0), 0);
}`;

/** @param {WebGL2RenderingContext} gl */
function glProgram(gl) {
  const program = gl.createProgram();
  for (const [kind, source] of /** @type {[number, string][]} */ ([[gl.VERTEX_SHADER, vertexShader], [gl.FRAGMENT_SHADER, fragmentShader]])) {
    const shader = gl.createShader(kind);
    if (!shader) return null;
    gl.shaderSource(shader, source);
    gl.compileShader(shader);
    gl.attachShader(program, shader);
  }
  gl.linkProgram(program);
  if (!gl.getProgramParameter(program, gl.LINK_STATUS)) return null;
  gl.useProgram(program);
  gl.activeTexture(gl.TEXTURE1);
  gl.bindTexture(gl.TEXTURE_2D, glTexture(gl));
  const at = (/** @type {string} */ name) => gl.getUniformLocation(program, name);
  gl.uniform1i(at("u_tile"), 0);
  gl.uniform1i(at("u_table"), 1);
  return {
    program, u_height: at("u_height"), u_origin: at("u_origin"), u_first: at("u_first"), u_size: at("u_size"), u_cell: at("u_cell"),
    u_factor: at("u_factor"), u_range: at("u_range"), u_flags: at("u_flags"), u_unknown: at("u_unknown"),
  };
}

/**
 * The tile's weights with -3e38 in place of NaN, which graphics cards need not preserve.
 * @param {Tile} tile @param {Float32Array} scratch
 */
function glNumbers(tile, scratch) {
  if (tile.data.length > scratch.length) return tile.data;
  for (let i = 0; i < tile.data.length; i++) {
    const value = tile.data[i];
    scratch[i] = value !== value ? -3e38 : value;
  }
  return scratch.subarray(0, tile.data.length);
}

/** @param {WebGL2RenderingContext} gl */
function glTexture(gl) {
  const texture = gl.createTexture();
  gl.bindTexture(gl.TEXTURE_2D, texture);
  for (const name of [gl.TEXTURE_MIN_FILTER, gl.TEXTURE_MAG_FILTER]) gl.texParameteri(gl.TEXTURE_2D, name, gl.NEAREST);
  for (const name of [gl.TEXTURE_WRAP_S, gl.TEXTURE_WRAP_T]) gl.texParameteri(gl.TEXTURE_2D, name, gl.CLAMP_TO_EDGE);
  return texture;
}

// The renderer without WebGL2: the same pixels on a 2D canvas.

/** @param {HTMLCanvasElement} canvas @returns {Renderer} */
export function canvasRenderer(canvas) {
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
    paint(tile, x, y, cell, left, top, right, bottom, colouring, factor, transparent) {
      if (right <= left || bottom <= top) return;
      const colours = cellColours(tile, colouring, factor, transparent);
      blitCells(pixels, image.width, columnOf, colours, tile.columns, tile.rows, x, y, cell, left, top, right, bottom, transparent);
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
 * A tile's cells as colours, cached until its data or the colouring change.
 * @param {Tile} tile @param {Colouring} colouring @param {number} factor @param {boolean} transparent @returns {Uint32Array}
 */
function cellColours(tile, colouring, factor, transparent) {
  let drawn = tile.drawn;
  if (!drawn || drawn.colours.length !== tile.data.length) {
    drawn = tile.drawn = { colours: new Uint32Array(tile.data.length), version: -1, colouringVersion: -1, factor: 0, transparent: false };
  }
  if (drawn.version !== tile.version || drawn.colouringVersion !== colouring.version || drawn.factor !== factor || drawn.transparent !== transparent) {
    colourCells(colouring, tile.data, factor, drawn.colours, transparent);
    drawn.version = tile.version;
    drawn.colouringVersion = colouring.version;
    drawn.factor = factor;
    drawn.transparent = transparent;
  }
  return drawn.colours;
}

/**
 * Draws cells: a pixel gets the colour of the cell at its centre. With `transparent`, colour 0 leaves the pixel as it is.
 * @param {Uint32Array} pixels
 * @param {number} width  of the image
 * @param {Int32Array} columnOf  at least as long as the image is wide; overwritten
 * @param {Uint32Array} colours @param {number} columns @param {number} rows @param {number} x @param {number} y
 * @param {number} cell @param {number} left @param {number} top @param {number} right @param {number} bottom
 * @param {boolean} transparent
 */
export function blitCells(pixels, width, columnOf, colours, columns, rows, x, y, cell, left, top, right, bottom, transparent) {
  for (let px = left; px < right; px++) columnOf[px] = Math.min(Math.max(Math.floor((px + 0.5 - x) / cell), 0), columns - 1);
  let before = -1;
  for (let py = top; py < bottom; py++) {
    const row = Math.min(Math.max(Math.floor((py + 0.5 - y) / cell), 0), rows - 1);
    const start = py * width;
    if (transparent) {
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
