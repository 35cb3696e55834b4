// Hosts: where replies come from. A server, a notebook (anywidget), or the saved page itself.

import { tr } from "./languages.js";
import { canonical, decodeParts, decodeReply, bufferOf } from "./wire.js";
/** @import { Host, Reply } from "./types.js" */

/**
 * A request without a reply. `kind`: "refused" (the message says why), "busy" (503: ask again later), "unreachable" (no server),
 * "missing" (not in the saved page).
 */
export class HostError extends Error {
  /** @param {"refused" | "busy" | "unreachable" | "missing"} kind @param {string} message */
  constructor(kind, message) {
    super(message);
    this.name = "HostError";
    this.kind = kind;
  }
}

/** @returns {DOMException} the rejection of a request whose signal was aborted */
export function abortError() {
  return new DOMException("aborted", "AbortError");
}

/** @param {unknown} error @returns {boolean} */
export function isAbort(error) {
  return error instanceof Error && error.name === "AbortError";
}

/** @param {unknown} error @returns {string} */
export function messageOf(error) {
  return error instanceof Error ? error.message : String(error);
}

/** Downloads a file. @param {string} name @param {Blob} blob */
function downloadFile(name, blob) {
  const address = URL.createObjectURL(blob);
  const link = document.createElement("a");
  link.href = address;
  link.download = name;
  link.click();
  // The browser reads the object URL after click() has returned.
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

// The server that this page came from.

/**
 * @typedef {{location: {pathname: string, search?: string, hash: string}, history: Pick<History, "replaceState">,
 *   localStorage: Pick<Storage, "getItem" | "setItem">}} ServedPage
 */

const tokenStorageKey = "uwaga-token"; // key in local storage, which is per origin and so per port

/** Takes the token out of the URL's fragment. @param {ServedPage} page @returns {string | null} */
export function takeToken({ location, history }) {
  const written = new URLSearchParams(location.hash.replace(/^#/, ""));
  const token = written.get("token");
  if (token === null) return null;
  written.delete("token");
  history.replaceState(null, "", `${location.pathname}${location.search ?? ""}${written.size ? `#${written}` : ""}`);
  return token;
}

/**
 * The server that this page came from. Each request carries the token of the URL that the program has printed.
 * @param {ServedPage} [page] @param {typeof fetch} [get] @returns {Host}
 */
export function servedHost(page = window, get = (...request) => fetch(...request)) {
  const given = takeToken(page);
  if (given !== null) tryStorage(() => page.localStorage.setItem(tokenStorageKey, given));
  const token = given ?? tryStorage(() => page.localStorage.getItem(tokenStorageKey)) ?? "";

  /** @param {string} path @param {unknown} body @param {AbortSignal} [signal] */
  async function post(path, body, signal) {
    try {
      const headers = { "Content-Type": "application/json", "X-Uwaga-Token": token };
      const response = await get(path, { method: "POST", headers, body: JSON.stringify(body), signal });
      if (!response.ok) throw await responseError(response);
      return response;
    } catch (error) {
      // fetch rejects with TypeError when the server is unreachable.
      if (error instanceof TypeError && !isAbort(error))
        throw new HostError("unreachable", tr("The program that computes this page does not answer."));
      throw error;
    }
  }

  return {
    mode: "served",
    has: () => true,
    download: downloadFile,
    async ask(request, signal) {
      return decodeReply(await (await post("/ask", request, signal)).arrayBuffer());
    },
  };
}

/**
 * Local storage may be disabled; without it the page works until it is reloaded.
 * @template Value
 * @param {() => Value} use
 * @returns {Value | undefined}
 */
function tryStorage(use) {
  try {
    return use();
  } catch (error) {
    if (!(error instanceof DOMException)) throw error;
    return undefined;
  }
}

/** @param {Response} response @returns {Promise<HostError>} */
async function responseError(response) {
  const text = await response.text();
  let message = tr("The program refused ({status}).", { status: response.status });
  try {
    const serverMessage = JSON.parse(text).error;
    if (typeof serverMessage === "string" && serverMessage) message = serverMessage;
  } catch (error) {
    if (!(error instanceof SyntaxError)) throw error;
  }
  return new HostError(response.status === 503 ? "busy" : "refused", message);
}

// A notebook: requests and replies are messages of an anywidget model.

/**
 * @typedef {{send: (content: any) => void, on: (event: string, listener: any) => void, off: (event: string,
 *   listener: any) => void}} WidgetModel
 */

/** @param {WidgetModel} model @returns {Host} */
export function widgetHost(model) {
  // Several views of one model receive all of its messages.
  const prefix = Math.random().toString(36).slice(2);
  let count = 0;
  /** @type {Map<string, {resolve: (reply: Reply) => void, reject: (error: Error) => void}>} */
  const pending = new Map();

  /** @type {(message: any, buffers: any[]) => void} */
  const onMessage = (message, buffers) => {
    const waiting = pending.get(message?.id);
    if (!waiting) return;
    pending.delete(message.id);
    try {
      if (typeof message.error === "string") throw new HostError(message.busy ? "busy" : "refused", message.error);
      waiting.resolve(decodeParts(message.header, buffers?.length ? bufferOf(buffers[0]) : new ArrayBuffer(0), 0));
    } catch (error) {
      waiting.reject(/** @type {Error} */ (error));
    }
  };
  model.on("msg:custom", onMessage);

  return {
    mode: "notebook",
    has: () => true,
    download: downloadFile,
    ask(request, signal) {
      const id = `${prefix}-${count++}`;
      return new Promise((resolve, reject) => {
        if (signal?.aborted) return reject(abortError());
        pending.set(id, { resolve, reject });
        signal?.addEventListener("abort", () => pending.delete(id) && reject(abortError()), { once: true });
        model.send({ id, request });
      });
    },
    dispose() {
      model.off("msg:custom", onMessage);
      for (const { reject } of pending.values()) reject(abortError());
      pending.clear();
    },
  };
}

// A saved page holds its replies: <script type="application/json" data-uwaga-saved>
// {"replies": {canonical request: base64 of the reply's bytes, plain or gzip}}</script>

/** @param {{[request: string]: string}} [replies] @returns {Host} */
export function savedHost(replies = savedReplies()) {
  return {
    mode: "saved",
    has: (request) => Object.hasOwn(replies, canonical(request)),
    download: downloadFile,
    async ask(request) {
      const name = canonical(request);
      if (!Object.hasOwn(replies, name)) throw new HostError("missing", tr("This is not in the saved page."));
      return decodeReply(await savedBytes(replies[name]));
    },
  };
}

/** @returns {{[request: string]: string}} */
function savedReplies() {
  const element = document.querySelector("script[data-uwaga-saved]");
  if (!element) throw new Error("saved page: it holds no replies");
  return JSON.parse(element.textContent ?? "").replies;
}

/** @param {string} text  base64 @returns {Promise<ArrayBuffer>} */
async function savedBytes(text) {
  const letters = atob(text);
  const bytes = new Uint8Array(letters.length);
  for (let i = 0; i < letters.length; i++) bytes[i] = letters.charCodeAt(i);
  // No plain reply begins like gzip (0x1f): its first byte is 4 modulo 8, since 4 and the header's length are a multiple of 8.
  if (!(bytes[0] === 0x1f && bytes[1] === 0x8b && bytes[2] === 0x08)) return bytes.buffer;
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).arrayBuffer();
}
