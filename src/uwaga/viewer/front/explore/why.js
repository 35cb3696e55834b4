// Why a head looks there: the score of the picked link as a sum over pairs of parts of the model, and a way to the heads among them.

import { el, wordText } from "../dom.js";
import { countText, headText, numberText } from "../format.js";
import { messageOf } from "../hosts.js";
import { tr, trParts } from "../languages.js";
import { kindsOf } from "../shell/head_navigation.js";
import { itemOfToken } from "../shell/selection.js";
import { quoted } from "../text/links.js";
import { tokensOfItem } from "../typing/changes.js";
import { strongestItems } from "../weights.js";
/** @import { App, Items, Kind, Why, WhyPart, WhySource } from "../types.js" */

/** @typedef {{queries: Items, keys: Items, query: number, key: number, others: number[], isNext: boolean}} Link  others: keys that it can be compared with; isNext: whether the first is looked at next most */

const otherWords = 8, sayReadingAfter = 300;

/** @param {number} value */
const signedText = (value) => `${value > 0 ? "+" : ""}${numberText(value)}`;

/**
 * Where the bar of each number begins, and how wide it is, in percent of all bars' width: those of negative ones end where the others begin.
 * @param {number[]} numbers @returns {{start: number, width: number}[]}
 */
export function signedBars(numbers) {
  const least = Math.min(0, ...numbers), range = Math.max(0, ...numbers) - least || 1;
  return numbers.map((number) => ({ start: (100 * (Math.min(number, 0) - least)) / range, width: (100 * Math.abs(number)) / range }));
}

/** @param {WhyPart} part @param {boolean} hasKinds  heads of several kinds have that in their names @returns {string} */
export function partText(part, hasKinds) {
  const { name, kind, layer, head } = part;
  if (name === "head") return headText(hasKinds ? String(kind) : "encoder", Number(layer), Number(head));
  return { "feed-forward": tr("layer {layer}, feed-forward", { layer }), token: tr("the word itself"), position: tr("its position"), type: tr("which text it is in"), bias: tr("constants"), distance: tr("the distance between them") }[name] ?? name;
}

/** Why there is no sum, and what to do. @param {string} error @returns {string} */
export function whyNotText(error) {
  return {
    model: tr("To split a score, the page needs a model: open a text with a model, or a recording with uwaga.view(recording, model=model)."),
    changed: tr("The parts are those of the model as it is: look at “Before”, or take the changes back."),
    hidden: tr("A mask hides this key: there is no score, and the weight is 0."),
    family: tr("The parts of this model are not known: open one of a family that uwaga.models.load reads, such as BERT, GPT-2, Llama or T5."),
  }[error] ?? tr("The score cannot be split: {reason}", { reason: error });
}

/**
 * The words that a key can be compared with: the one that is looked at next most first, then the query itself and those at rest.
 * @param {ArrayLike<number>} weights @param {number} key @param {number | null} self @param {ReadonlySet<number>} sinks
 */
export function otherKeys(weights, key, self, sinks) {
  const others = strongestItems(weights, otherWords + 1).filter((item) => item !== key && weights[item] > 0), isLast = (/** @type {number} */ item) => item === self || sinks.has(item);
  return [...others.filter((item) => !isLast(item)), ...others.filter(isLast)];
}

/** Whether no word but one and those at rest is looked at more than another, which is not looked at more than that one. @param {ArrayLike<number>} weights @param {number} key @param {number} other @param {ReadonlySet<number>} sinks */
export function isNextMost(weights, key, other, sinks) {
  return Array.from(weights).every((weight, item) => (item === key ? weight >= weights[other] : sinks.has(item) || !(weight > weights[other])));
}

/** @param {App} app */
export function makeWhy(app) {
  const { store, about } = app, can = app.host.mode !== "saved" && Boolean(about.why) && !about.answer, hasKinds = kindsOf(about).length > 1;
  const title = el("h2", { tabindex: -1 }), sentence = el("p", { class: "uwaga-sub" }), status = el("p", { class: "uwaga-sub", role: "status" }), table = el("table");
  const what = el("select", { "aria-label": tr("What is split"), on: { change() { isDifference = what.value !== ""; than = Number(what.value); void ask(); } } });
  const choices = el("div", { class: "uwaga-row" }, what);
  const element = el("section", { class: "uwaga-why", hidden: true, on: { keydown(/** @type {KeyboardEvent} */ event) {
    if (event.key !== "Escape") return;
    event.stopPropagation();
    open(false);
    button.focus();
  } } }, title, sentence, choices, status, table);
  const button = el("button", { type: "button", class: "uwaga-pill", text: tr("Why?"), hidden: true, "aria-expanded": "false", on: { click: () => open(element.hidden) } });
  /** The link that is shown. @type {Link | null} */
  let link = null;
  let isDifference = false, than = 0, asked = new AbortController(), name = "";
  /** While the reply is awaited. @type {ReturnType<typeof setTimeout> | undefined} */
  let waiting;
  const remove = !can ? () => {} : app.commands.add({ id: "why.open", title: tr("Why?"), keys: ["e"], group: tr("Heads"), when: () => link !== null && button.offsetParent !== null, run() {
    open(element.hidden);
    title.focus();
  } });

  /** @param {boolean} on */
  function open(on) {
    element.hidden = !on;
    button.setAttribute("aria-expanded", String(on));
    if (on) return void ask();
    if (waiting && !app.session.isRunning()) app.host.ask({ request: "stop" }).catch(() => {}); // Python would read the text to its end
    stop();
  }

  function stop() {
    asked.abort();
    clearTimeout(waiting);
    waiting = undefined;
    name = "";
    element.removeAttribute("aria-busy");
  }

  /** The words of the link as elements, each anew. @param {Link} of */
  const words = ({ queries, keys, query, key }) => ({ from: el("bdi", { class: "uwaga-asks", text: wordText(queries, query) }), to: el("bdi", { class: "uwaga-asked", text: wordText(keys, key) }), other: el("bdi", { text: isDifference ? otherText(than) : "" }) });
  /** A word of the list; of those that are not alone, with its place. @param {number} item */
  const otherText = (item) => {
    const { keys, key, others } = /** @type {Link} */ (link), word = wordText(keys, item);
    return [key, ...others].some((one) => one !== item && wordText(keys, one) === word) ? `${word} (${countText(item)})` : word;
  };

  async function ask() {
    if (!link || element.hidden) return;
    const { keys, others } = link;
    if (!others.includes(than)) than = others[0];
    if (!others.length) isDifference = false;
    const request = { request: "why", ...app.where(), query: link.query, key: link.key, than: isDifference ? than : null }, asks = JSON.stringify(request);
    if (asks === name) return;
    stop();
    name = asks;
    asked = new AbortController();
    const { signal } = asked, reason = about.why?.[store.get().side];
    title.replaceChildren(...trParts("Why {from} looks at {to}", words(link)));
    what.replaceChildren(el("option", { value: "", text: tr("the score") }), ...others.map((item) => el("option", { value: item, selected: isDifference && item === than, text: tr("the difference to {word}", { word: otherText(item) }) })));
    if (reason) return refuse(reason);
    element.setAttribute("aria-busy", "true");
    waiting = setTimeout(() => { status.textContent = tr("The model reads the text again…"); }, sayReadingAfter);
    try {
      // Not by the client: it would report a host that reads a text for ten seconds.
      const { meta } = await app.host.ask(request, signal);
      if (signal.aborted) return;
      if (meta.error) refuse(meta.error);
      else draw(/** @type {Why} */ (meta));
    } catch (failure) {
      if (signal.aborted) return;
      refuse(messageOf(failure));
    }
    stop();
    name = asks;
  }

  /** @param {string} error */
  function refuse(error) {
    status.textContent = whyNotText(error);
    sentence.textContent = "";
    table.replaceChildren();
    choices.hidden = true;
  }

  /** @param {Why} why */
  function draw({ labels, weights, score, total, count, shares, rest }) {
    const of = /** @type {Link} */ (link), comparison = weights[1] !== null && { ...words(of), times: numberText(weights[0] / weights[1]), score: signedText(score) };
    const isPiece = [[of.queries, of.query], [of.keys, of.key], ...(comparison ? [[of.keys, than]] : [])].some(([items, item]) => tokensOfItem(/** @type {Items} */ (items), Number(item)).length > 1);
    status.textContent = "";
    choices.hidden = false;
    sentence.replaceChildren(...(comparison ? [...(than === of.others[0] && of.isNext ? trParts("{to} gets {times} times the weight of {other}, which is looked at next most: their scores differ by {score}.", comparison) : trParts("{to} gets {times} times the weight of {other}: their scores differ by {score}.", comparison)), " ",
      tr("The softmax does not change if all scores of a word change by the same number. So parts that both scores share explain nothing, and are left out here.")]
      : trParts("The score, before the softmax, is {score}: the sum of what each part that wrote at {from} contributes with each that wrote at {to}.", { ...words(of), score: numberText(score) })),
      ...(isPiece ? [" ", ...(comparison ? trParts("Of the pieces of these words it is {from}, {to} and {other}, with the largest weights.", { from: quoted(labels[0]), to: quoted(labels[1]), other: quoted(String(labels[2])) })
        : trParts("Of the pieces of these words it is {from} and {to}, with the largest weight.", { from: quoted(labels[0]), to: quoted(labels[1]) }))] : []));
    const bars = signedBars([...shares.map(({ share }) => share), rest]), number = (/** @type {number} */ value) => el("span", { class: "uwaga-bar-number", text: signedText(value) });
    const amount = (/** @type {number} */ value, /** @type {number} */ n) => el("td", {}, el("span", { class: "uwaga-bar" },
      el("i", { "data-negative": value < 0, style: { "inset-inline-start": `${bars[n].start}%`, width: `${bars[n].width}%` } })), number(value));
    table.replaceChildren(
      el("thead", {}, el("tr", {}, el("th", {}, ...trParts("Wrote at {word}", { word: words(of).from })), el("th", {}, ...(comparison ? trParts("Wrote at {to}, less at {other}", words(of)) : trParts("Wrote at {word}", { word: words(of).to }))), el("th", { text: tr("Contributes") }))),
      el("tbody", {}, shares.map(({ query: one, key: two, share, sources }, n) => el("tr", {}, one.name === "distance" ? el("td", { colspan: 2, text: partText(one, hasKinds) }) : [cell(one, sources[0]), cell(two, sources[1])], amount(share, n))),
        count > shares.length && el("tr", {}, el("td", { colspan: 2, text: tr("all others ({count})", { count: countText(count - shares.length) }) }), amount(rest, shares.length))),
      el("tfoot", {}, el("tr", {}, el("th", { colspan: 2, text: tr("Together") }), el("td", {}, number(total)))));
  }

  /** @param {WhyPart} part @param {WhySource | null} source */
  function cell(part, source) {
    if (!source) return el("td", { text: partText(part, hasKinds) });
    // A layer that was not recorded for the page has no head to go to.
    const isShown = app.side().maps.some(({ kind, layer }) => kind === part.kind && layer === part.layer);
    return el("td", {}, isShown ? el("button", { type: "button", class: "uwaga-link", text: partText(part, hasKinds), on: { click: () => void go(part, source) } }) : partText(part, hasKinds),
      el("small", {}, ...trParts("{share} from {word}", { share: signedText(source.share), word: quoted(source.label) })));
  }

  /** To the head that wrote a part, where it wrote it, and what it looked at there. @param {WhyPart} part @param {WhySource} source */
  async function go({ kind, layer, head }, { to, token }) {
    const place = { kind: /** @type {Kind} */ (kind), layer: Number(layer), head: Number(head) }, { side } = store.get(), asks = name, axes = app.side().kinds[place.kind];
    const [queries, keys] = await Promise.all([app.items(side, axes.queries), app.items(side, axes.keys)]);
    if (asks !== name) return;
    store.set({ ...place, query: itemOfToken(queries.spans, to), key: itemOfToken(keys.spans, token), view: { x: 0, y: 0, scale: 0 } });
    app.announce(headText(place.kind, place.layer, place.head));
    title.focus();
  }

  return {
    button, element,
    /** @param {{queries: Items, keys: Items}} texts @param {number | null} at @param {number | null} to @param {ArrayLike<number> | null} weights  of the query @param {ReadonlySet<number>} sinks */
    show({ queries, keys }, at, to, weights, sinks) {
      button.hidden = !can || app.side().signed || at === null || to === null;
      if (button.hidden) { link = null; open(false); }
      if (at === null || to === null || !weights || button.hidden || to >= keys.total) return;
      const others = otherKeys(weights, to, queries === keys ? at : null, sinks);
      link = { queries, keys, query: at, key: to, others, isNext: isNextMost(weights, to, others[0], sinks) };
      void ask();
    },
    dispose() {
      stop();
      remove();
    },
  };
}
