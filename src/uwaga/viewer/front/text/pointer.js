// A pointer over running text: a click picks, a drag marks a span, Shift and a click stretch it, hovering asks.

/**
 * @typedef {object} PointerTold
 * @property {(item: number) => void} pick
 * @property {(anchor: number, item: number, done: boolean) => void} span
 * @property {(item: number) => void} stretch  from where the last pick or span began
 * @property {(item: number | null, event: PointerEvent | null) => void} hover
 */

const pointerEdge = 24; // pixels from the edge at which a drag begins to scroll
const pointerSpeed = 14; // pixels per frame

/**
 * @param {HTMLElement} scroller
 * @param {PointerTold} told
 * @returns {() => void} ends a drag that is going on
 */
export function watchPointer(scroller, told) {
  /** @type {{anchor: number, item: number, moved: boolean, y: number, x: number, frame: number} | null} */
  let drag = null;

  const at = (/** @type {number} */ x, /** @type {number} */ y) => {
    const root = /** @type {Document | ShadowRoot} */ (scroller.getRootNode());
    return pointerItem(root.elementFromPoint(x, y), scroller);
  };
  const stop = () => {
    if (drag) cancelAnimationFrame(drag.frame);
    drag = null;
  };
  const follow = () => {
    if (!drag) return;
    const box = scroller.getBoundingClientRect();
    if (drag.y < box.top + pointerEdge) scroller.scrollTop -= pointerSpeed;
    else if (drag.y > box.bottom - pointerEdge) scroller.scrollTop += pointerSpeed;
    const item = at(drag.x, Math.min(box.bottom - 4, Math.max(box.top + 4, drag.y)));
    if (item !== null && item !== drag.item) {
      drag.item = item;
      drag.moved = true;
      told.span(drag.anchor, item, false);
    }
    drag.frame = requestAnimationFrame(follow);
  };

  scroller.addEventListener("pointerdown", (event) => {
    const item = pointerItem(event.target, scroller);
    if (event.button !== 0 || item === null) return;
    if (event.shiftKey) {
      event.preventDefault();
      told.stretch(item);
      return;
    }
    drag = { anchor: item, item, moved: false, x: event.clientX, y: event.clientY, frame: 0 };
    // A finger scrolls the text: only a mouse or a pen marks by dragging.
    if (event.pointerType !== "touch") drag.frame = requestAnimationFrame(follow);
  });
  scroller.addEventListener("pointermove", (event) => {
    if (drag) [drag.x, drag.y] = [event.clientX, event.clientY];
    told.hover(pointerItem(event.target, scroller), event);
  });
  const end = () => {
    const ended = drag;
    stop();
    if (!ended) return;
    if (ended.moved) told.span(ended.anchor, ended.item, true);
    else told.pick(ended.item);
  };
  scroller.addEventListener("pointerup", (event) => {
    if (drag) [drag.x, drag.y] = [event.clientX, event.clientY];
    end();
  });
  scroller.addEventListener("pointercancel", stop);
  scroller.addEventListener("pointerleave", (event) => {
    told.hover(null, null);
    if (event.buttons === 0) stop();
  });
  const root = scroller.ownerDocument;
  const released = (/** @type {PointerEvent} */ event) => {
    if (drag && !scroller.contains(/** @type {Node} */ (event.target))) end();
  };
  const moved = (/** @type {PointerEvent} */ event) => {
    if (drag) [drag.x, drag.y] = [event.clientX, event.clientY];
  };
  root.addEventListener("pointerup", released);
  root.addEventListener("pointermove", moved);
  return () => {
    stop();
    root.removeEventListener("pointerup", released);
    root.removeEventListener("pointermove", moved);
  };
}

/** @param {EventTarget | null} target @param {HTMLElement} inside @returns {number | null} */
function pointerItem(target, inside) {
  const token = target instanceof Element ? target.closest("[data-item]") : null;
  return token instanceof HTMLElement && inside.contains(token) ? Number(token.dataset.item) : null;
}
