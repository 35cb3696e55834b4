// The client of a host: a priority queue of requests with deduplication, retries and an LRU cache of replies.

import { abortError, HostError, isAbort, messageOf } from "./hosts.js";
import { canonical, replyBytes } from "./wire.js";
/** @import { AskOptions, Client, ClientEvent, Host, Reply, Request } from "./types.js" */

/** @typedef {{resolve: (reply: Reply) => void, reject: (error: unknown) => void, detach: () => void}} Waiter */
/**
 * @typedef {object} Job
 * @property {string} name
 * @property {Request} request
 * @property {number} priority
 * @property {number} number  sequence number: the order of asking
 * @property {number} retries  answers "busy" so far
 * @property {boolean} inFlight
 * @property {AbortController} controller
 * @property {Set<Waiter>} waiters
 */

const clientMaxInFlight = 4;
const clientMaxRetries = 30;
/** Milliseconds between polls of a reply that did not get more complete: polling without a pause would load the host. */
const clientPollPause = 200;
/** Milliseconds without an answer after which the host is reported as slow; it usually answers within a second. */
const clientSlowAfter = 10_000;

/**
 * @param {Host} host
 * @param {{maxBytes?: number, slowAfter?: number, wait?: (milliseconds: number) => Promise<void>}} [options]
 * @returns {Client}
 */
export function makeClient(host, { maxBytes = 192 * 2 ** 20, slowAfter = clientSlowAfter, wait = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds)) } = {}) {
  const cache = makeReplyCache(maxBytes);
  /** @type {Map<string, Job>} */
  const jobs = new Map();
  /** @type {Set<(event: ClientEvent) => void>} */
  const listeners = new Set();
  let inFlight = 0;
  let nextSequence = 0;
  let unreachableCount = 0; // failures in a row
  let slow = false;
  let paused = false;
  let disposed = false;

  const emit = (/** @type {ClientEvent} */ event) => listeners.forEach((listener) => listener(event));

  function sendNext() {
    // While the host is unreachable, one request at a time probes whether it has recovered.
    while (!paused && !disposed && inFlight < (unreachableCount ? 1 : clientMaxInFlight)) {
      let next = null;
      for (const job of jobs.values()) if (!job.inFlight && (!next || job.priority > next.priority || (job.priority === next.priority && job.number < next.number))) next = job;
      if (!next) break;
      send(next);
    }
  }

  /** @param {Job} job */
  async function send(job) {
    job.inFlight = true;
    inFlight += 1;
    emit({ type: "busy", inFlight });
    const timer = setTimeout(() => { slow = true; emit({ type: "slow" }); }, slowAfter);
    try {
      const reply = await host.ask(job.request, job.controller.signal);
      onAnswer();
      cache.put(job.name, reply);
      settle(job, (waiter) => waiter.resolve(reply));
    } catch (error) {
      onFailure(job, error);
    } finally {
      clearTimeout(timer);
      inFlight -= 1;
      emit({ type: "busy", inFlight });
      sendNext();
    }
  }

  function onAnswer() {
    if (unreachableCount || slow) emit({ type: "recovered" });
    unreachableCount = 0;
    slow = false;
  }

  /** @param {Job} job @param {unknown} error */
  function onFailure(job, error) {
    const again = error instanceof HostError && !disposed && job.waiters.size > 0;
    if (again && error.kind === "unreachable") {
      job.inFlight = false;
      if (!unreachableCount) emit({ type: "unreachable" });
      unreachableCount += 1;
      pause(Math.min(5000, 500 * 2 ** Math.min(unreachableCount, 4)));
    } else if (again && error.kind === "busy" && job.retries < clientMaxRetries) {
      job.retries += 1;
      job.inFlight = false;
      pause(Math.min(2000, 50 * 2 ** Math.min(job.retries, 6)));
    } else {
      if (error instanceof HostError && error.kind === "refused") onAnswer();
      if (!isAbort(error) && !(error instanceof HostError && error.kind === "missing")) {
        emit({ type: "failed", message: messageOf(error) });
      }
      settle(job, (waiter) => waiter.reject(error));
    }
  }

  /** @param {number} milliseconds */
  function pause(milliseconds) {
    if (paused) return;
    paused = true;
    wait(milliseconds).then(() => { paused = false; sendNext(); });
  }

  /** @param {Job} job @param {(waiter: Waiter) => void} how */
  function settle(job, how) {
    if (jobs.get(job.name) === job) jobs.delete(job.name);
    for (const waiter of [...job.waiters]) { waiter.detach(); how(waiter); }
    job.waiters.clear();
  }

  /** @param {string} name @param {Request} request @param {number} priority @returns {Job} */
  function jobFor(name, request, priority) {
    const existing = jobs.get(name);
    if (existing) {
      existing.priority = Math.max(existing.priority, priority);
      return existing;
    }
    const job = { name, request, priority, number: nextSequence++, retries: 0, inFlight: false,
      controller: new AbortController(), waiters: new Set() };
    jobs.set(name, job);
    return job;
  }

  /** @param {Request} request @param {AskOptions} [options] @returns {Promise<Reply>} */
  function ask(request, { signal, priority = 0 } = {}) {
    const name = canonical(request);
    const cached = cache.get(name);
    if (cached && isComplete(cached)) return Promise.resolve(cached);
    if (signal?.aborted || disposed) return clientHandled(Promise.reject(abortError()));
    return clientHandled(new Promise((resolve, reject) => {
      const job = jobFor(name, request, priority);
      const abort = () => {
        job.waiters.delete(waiter);
        waiter.detach();
        reject(abortError());
        if (job.waiters.size) return;
        jobs.delete(name);
        job.controller.abort();
      };
      const waiter = { resolve, reject, detach: () => signal?.removeEventListener("abort", abort) };
      job.waiters.add(waiter);
      signal?.addEventListener("abort", abort);
      sendNext();
    }));
  }

  /** @param {Request} request @param {(reply: Reply) => void} onReply @param {AskOptions} [options] */
  async function followRequest(request, onReply, options = {}) {
    const cached = cache.get(canonical(request));
    let last = -1;
    if (cached) {
      onReply(cached);
      if (isComplete(cached)) return;
      last = cached.meta.complete;
    }
    for (;;) {
      const reply = await ask(request, options);
      if (options.signal?.aborted) return;
      onReply(reply);
      if (isComplete(reply)) return;
      if (reply.meta.complete <= last) await wait(clientPollPause);
      last = reply.meta.complete;
    }
  }

  return {
    ask,
    follow: (request, onReply, options) =>
      clientHandled(followRequest(request, onReply, options).catch((error) => { if (!isAbort(error)) throw error; })),
    peek: (request) => cache.get(canonical(request)),
    cachedRequests: (name) => cache.complete().map((key) => JSON.parse(key)).filter(({ request }) => request === name),
    subscribe(listener) {
      listeners.add(listener);
      return () => void listeners.delete(listener);
    },
    dispose() {
      disposed = true;
      for (const job of [...jobs.values()]) {
        settle(job, (waiter) => waiter.reject(abortError()));
        job.controller.abort();
      }
      listeners.clear();
    },
  };
}

/**
 * Failures are reported to the client's subscribers: a caller that ignores the rejection causes no unhandled rejection.
 * @template Value
 * @param {Promise<Value>} promise
 * @returns {Promise<Value>}
 */
function clientHandled(promise) {
  promise.catch(() => {});
  return promise;
}

// The LRU cache of replies.

/**
 * An LRU cache of replies by canonical request, bounded by bytes.
 * @param {number} maxBytes
 */
export function makeReplyCache(maxBytes) {
  /** @type {Map<string, Reply>} */
  const cached = new Map();
  let bytes = 0;
  return {
    complete: () => [...cached].filter(([, reply]) => isComplete(reply)).map(([name]) => name),
    /** @param {string} name @returns {Reply | undefined} */
    get(name) {
      const reply = cached.get(name);
      if (reply) { cached.delete(name); cached.set(name, reply); }
      return reply;
    },
    /** @param {string} name @param {Reply} reply */
    put(name, reply) {
      const before = cached.get(name);
      if (before) bytes -= replyBytes(before);
      cached.delete(name);
      cached.set(name, reply);
      bytes += replyBytes(reply);
      for (const [oldest, evicted] of cached) {
        if (bytes <= maxBytes || oldest === name) break;
        cached.delete(oldest);
        bytes -= replyBytes(evicted);
      }
    },
  };
}

/** @param {Reply} reply @returns {boolean} false: asking again may return a more complete reply */
export function isComplete(reply) {
  return reply.meta.complete === undefined || reply.meta.complete === null || reply.meta.complete >= 1;
}
