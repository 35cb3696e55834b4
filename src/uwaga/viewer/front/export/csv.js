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
 * The first line names the keys, the first column the queries, each as its position and its token: `12 cat`. A name so begins
 * with a digit, so that no spreadsheet takes a token such as `=HYPERLINK(...)` for a formula, and a token that occurs
 * twice has two names. Names are always quoted. Weights are the shortest decimals that give the same float32 again.
 * @param {CsvBlock} block
 * @returns {string}
 */
export function csvFile({ weights, firstRow, firstColumn, rows, columns }) {
  const names = columns.map((token, j) => csvName(firstColumn + j, token));
  const lines = [['"query \\ key"', ...names].join(",")];
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
 * @returns {string} the shortest decimal that is nearer to it than to any other float32; nan: an empty cell
 */
export function csvWeight(value) {
  if (Number.isNaN(value)) return "";
  // Fewer than six digits are never wrong to try with six: Number() drops the zeros.
  for (let digits = 6; digits < 9; digits++) {
    const text = value.toPrecision(digits);
    if (Math.fround(Number(text)) === value) return String(Number(text));
  }
  return String(Number(value.toPrecision(9)));
}
