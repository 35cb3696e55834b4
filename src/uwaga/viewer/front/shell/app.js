// What all views share: store, client, commands, the items of each axis, messages to the user.

import { makeCommands } from "../commands.js";
import { tr } from "../languages.js";
import { initialState, makeStore } from "../store.js";
import { openingHash } from "./url_state.js";
/** @import { About, App, Client, Host, Items, Kind, Request, Side, SideId, State } from "../types.js" */

const itemsPerReply = 200_000;
/** Characters of a title that are visible where space is short. */
const visibleTitleLength = 14;
/** The side of a page that shows the lesson alone and has no model. @type {Side} */
const noSide = { id: "0", title: "", model: "", text_title: tr("Lesson"), signed: false, maps: [], stacks: {}, kinds: /** @type {any} */ ({}) };

/**
 * @param {HTMLElement} root @param {Host} host @param {Client} client @param {About} received
 * @param {{announce: (text: string) => void, status: (text: string) => void, fail: (message: string) => void}} reporter
 * @param {Pick<App, "session" | "history" | "rows" | "reopen">} kept  what outlives a text
 * @returns {App}
 */
export function makeApp(root, host, client, received, reporter, kept) {
  const about = { ...received, sides: withDistinctTitles(received.sides).map((one) => withCrossRows(one, kept.rows.cross)) };
  const store = makeStore({ ...initialState(), ...about.start, ...(about.picture && { tab: "picture" }), compare: about.start?.side === "difference" ? "difference" : "one" });
  const commands = makeCommands(() => store.get().shortcuts);
  /** @type {Map<string, Promise<Items>>} */
  const itemLists = new Map();

  /** @type {Map<string, Items>} */
  const loadedItems = new Map();
  /** @param {SideId} [id] */
  const side = (id = store.get().side) => about.sides.find((one) => one.id === id) ?? about.sides[0] ?? noSide;

  const isFresh = host.mode === "notebook" || !new URLSearchParams(openingHash(about).replace(/^#/, "")).has("layer");
  return {
    root, host, client, about, store, commands, side, ...reporter,
    items(id, stack, { merge, specials } = store.get()) {
      const name = `${id} ${stack} ${merge} ${specials}`;
      const cached = itemLists.get(name);
      if (cached) return cached;
      const loading = fetchItems(client, { request: "items", side: id, stack, merge, specials });
      itemLists.set(name, loading);
      loading.then((items) => loadedItems.set(name, items), () => itemLists.delete(name));
      return loading;
    },
    peekItems(id, stack) {
      const { merge, specials } = store.get();
      return loadedItems.get(`${id} ${stack} ${merge} ${specials}`);
    },
    sizes() {
      const { kind, merge, specials } = store.get();
      const axes = side().kinds[kind];
      return { queries: stackSize(side(), axes.queries, merge, specials), keys: stackSize(side(), axes.keys, merge, specials) };
    },
    where() {
      const { side: id, kind, layer, head, merge, specials } = store.get();
      return { side: id, kind, layer, head, merge, specials };
    },
    openHead(id, kind, layer, head) {
      store.set({ ...nearestHead(side(id), kind, layer, head), ...stateOfSide(id, store.get().compare), tab: "explore" });
    },
    theme: () => resolvedTheme(store.get().theme),
    history: kept.history,
    session: kept.session,
    rows: kept.rows,
    reopen: kept.reopen,
    quiet: { on: false },
    provisional: { on: isFresh, end() { this.on = false; } },
    isFresh,
  };
}

/**
 * Rows of cross-attention are named by what is written there, or by what the decoder reads.
 * @param {Side} side @param {"written" | "read"} rows @returns {Side}
 */
function withCrossRows(side, rows) {
  if (rows === "written" || !side.kinds.cross) return side;
  return { ...side, kinds: { ...side.kinds, cross: { ...side.kinds.cross, queries: "decoder" } } };
}

/** The stack whose tokens are along an axis. @param {string} axis  of a side's kinds @returns {string} */
export function stackOfAxis(axis) {
  return axis === "written" ? "decoder" : axis;
}

/**
 * The sides with distinct titles: two models may read one text, or one model the same text twice.
 * @param {Side[]} sides @returns {Side[]}
 */
export function withDistinctTitles(sides) {
  const both = sides.filter(({ id }) => id !== "difference");
  const differ = (/** @type {(side: Side) => string} */ name, /** @type {number} */ within = Infinity) =>
    new Set(both.map((side) => name(side).slice(0, within))).size === both.length;
  const title = (/** @type {Side} */ side) => side.title;
  const model = (/** @type {Side} */ side) => side.model;
  const titleOf = differ(title) ? title : differ(model) ? model : title, names = both.map(titleOf);
  // Of texts that begin alike, from the word on that differs.
  let alike = 0;
  while (names.length > 1 && alike < names[0].length && names[0][alike] === names[1][alike]) alike++;
  const from = names[0]?.lastIndexOf(" ", alike - 1) ?? 0;
  const name = (/** @type {Side} */ side) => differ(titleOf, visibleTitleLength) ? titleOf(side)
    : differ(titleOf) && from > 0 ? `\u2026${titleOf(side).slice(from)}` : side.id === "0" ? tr("first: {title}", { title: titleOf(side) }) : tr("second: {title}", { title: titleOf(side) });
  return sides.map((side) => ({ ...side, title: side.id === "difference" ? tr("difference") : name(side) }));
}

/**
 * Whether the host has maps with these settings: a saved page holds those of tokens, and may hold none of words.
 * @param {App} app @param {{merge?: "tokens" | "words", specials?: "show" | "hide", pooling?: "sum" | "max"}} change
 * @returns {boolean}
 */
export function hasMaps(app, change) {
  const { side, kind, layer, merge, specials, pooling } = app.store.get();
  return app.host.has({ request: "overview", side, kind, layer, pooling, merge, specials, ...change });
}

/** All items of an axis, fetched in parts. @param {Client} client @param {Request} request @returns {Promise<Items>} */
async function fetchItems(client, request) {
  /** @type {Items} */
  const items = { labels: [], noSpaceBefore: [], specials: new Set(), unknown: new Set(), breaks: new Map(), spans: new Int32Array(0), total: 0 };
  /** @type {Int32Array[]} */
  const spans = [];
  do {
    const { meta, arrays } = await client.ask({ ...request, first: items.labels.length, count: itemsPerReply }, { priority: 5 });
    if (!meta.labels.length && meta.total) throw new Error("items: the reply is incomplete");
    for (const label of meta.labels) items.labels.push(label);
    for (const flag of meta.no_space_before) items.noSpaceBefore.push(flag);
    for (const at of meta.specials) items.specials.add(at);
    for (const at of meta.unknown ?? []) items.unknown?.add(at);
    for (const [at, lines] of meta.breaks ?? []) items.breaks?.set(at, lines);
    spans.push(/** @type {Int32Array} */ (arrays[0].data));
    items.total = meta.total;
  } while (items.labels.length < items.total);
  items.spans = new Int32Array(items.total * 2);
  spans.reduce((at, part) => (items.spans.set(part, at), at + part.length), 0);
  return items;
}

/**
 * @param {Side} side @param {string} stack @param {"tokens" | "words"} merge @param {"show" | "hide"} specials
 * @returns {number} how many items an axis has
 */
export function stackSize(side, stack, merge, specials) {
  const counts = side.stacks[stack];
  return counts[merge] - (specials === "hide" ? counts.specials : 0);
}

/**
 * The given head, or the nearest one that the side has.
 * @param {Side} side @param {string} kind @param {number} layer @param {number} head
 * @returns {{kind: Kind, layer: number, head: number}}
 */
export function nearestHead(side, kind, layer, head) {
  const ofKind = side.maps.filter((map) => map.kind === kind);
  const maps = ofKind.length ? ofKind : side.maps;
  const map = maps.reduce((best, one) => (Math.abs(one.layer - layer) < Math.abs(best.layer - layer) ? one : best));
  return { kind: map.kind, layer: map.layer, head: Math.max(0, Math.min(head, map.heads - 1)) };
}

/**
 * The state that shows a side: side is "difference" if and only if compare is.
 * @param {SideId} id @param {string} compare @returns {Partial<State>}
 */
export function stateOfSide(id, compare) {
  if (id === "difference") return { side: id, compare: "difference" };
  return { side: id, compare: compare === "both" ? "both" : "one" };
}

/** @param {"auto" | "light" | "dark"} theme @returns {"light" | "dark"} */
export function resolvedTheme(theme) {
  if (theme !== "auto") return theme;
  return matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
}
