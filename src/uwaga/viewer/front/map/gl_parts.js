// What a WebGL2 context is given: the program, textures, numbers.

/** @typedef {import("./tiles.js").MapTile} MapTile */

const mapVertex = `#version 300 es
void main() {
  // One triangle that covers everything; the scissor says how much of it is drawn.
  gl_Position = vec4(gl_VertexID == 1 ? 3.0 : -1.0, gl_VertexID == 2 ? 3.0 : -1.0, 0.0, 1.0);
}`;

const mapFragment = `#version 300 es
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
uniform ivec4 u_flags;    // log, signed, sink set aside here, unknown left transparent
uniform vec4 u_unknown;
uniform vec4 u_aside;
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
  if (u_flags.z == 1 && cell.x == 0) { colour = u_aside; return; }
  float value = texelFetch(u_tile, cell, 0).r;
  if (value < -1e30) { // not known yet
    if (u_flags.w == 1) discard;
    colour = u_unknown;
    return;
  }
  value *= u_factor;
  float place = u_flags.y == 1 ? 0.5 + 0.5 * sign(value) * position(abs(value)) : position(value);
  colour = texelFetch(u_table, ivec2(int(floor(place * 255.0 + 0.5)), 0), 0);
}`;

/**
 * @param {WebGL2RenderingContext} gl
 */
export function mapGlProgram(gl) {
  const program = gl.createProgram();
  for (const [kind, source] of /** @type {[number, string][]} */ ([[gl.VERTEX_SHADER, mapVertex], [gl.FRAGMENT_SHADER, mapFragment]])) {
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
  gl.bindTexture(gl.TEXTURE_2D, mapGlTexture(gl));
  const at = (/** @type {string} */ name) => gl.getUniformLocation(program, name);
  gl.uniform1i(at("u_tile"), 0);
  gl.uniform1i(at("u_table"), 1);
  return {
    program, u_height: at("u_height"), u_origin: at("u_origin"), u_first: at("u_first"), u_size: at("u_size"), u_cell: at("u_cell"),
    u_factor: at("u_factor"), u_range: at("u_range"), u_flags: at("u_flags"), u_unknown: at("u_unknown"), u_aside: at("u_aside"),
  };
}

/**
 * The tile's numbers, with one that no weight can be in the place of nan: graphics cards need not keep nan.
 * @param {MapTile} tile
 * @param {Float32Array} scratch
 */
export function mapGlNumbers(tile, scratch) {
  if (tile.data.length > scratch.length) return tile.data;
  for (let i = 0; i < tile.data.length; i++) {
    const value = tile.data[i];
    scratch[i] = value !== value ? -3e38 : value;
  }
  return scratch.subarray(0, tile.data.length);
}

/** @param {WebGL2RenderingContext} gl */
export function mapGlTexture(gl) {
  const texture = gl.createTexture();
  gl.bindTexture(gl.TEXTURE_2D, texture);
  for (const name of [gl.TEXTURE_MIN_FILTER, gl.TEXTURE_MAG_FILTER]) gl.texParameteri(gl.TEXTURE_2D, name, gl.NEAREST);
  for (const name of [gl.TEXTURE_WRAP_S, gl.TEXTURE_WRAP_T]) gl.texParameteri(gl.TEXTURE_2D, name, gl.CLAMP_TO_EDGE);
  return texture;
}

/**
 * @param {WebGL2RenderingContext} gl
 * @param {WebGLUniformLocation | null} at
 * @param {number} colour
 */
export function mapGlColour(gl, at, colour) {
  gl.uniform4f(at, (colour & 255) / 255, ((colour >> 8) & 255) / 255, ((colour >> 16) & 255) / 255, 1);
}
