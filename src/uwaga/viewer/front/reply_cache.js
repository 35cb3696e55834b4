// Replies that are kept: as many as fit, the latest used last to go.

import { replyBytes } from "./wire.js";

/** @typedef {import("./types.js").Reply} Reply */

/**
 * Replies by name, the least recently read forgotten first.
 * @param {number} maxBytes
 */
export function makeReplyCache(maxBytes) {
  /** @type {Map<string, Reply>} */
  const kept = new Map();
  let bytes = 0;
  return {
    complete: () => [...kept].filter(([, reply]) => replyComplete(reply)).map(([name]) => name),
    /** @param {string} name @returns {Reply | undefined} */
    get(name) {
      const reply = kept.get(name);
      if (reply) { kept.delete(name); kept.set(name, reply); }
      return reply;
    },
    /** @param {string} name @param {Reply} reply */
    put(name, reply) {
      const before = kept.get(name);
      if (before) bytes -= replyBytes(before);
      kept.delete(name);
      kept.set(name, reply);
      bytes += replyBytes(reply);
      for (const [old, gone] of kept) {
        if (bytes <= maxBytes || old === name) break;
        kept.delete(old);
        bytes -= replyBytes(gone);
      }
    },
  };
}

/** @param {Reply} reply @returns {boolean} nothing more comes by asking again */
export function replyComplete(reply) {
  return reply.meta.complete === undefined || reply.meta.complete === null || reply.meta.complete >= 1;
}
