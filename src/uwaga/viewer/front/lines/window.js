// A window of rows over a long column: which items are in it, and where they stand.

/**
 * @typedef {object} LineWindow
 * @property {number} offset  pixels scrolled
 * @property {number} height  pixels of the window
 * @property {number} row  pixels of an item
 * @property {number} total  items
 */

/** @param {LineWindow} window @returns {number} the nearest offset that shows no emptiness */
export function windowClamp({ offset, height, row, total }) {
  return Math.max(0, Math.min(offset, total * row - height));
}

/** @param {LineWindow} window @returns {[number, number]} the items whose middle is in the window: first, one past the last */
export function windowItems({ offset, height, row, total }) {
  const first = Math.max(0, Math.ceil(offset / row - 0.5));
  const last = Math.min(total, Math.floor((offset + height) / row - 0.5) + 1);
  return [Math.min(first, total), Math.max(last, Math.min(first, total))];
}

/** @param {LineWindow} window @param {number} item @returns {number} pixels from the window's top to the item's middle */
export function windowMiddle({ offset, row }, item) {
  return (item + 0.5) * row - offset;
}

/** @param {LineWindow} window @param {number} item @returns {number} the offset that brings it into the window, else the same */
export function windowReveal(window, item) {
  const { offset, height, row } = window;
  const [top, bottom] = [item * row, (item + 1) * row];
  if (top >= offset && bottom <= offset + height) return offset;
  const near = Math.abs(top - offset) < 2 * height;
  const wanted = !near ? top - height / 2 : top < offset ? top : bottom - height;
  return windowClamp({ ...window, offset: wanted });
}
