// The overview as a scene: all layers, not those in view alone.

import { kindTitle } from "../shell/pieces.js";

/**
 * @param {import("../types.js").App} app
 * @param {import("./layout.js").OverviewLayout} layout
 * @param {ReturnType<typeof import("./loading.js").overviewLoading>} loading
 * @param {{pictureOf: (row: import("./layout.js").OverviewRow) => {canvas: HTMLCanvasElement | null,
 *   cells: import("./paint.js").OverviewCells} | null, share: (rows: import("./layout.js").OverviewRow[]) => void}} painter
 * @returns {Promise<import("../types.js").Scene>}
 */
export async function overviewScene(app, layout, loading, painter) {
  const style = getComputedStyle(app.root), paint = (/** @type {string} */ name) => style.getPropertyValue(name).trim();
  const { left, top, pitch, cell } = layout, size = Math.min(13, Math.max(9, top * 0.52));
  /** @type {import("../types.js").SceneItem[]} */
  const items = [];
  await loading.some(layout.rows);
  painter.share(layout.rows);
  const heads = Math.max(0, ...layout.rows.map((row) => row.heads));
  for (let head = 0; head < heads; head++) {
    items.push({ kind: "text", x: left + head * pitch + cell / 2, y: top * 0.7, text: String(head),
      size, anchor: "middle", fill: paint("--muted") });
  }
  for (const { title, y } of layout.bands) items.push({ kind: "text", x: 12, y: y + top, text: title,
    size: size + 1, anchor: "start", fill: paint("--text") });
  for (const row of layout.rows) {
    const picture = painter.pictureOf(row);
    items.push({ kind: "text", x: left - 10, y: row.y + cell / 2 + size / 3, text: String(row.layer),
      size, anchor: "end", fill: paint("--muted") });
    const context = picture?.canvas?.getContext("2d");
    // Read at once: a browser is slow to give a canvas's pixels back in parts.
    const all = picture?.canvas && context?.getImageData(0, 0, picture.canvas.width, picture.canvas.height);
    for (let head = 0; head < row.heads; head++) {
      const x = left + head * pitch;
      if (picture && all) {
        const { rows, columns } = picture.cells;
        items.push({ kind: "image", x, y: row.y, w: cell, h: cell,
          pixels: overviewPart(all, head * columns, columns, rows), columns, rows });
      }
      items.push({ kind: "rect", x, y: row.y, w: cell, h: cell, fill: "none", stroke: paint("--line") });
    }
  }
  if (!layout.bands.length)
    items.push({ kind: "text", x: 4, y: top * 0.7, text: kindTitle(app.store.get().kind), size, anchor: "start", fill: paint("--muted") });
  return { width: layout.width, height: layout.height, background: paint("--bg"), items };
}

/** @param {ImageData} image @param {number} left @param {number} columns @param {number} rows @returns {Uint8ClampedArray} */
function overviewPart({ data, width }, left, columns, rows) {
  const part = new Uint8ClampedArray(4 * columns * rows);
  for (let row = 0; row < rows; row++) {
    part.set(data.subarray(4 * (row * width + left), 4 * (row * width + left + columns)), 4 * row * columns);
  }
  return part;
}
