// The table element: headings that sort, and virtual scrolling of the rows.

import { el, isModified, uniqueName } from "../dom.js";
import { kindTitle, numberText } from "../format.js";
import { tr } from "../languages.js";
import { rowsInView } from "./rows.js";
/** @import { Column, Order, Row } from "./rows.js" */

/**
 * @typedef {{rows: Row[], ranges: {[name: string]: [number, number]}, columns: Column[], order: Order,
 *   chosen: (row: Row) => boolean}} Content
 */

/**
 * @param {object} calls @param {(column: Column) => void} calls.sort @param {(row: Row) => void} calls.open
 * @param {(text: string) => void} calls.status @param {(id: string) => string} calls.sideTitle
 */
export function makeGrid({ sort, open, status, sideTitle }) {
  const prefix = uniqueName();
  const headings = el("tr"), head = el("thead", {}, headings), body = el("tbody");
  const table = el("table", { class: "uwaga-heads" },
    el("caption", { class: "uwaga-visually-hidden", text: tr("Statistics of every head") }), head, body);
  const meanings = el("div", { hidden: true });
  const element = el("div", { class: "uwaga-heads-scroll", tabindex: -1, on: { scroll: draw } }, table, meanings);
  /** @type {Content} */
  let content = { rows: [], ranges: {}, columns: [], order: { name: "", falling: false }, chosen: () => false };
  let active = 0, rowHeight = 28, headed = "";

  function drawHeadings() {
    const { columns, order } = content;
    const names = columns.map(({ name }) => name).join();
    if (names !== headed) {
      headed = names;
      meanings.replaceChildren(...columns.map(({ name, meaning }) => el("span", { id: `${prefix}-${name}`, text: meaning })));
      headings.replaceChildren(...columns.map((column) => {
        const showMeaning = () => status(column.meaning ? `${column.title}: ${column.meaning}` : "");
        return el("th", { scope: "col", "data-statistic": column.statistic }, el("button", { type: "button", title: column.meaning,
          "aria-describedby": column.meaning ? `${prefix}-${column.name}` : null,
          on: { click: () => sort(column), focus: showMeaning, pointerenter: showMeaning, blur: () => status(""), pointerleave: () => status("") } },
          column.title, el("span", { class: "uwaga-sort", "aria-hidden": "true" })));
      }));
    }
    columns.forEach(({ name }, i) => {
      const th = headings.children[i], isSorted = name === order.name;
      if (isSorted) th.setAttribute("aria-sort", order.falling ? "descending" : "ascending");
      else th.removeAttribute("aria-sort");
      /** @type {HTMLElement} */ (th.querySelector(".uwaga-sort")).textContent = isSorted ? (order.falling ? "\u25be" : "\u25b4") : "";
    });
  }

  function draw() {
    const { rows, columns } = content, focused = body.contains(document.activeElement);
    const [first, end] = rowsInView(element.scrollTop, element.clientHeight || 600, rowHeight, rows.length);
    table.setAttribute("aria-rowcount", String(rows.length + 1));
    const filler = (/** @type {number} */ count) => {
      const row = el("tr", { "aria-hidden": "true", class: "uwaga-filler" }, el("td", { colspan: columns.length }));
      row.style.setProperty("height", `${count * rowHeight}px`);
      return row;
    };
    // Rows that leave the view lose the focus; the table takes it.
    const shown = rows.slice(first, end).map((row, i) => rowElement(row, first + i));
    body.replaceChildren(...(first ? [filler(first)] : []), ...shown, ...(end < rows.length ? [filler(rows.length - end)] : []));
    const height = shown[0]?.offsetHeight;
    if (height) rowHeight = height;
    if (focused) (active >= first && active < end ? shown[active - first] : element).focus({ preventScroll: true });
  }

  /** @param {Row} row @param {number} at @returns {HTMLTableRowElement} */
  function rowElement(row, at) {
    const { columns, ranges } = content, name = tr("{kind} layer {layer}, head {head}", { kind: kindTitle(row.kind), layer: row.layer, head: row.head });
    return el("tr", { tabindex: at === active ? 0 : -1, "aria-rowindex": at + 2, "data-at": at,
      "data-chosen": content.chosen(row), "aria-label": tr("{name}: open", { name }),
      on: { click: () => open(row), focus: () => { active = at; } } },
      columns.map((column) => (column.statistic ? numberCell(row, column, ranges[column.name]) : nameCell(row, column.name))));
  }

  /** @param {Row} row @param {string} name */
  function nameCell(row, name) {
    const text = name === "side" ? sideTitle(row.side) : name === "kind" ? row.kind : String(/** @type {any} */ (row)[name]);
    return el(name === "head" ? "th" : "td", name === "head" ? { scope: "row", text } : { text });
  }

  /** @param {number} to */
  function focusRow(to) {
    const { rows } = content;
    active = Math.max(0, Math.min(rows.length - 1, to));
    const top = active * rowHeight, room = element.clientHeight - head.offsetHeight;
    if (top < element.scrollTop) element.scrollTop = top;
    else if (top + rowHeight > element.scrollTop + room) element.scrollTop = top + rowHeight - room;
    draw();
    /** @type {HTMLElement | null} */ (body.querySelector(`[data-at="${active}"]`))?.focus({ preventScroll: true });
  }

  element.addEventListener("keydown", (event) => {
    const inHead = head.contains(/** @type {Node} */ (event.target));
    if (isModified(event, true) || !content.rows.length) return;
    if (inHead) return headingKey(event);
    const page = Math.max(1, Math.floor(element.clientHeight / rowHeight) - 2);
    const to = { ArrowDown: active + 1, ArrowUp: active - 1, PageDown: active + page,
      PageUp: active - page, Home: 0, End: content.rows.length - 1 }[event.key];
    if (event.key === "Enter") open(content.rows[active]);
    else if (event.key === "ArrowUp" && active === 0) headings.querySelector("button")?.focus();
    else if (to !== undefined) focusRow(to);
    else return;
    event.preventDefault();
  });

  /** @param {KeyboardEvent} event */
  function headingKey(event) {
    const buttons = [...headings.querySelectorAll("button")], at = buttons.indexOf(/** @type {any} */ (event.target));
    if (event.key === "ArrowDown") focusRow(active);
    else if (event.key === "ArrowLeft" || event.key === "ArrowRight") buttons[at + (event.key === "ArrowLeft" ? -1 : 1)]?.focus();
    else return;
    event.preventDefault();
  }

  return {
    element,
    /** @param {Content} next @param {boolean} anew  another order or other rows: scroll to the top */
    show(next, anew) {
      content = next;
      active = anew ? 0 : Math.min(active, Math.max(0, next.rows.length - 1));
      if (anew) element.scrollTop = 0;
      drawHeadings();
      draw();
    },
    focus: () => focusRow(active),
  };
}

/**
 * A number over a bar from zero, scaled to the column's largest; negative numbers to the other side.
 * @param {Row} row @param {Column} column @param {[number, number] | undefined} range
 */
function numberCell(row, { name }, range = [0, 0]) {
  const value = row.values[name];
  const cell = el("td", { class: "uwaga-number", text: row.isLoaded ? numberText(value) : "\u2026" });
  const width = range[1] - range[0];
  if (typeof value === "number" && width > 0) {
    const zero = -range[0] / width, end = (value - range[0]) / width;
    cell.style.setProperty("--from", `${100 * Math.min(zero, end)}%`);
    cell.style.setProperty("--to", `${100 * Math.max(zero, end)}%`);
    cell.classList.add(value < 0 ? "uwaga-below" : "uwaga-above");
  }
  return cell;
}
