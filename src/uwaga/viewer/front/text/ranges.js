// Places in a text that outlast merging and hiding: as ranges of tokens, from which the items of the moment follow.

/** @typedef {{spans: Int32Array, total: number}} RangeItems */
/** @typedef {[number, number]} Range  first, one past the last */

/**
 * @param {RangeItems} items
 * @param {Range} range of items
 * @returns {Range} of tokens
 */
export function tokensOf({ spans }, [first, last]) {
  return [spans[2 * first], spans[2 * (last - 1) + 1]];
}

/**
 * @param {RangeItems} items
 * @param {Range} range of tokens
 * @returns {Range | null} the items that hold any of them; null: they are all hidden
 */
export function itemsOf({ spans, total }, [first, last]) {
  const from = rangeFirst(total, (item) => spans[2 * item + 1] > first);
  const to = rangeFirst(total, (item) => spans[2 * item] >= last);
  return from < to ? [from, to] : null;
}

/** @param {number} total @param {(item: number) => boolean} holds false, then true @returns {number} where it begins to */
function rangeFirst(total, holds) {
  let [low, high] = [0, total];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (holds(middle)) high = middle;
    else low = middle + 1;
  }
  return low;
}

/**
 * @param {{labels: string[], glued: ArrayLike<number>}} items
 * @param {Range} range
 * @param {number} [most] letters
 * @returns {string} the text of the items, the middle left out where it is long
 */
export function rangeText({ labels, glued }, [first, last], most = 40) {
  const piece = (/** @type {number} */ item, /** @type {boolean} */ begins) => (begins || glued[item] ? "" : " ") + labels[item];
  let head = "";
  let item = first;
  for (; item < last && head.length <= most; item++) head += piece(item, item === first);
  if (item === last && head.length <= most) return head;
  let tail = "";
  for (let back = last - 1; back > first && tail.length < most / 2; back--) tail = piece(back, false) + tail;
  return `${head.slice(0, most / 2).trimEnd()} \u2026 ${tail.slice(-most / 2).trimStart()}`;
}
