// The body of a PDF file (ISO 32000-1): numbered objects, the table of where they begin, the trailer.
import { deflate, joinBytes } from "./deflate.js";

/**
 * @typedef {object} PdfObjects
 * @property {() => number} reserve  a number for an object that others name before it is written
 * @property {(dictionary: string, number?: number) => number} add  returns the object's number
 * @property {(entries: string, bytes: Uint8Array, number?: number) => Promise<number>} stream  compressed
 * @property {(root: number) => Uint8Array} file
 */

/** @returns {PdfObjects} */
export function pdfObjects() {
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
  // The comment's bytes above 127 tell programs that the file is binary.
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
export function pdfBytes(text) {
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return bytes;
}

/** @param {number} value @returns {string} a number as PDF writes it: never with an exponent */
export function pdfNumber(value) {
  if (!Number.isFinite(value)) return "0";
  return String(Math.round(value * 1000) / 1000 || 0).includes("e") ? value.toFixed(3) : String(Math.round(value * 1000) / 1000 || 0);
}
