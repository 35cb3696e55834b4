// A scene as a PDF of one page: lines and rectangles as vectors, text in Helvetica or, where that lacks the letters, as an
// image; images as images. A CSS pixel is 3/4 of a point, as everywhere on the web.

import { parseColour } from "../colours.js";
import { deflate, joinBytes } from "./png.js";

/** @typedef {import("../types.js").Scene} Scene */
/** @typedef {import("../types.js").SceneItem} SceneItem */

/** @typedef {Extract<SceneItem, {kind: "text"}>} SceneText */
/** @typedef {{pixels: Uint8ClampedArray, columns: number, rows: number, x: number, y: number, w: number, h: number}} TextImage */
/** @typedef {(item: SceneText) => TextImage | null} TextPainter  text as pixels, at (x, y) from the text's anchor */

const pdfPoints = 0.75;
const pdfSideLimit = 14400; // points; readers need not open larger pages (ISO 32000-1, annex C)

/**
 * @param {Scene} scene
 * @param {{title?: string, paintText?: TextPainter}} [options] paintText: draws text that has characters outside of WinAnsiEncoding
 * @returns {Promise<Uint8Array>} the file
 */
export async function pdfFile(scene, { title = "", paintText = () => null } = {}) {
  const objects = pdfObjects();
  const scale = Math.min(pdfPoints, pdfSideLimit / Math.max(scene.width, scene.height, 1));
  const page = new PdfPage(objects, scene.height * scale, scale, paintText);
  const [width, height] = [scene.width * scale, scene.height * scale].map(pdfNumber);
  page.rect({ x: 0, y: 0, w: scene.width, h: scene.height, fill: scene.background });
  for (const item of scene.items) await page.draw(item);
  const content = await objects.stream("", pdfBytes(page.content()));
  const [pages, root] = [objects.reserve(), objects.reserve()];
  const leaf = objects.add(`<< /Type /Page /Parent ${pages} 0 R /MediaBox [0 0 ${width} ${height}] /Contents ${content} 0 R ` +
    `/Resources ${page.resources()} >>`);
  objects.add(`<< /Type /Pages /Kids [${leaf} 0 R] /Count 1 >>`, pages);
  const metadata = title ? ` /Metadata ${await pdfMetadata(objects, title)} 0 R` : "";
  objects.add(`<< /Type /Catalog /Pages ${pages} 0 R${metadata} >>`, root);
  return objects.file(root);
}

/** @param {PdfObjects} objects @param {string} title @returns {Promise<number>} */
async function pdfMetadata(objects, title) {
  const safe = title.replace(/[&<>]/g, " ").replace(/[\u0000-\u001f\ufffe\uffff]|\p{Surrogate}/gu, " ");
  const xml = '<?xpacket begin="" id="W5M0MpCehiHzreSzNTczkc9d"?><x:xmpmeta xmlns:x="adobe:ns:meta/">' +
    '<rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#"><rdf:Description rdf:about="" ' +
    'xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:title><rdf:Alt><rdf:li xml:lang="x-default">' +
    `${safe}</rdf:li></rdf:Alt></dc:title></rdf:Description></rdf:RDF></x:xmpmeta><?xpacket end="r"?>`;
  return objects.stream("/Type /Metadata /Subtype /XML", new TextEncoder().encode(xml));
}

/** The content stream of a page, and its resources. */
class PdfPage {
  /**
   * @param {PdfObjects} objects
   * @param {number} height in points
   * @param {number} scale points per pixel
   * @param {TextPainter} paintText
   */
  constructor(objects, height, scale, paintText) {
    this.objects = objects;
    this.paintText = paintText;
    /** @type {string[]} */
    this.parts = [`${scale.toFixed(6)} 0 0 ${(-scale).toFixed(6)} 0 ${pdfNumber(height)} cm\n`]; // y grows down, as on screens
    /** @type {Map<string, string>} graphics states by opacity */
    this.states = new Map();
    /** @type {number[]} */
    this.images = [];
    this.font = objects.add("<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>");
  }

  content() {
    return this.parts.join("");
  }

  resources() {
    const states = [...this.states].map(([opacity, name]) => `/${name} << /Type /ExtGState /CA ${opacity} /ca ${opacity} >>`);
    const images = this.images.map((number, index) => `/I${index} ${number} 0 R`);
    return `<< /Font << /F ${this.font} 0 R >> /ExtGState << ${states.join(" ")} >> /XObject << ${images.join(" ")} >> >>`;
  }

  /** @param {SceneItem} item */
  async draw(item) {
    if (item.kind === "rect") this.rect(item);
    else if (item.kind === "line") {
      this.path({ ...item, d: [["M", item.x1, item.y1], ["L", item.x2, item.y2]] });
    } else if (item.kind === "path") this.path(item);
    else if (item.kind === "text") await this.text(item);
    else await this.image(item.pixels, item.columns, item.rows, item);
  }

  /** @param {{x: number, y: number, w: number, h: number, fill?: string, stroke?: string}} item */
  rect({ x, y, w, h, fill, stroke }) {
    this.shape(`${[x, y, w, h].map(pdfNumber).join(" ")} re`, { fill, stroke, width: 1, opacity: 1 });
  }

  /** @param {{d: (string | number)[][], stroke: string, width: number, opacity: number, fill?: string}} item */
  path({ d, stroke, width, opacity, fill }) {
    this.shape(pdfOperators(d), { fill, stroke, width, opacity });
  }

  /** @param {string} operators @param {{fill?: string, stroke?: string, width: number, opacity: number}} style */
  shape(operators, { fill, stroke, width, opacity }) {
    const inside = parseColour(fill);
    const edge = width > 0 ? parseColour(stroke) : null;
    if (inside) this.parts.push(`q ${this.state(inside.a)}${pdfColour(inside, "rg")}${operators} f Q\n`);
    if (!edge) return;
    this.parts.push(`q ${this.state(edge.a * opacity)}${pdfColour(edge, "RG")}${pdfNumber(width)} w ${operators} S Q\n`);
  }

  /** @param {SceneText} item */
  async text(item) {
    const codes = winansiCodes(item.text);
    const colour = parseColour(item.fill);
    if (!colour || item.text === "") return;
    const turn = ((item.rotate ?? 0) * Math.PI) / 180;
    const [cos, sin] = [Math.cos(turn), Math.sin(turn)].map((value) => value.toFixed(6));
    const place = `q ${this.state(colour.a)}${cos} ${sin} ${pdfNumber(-sin)} ${cos} ${pdfNumber(item.x)} ${pdfNumber(item.y)} cm `;
    if (codes) {
      const left = -winansiWidth(codes) * item.size * pdfAnchor(item.anchor);
      const hex = codes.map((code) => code.toString(16).padStart(2, "0")).join("");
      const font = `/F ${pdfNumber(item.size)} Tf`;
      this.parts.push(`${place}${pdfColour(colour, "rg")}BT ${font} 1 0 0 -1 ${pdfNumber(left)} 0 Tm <${hex}> Tj ET Q\n`);
      return;
    }
    const picture = this.paintText(item);
    if (!picture) return;
    this.parts.push(place.replace(this.state(colour.a), ""));
    await this.image(picture.pixels, picture.columns, picture.rows, picture);
    this.parts.push("Q\n");
  }

  /**
   * @param {Uint8ClampedArray} pixels RGBA, the first row on top
   * @param {number} columns
   * @param {number} rows
   * @param {{x: number, y: number, w: number, h: number}} box
   */
  async image(pixels, columns, rows, { x, y, w, h }) {
    if (columns < 1 || rows < 1) return;
    const colours = new Uint8Array(3 * columns * rows);
    const alphas = new Uint8Array(columns * rows);
    for (let i = 0; i < columns * rows; i++) {
      colours.set(pixels.subarray(4 * i, 4 * i + 3), 3 * i);
      alphas[i] = pixels[4 * i + 3];
    }
    const size = `/Type /XObject /Subtype /Image /Width ${columns} /Height ${rows} /BitsPerComponent 8`;
    const clear = alphas.some((alpha) => alpha < 255);
    const mask = clear ? ` /SMask ${await this.objects.stream(`${size} /ColorSpace /DeviceGray`, alphas)} 0 R` : "";
    this.images.push(await this.objects.stream(`${size} /ColorSpace /DeviceRGB${mask}`, colours));
    const [a, b, c, d] = [w, -h, x, y + h].map(pdfNumber);
    this.parts.push(`q ${a} 0 0 ${b} ${c} ${d} cm /I${this.images.length - 1} Do Q\n`);
  }

  /** @param {number} opacity @returns {string} the operator that sets it */
  state(opacity) {
    const key = pdfNumber(Math.min(1, Math.max(0, opacity)));
    if (key === "1") return "";
    const name = this.states.get(key) ?? `G${this.states.size}`;
    this.states.set(key, name);
    return `/${name} gs `;
  }
}

/** @param {(string | number)[][]} d  SVG path commands M, L, C, Q and Z @returns {string} */
function pdfOperators(d) {
  let [x, y] = [0, 0];
  return d.map(([letter, ...rest]) => {
    let numbers = rest.map(Number);
    if (letter === "Q") { // PDF has cubic curves only
      const [cx, cy, ex, ey] = numbers;
      numbers = [x + (2 / 3) * (cx - x), y + (2 / 3) * (cy - y), ex + (2 / 3) * (cx - ex), ey + (2 / 3) * (cy - ey), ex, ey];
    }
    if (letter === "Z") return "h";
    [x, y] = numbers.slice(-2);
    const operator = letter === "M" ? "m" : letter === "L" ? "l" : letter === "C" || letter === "Q" ? "c" : "";
    if (!operator) throw new Error(`pdf: unsupported path command ${letter}`);
    return `${numbers.map(pdfNumber).join(" ")} ${operator}`;
  }).join(" ");
}

/** @param {import("../colours.js").RgbaColour} colour @param {string} operator @returns {string} */
function pdfColour({ r, g, b }, operator) {
  return `${[r, g, b].map(pdfNumber).join(" ")} ${operator} `;
}

/** @param {string} anchor @returns {number} the part of the width before the anchor */
function pdfAnchor(anchor) {
  return anchor === "middle" ? 0.5 : anchor === "end" ? 1 : 0;
}

// The body of a PDF file (ISO 32000-1): numbered objects, cross-reference table, trailer.

/**
 * @typedef {object} PdfObjects
 * @property {() => number} reserve  reserves a number for an object that is referred to before it is written
 * @property {(dictionary: string, number?: number) => number} add  returns the object's number
 * @property {(entries: string, bytes: Uint8Array, number?: number) => Promise<number>} stream  compressed
 * @property {(root: number) => Uint8Array} file
 */

/** @returns {PdfObjects} */
function pdfObjects() {
  /** @type {(Uint8Array | null)[]} */
  const bodies = [];
  const reserve = () => bodies.push(null);
  const put = (/** @type {Uint8Array} */ body, number = reserve()) => {
    bodies[number - 1] = body;
    return number;
  };
  return {
    reserve,
    add: (dictionary, number) => put(pdfBytes(dictionary), number),
    async stream(entries, bytes, number) {
      const packed = await deflate(bytes);
      const head = `<< ${entries} /Filter /FlateDecode /Length ${packed.length} >>\nstream\n`;
      return put(joinBytes([pdfBytes(head), packed, pdfBytes("\nendstream")]), number);
    },
    file: (root) => pdfJoin(bodies, root),
  };
}

/** @param {(Uint8Array | null)[]} bodies @param {number} root @returns {Uint8Array} */
function pdfJoin(bodies, root) {
  // The comment's bytes above 127 mark the file as binary.
  /** @type {Uint8Array[]} */
  const parts = [new Uint8Array([...pdfBytes("%PDF-1.7\n%"), 0xe2, 0xe3, 0xcf, 0xd3, 0x0a])];
  let at = parts[0].length;
  let table = `xref\n0 ${bodies.length + 1}\n0000000000 65535 f \n`;
  bodies.forEach((body, index) => {
    if (!body) throw new Error(`pdf: object ${index + 1} was never written`);
    const part = joinBytes([pdfBytes(`${index + 1} 0 obj\n`), body, pdfBytes("\nendobj\n")]);
    table += `${String(at).padStart(10, "0")} 00000 n \n`;
    parts.push(part);
    at += part.length;
  });
  parts.push(pdfBytes(`${table}trailer\n<< /Size ${bodies.length + 1} /Root ${root} 0 R >>\nstartxref\n${at}\n%%EOF\n`));
  return joinBytes(parts);
}

/** @param {string} text codes below 256 @returns {Uint8Array} */
function pdfBytes(text) {
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return bytes;
}

/** @param {number} value @returns {string} a number without an exponent, which PDF does not allow */
function pdfNumber(value) {
  if (!Number.isFinite(value)) return "0";
  return String(Math.round(value * 1000) / 1000 || 0).includes("e") ? value.toFixed(3) : String(Math.round(value * 1000) / 1000 || 0);
}

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
 * @returns {number[] | null} a code for each character; null if a character is not in WinAnsiEncoding
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
