// The server that this page came from.

import { decodeReply } from "../wire.js";
import { HostError, isAbort } from "./errors.js";
import { saveFile } from "./download.js";

/**
 * The token of the page's address: ?token=... or #token=...
 * @param {{search: string, hash: string}} place
 * @returns {string}
 */
export function addressToken(place) {
  return new URLSearchParams(place.search).get("token")
    ?? new URLSearchParams(place.hash.replace(/^#/, "")).get("token") ?? "";
}

/**
 * @param {{search: string, hash: string}} [place]
 * @param {typeof fetch} [get]
 * @returns {import("../types.js").Host}
 */
export function servedHost(place = location, get = (...request) => fetch(...request)) {
  const token = addressToken(place);
  return {
    mode: "served",
    has: () => true,
    download: saveFile,
    async ask(question, signal) {
      try {
        const response = await get("/ask", {
          method: "POST",
          headers: { "Content-Type": "application/json", "X-Uwaga-Token": token },
          body: JSON.stringify(question),
          signal,
        });
        if (!response.ok) throw await servedError(response);
        return decodeReply(await response.arrayBuffer());
      } catch (error) {
        // fetch tells of a server that is not there by a TypeError.
        if (error instanceof TypeError && !isAbort(error))
          throw new HostError("gone", "The program that computes this page does not answer.");
        throw error;
      }
    },
  };
}

/**
 * @param {Response} response
 * @returns {Promise<HostError>}
 */
async function servedError(response) {
  const text = await response.text();
  let message = `The program refused (${response.status}).`;
  try {
    const told = JSON.parse(text).error;
    if (typeof told === "string" && told) message = told;
  } catch (error) {
    if (!(error instanceof SyntaxError)) throw error;
  }
  return new HostError(response.status === 503 ? "busy" : "refused", message);
}
