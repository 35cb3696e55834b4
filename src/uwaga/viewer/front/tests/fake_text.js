// Tokens for the fake host: English with subwords, special tokens at both ends and hostile strings in between.

const words = ("the quick brown fox jump ##s over a lazy dog , and every attention ##al head look ##s back at it . " +
  "some layer ##s read the token be ##fore them ; others read one word that stand ##s far a ##way").split(" ");
const strange = ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "\u202eabc",
  "a\u0007b", "\u05e9\u05dc\u05d5\u05dd", "\u200b", ""];

/**
 * @param {number} count
 * @returns {{labels: string[], noSpaceBefore: number[], specials: number[]}} tokens
 */
export function fakeTokens(count) {
  const labels = [], noSpaceBefore = [];
  for (let i = 0; i < count; i++) {
    const edge = i === 0 || i === count - 1;
    const piece = edge ? (i ? "[SEP]" : "[CLS]") : i % 41 === 13 ? strange[Math.floor(i / 41) % strange.length] : words[i % words.length];
    noSpaceBefore.push(piece.startsWith("##") || [",", ".", ";"].includes(piece) ? 1 : 0);
    labels.push(piece.replace(/^##/, ""));
  }
  return { labels, noSpaceBefore, specials: count > 1 ? [0, count - 1] : [0] };
}

/**
 * The items of a stack: tokens or words, with or without special ones, and the token range of each.
 * @param {number} count  tokens
 * @param {string} merge
 * @param {string} specials
 * @returns {{labels: string[], noSpaceBefore: number[], specials: number[], spans: [number, number][]}}
 */
export function fakeItems(count, merge, specials) {
  const tokens = fakeTokens(count);
  /** @type {{labels: string[], noSpaceBefore: number[], specials: number[], spans: [number, number][]}} */
  const items = { labels: [], noSpaceBefore: [], specials: [], spans: [] };
  for (let i = 0; i < count; i++) {
    const special = tokens.specials.includes(i);
    if (special && specials === "hide") continue;
    const last = items.spans.length - 1;
    if (merge === "words" && tokens.noSpaceBefore[i] && /\w/.test(tokens.labels[i]) && last >= 0) {
      items.labels[last] += tokens.labels[i];
      items.spans[last][1] = i + 1;
      continue;
    }
    if (special) items.specials.push(items.labels.length);
    items.labels.push(tokens.labels[i]);
    items.noSpaceBefore.push(tokens.noSpaceBefore[i]);
    items.spans.push([i, i + 1]);
  }
  return items;
}
