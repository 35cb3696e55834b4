// A weight as the text on its cell.

/** Weights as the texts on cells, by thousandths. */
const mapCellTexts = Array.from({ length: 1001 }, (_, i) => (i === 1000 ? "1" : (i / 1000).toFixed(3)));

const mapCellTextsBelow = mapCellTexts.map((text) => `\u2212${text}`);

/** Cells so wide have room for an exponent. */
const mapExponentLeast = 60;

/** The weights that were written so, for the next frame. */
const mapExponents = /** @type {Map<number, string>} */ (new Map());

/**
 * @param {number} weight
 * @param {number} scale  CSS pixels of its cell
 * @returns {string}
 */
export function mapCellText(weight, scale) {
  if (weight !== weight) return "";
  if (weight === 0) return "0";
  const size = Math.abs(weight);
  if (size < 0.0005 && scale >= mapExponentLeast) return mapExponentText(weight);
  if (size < 0.0005) return weight < 0 ? ">\u2212.001" : "<.001";
  if (size > 1.0005) return weight.toPrecision(3);
  return (weight < 0 ? mapCellTextsBelow : mapCellTexts)[Math.round(size * 1000)];
}

/** @param {number} weight */
function mapExponentText(weight) {
  let text = mapExponents.get(weight);
  if (text === undefined) {
    if (mapExponents.size > 2000) mapExponents.clear();
    text = weight.toExponential(1).replaceAll("-", "\u2212");
    mapExponents.set(weight, text);
  }
  return text;
}
