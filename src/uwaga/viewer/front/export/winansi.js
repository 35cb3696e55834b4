// Text in a PDF's built-in Helvetica: the characters of WinAnsiEncoding and their widths.

/** Widths of the codes 32 to 255 in thousandths of the size (Adobe's Helvetica.afm; unused codes: the bullet's). */
const winansiWidths = [
  278, 278, 355, 556, 556, 889, 667, 191, 333, 333, 389, 584, 278, 333, 278, 278, 556, 556, 556, 556, 556, 556, 556,
  556, 556, 556, 278, 278, 584, 584, 584, 556, 1015, 667, 667, 722, 722, 667, 611, 778, 722, 278, 500, 667, 556,
  833, 722, 778, 667, 778, 722, 667, 611, 722, 667, 944, 667, 667, 611, 278, 278, 278, 469, 556, 333, 556, 556, 500,
  556, 556, 278, 556, 556, 222, 222, 500, 222, 833, 556, 556, 556, 556, 333, 500, 278, 556, 500, 722, 500, 500, 500,
  334, 260, 334, 584, 350, 556, 350, 222, 556, 333, 1000, 556, 556, 333, 1000, 667, 333, 1000, 350, 611, 350, 350,
  222, 222, 333, 333, 350, 556, 1000, 333, 1000, 500, 333, 944, 350, 500, 667, 278, 333, 556, 556, 556, 556, 260,
  556, 333, 737, 370, 556, 584, 333, 737, 333, 400, 584, 333, 333, 333, 556, 537, 278, 333, 333, 365, 556, 834, 834,
  834, 611, 667, 667, 667, 667, 667, 667, 1000, 722, 667, 667, 667, 667, 278, 278, 278, 278, 722, 722, 778, 778,
  778, 778, 778, 584, 778, 722, 722, 722, 722, 667, 667, 611, 556, 556, 556, 556, 556, 556, 889, 500, 556, 556, 556,
  556, 278, 278, 278, 278, 556, 556, 556, 556, 556, 556, 556, 584, 611, 556, 556, 556, 556, 500, 556, 500,
];

/** The characters of the codes 128 to 159; 0: none. Every other code is its own character (ISO 32000-1, annex D). */
const winansiMiddle = [
  0x20ac, 0, 0x201a, 0x0192, 0x201e, 0x2026, 0x2020, 0x2021, 0x02c6, 0x2030, 0x0160, 0x2039, 0x0152, 0, 0x017d, 0,
  0, 0x2018, 0x2019, 0x201c, 0x201d, 0x2022, 0x2013, 0x2014, 0x02dc, 0x2122, 0x0161, 0x203a, 0x0153, 0, 0x017e,
  0x0178,
];

/**
 * @param {string} text
 * @returns {number[] | null} a code for each character; null where one of them is not in the encoding
 */
export function winansiCodes(text) {
  /** @type {number[]} */
  const codes = [];
  for (const character of text) {
    const point = character.codePointAt(0) ?? 0;
    // A soft hyphen has a code, but readers differ in whether they show it.
    const own = (point >= 32 && point < 127) || (point >= 160 && point < 256 && point !== 0xad);
    const middle = winansiMiddle.indexOf(point);
    if (own) codes.push(point);
    else if (point > 255 && middle >= 0) codes.push(128 + middle);
    else return null;
  }
  return codes;
}

/**
 * @param {number[]} codes
 * @returns {number} the width of the text, in units of the font's size
 */
export function winansiWidth(codes) {
  return codes.reduce((sum, code) => sum + (winansiWidths[code - 32] ?? 0), 0) / 1000;
}
