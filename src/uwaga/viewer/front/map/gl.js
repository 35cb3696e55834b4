// Tiles drawn by WebGL2. All that colours depend on is a uniform: another look costs one frame and no question.

import { mapTileSide } from "./pyramid.js";
import { mapLogLow } from "./shade.js";
import { mapGlProgram, mapGlNumbers, mapGlTexture, mapGlColour } from "./gl_parts.js";

/** @typedef {import("./tiles.js").MapTile} MapTile */
/** @typedef {import("./shade.js").MapShade} MapShade */

/**
 * @typedef {object} MapRenderer  places are in pixels of the device, from the top left of the canvas
 * @property {"webgl2" | "canvas"} kind
 * @property {HTMLCanvasElement} canvas
 * @property {(width: number, height: number) => void} resize
 * @property {(colour: number) => void} begin  a frame, all of one colour (0xAABBGGRR)
 * @property {(left: number, top: number, right: number, bottom: number, colour: number) => void} fill
 * @property {(tile: MapTile, x: number, y: number, cell: number, left: number, top: number, right: number, bottom: number,
 *   shade: MapShade, factor: number, through: boolean) => void} paint  the part of a tile between left, top, right and bottom
 *   (whole pixels); its corner is at x, y and a cell is `cell` wide; through: what is not known leaves what is below
 * @property {() => void} end
 * @property {(tile: MapTile) => void} forget
 * @property {() => void} dispose
 */

/**
 * Null where the browser has no WebGL2 with float textures.
 * @param {HTMLCanvasElement} canvas
 * @param {() => void} onRestored  everything has to be drawn again
 * @returns {MapRenderer | null}
 */
export function mapGlRenderer(canvas, onRestored) {
  const got = canvas.getContext("webgl2", { alpha: false, antialias: false, depth: false, stencil: false, premultipliedAlpha: false });
  if (!got) return null;
  const gl = got;
  const made = mapGlProgram(gl);
  if (!made) return null;
  /** @type {NonNullable<ReturnType<typeof mapGlProgram>>} */
  let program = made;
  let age = 1; // textures of a context that was lost are of an age before
  let lost = false;
  /** @type {Uint8Array | Uint8ClampedArray | null} */
  let table = null;
  const onLost = (/** @type {Event} */ event) => {
    event.preventDefault();
    lost = true;
  };
  const onBack = () => {
    const again = mapGlProgram(gl);
    if (!again) return;
    program = again;
    age += 1;
    table = null;
    shadeVersion = -1;
    lost = false;
    onRestored();
  };
  let shadeVersion = -1;
  const scratch = new Float32Array(mapTileSide * mapTileSide);
  canvas.addEventListener("webglcontextlost", onLost);
  canvas.addEventListener("webglcontextrestored", onBack);

  /** @param {MapTile} tile */
  function texture(tile) {
    gl.activeTexture(gl.TEXTURE0);
    let drawn = tile.drawn;
    if (!drawn || drawn.age !== age) drawn = tile.drawn = { texture: mapGlTexture(gl), version: -1, age };
    gl.bindTexture(gl.TEXTURE_2D, drawn.texture);
    if (drawn.version === tile.version) return;
    gl.texImage2D(gl.TEXTURE_2D, 0, gl.R32F, tile.columns, tile.rows, 0, gl.RED, gl.FLOAT, mapGlNumbers(tile, scratch));
    drawn.version = tile.version;
  }

  /** @param {MapShade} shade */
  function look(shade) {
    if (shade.version === shadeVersion) return;
    shadeVersion = shade.version;
    gl.uniform4f(program.u_range, shade.low, shade.high, shade.threshold, mapLogLow(shade));
    mapGlColour(gl, program.u_unknown, shade.unknown);
    mapGlColour(gl, program.u_aside, shade.aside);
    if (shade.table === table) return;
    table = shade.table;
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
    paint(tile, x, y, cell, left, top, right, bottom, shade, factor, through) {
      if (lost || right <= left || bottom <= top) return;
      look(shade);
      texture(tile);
      gl.scissor(left, canvas.height - bottom, right - left, bottom - top);
      // Counted from the first cell in view: a corner a million pixels away leaves float32 no digits for the pixels here.
      const column = Math.min(Math.max(Math.floor((left + 0.5 - x) / cell), 0), tile.columns - 1);
      const row = Math.min(Math.max(Math.floor((top + 0.5 - y) / cell), 0), tile.rows - 1);
      gl.uniform2f(program.u_origin, x + column * cell, y + row * cell);
      gl.uniform2i(program.u_first, column, row);
      gl.uniform2i(program.u_size, tile.columns, tile.rows);
      gl.uniform1f(program.u_cell, cell);
      gl.uniform1f(program.u_factor, factor);
      gl.uniform4i(program.u_flags, shade.log ? 1 : 0, shade.signed ? 1 : 0, shade.hideSink && tile.column === 0 ? 1 : 0, through ? 1 : 0);
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
      // A browser keeps few contexts alive: a notebook with many views needs this one back.
      gl.getExtension("WEBGL_lose_context")?.loseContext();
    },
  };
}
