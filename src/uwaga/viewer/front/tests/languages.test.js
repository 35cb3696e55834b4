import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { decimalText, powerText, tr } from "../languages.js";

// What Python writes numbers and plurals by: uwaga/_base/languages/rules.json.
const tables = JSON.parse(readFileSync(new URL("../../../_base/languages/rules.json", import.meta.url), "utf-8"));

for (const [language, [decimal, group, least]] of Object.entries(tables.numbers)) {
  test(`the program and the page write numbers alike: ${language}`, () => {
    const format = new Intl.NumberFormat(language, { minimumFractionDigits: 1 });
    assert.equal(format.format(0.5), `0${decimal}5`);
    assert.equal(format.format(1234.5), least > 1 ? `1234${decimal}5` : `1${group}234${decimal}5`);
    assert.equal(format.format(12345.5), `12${group}345${decimal}5`);
    assert.equal(new Intl.NumberFormat(language, { style: "percent" }).format(0.25), "25%");
  });
}

for (const [at, language] of tables.languages.entries()) {
  test(`the program and the page count alike: ${language}`, () => {
    const form = new Function("n", `return Number(${tables.plural[at]});`);
    const rules = new Intl.PluralRules(language);
    const names = ["one", "few", "many", "other"].filter((name) => rules.resolvedOptions().pluralCategories.includes(name));
    const count = Number(/nplurals=(\d)/.exec(readFileSync(new URL(`../../../_base/languages/${language}.po`, import.meta.url), "utf-8"))?.[1]);
    for (let n = 0; n <= 200; n++) assert.equal(Math.min(names.indexOf(rules.select(n)), count - 1), form(n), String(n));
  });
}

test("a number is rounded as it is, not as its shortest decimal; nothing is minus zero", () => {
  assert.deepEqual([1.005, 0.625, -0.625, -0.001, 1e6].map((value) => decimalText(value, 2)),
    ["1.00", "0.63", "\u22120.63", "0.00", "1,000,000.00"]);
  assert.equal(powerText(-1.5e-7, 1), "\u22121.5\u00d710\u207b\u2077");
});

test("whole numbers in a message are grouped; texts are left as they are", () => {
  assert.equal(tr("{a} and {b}", { a: 1024, b: "1024" }), "1,024 and 1024");
});
