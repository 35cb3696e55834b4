// A page that is one file and holds its replies: <script type="application/json" data-uwaga-saved>
// {"replies": {canonical question: base64 of the reply's bytes, plain or gzip}}</script>

import { canonical, decodeReply } from "../wire.js";
import { HostError } from "./errors.js";
import { saveFile } from "./download.js";

/**
 * @param {{[question: string]: string}} [replies]
 * @returns {import("../types.js").Host}
 */
export function savedHost(replies = savedReplies()) {
  return {
    mode: "saved",
    has: (question) => Object.hasOwn(replies, canonical(question)),
    download: saveFile,
    async ask(question) {
      const name = canonical(question);
      if (!Object.hasOwn(replies, name)) throw new HostError("absent", "This is not in the saved page.");
      return decodeReply(await savedBytes(replies[name]));
    },
  };
}

/** @returns {{[question: string]: string}} */
function savedReplies() {
  const element = document.querySelector("script[data-uwaga-saved]");
  if (!element) throw new Error("saved page: it holds no replies");
  return JSON.parse(element.textContent ?? "").replies;
}

/**
 * @param {string} text  base64
 * @returns {Promise<ArrayBuffer>}
 */
async function savedBytes(text) {
  const letters = atob(text);
  const bytes = new Uint8Array(letters.length);
  for (let i = 0; i < letters.length; i++) bytes[i] = letters.charCodeAt(i);
  // No reply begins like gzip: its first byte is 4 modulo 8, since 4 and the length of its header are a multiple of 8.
  if (!(bytes[0] === 0x1f && bytes[1] === 0x8b && bytes[2] === 0x08)) return bytes.buffer;
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).arrayBuffer();
}
