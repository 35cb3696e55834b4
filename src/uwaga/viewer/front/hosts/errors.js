// What a host can answer besides a reply.

/** A question that got no reply. `kind`: "refused" (the message says why), "busy", "gone" (nobody answers), "absent" (not saved). */
export class HostError extends Error {
  /**
   * @param {"refused" | "busy" | "gone" | "absent"} kind
   * @param {string} message
   */
  constructor(kind, message) {
    super(message);
    this.name = "HostError";
    this.kind = kind;
  }
}

/** @returns {DOMException} what a question rejects with whose signal aborted */
export function abortError() {
  return new DOMException("given up", "AbortError");
}

/**
 * @param {unknown} error
 * @returns {boolean}
 */
export function isAbort(error) {
  return error instanceof Error && error.name === "AbortError";
}
