import assert from "node:assert/strict";
import { test } from "node:test";
import { numberText, percentText, weightText } from "../format.js";
import { sliderToWeight, weightToSlider } from "../shell/header.js";
import { tokenText } from "../dom.js";

test("numbers with four digits; null, NaN and infinity", () => {
  assert.deepEqual([0, 0.5, -0.12345, 12.345, 123.45, 1e-5, 2e6, null, NaN, -Infinity].map(numberText),
    ["0", "0.5000", "\u22120.1235", "12.35", "123.5", "1.00\u00d710\u207b\u2075", "2.00\u00d710\u2076", "\u2013", "\u2013", "\u2212\u221e"]);
});

test("slider steps convert to weights and back", () => {
  assert.equal(sliderToWeight(0), 0);
  assert.equal(sliderToWeight(100), 1);
  for (let step = 0; step <= 100; step++) assert.equal(weightToSlider(sliderToWeight(step)), Math.max(step, 0));
});

test("control and bidirectional characters of a token are made visible", () => {
  assert.equal(tokenText("able"), "able");
  assert.equal(tokenText(""), "\u2205");
  assert.equal(tokenText("a\u0007b\n"), "a<U+0007>b\u21b5");
  assert.equal(tokenText("\u202eabc"), "<U+202E>abc");
  assert.equal(tokenText("\u200b\u{e0001}"), "<U+200B><U+E0001>");
  assert.equal(tokenText(" the "), "\u2423the\u2423");
  assert.equal(tokenText("<script>"), "<script>");
  assert.equal(tokenText("\u05e9\u{1f600}"), "\u05e9\u{1f600}");
  assert.equal(tokenText("\ud800"), "<U+D800>");
});

test("percent to a tenth", () => {
  assert.deepEqual([0, 1, 0.9977, 0.9998, 0.594, 0.0996, 0.0344, 0.01, 0.0004, -0.25, NaN, null].map(percentText),
    ["0%", "100%", "99.8%", ">99.9%", "59.4%", "10%", "3.4%", "1%", "<0.1%", "\u221225%", "\u2013", "\u2013"]);
});

test("weights are shown with six digits", () => {
  assert.equal(weightText(0.123456789), "0.123457");
  assert.equal(weightText(0.000012345678), "1.23457\u00d710\u207b\u2075");
  assert.equal(weightText(0), "0");
  assert.equal(weightText(NaN), "not known yet");
});
