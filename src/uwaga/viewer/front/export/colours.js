// Colours of a scene, as styles write them, to numbers that PDF and PNG can hold.

/** @typedef {{r: number, g: number, b: number, a: number}} ExportColour  every part in [0, 1] */

const exportHex = /^#([0-9a-f]{3,4}|[0-9a-f]{6}|[0-9a-f]{8})$/i;
const exportCall = /^(rgba?|color)\(\s*(srgb\s+)?([^)]*)\)$/i;

/**
 * The parts of a CSS colour: hexadecimal, rgb(), rgba() or color(srgb ...), which is what computed styles give.
 * @param {string | undefined} text nothing, "none" and "transparent" are null
 * @returns {ExportColour | null}
 * @throws {Error} of any other spelling
 */
export function parseColour(text) {
  const name = (text ?? "").trim().toLowerCase();
  if (name === "" || name === "none" || name === "transparent") return null;
  const hex = exportHex.exec(name);
  if (hex) return exportFromHex(hex[1] ?? "");
  const call = exportCall.exec(name);
  if (!call) throw new Error(`cannot read the colour ${JSON.stringify(text)}`);
  const parts = (call[3] ?? "").split(/[\s,/]+/).filter((part) => part !== "").map(exportPart(call[2] ? 1 : 255));
  const [r = 0, g = 0, b = 0] = parts;
  const written = (call[3] ?? "").split(/[\s,/]+/).filter((part) => part !== "")[3];
  return { r, g, b, a: written === undefined ? 1 : exportPart(1)(written) };
}

/** @param {string} digits @returns {ExportColour} */
function exportFromHex(digits) {
  const pairs = digits.length < 6 ? [...digits].map((digit) => digit + digit) : digits.match(/../g) ?? [];
  const [r = 0, g = 0, b = 0, a = 1] = pairs.map((pair) => parseInt(pair, 16) / 255);
  return { r, g, b, a };
}

/** @param {number} full the number that means all of a colour @returns {(part: string) => number} */
function exportPart(full) {
  return (part) => {
    const number = part.endsWith("%") ? parseFloat(part) / 100 : parseFloat(part) / full;
    return Math.min(1, Math.max(0, Number.isFinite(number) ? number : 0));
  };
}
