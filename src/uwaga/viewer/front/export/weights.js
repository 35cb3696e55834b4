// Weights in view as a CSV file, the page as an HTML file, and names of files.

import { countText } from "../format.js";
import { languageOfRequest, tr } from "../languages.js";
import { savedCells, seenKeys } from "../weights.js";
/** @import { App, View, Where } from "../types.js" */
/** @import { ExportFile } from "./menu.js" */

/** @typedef {{rows: [number, number], columns: [number, number]}} Block */

const maxCsvWeights = 1 << 22; // weights of a table: about 50 MB of text
const maxSavedTiles = 80; // 256 kB each before compression

/** The block of weights in view; the whole map if the view has no block. @param {App} app @param {View} view @returns {Block} */
export function blockInView(app, view) {
  const { queries, keys } = app.sizes();
  return view.block?.() ?? { rows: [0, queries], columns: [0, keys] };
}

/** @param {Block} block  throws if it has too many weights */
function checkBlockSize({ rows, columns }) {
  const count = (rows[1] - rows[0]) * (columns[1] - columns[0]);
  if (count < 1) throw new Error(tr("No weights are in view."));
  if (count <= maxCsvWeights) return;
  const sizes = `${countText(rows[1] - rows[0])} \u00d7 ${countText(columns[1] - columns[0])}`;
  throw new Error(tr("The view has {sizes} weights, more than the limit of {most} per file. Zoom in on the map, then save again.", { sizes, most: maxCsvWeights }));
}

/** @param {App} app @param {View} view @returns {Promise<ExportFile>} */
export async function blockCsv(app, view) {
  const block = blockInView(app, view);
  checkBlockSize(block);
  const where = app.where();
  const { kind, side } = app.store.get();
  const stacks = app.side().kinds[kind];
  const [queries, keys, weights] =
    await Promise.all([app.items(side, stacks.queries), app.items(side, stacks.keys), blockWeights(app, where, block)]);
  const width = block.columns[1] - block.columns[0];
  // What a mask hides has no weight.
  for (let row = block.rows[0]; row < block.rows[1]; row++) {
    const [first, stop] = seenKeys(app, queries, keys, row).map((key) => Math.max(0, Math.min(width, key - block.columns[0]))), at = (row - block.rows[0]) * width;
    weights.fill(NaN, at, at + first).fill(NaN, at + stop, at + width);
  }
  const [rows, columns] = [queries.labels.slice(...block.rows), keys.labels.slice(...block.columns)];
  const text = csvFile({ weights, firstRow: block.rows[0], firstColumn: block.columns[0], rows, columns });
  const name = fileName({ model: app.side().model, where, what: "weights", block, ending: "csv" });
  // The byte order mark tells spreadsheets that the file is UTF-8.
  return { name, blob: new Blob(["\ufeff", text], { type: "text/csv;charset=utf-8" }) };
}

/**
 * The exact weights of a block, from its tiles.
 * @param {App} app @param {Where} where @param {Block} block @returns {Promise<Float32Array>}
 */
async function blockWeights(app, where, { rows, columns }) {
  const cells = await savedCells(app, where, app.sizes(), rows, columns);
  if (!cells || cells.side > 1) throw new Error(tr("This saved page does not contain the exact weights in view."));
  const weights = new Float32Array((rows[1] - rows[0]) * (columns[1] - columns[0]));
  let at = 0;
  for (let query = rows[0]; query < rows[1]; query++) {
    for (let key = columns[0]; key < columns[1]; key++) weights[at++] = cells.weight(query, key);
  }
  return weights;
}

/**
 * The page as one file: the overview of every head, and the exact tiles viewed last.
 * @param {App} app @returns {Promise<ExportFile>}
 */
export async function savePage(app) {
  const seen = app.client.cachedRequests("tile");
  const exact = seen.slice(-maxSavedTiles);
  const { arrays } = await app.client.ask({ request: "page", exact, ...(app.about.lesson ? { lesson: true } : {}), ...languageOfRequest() }, { priority: 6 });
  const left = seen.length - exact.length;
  const { model, text_title: text } = app.side();
  return { name: fileName({ model, text, what: "", ending: "html" }), blob: new Blob([/** @type {BlobPart} */ (arrays[0].data)], { type: "text/html;charset=utf-8" }),
    note: left > 0 ? tr("with the {length} tiles seen last; {left} earlier ones were left out", { length: exact.length, left }) : tr("with {length} tiles", { length: exact.length }) };
}

// Weights as a table for spreadsheets (RFC 4180).

/**
 * @typedef {object} CsvBlock
 * @property {ArrayLike<number>} weights  (rows, columns)
 * @property {number} firstRow  position of the first query
 * @property {number} firstColumn  position of the first key
 * @property {string[]} rows  the queries' tokens, of the block only
 * @property {string[]} columns  the keys' tokens
 */

/**
 * The first line names the keys, the first column the queries, each by position and token: `12 cat`. Names begin with a digit so
 * that no spreadsheet interprets a token such as `=HYPERLINK(...)` as a formula, and so that repeated tokens have distinct names. Names are always
 * quoted. Weights are the shortest decimals that give the same float32 again.
 * @param {CsvBlock} block @returns {string}
 */
export function csvFile({ weights, firstRow, firstColumn, rows, columns }) {
  const names = columns.map((token, j) => csvName(firstColumn + j, token));
  const lines = [["\"query \\ key\"", ...names].join(",")];
  rows.forEach((token, i) => {
    const cells = [csvName(firstRow + i, token)];
    for (let j = 0; j < columns.length; j++) cells.push(csvWeight(weights[i * columns.length + j]));
    lines.push(cells.join(","));
  });
  return `${lines.join("\r\n")}\r\n`;
}

/** @param {number} position @param {string} token @returns {string} */
function csvName(position, token) {
  return `"${position} ${token.replaceAll('"', '""')}"`;
}

/**
 * @param {number} value a float32
 * @returns {string} the shortest decimal that is nearer to it than to any other float32; NaN: an empty cell
 */
export function csvWeight(value) {
  if (Number.isNaN(value)) return "";
  // Starting at six digits is enough: Number() drops trailing zeros.
  for (let digits = 6; digits < 9; digits++) {
    const text = value.toPrecision(digits);
    if (Math.fround(Number(text)) === value) return String(Number(text));
  }
  return String(Number(value.toPrecision(9)));
}

// Names of files.

/**
 * @typedef {object} NameParts
 * @property {string} model
 * @property {Where} [where]  the head; undefined: all heads
 * @property {string} [text]  of what is not of one head
 * @property {string} what  "map", "text", ...
 * @property {{rows: [number, number], columns: [number, number]}} [block]
 * @property {string} ending  "png", without the dot
 */

/**
 * Such as uwaga_all-MiniLM-L6-v2_encoder_layer3_head5_weights_0-64x0-64.csv: characters that every file system allows.
 * @param {NameParts} parts @returns {string}
 */
export function fileName({ model, where, text = "", what, block, ending }) {
  const parts = ["uwaga", fileNameSlug(model.split("/").pop() ?? ""), fileNameSlug(text)];
  if (where) parts.push(where.kind, `layer${where.layer}`, `head${where.head}`);
  if (where && where.side !== "0") parts.push(where.side === "1" ? "second" : "difference");
  if (where?.merge === "words") parts.push("words");
  if (where?.specials === "hide") parts.push("no-specials");
  parts.push(fileNameSlug(what));
  if (block) parts.push(`${block.rows.join("-")}x${block.columns.join("-")}`);
  return `${parts.filter((part) => part !== "").join("_")}.${ending}`;
}

/** @param {string} text @returns {string} the letters that every file system allows */
export function fileNameSlug(text) {
  return text.normalize("NFKD").replace(/[^A-Za-z0-9.+-]+/g, "-").replace(/^[-.]+|[-.]+$/g, "").slice(0, 60);
}
