// Where a scale of colours ends when nobody says so.

/**
 * The weight above which a tenth of all weight lies, within an eighth of its size, and the largest where that is less.
 *
 * The largest weight itself would leave most maps white: one cell of mass 1 in a corner is the rule where a mask lets the
 * first queries see few keys. Counted by weight and not by cells, so that a line of ones in a large map stays what it is.
 * @param {Float32Array} data  what is not a number does not count
 * @param {number} [start]
 * @param {number} [end]
 * @param {number} [columns]  of a row, 0: no columns are left out
 * @param {number} [skip]  so many columns are left out
 * @returns {number}
 */
export function scaleTop(data, start = 0, end = data.length, columns = 0, skip = 0) {
  const bits = new Uint32Array(data.buffer, data.byteOffset, data.length);
  const sums = new Float64Array(1 << 11);
  let most = 0, total = 0;
  for (let at = start; at < end; at++) {
    if (skip && (at - start) % columns < skip) continue;
    const size = Math.abs(data[at]);
    if (!(size > 0 && size < Infinity)) continue;
    // The exponent and the first three bits of the fraction: bins an eighth wide at most, in the order of their sizes.
    sums[(bits[at] & 0x7fffffff) >>> 20] += size;
    total += size;
    if (size > most) most = size;
  }
  let above = 0, bin = sums.length - 1;
  while (bin > 0 && above + sums[bin] < 0.1 * total) above += sums[bin--];
  const edge = new Float32Array(new Uint32Array([(bin + 1) << 20]).buffer)[0];
  return edge < most ? edge : most;
}
