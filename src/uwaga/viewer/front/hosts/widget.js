// A notebook: questions and replies are messages of an anywidget model.

import { decodeParts, wireBuffer } from "../wire.js";
import { HostError, abortError } from "./errors.js";
import { saveFile } from "./download.js";

/**
 * @typedef {{send: (content: any) => void, on: (event: string, listener: any) => void, off: (event: string,
 *   listener: any) => void}} WidgetModel
 */

/**
 * @param {WidgetModel} model
 * @returns {import("../types.js").Host}
 */
export function widgetHost(model) {
  // Several views of one model hear all of its messages.
  const prefix = Math.random().toString(36).slice(2);
  let count = 0;
  /** @type {Map<string, {resolve: (reply: import("../types.js").Reply) => void, reject: (error: Error) => void}>} */
  const waiting = new Map();

  /** @type {(message: any, buffers: any[]) => void} */
  const heard = (message, buffers) => {
    const asked = waiting.get(message?.id);
    if (!asked) return;
    waiting.delete(message.id);
    try {
      if (typeof message.error === "string") throw new HostError(message.busy ? "busy" : "refused", message.error);
      asked.resolve(decodeParts(message.header, buffers?.length ? wireBuffer(buffers[0]) : new ArrayBuffer(0), 0));
    } catch (error) {
      asked.reject(/** @type {Error} */ (error));
    }
  };
  model.on("msg:custom", heard);

  return {
    mode: "notebook",
    has: () => true,
    download: saveFile,
    ask(question, signal) {
      const id = `${prefix}-${count++}`;
      return new Promise((resolve, reject) => {
        if (signal?.aborted) return reject(abortError());
        waiting.set(id, { resolve, reject });
        signal?.addEventListener("abort", () => waiting.delete(id) && reject(abortError()), { once: true });
        model.send({ id, question });
      });
    },
    dispose() {
      model.off("msg:custom", heard);
      for (const { reject } of waiting.values()) reject(abortError());
      waiting.clear();
    },
  };
}
