// The client of a host: a priority queue of questions with deduplication, retries and an LRU cache of replies.

import { abortError, HostError, isAbort } from "./hosts.js";
import { canonical, replyBytes } from "./wire.js";

/** @typedef {import("./types.js").Question} Question */
/** @typedef {import("./types.js").Reply} Reply */
/** @typedef {import("./types.js").AskOptions} AskOptions */

/** @typedef {{resolve: (reply: Reply) => void, reject: (error: unknown) => void, leave: () => void}} Waiter */
/**
 * @typedef {object} Job
 * @property {string} name
 * @property {Question} question
 * @property {number} priority
 * @property {number} number  the order of asking
 * @property {number} tries  answers "busy" so far
 * @property {boolean} flying
 * @property {AbortController} controller
 * @property {Set<Waiter>} waiters
 */

const clientFlights = 4;
const clientBusyTries = 30;
/** Asking again at once what goes on elsewhere would keep the host busy with being asked. */
const clientStandstill = 200;
/** A host that answers in parts of a second and has been silent for so long is busy with something else, or gone. */
const clientSilence = 10_000;

/**
 * @param {import("./types.js").Host} host
 * @param {{maxBytes?: number, silence?: number, wait?: (milliseconds: number) => Promise<void>}} [options]
 * @returns {import("./types.js").Client}
 */
export function makeClient(host, { maxBytes = 192 * 2 ** 20, silence = clientSilence, wait = clientWait } = {}) {
  const cache = makeReplyCache(maxBytes);
  /** @type {Map<string, Job>} */
  const jobs = new Map();
  /** @type {Set<(event: import("./types.js").ClientEvent) => void>} */
  const listeners = new Set();
  let flights = 0;
  let asked = 0;
  let goneFor = 0; // how often in a row nobody answered
  let silent = false;
  let resting = false;
  let disposed = false;

  const tell = (/** @type {import("./types.js").ClientEvent} */ event) => listeners.forEach((listener) => listener(event));

  function pump() {
    // One question at a time is enough to see whether a host that was gone is back.
    while (!resting && !disposed && flights < (goneFor ? 1 : clientFlights)) {
      let next = null;
      for (const job of jobs.values()) if (!job.flying && (!next || clientBefore(job, next))) next = job;
      if (!next) break;
      fly(next);
    }
  }

  /** @param {Job} job */
  async function fly(job) {
    job.flying = true;
    flights += 1;
    tell({ type: "busy", flights });
    const timer = setTimeout(() => { silent = true; tell({ type: "silent" }); }, silence);
    try {
      const reply = await host.ask(job.question, job.controller.signal);
      heard();
      cache.put(job.name, reply);
      finish(job, (waiter) => waiter.resolve(reply));
    } catch (error) {
      failed(job, error);
    } finally {
      clearTimeout(timer);
      flights -= 1;
      tell({ type: "busy", flights });
      pump();
    }
  }

  function heard() {
    if (goneFor || silent) tell({ type: "back" });
    goneFor = 0;
    silent = false;
  }

  /** @param {Job} job @param {unknown} error */
  function failed(job, error) {
    const again = error instanceof HostError && !disposed && job.waiters.size > 0;
    if (again && error.kind === "gone") {
      job.flying = false;
      if (!goneFor) tell({ type: "gone" });
      goneFor += 1;
      rest(Math.min(5000, 500 * 2 ** Math.min(goneFor, 4)));
    } else if (again && error.kind === "busy" && job.tries < clientBusyTries) {
      job.tries += 1;
      job.flying = false;
      rest(Math.min(2000, 50 * 2 ** Math.min(job.tries, 6)));
    } else {
      if (error instanceof HostError && error.kind === "refused") heard();
      if (!isAbort(error) && !(error instanceof HostError && error.kind === "absent")) {
        tell({ type: "failed", message: error instanceof Error ? error.message : String(error) });
      }
      finish(job, (waiter) => waiter.reject(error));
    }
  }

  /** @param {number} milliseconds */
  function rest(milliseconds) {
    if (resting) return;
    resting = true;
    wait(milliseconds).then(() => { resting = false; pump(); });
  }

  /** @param {Job} job @param {(waiter: Waiter) => void} how */
  function finish(job, how) {
    if (jobs.get(job.name) === job) jobs.delete(job.name);
    for (const waiter of [...job.waiters]) { waiter.leave(); how(waiter); }
    job.waiters.clear();
  }

  /** @param {string} name @param {Question} question @param {number} priority @returns {Job} */
  function jobOf(name, question, priority) {
    const there = jobs.get(name);
    if (there) {
      there.priority = Math.max(there.priority, priority);
      return there;
    }
    const job = { name, question, priority, number: asked++, tries: 0, flying: false,
      controller: new AbortController(), waiters: new Set() };
    jobs.set(name, job);
    return job;
  }

  /** @param {Question} question @param {AskOptions} [options] @returns {Promise<Reply>} */
  function ask(question, { signal, priority = 0 } = {}) {
    const name = canonical(question);
    const kept = cache.get(name);
    if (kept && replyComplete(kept)) return Promise.resolve(kept);
    if (signal?.aborted || disposed) return clientQuiet(Promise.reject(abortError()));
    return clientQuiet(new Promise((resolve, reject) => {
      const job = jobOf(name, question, priority);
      const abort = () => {
        job.waiters.delete(waiter);
        waiter.leave();
        reject(abortError());
        if (job.waiters.size) return;
        jobs.delete(name);
        job.controller.abort();
      };
      const waiter = { resolve, reject, leave: () => signal?.removeEventListener("abort", abort) };
      job.waiters.add(waiter);
      signal?.addEventListener("abort", abort);
      pump();
    }));
  }

  /** @param {Question} question @param {(reply: Reply) => void} onReply @param {AskOptions} [options] */
  async function goOn(question, onReply, options = {}) {
    const kept = cache.get(canonical(question));
    let last = -1;
    if (kept) {
      onReply(kept);
      if (replyComplete(kept)) return;
      last = kept.meta.complete;
    }
    for (;;) {
      const reply = await ask(question, options);
      if (options.signal?.aborted) return;
      onReply(reply);
      if (replyComplete(reply)) return;
      if (reply.meta.complete <= last) await wait(clientStandstill);
      last = reply.meta.complete;
    }
  }

  return {
    ask,
    follow: (question, onReply, options) =>
      clientQuiet(goOn(question, onReply, options).catch((error) => { if (!isAbort(error)) throw error; })),
    peek: (question) => cache.get(canonical(question)),
    kept: (ask) => cache.complete().map((name) => JSON.parse(name)).filter((question) => question.ask === ask),
    watch(listener) {
      listeners.add(listener);
      return () => void listeners.delete(listener);
    },
    dispose() {
      disposed = true;
      for (const job of [...jobs.values()]) {
        finish(job, (waiter) => waiter.reject(abortError()));
        job.controller.abort();
      }
      listeners.clear();
    },
  };
}

/** @param {Job} left @param {Job} right @returns {boolean} */
function clientBefore(left, right) {
  return left.priority !== right.priority ? left.priority > right.priority : left.number < right.number;
}

/**
 * What fails is told to those who watch the client; a caller that does not look is no error of the page.
 * @template Value
 * @param {Promise<Value>} promise
 * @returns {Promise<Value>}
 */
function clientQuiet(promise) {
  promise.catch(() => {});
  return promise;
}

/** @param {number} milliseconds @returns {Promise<void>} */
function clientWait(milliseconds) {
  return new Promise((resolve) => setTimeout(resolve, milliseconds));
}

// Replies that are kept: as many as fit, the latest used last to go.

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
