// The table as a scene, for pictures.

import { numberText } from "../shell/pieces.js";

const tableSceneRow = 20;
const tableSceneMost = 2000; // rows: a picture that is longer helps nobody

/**
 * @param {HTMLElement} root
 * @param {import("./rows.js").TableRow[]} rows
 * @param {import("./rows.js").TableColumn[]} columns
 * @param {{[name: string]: [number, number]}} ranges
 * @param {(id: string) => string} sideTitle
 * @returns {import("../types.js").Scene}
 */
export function tableScene(root, rows, columns, ranges, sideTitle) {
  const style = getComputedStyle(root), paint = (/** @type {string} */ name) => style.getPropertyValue(name).trim();
  const widths = columns.map(({ title, statistic }) => Math.max(statistic ? 84 : 56, title.length * 7 + 16));
  const shown = rows.slice(0, tableSceneMost), width = widths.reduce((sum, one) => sum + one, 0) + 16;
  /** @type {import("../types.js").SceneItem[]} */
  const items = [];
  const line = (/** @type {number} */ y) =>
    items.push({ kind: "line", x1: 8, x2: width - 8, y1: y, y2: y, stroke: paint("--line"), width: 1, opacity: 1 });
  let x = 8;
  columns.forEach((column, at) => {
    const end = x + widths[at] - 8, left = x;
    items.push({ kind: "text", x: end, y: 20, text: column.title, size: 12, anchor: "end", fill: paint("--muted") });
    shown.forEach((row, i) => {
      const y = 32 + i * tableSceneRow, value = row.values[column.name], [low, high] = ranges[column.name] ?? [0, 0];
      if (column.statistic && typeof value === "number" && high > low) {
        const zero = -low / (high - low), place = (value - low) / (high - low), room = widths[at] - 8;
        items.push({ kind: "rect", x: left + 4 + Math.min(zero, place) * room, y: y + 3,
          w: Math.abs(place - zero) * room, h: tableSceneRow - 6, fill: paint("--surface-2") });
      }
      const text = column.statistic ? numberText(value) : column.name === "side"
        ? sideTitle(row.side) : String(/** @type {any} */ (row)[column.name]);
      items.push({ kind: "text", x: end, y: y + 14, text, size: 12, anchor: "end", fill: paint("--text") });
    });
    x += widths[at];
  });
  line(29);
  return { width, height: 40 + shown.length * tableSceneRow, background: paint("--bg"), items };
}
