// The scale of colours with its numbers.

import { el } from "../dom.js";
import { numberText } from "../shell/pieces.js";
import { mapLogLow, mapValueAt } from "./shade.js";

/** @typedef {import("./shade.js").MapShade} MapShade */

/**
 * Where numbers stand on the bar, and which.
 * @param {MapShade} shade
 * @returns {{place: number, value: number}[]}
 */
export function mapBarTicks(shade) {
  const places = [0, 0.5, 1];
  return places.map((place) => {
    if (shade.log && !shade.signed && place === 0) return { place, value: mapLogLow(shade) };
    return { place, value: mapValueAt(shade, place) };
  });
}

/**
 * The number at a place of the bar; whatever is larger has the last colour too.
 * @param {number} place
 * @param {number} value
 */
export function mapTickText(place, value) {
  return place === 1 ? `\u2265 ${numberText(value)}` : numberText(value);
}

/**
 * What the bar says in words.
 * @param {MapShade} shade
 */
export function mapBarLabel(shade) {
  const from = numberText(shade.signed ? -shade.high : shade.log ? mapLogLow(shade) : shade.low);
  const scale = shade.log ? "logarithmic" : "linear";
  const hidden = shade.threshold > 0 ? `, nothing below ${numberText(shade.threshold)}` : "";
  const sink = shade.hideSink ? ", the first key set aside" : "";
  return `Colours from ${from} to ${numberText(shade.high)} and more, ${scale}${hidden}${sink}`;
}

/** @returns {{element: HTMLElement, show: (shade: MapShade, title: string) => void}} */
export function makeMapColourBar() {
  const ramp = el("canvas", { class: "uwaga-map-ramp", width: 256, height: 1, "aria-hidden": "true" });
  const title = el("span", { class: "uwaga-map-bar-title" });
  const numbers = [0, 1, 2].map(() => el("span"));
  const element = el("div", { class: "uwaga-map-scale", role: "img" },
    title, el("div", { class: "uwaga-map-scale-body" }, ramp,
      el("div", { class: "uwaga-map-scale-numbers", "aria-hidden": "true" }, numbers)));
  let shown = -1;
  return {
    element,
    show(shade, name) {
      if (shade.version === shown && title.textContent === name) return;
      shown = shade.version;
      title.textContent = name;
      element.setAttribute("aria-label", `${name ? `${name}: ` : ""}${mapBarLabel(shade)}`);
      mapBarTicks(shade).forEach(({ place, value }, at) => { numbers[at].textContent = mapTickText(place, value); });
      ramp.getContext("2d")?.putImageData(new ImageData(new Uint8ClampedArray(shade.table), 256, 1), 0, 0);
    },
  };
}
