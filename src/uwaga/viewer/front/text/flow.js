// Running text set in lines of our own, so that the place of every item is known without it being in the page.

/**
 * @typedef {object} FlowInput
 * @property {ArrayLike<number>} widths  pixels of each item
 * @property {ArrayLike<number>} glued  1: no space before it, and no new line if that can be helped
 * @property {ArrayLike<number>} ends  1: a new line begins behind it
 * @property {number} width  pixels of a line
 * @property {number} gap  pixels of a space
 */

/**
 * @typedef {object} Flow
 * @property {Int32Array} starts  (lines + 1,): the first item of each line, then the number of items
 * @property {Float32Array} lefts  pixels from the line's beginning to each item
 * @property {number} lines
 */

/**
 * Items into lines, as many as fit. Glued pieces stay with what they are glued to unless they are wider than a line together.
 * @param {FlowInput} input
 * @returns {Flow}
 */
export function flowLines({ widths, glued, ends, width, gap }) {
  const total = widths.length;
  const starts = new Int32Array(total + 1);
  const lefts = new Float32Array(total);
  let [lines, x, item] = [0, 0, 0];
  const newLine = (/** @type {number} */ first) => {
    starts[lines++] = first;
    x = 0;
  };
  if (total) newLine(0);
  while (item < total) {
    let [end, group] = [item + 1, widths[item]];
    while (end < total && glued[end] && !ends[end - 1]) group += widths[end++];
    const space = x > 0 && !glued[item] ? gap : 0;
    if (x > 0 && x + space + group > width) newLine(item);
    else x += space;
    for (; item < end; item++) {
      if (x > 0 && x + widths[item] > width && group > width) newLine(item);
      lefts[item] = x;
      x += Math.min(widths[item], width);
    }
    if (ends[item - 1] && item < total) newLine(item);
  }
  starts[lines] = total;
  return { starts: starts.slice(0, lines + 1), lefts, lines };
}

/**
 * @param {Int32Array} starts ascending
 * @param {number} item
 * @returns {number} the last index whose start is not behind the item: its line
 */
export function flowLine(starts, item) {
  let [low, high] = [0, Math.max(0, starts.length - 2)];
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (starts[middle] <= item) low = middle;
    else high = middle - 1;
  }
  return low;
}

/**
 * The lines to have in the page: those in view and some around them, so that scrolling finds them there.
 * @param {{top: number, height: number, lineHeight: number, lines: number, extra: number}} view  pixels; extra in lines
 * @returns {[number, number]} first, one past the last
 */
export function flowWindow({ top, height, lineHeight, lines, extra }) {
  const first = Math.max(0, Math.floor(top / lineHeight) - extra);
  const last = Math.min(lines, Math.ceil((top + height) / lineHeight) + extra);
  return [Math.min(first, lines), Math.max(last, Math.min(first, lines))];
}

/**
 * The item of another line that stands nearest to a place.
 * @param {Flow} flow
 * @param {ArrayLike<number>} widths
 * @param {number} line
 * @param {number} x  pixels
 * @returns {number}
 */
export function flowNearest(flow, widths, line, x) {
  const [first, last] = [flow.starts[line], flow.starts[line + 1]];
  let best = first;
  const distance = (/** @type {number} */ item) => Math.abs(flow.lefts[item] + widths[item] / 2 - x);
  for (let item = first; item < last; item++) if (distance(item) < distance(best)) best = item;
  return best;
}

/**
 * @param {string[]} labels
 * @returns {boolean} whether most letters are of a script written from right to left
 */
export function flowRightToLeft(labels) {
  let [right, left] = [0, 0];
  for (let i = 0; i < labels.length && right + left < 2000; i++) {
    right += (labels[i].match(/[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]/g) ?? []).length;
    left += (labels[i].match(/[A-Za-z\u00c0-\u058f\u0900-\u1fff\u3040-\u9fff\uac00-\ud7a3]/g) ?? []).length;
  }
  return right > left;
}
