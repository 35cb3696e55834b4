// The film of the layers as a file: WebM, GIF, or an SVG that moves; and the wall of heads as a poster.

import { arcPairs, arcsOfLinks, mixedArcs } from "../explore/arcs.js";
import { layerCells, shownLayers, smallMapsRequest } from "../explore/every_head.js";
import { sinkNames } from "../explore/distinctive.js";
import { filmLinks, filmText, layerShares, meanOfHeads } from "../explore/film.js";
import { glyph, headGlyph } from "../explore/wall.js";
import { tokenText } from "../dom.js";
import { tr, trN } from "../languages.js";
import { sinksOf } from "../weights.js";
import { paintContext, paintScene } from "./canvas.js";
import { gifFile, gifPalette, gifPixels } from "./gif.js";
import { arcItems, fittingText, footItems, sentencePlaces, sharePaint } from "./share.js";
import { svgItems, svgOf } from "./svg.js";

/** @typedef {import("../types.js").App} App */
/** @typedef {import("../types.js").Scene} Scene */
/** @typedef {import("../types.js").SceneItem} SceneItem */

/** Milliseconds of a layer, of which arcs move the first part. */
const filmStop = 1500, filmMove = 850;
const filmWidth = 1200, filmHeight = 630, filmBase = 452, filmScale = 60, filmColours = 14, gifScale = 2 / 3, gifStep = 50;
const posterWidth = 1600, posterMargin = 68;

/** @param {App} app */
async function readLayers(app) {
  const { side, kind } = app.store.get(), axes = app.side().kinds[kind], [queries, keys] = await Promise.all([app.items(side, axes.queries), app.items(side, axes.keys)]);
  const layers = await Promise.all(shownLayers(app).map(async (one) => ({ ...one, cells: /** @type {import("../explore/every_head.js").LayerCells} */ (layerCells(await app.client.ask(smallMapsRequest(app, one.layer), { priority: 6 }))) })));
  return { queries, keys, kind, layers, model: app.side().model };
}

/**
 * @param {App} app
 * @returns {Promise<{scene: (time: number) => Scene, stops: number, alt: string}>} scene: at a time in milliseconds
 */
async function filmOfLayers(app) {
  const { queries, layers, kind, model } = await readLayers(app), paint = sharePaint(app), sinks = sinksOf(queries, kind), places = sentencePlaces(queries, new Set(), filmWidth);
  if (!places) throw new Error(tr("The text is too long for a film: it has to fit on one line."));
  const { shown, centres, size } = places, room = { height: filmBase - 130, scale: filmScale };
  const stops = layers.map(({ layer, cells }) => {
    const mean = meanOfHeads(cells), links = filmLinks(mean, cells.rows, cells.columns, sinks).map((link) => ({ ...link, query: shown.indexOf(link.query), key: shown.indexOf(link.key) }));
    return { said: filmText(layer, layerShares(mean, queries, sinks), sinkNames(queries, kind)), arcs: arcsOfLinks(links.filter(({ query, key }) => query >= 0 && key >= 0), centres, room) };
  });
  /** @type {SceneItem[]} */
  const still = [...shown.map((item, at) => /** @type {SceneItem} */ ({ kind: "text", serif: true, x: centres[at], y: filmBase + 60, text: tokenText(queries.labels[item]), size, anchor: "middle", fill: paint.ink })),
    ...footItems({ width: filmWidth, height: filmHeight, paint, where: [model, trN("{count} layer, the mean of its heads", "{count} layers, the mean of their heads", layers.length)].join(" \u00b7 ") })];
  return {
    stops: stops.length, alt: stops.map(({ said }) => said).join(" "),
    scene(time) {
      const at = Math.min(stops.length - 1, Math.floor(time / filmStop)), pairs = arcPairs((stops[at - 1]?.arcs ?? []).map((arc) => ({ ...arc, opacity: 1 })), stops[at].arcs, false);
      const arcs = mixedArcs(pairs, Math.min(1, (time - at * filmStop) / filmMove)).sort((one, other) => one.weight - other.weight);
      return { width: filmWidth, height: filmHeight, background: paint.bg, items: [...arcs.flatMap((arc) => arcItems(arc, filmBase, paint, filmColours)), ...still,
        { kind: "text", serif: true, x: posterMargin, y: 62, text: stops[at].said, size: Math.min(30, (filmWidth - 2 * posterMargin) / (stops[at].said.length * 0.5)), anchor: "start", fill: paint.ink }] };
    },
  };
}

/** @param {number} scale */
function filmCanvas(scale) {
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [filmWidth * scale, filmHeight * scale].map(Math.round);
  return { canvas, context: paintContext(canvas) };
}

/** @param {App} app @returns {Promise<{blob: Blob, alt: string}>} recorded while it plays, which waits while the page is hidden */
export async function webmFilm(app) {
  const type = ["video/webm;codecs=vp9", "video/webm"].find((one) => typeof MediaRecorder !== "undefined" && MediaRecorder.isTypeSupported(one));
  if (!type) throw new Error(tr("This browser makes no WebM. Save the film as a GIF or an SVG."));
  const { scene, stops, alt } = await filmOfLayers(app), { canvas, context } = filmCanvas(1), stream = canvas.captureStream(), recorder = new MediaRecorder(stream, { mimeType: type });
  /** @type {Blob[]} */
  const parts = [];
  const ended = new Promise((resolve, reject) => {
    recorder.addEventListener("dataavailable", ({ data }) => parts.push(data));
    recorder.addEventListener("stop", resolve);
    recorder.addEventListener("error", reject);
  });
  paintScene(context, scene(0), 1);
  recorder.start();
  let time = 0, last = performance.now();
  const wait = () => {
    if (recorder.state === "inactive") return;
    if (document.hidden) return recorder.pause();
    last = performance.now();
    recorder.resume();
  };
  if (document.hidden) wait(); // since before it began
  document.addEventListener("visibilitychange", wait);
  const played = new Promise((resolve) => {
    const step = () => {
      const now = performance.now();
      if (!document.hidden) time += now - last;
      last = now;
      paintScene(context, scene(time), 1);
      if (time < stops * filmStop && recorder.state !== "inactive") requestAnimationFrame(step);
      else resolve(undefined);
    };
    requestAnimationFrame(step);
  });
  try {
    await Promise.race([played, ended]);
    if (recorder.state !== "inactive") recorder.stop();
    await ended;
  } finally {
    document.removeEventListener("visibilitychange", wait);
    for (const track of stream.getTracks()) track.stop();
  }
  return { blob: new Blob(parts, { type: "video/webm" }), alt };
}

/** @param {App} app @returns {Promise<{blob: Blob, alt: string}>} */
export async function gifFilm(app) {
  const { scene, stops, alt } = await filmOfLayers(app), { canvas, context } = filmCanvas(gifScale);
  const picture = (/** @type {number} */ time) => {
    paintScene(context, scene(time), gifScale);
    return context.getImageData(0, 0, canvas.width, canvas.height).data;
  };
  function* ends() { for (let stop = 1; stop <= stops; stop++) yield picture(stop * filmStop - 1); }
  const { colours, places } = gifPalette(ends());
  async function* frames() {
    for (let stop = 0; stop < stops; stop++) for (let time = gifStep; time <= filmMove; time += gifStep) {
      // The page stays alive; where it is hidden, timers are slow and nobody waits for them.
      if (!document.hidden) await new Promise((resolve) => setTimeout(resolve));
      yield { pixels: gifPixels(picture(stop * filmStop + time), places), time: (time < filmMove ? gifStep : filmStop - filmMove + gifStep) / 10 };
    }
  }
  return { blob: new Blob([/** @type {BlobPart} */ (await gifFile(frames(), canvas.width, canvas.height, colours))], { type: "image/gif" }), alt };
}

/** @param {App} app @returns {Promise<{blob: Blob, alt: string}>} each layer fades into the next; where nothing moves, the first one is seen */
export async function svgFilm(app) {
  const { scene, stops, alt } = await filmOfLayers(app), time = stops * filmStop;
  const groups = await Promise.all(Array.from({ length: stops }, async (_, stop) => {
    const part = (/** @type {number} */ at) => Math.min(1, Math.max(0, at / stops)).toFixed(4), fade = 0.2;
    const moves = stops < 2 ? "" : `<animate attributeName="opacity" dur="${time / 1000}s" repeatCount="indefinite" values="${stop ? "0;0;1;1;0;0" : "1;1;1;1;0;0"}" keyTimes="0;${[stop, stop ? stop + fade : 0, stop + 1, stop + 1 + fade].map(part).join(";")};1"/>`;
    return `<g opacity="${stop ? 0 : 1}">${moves}${(await svgItems(scene((stop + 1) * filmStop - 1).items)).join("\n")}</g>`;
  }));
  return { blob: new Blob([svgOf(scene(0), alt, groups)], { type: "image/svg+xml" }), alt };
}

/** Every head as a drawing, a row for each layer, under the sentence. @param {App} app @returns {Promise<{scene: Scene, alt: string}>} */
export async function posterScene(app) {
  const { queries, keys, kind, layers, model } = await readLayers(app), paint = sharePaint(app), text = app.side().text_title;
  const columns = Math.max(...layers.map(({ heads }) => heads)), label = 34, step = (posterWidth - 2 * posterMargin - label) / columns, gap = step * 0.16, scale = (step - gap) / glyph.width, line = (glyph.height + glyph.foot + 8) * scale + gap;
  const top = 190, height = Math.round(top + line * layers.length + 110), count = layers.reduce((sum, { heads }) => sum + heads, 0);
  const said = trN("{count} head, one text", "All {count} heads, one text", count);
  /** @type {SceneItem[]} */
  const items = [{ kind: "text", serif: true, x: posterMargin, y: 84, text: fittingText(text, 40, posterWidth - 2 * posterMargin), size: 40, anchor: "start", fill: paint.ink },
    { kind: "text", x: posterMargin, y: 124, text: said, size: 22, anchor: "start", fill: paint.muted },
    ...Array.from({ length: columns }, (_, head) => /** @type {SceneItem} */ ({ kind: "text", x: posterMargin + label + step * (head + 0.5) - gap / 2, y: top - 16, text: String(head), size: 15, anchor: "middle", fill: paint.muted }))];
  layers.forEach(({ layer, heads, cells }, row) => {
    const y = top + row * line;
    items.push({ kind: "text", x: posterMargin, y: y + (glyph.height * scale) / 2 + 5, text: String(layer), size: 15, anchor: "start", fill: paint.muted });
    for (let head = 0; head < Math.min(heads, cells.heads); head++) {
      const x = posterMargin + label + head * step, { rest, paths } = headGlyph(cells, head, keys, kind);
      for (const { d, width } of paths) items.push({ kind: "path", d: d.map(([letter, ...at]) => [letter, ...at.map((number, i) => (i % 2 ? y : x) + scale * Number(number))]), stroke: paint.ink, width: width * scale, opacity: 0.8 });
      items.push({ kind: "rect", x, y: y + (glyph.height + 3) * scale, w: glyph.width * scale * Math.min(1, Math.abs(rest)), h: 1.6 * scale, fill: paint.edge });
    }
  });
  items.push(...footItems({ width: posterWidth, height, paint, where: [model, tr("the line under a drawing is its share at rest")].filter(Boolean).join(" \u00b7 ") }));
  return { scene: { width: posterWidth, height, background: paint.bg, items }, alt: `${said}: ${queries === keys ? text : `${text}, ${kind}`}` };
}
