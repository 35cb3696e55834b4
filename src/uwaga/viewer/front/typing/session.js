// Texts that are run while the page is open: the requests, the address of each, what was run before, and changes of the model.

import { HostError, messageOf } from "../hosts.js";
import { isEqual } from "../store.js";
/** @import { Edits, Host, RunRequest } from "../types.js" */

/** @typedef {{typed: RunRequest, most: number}} TooLong  most: tokens that the model takes */

const maxAddress = 2000; // characters of a text in the address
const maxRecent = 8;
const busyRetries = 20;

/** @returns {Edits} */
export function noEdits() {
  return { heads: [], scores: [], weights: [] };
}

/** @param {Edits | null | undefined} edits @returns {number} */
export function countEdits(edits) {
  return edits ? edits.heads.length + edits.scores.length + edits.weights.length : 0;
}

/** What the page asks: all keys; null if there is no value. @param {Partial<RunRequest>} typed @returns {RunRequest} */
export function completeRequest({ text = "", second = null, target = null, edits = null, long }) {
  return { text, second: second || null, target: target || null, edits: countEdits(edits) ? edits : null, ...(long ? { long } : {}) };
}

/**
 * Part of the address; [] for what the page opened with and for texts that are too long.
 * @param {RunRequest | null} typed @returns {[string, string][]}
 */
export function typedParams(typed) {
  if (!typed) return [];
  /** @type {[string, string][]} */
  const params = [["text", typed.text]];
  if (typed.second !== null) params.push(["second", typed.second]);
  if (typed.target !== null) params.push(["target", typed.target]);
  if (typed.edits !== null) params.push(["edits", JSON.stringify(typed.edits)]);
  if (typed.long) params.push(["long", typed.long]);
  return params.reduce((sum, [, value]) => sum + value.length, 0) > maxAddress ? [] : params;
}

/** @param {string} hash @returns {RunRequest | null} null: the address names no text */
export function typedOfHash(hash) {
  const params = new URLSearchParams(hash.replace(/^#/, "")), text = params.get("text");
  if (text === null) return null;
  let edits = null;
  try {
    edits = JSON.parse(params.get("edits") ?? "null");
  } catch {
    // An address that somebody has cut: the text without its changes.
  }
  const long = params.get("long");
  return completeRequest({ text, second: params.get("second"), target: params.get("target"), edits: isEdits(edits) ? edits : null, long: long === "first" ? long : undefined });
}

/** @param {any} edits @returns {boolean} whether the page can show them; Python checks the rest */
function isEdits(edits) {
  return Boolean(edits) && typeof edits === "object" && ["heads", "scores", "weights"].every((name) => Array.isArray(edits[name]));
}

/** A host whose requests are about one result. @param {Host} host @param {number} run @returns {Host} */
export function hostOfRun(host, run) {
  if (!run) return host;
  return { ...host, ask: (request, signal) => host.ask({ ...request, run }, signal), dispose() {} };
}

/**
 * The texts of a page. `open` shows a result; it rejects if the result is no longer kept.
 * @param {Host} host @param {(run: number, typed: RunRequest, keep: boolean) => Promise<void>} open
 */
export function makeSession(host, open) {
  /** @type {RunRequest[]} */
  const recent = [];
  /** @type {Set<() => void>} */
  const listeners = new Set();
  /** @type {AbortController | null} */
  let running = null;
  /** @type {RunRequest | null} */
  let pending = null, error = "";
  /** Ways to read a text that was too long. @type {TooLong | null} */
  let tooLong = null;

  const emit = () => listeners.forEach((listener) => listener());

  /** @param {RunRequest} typed @param {AbortSignal} signal @returns {Promise<number>} */
  async function ask(typed, signal) {
    for (let retries = 0; ; retries++) {
      try {
        const { meta } = await host.ask({ request: "run", ...typed }, signal);
        if (typeof meta.error === "string") {
          if (meta.most) tooLong = { typed, most: meta.most };
          throw new Error(meta.error);
        }
        return meta.run;
      } catch (failure) {
        if (!(failure instanceof HostError) || failure.kind !== "busy" || retries >= busyRetries) throw failure;
        await new Promise((resolve) => setTimeout(resolve, 250));
      }
    }
  }

  return {
    recent,
    isRunning: () => running !== null,
    /** What runs now; null: nothing does. */
    pending: () => pending,
    error: () => error,
    tooLong: () => tooLong,
    /** @param {() => void} listener  called when a run begins or ends */
    subscribe(listener) {
      listeners.add(listener);
      return () => void listeners.delete(listener);
    },
    /**
     * Runs a text and shows it; a run that has not ended is given up. Never rejects: `error` says what went wrong.
     * @param {RunRequest} typed
     * @param {{keep?: boolean}} [options]  keep: the head and the picked words stay
     */
    async run(typed, { keep = false } = {}) {
      running?.abort();
      const mine = new AbortController();
      running = mine;
      pending = typed;
      error = "";
      tooLong = null;
      emit();
      try {
        const run = await ask(typed, mine.signal);
        if (mine.signal.aborted) return;
        if (typed.edits === null) {
          const at = recent.findIndex((one) => isEqual(one, typed));
          if (at >= 0) recent.splice(at, 1);
          recent.unshift(typed);
          recent.length = Math.min(recent.length, maxRecent);
        }
        await open(run, typed, keep);
      } catch (failure) {
        if (!mine.signal.aborted) error = messageOf(failure).replace(/^run: /, "");
      } finally {
        if (running === mine) running = pending = null;
        emit();
      }
    },
    /** Ends the run; the last picture stays. */
    stop() {
      if (!running) return;
      running.abort();
      running = pending = null;
      host.ask({ request: "stop" }).catch(() => {});
      emit();
    },
    dispose() {
      running?.abort();
      listeners.clear();
    },
  };
}

/** @typedef {ReturnType<typeof makeSession>} Session */
