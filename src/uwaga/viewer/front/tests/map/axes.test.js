import assert from "node:assert/strict";
import { test } from "node:test";
import {
  axisLabelWidth, drawLabels, makeAxis, labelText, labelFits, ticksFor, niceStep, shortenText,
} from "../../map/axes.js";
import { countText, ordinalText } from "../../format.js";
import { cellText } from "../../map/overlay.js";

const measure = (text) => [...text].length * 6;

test("every token where there is space, every second at half the space, positions otherwise", () => {
  assert.deepEqual(ticksFor(20, 15, 30), { mode: "tokens", step: 1 });
  assert.deepEqual(ticksFor(8, 15, 30), { mode: "tokens", step: 2 });
  assert.deepEqual(ticksFor(5, 15, 30), { mode: "positions", step: 10 });
  assert.deepEqual(ticksFor(0.007, 15, 50), { mode: "positions", step: 10_000 });
  assert.deepEqual([0.3, 1, 1.1, 3, 5, 5.1, 49, 51].map(niceStep), [1, 1, 2, 5, 5, 10, 50, 100]);
});

test("long labels are shortened between grapheme clusters", () => {
  assert.equal(shortenText("short", 60, measure), "short");
  assert.equal(shortenText("a long label", 36, measure), "a lon\u2026");
  assert.equal(shortenText("e\u0301e\u0301e\u0301e\u0301", 24, measure), "e\u0301\u2026");
  assert.equal(shortenText("abc", 1, measure), "\u2026");
});

test("positions and counts as text", () => {
  assert.deepEqual([1, 2, 3, 4, 11, 12, 13, 21, 22, 103, 111].map(ordinalText),
    ["1st", "2nd", "3rd", "4th", "11th", "12th", "13th", "21st", "22nd", "103rd", "111th"]);
  assert.equal(countText(100_000), "100,000");
  assert.equal(countText(512), "512");
});

test("numbers on cells: percent in two digits, none below 1 %", () => {
  assert.deepEqual([0, 1, 0.1234, 0.0049, 0.006, -0.25, -0.0001, NaN, 1.5].map((value) => cellText(value)),
    ["", "100", "12", "", "1", "\u221225", "", "", "150"]);
});

/** A canvas context that records the positions of texts. */
function fakeContext() {
  const texts = [];
  let turned = null;
  return {
    font: "", textAlign: "left", texts,
    measureText: (text) => ({ width: measure(text) }),
    fillRect() {},
    setTransform(a, b, c, d, e, f) { turned = a === 0 ? [e, f] : null; },
    fillText(text, x, y) { texts.push(turned ? { text, x: turned[0], y: turned[1], upright: false } : { text, x, y, upright: true }); },
  };
}

const items = (labels) => ({ labels, noSpaceBefore: labels.map(() => 0), specials: new Set([0]), spans: new Int32Array(0), total: labels.length });
const style = { text: "t", muted: "m", size: 12, font: "f", strong: "s", ratio: 1 };
const drawing = (axis, more) => ({ axis, down: true, plot: { x: 60, y: 50, w: 400, h: 300 }, first: 0, scale: 20,
  total: axis.items.total, room: 60, selected: null, hovered: -1, colour: "c", ...more });

for (const scale of [3, 9, 20, 80]) {
  for (const down of [true, false]) {
    test(`labels never overlap: scale ${scale}, ${down ? "queries" : "keys"}`, () => {
      const context = fakeContext();
      const axis = makeAxis(items(Array.from({ length: 500 }, (_, i) => `token${i}`)));
      drawLabels(context, drawing(axis, { scale, down, first: 7.3, selected: 8, hovered: 9 }), style);
      const size = ({ text, upright }) => (down || !upright ? 12 : measure(text));
      const places = context.texts.map((one) => ({ at: down ? one.y : one.x, size: size(one), text: one.text })).sort((left, right) =>
        left.at - right.at);
      assert.ok(places.length > 2);
      for (let i = 1; i < places.length; i++) {
        assert.ok(places[i].at - places[i - 1].at >= (places[i].size + places[i - 1].size) / 2, `${places[i - 1].text} ${places[i].text}`);
      }
      assert.ok(context.texts.some(({ text }) => text.startsWith("token9")), "the one pointed at is always named");
    });
  }
}

test("control and bidirectional characters in labels are made visible", () => {
  const axis = makeAxis(items(["\u202eabc", "a\u0007b", "", "\u05e9"]));
  const context = fakeContext();
  assert.deepEqual([0, 1, 2, 3].map((item) => labelText(axis, item, 200, context)), ["<U+202E>abc", "a<U+0007>b", "\u2205", "\u05e9"]);
});

test("a very long label does not take the space of the map", () => {
  const axis = makeAxis(items([...Array.from({ length: 99 }, () => "word"), "x".repeat(5000)]));
  assert.equal(axisLabelWidth(axis, fakeContext()), 24 * 1.12); // room for a bold one
});

test("labels do not overlap what is already drawn", () => {
  assert.ok(labelFits(50, 10, [30, 10, 0, 0], 2));
  assert.ok(!labelFits(35, 10, [30, 10, 0, 0], 2));
  assert.ok(labelFits(35, 10, [30, 10, 0, 0], 0));
});

test("letters and Chinese characters are upright in narrow cells, special tokens beside them are not", () => {
  const read = (labels, scale, more) => {
    const context = fakeContext(), axis = makeAxis(items(labels));
    drawLabels(context, drawing(axis, { down: false, scale, ...more }), style);
    return Object.fromEntries(context.texts.map(({ text, upright }) => [text, upright]));
  };
  assert.deepEqual(read(["[CLS]", "\u732b", "\u6ca1", "\u6709"], 17), { "[CLS]": false, "\u732b": true, "\u6ca1": true, "\u6709": true });
  assert.deepEqual(read(["[CLS]", "a", "b"], 20, { selected: 1 }), { "[CLS]": false, a: true, b: true });
  assert.deepEqual(read(["[CLS]", "a", "word"], 20), { "[CLS]": false, a: false, word: false });
});
