// What a head tells a person: of all links between two words, the one that says most. A pronoun's meaning comes first (distinctive.js).

import { headCells, rowCells } from "./every_head.js";
import { sinksOf } from "../weights.js";
/** @import { Items } from "../types.js" */
/** @import { Link } from "./distinctive.js" */
/** @import { LayerCells } from "./every_head.js" */

/** Links of less weight tell nothing. */
const leastInformative = 0.15;
/** A link to an equal word, or from a sound to its own letter, tells less; one to what followed an earlier copy of the word more. */
const copyFactor = 0.6, foreseenFactor = 1.5;
/** Where a pronoun looks is what a reader asks first. English, as in Python. */
const pronounFactor = 2, pronouns = /^(he|she|it|they|him|her|them|his|hers|its|their|theirs|(him|her|it)self|themselves)$/;
/** Words between two that are far from each other. */
const farWords = 3;

/** @param {Items} items @param {number} item @returns {boolean} whether it is a word: with a letter or a digit, and not a special token */
export function isWord({ labels, specials }, item) {
  return !specials.has(item) && /[\p{L}\p{N}]/u.test(labels[item]);
}

/** @param {Items} items @param {number} item */
const letters = ({ labels }, item) => labels[item].trim().toLowerCase();

/**
 * @param {Items} items  of one text @param {number} query @param {number} key
 * @returns {boolean} whether the key followed an earlier copy of the query
 */
export function isForeseen(items, query, key) {
  return key > 0 && key - 1 < query && letters(items, key - 1) === letters(items, query) && letters(items, key) !== letters(items, query);
}

/**
 * The most informative link of each head, and what it is worth; only links to what a word looks at most.
 * @param {LayerCells} cells  a cell is the weight of one word on another
 * @param {Items} queries @param {Items} keys @param {string} kind @returns {({link: Link, worth: number} | null)[]}
 */
export function informativeLinks(cells, queries, keys, kind) {
  const sinks = sinksOf(keys, kind), isCross = kind === "cross";
  const asking = queries.labels.flatMap((_, item) => (isWord(queries, item) ? [item] : []));
  const answering = keys.labels.flatMap((_, item) => (isWord(keys, item) && !sinks.has(item) ? [item] : []));
  return Array.from({ length: cells.heads }, (_, head) => {
    const weights = headCells(cells, head), most = asking.map((query) => {
      const row = rowCells(cells, head, query);
      return answering.filter((key) => isCross || key !== query).reduce((best, key) => (best < 0 || row[key] > row[best] ? key : best), -1);
    });
    const order = isCross ? readsInOrder(most, Math.min(asking.length, answering.length)) : 1;
    /** @type {{link: Link, worth: number} | null} */
    let best = null;
    asking.forEach((query, at) => {
      const key = most[at], weight = key < 0 ? 0 : weights[query * cells.columns + key];
      // A word that looks mostly at itself tells nothing of the other.
      if (weight < leastInformative || (!isCross && weight < weights[query * cells.columns + query])) return;
      const isCopy = isCross ? letters(queries, query).includes(letters(keys, key)) : letters(queries, query) === letters(keys, key);
      const far = isCross ? order : Math.min(1, Math.abs(query - key) / farWords);
      const worth = weight * far * (isCopy ? copyFactor : 1) * (!isCross && isForeseen(queries, query, key) ? foreseenFactor : 1)
        * (!isCross && Math.abs(query - key) >= farWords && pronouns.test(letters(queries, query)) && !pronouns.test(letters(keys, key)) ? pronounFactor : 1);
      if (!best || worth > best.worth) best = { link: { query, key, weight }, worth };
    });
    return best;
  });
}

/**
 * How much a head of cross-attention reads the one text along with the other.
 * @param {number[]} most  the key that each query looks at most @param {number} size  of the shorter text
 * @returns {number} from 0 to 1: the share of steps that go forward, times the share of keys that are read
 */
function readsInOrder(most, size) {
  const steps = most.slice(1).filter((key, i) => key >= most[i]).length;
  return (most.length > 1 ? steps / (most.length - 1) : 1) * (new Set(most).size / Math.max(1, size));
}
