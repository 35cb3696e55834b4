// Words in running text, found as they are read: across tokens, without regard to case.

/** @typedef {{text: string, starts: Int32Array}} SearchIndex  the text in small letters; where each item begins in it */

/**
 * @param {string[]} labels
 * @param {ArrayLike<number>} glued
 * @returns {SearchIndex}
 */
export function searchIndex(labels, glued) {
  const starts = new Int32Array(labels.length);
  /** @type {string[]} */
  const parts = [];
  let at = 0;
  labels.forEach((label, i) => {
    // Small letters one label at a time: some of them are longer than what they come from, and places must agree.
    const part = label.toLowerCase();
    if (i && !glued[i]) {
      parts.push(" ");
      at += 1;
    }
    starts[i] = at;
    parts.push(part);
    at += part.length;
  });
  return { text: parts.join(""), starts };
}

/**
 * @param {SearchIndex} index
 * @param {string} wanted  "#17" is the item at position 17
 * @param {number} [limit]
 * @returns {[number, number][]} first item and one past the last of each place
 */
export function searchItems({ text, starts }, wanted, limit = 10_000) {
  const position = /^#(\d+)$/.exec(wanted.trim());
  if (position) {
    const item = Number(position[1]);
    return item < starts.length ? [[item, item + 1]] : [];
  }
  const sought = wanted.toLowerCase();
  /** @type {[number, number][]} */
  const found = [];
  if (sought.trim() === "") return found;
  for (let at = text.indexOf(sought); at >= 0 && found.length < limit; at = text.indexOf(sought, at + sought.length)) {
    found.push([searchAt(starts, at), searchAt(starts, at + sought.length - 1) + 1]);
  }
  return found;
}

/** @param {Int32Array} starts @param {number} place @returns {number} the item that holds it */
function searchAt(starts, place) {
  let [low, high] = [0, starts.length - 1];
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (starts[middle] <= place) low = middle;
    else high = middle - 1;
  }
  return low;
}
