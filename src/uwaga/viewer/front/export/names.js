// Names of files that tell what is in them.

/**
 * @typedef {object} NameParts
 * @property {string} model
 * @property {import("../types.js").Where} where
 * @property {string} what  "map", "text", "lines", ...
 * @property {{rows: [number, number], columns: [number, number]}} [block]
 * @property {string} ending  "png", without the dot
 */

/**
 * Such as uwaga_all-MiniLM-L6-v2_encoder_layer3_head5_weights_0-64x0-64.csv. No letters that a file system could refuse.
 * @param {NameParts} parts
 * @returns {string}
 */
export function exportName({ model, where, what, block, ending }) {
  const parts = ["uwaga", nameSlug(model.split("/").pop() ?? ""), where.kind, `layer${where.layer}`, `head${where.head}`];
  if (where.side !== "0") parts.push(where.side === "1" ? "second" : "difference");
  if (where.merge === "words") parts.push("words");
  if (where.specials === "hide") parts.push("no-specials");
  parts.push(nameSlug(what));
  if (block) parts.push(`${block.rows.join("-")}x${block.columns.join("-")}`);
  return `${parts.filter((part) => part !== "").join("_")}.${ending}`;
}

/** @param {string} text @returns {string} */
function nameSlug(text) {
  return text.normalize("NFKD").replace(/[^A-Za-z0-9.+-]+/g, "-").replace(/^[-.]+|[-.]+$/g, "").slice(0, 60);
}
