// The server that this page came from.

import { decodeReply } from "../wire.js";
import { HostError, isAbort } from "./errors.js";
import { saveFile } from "./download.js";

/** @typedef {{location: {pathname: string, hash: string}, history: Pick<History, "replaceState">, localStorage: Pick<Storage, "getItem" | "setItem">}} ServedPage */

const servedToken = "uwaga-token"; // in the storage, which belongs to the server's port as well

/**
 * The code of an address, which opens the page once; the address has it no longer.
 * @param {ServedPage} page
 * @returns {string | null}
 */
export function takeCode({ location, history }) {
  const written = new URLSearchParams(location.hash.replace(/^#/, ""));
  const code = written.get("code");
  if (code === null) return null;
  written.delete("code");
  history.replaceState(null, "", `${location.pathname}${written.size ? `#${written}` : ""}`);
  return code;
}

/**
 * A question carries a token and a cookie, which the page gets for the code of its address.
 * @param {ServedPage} [page]
 * @param {typeof fetch} [get]
 * @returns {import("../types.js").Host}
 */
export function servedHost(page = window, get = (...request) => fetch(...request)) {
  const code = takeCode(page);
  let token = servedStorage(() => page.localStorage.getItem(servedToken)) ?? "";
  /** @type {Promise<void> | null} */
  let entering = null;

  /** @param {string} path @param {unknown} body @param {AbortSignal} [signal] */
  async function post(path, body, signal) {
    try {
      const headers = { "Content-Type": "application/json", "X-Uwaga-Token": token };
      const response = await get(path, { method: "POST", headers, body: JSON.stringify(body), signal });
      if (!response.ok) throw await servedError(response);
      return response;
    } catch (error) {
      // fetch tells of a server that is not there by a TypeError.
      if (error instanceof TypeError && !isAbort(error))
        throw new HostError("gone", "The program that computes this page does not answer.");
      throw error;
    }
  }

  async function enter() {
    const response = await post("/ask/enter", { code });
    token = (await response.json()).token;
    servedStorage(() => page.localStorage.setItem(servedToken, token));
  }

  /** @returns {Promise<void>} once for all questions, and again where nobody answered */
  function entered() {
    if (code === null) return Promise.resolve();
    entering ??= enter().catch((error) => {
      if (error instanceof HostError && error.kind !== "refused") entering = null;
      throw error;
    });
    return entering;
  }

  return {
    mode: "served",
    has: () => true,
    download: saveFile,
    async ask(question, signal) {
      await entered();
      return decodeReply(await (await post("/ask", question, signal)).arrayBuffer());
    },
  };
}

/**
 * A browser may be told to keep nothing; then the page works until it is loaded again.
 * @template Value
 * @param {() => Value} use
 * @returns {Value | undefined}
 */
function servedStorage(use) {
  try {
    return use();
  } catch (error) {
    if (!(error instanceof DOMException)) throw error;
    return undefined;
  }
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
