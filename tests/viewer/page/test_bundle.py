"""The front end's modules bundled into one script: order, removed syntax, and errors with file and line."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from uwaga.viewer.page.bundle import FRONT, BundleError, bundle, join, pack

START = """export function startPage(root) { root.said = "page"; }
export function render({ model, el }) { el.said = model.name; return () => {}; }
"""


def write(folder: Path, **files: str) -> Path:
    """Writes files given by keyword, with _ for / and __ for the dot; adds a main.js where none is given."""
    for name, text in {"main__js": START, **files}.items():
        path = folder / name.replace("__", ".").replace("_", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def node(script: str, tmp_path: Path) -> str:
    """The output of a module that is run by node."""
    if shutil.which("node") is None:
        pytest.skip("there is no node")
    file = tmp_path / "script.mjs"
    file.write_text(script)
    done = subprocess.run(["node", str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


TRICKY = r"""
import { deep, DEEPER } from "./inner/deep.js";
import {
  base,
  Thing,
} from "./base.js";

/** import { not } from "./there.js"; @param {import("./types.js").Name} a */
const quoted = "import { a } from './b.js'; export const c = 1; { ` /* ";
const template = `${quoted} { ${[1, 2].map((x) => `<${x}>`).join("")} export function fake() {}
export const alsoFake = 1; // not a comment
`;
const pattern = /["'`{]\/[/"]import/g, divided = 8 / 2 / 2, other = [1 / 1, 2];
let counter = 0;
export async function start(root) {
  const base = "inner";  // a local name may be any
  counter += divided + other.length;
  return [template, pattern.source, base, deep(), DEEPER, new Thing().name(), counter].join("|");
}
class Hidden { export() { return this.import; } }
"""


@pytest.mark.slow
def test_the_bundled_script_does_the_same_as_the_modules(tmp_path: Path) -> None:
    folder = write(
        tmp_path / "front",
        main__js=TRICKY,
        inner_deep__js='import { base } from "../base.js";\nexport function deep() { return base() + "!"; }\nexport const DEEPER = base;\n',
        base__js='export function base() { return "base"; }\nexport class Thing { name() { return "thing"; } }\n',
    )
    joined = join(folder)
    assert "import {" not in joined.modules.replace("import { not }", "").replace("import { a }", "")
    said = node(joined.modules + "\nconsole.log(await start());", tmp_path)
    template = "import { a } from './b.js'; export const c = 1; { ` /*  { <1><2> export function fake() {}\nexport const alsoFake = 1; // not a comment\n"
    assert said == template + '|["\'`{]\\/[/"]import|inner|base!|function base() { return "base"; }|thing|4\n'
    assert [line for line in joined.modules.splitlines() if line.startswith("// ") and line.endswith(".js")] == [
        "// base.js", "// inner/deep.js", "// main.js",
    ]  # fmt: skip


def test_comments_are_left_out_wherever_they_stand(tmp_path: Path) -> None:
    lines = ("// a line", "const a = /** @type {any} */ (1), b = 2; // behind", "const c = a/* between */ / b;", "/** whole", " * lines */",
             'export function f(/** @type {number} */ x) { return/* */ x + "// no /* comment"; }')  # fmt: skip
    assert join(write(tmp_path / "front", main__js="\n".join(lines))).modules == (
        '// main.js\nconst a = (1), b = 2;\nconst c = a / b;\nfunction f(x) { return x + "// no /* comment"; }\n'
    )


@pytest.mark.slow
def test_each_host_has_an_entry_point(tmp_path: Path) -> None:
    joined = join(write(tmp_path / "front"))
    page = "globalThis.document = { getElementById: (id) => (globalThis.root = { id }) };\n"
    for host in ("served", "saved"):
        assert node(page + joined.script(host) + "\nconsole.log(root.id, root.said);", tmp_path) == "uwaga page\n"
    (tmp_path / "widget.mjs").write_text(joined.script("widget"))
    used = """import it from "./widget.mjs";
const el = {};
const end = await it.render({ model: { name: "widget" }, el });
console.log(el.said, typeof end);"""
    assert node(used, tmp_path) == "widget function\n"


@pytest.mark.slow
def test_the_lesson_is_bundled_only_where_it_is_asked_for(tmp_path: Path) -> None:
    start = """import { shared } from "./shared.js";
export function startPage(root, lesson) { root.said = lesson ? lesson() : shared; }
export function render({ el }, lesson) { el.said = lesson ? lesson() : shared; }
"""
    folder = write(
        tmp_path / "front",
        main__js=start,
        shared__js='export const shared = "shared";\n',
        lesson_view__js='import { shared } from "../shared.js";\nexport function lessonView() { return "lesson, " + shared; }\n',
        lesson_lesson__css=".uwaga .lesson {}\n",
        map_map__css=".uwaga .map {}\n",
    )
    page = "globalThis.document = { getElementById: (id) => (globalThis.root = { id }) };\n"
    for lesson, said in ((False, "shared"), (True, "lesson, shared")):
        joined = join(folder, lesson=lesson)
        for host in ("served", "saved"):
            assert node(page + joined.script(host) + "\nconsole.log(root.said);", tmp_path) == f"{said}\n"
        (tmp_path / "widget.mjs").write_text(joined.script("widget"))
        used = 'import it from "./widget.mjs";\nconst el = {};\nit.render({ el });\nconsole.log(el.said);'
        assert node(used, tmp_path) == f"{said}\n"
        assert joined.modules.count("// shared.js") == 1
        assert ("lesson" in joined.modules, ".lesson" in joined.css, ".map" in joined.css) == (True, lesson, True)
        assert ("// lesson/view.js" in joined.modules) == lesson


def test_styles_are_joined_with_the_base_styles_first(tmp_path: Path) -> None:
    folder = write(
        tmp_path / "front",
        map_map__css=".uwaga .map {}\n",
        shell_base__css=".uwaga { --bg: #fff; }\n",
        tests_fake__css="no",
    )
    assert join(folder).css == ("/* shell/base.css */\n.uwaga { --bg: #fff; }\n\n/* map/map.css */\n.uwaga .map {}\n")


def test_a_changed_file_is_bundled_again(tmp_path: Path) -> None:
    import os

    folder = write(tmp_path / "front")
    first = bundle(folder)
    assert bundle(folder) is first
    (folder / "main.js").write_text(START + "const more = 1;\n")
    os.utime(folder / "main.js", ns=(1, 1))
    assert "const more" in bundle(folder).modules


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"main__js": 'import all from "./b.js";\n'}, 'main.js:1: unsupported import: only import { a, b } from "./module.js"; is allowed'),
        ({"main__js": '\nimport * as b from "./b.js";\n'}, 'main.js:2: unsupported import: only import { a, b } from "./module.js"; is allowed'),
        ({"main__js": 'import { a as b } from "./b.js";\n'}, 'main.js:1: unsupported import: only import { a, b } from "./module.js"; is allowed'),
        ({"main__js": 'import "./b.js";\n'}, 'main.js:1: unsupported import: only import { a, b } from "./module.js"; is allowed'),
        ({"main__js": 'import { a } from "d3";\n'}, 'main.js:1: unsupported import: only import { a, b } from "./module.js"; is allowed'),
        ({"main__js": "export default 1;\n"}, "main.js:1: unsupported export: only export function, class, const and let are allowed"),
        ({"main__js": 'export { a } from "./b.js";\n'}, "main.js:1: unsupported export: only export function, class, const and let are allowed"),
        ({"main__js": 'export * from "./b.js";\n'}, "main.js:1: unsupported export: only export function, class, const and let are allowed"),
        ({"main__js": 'function f() {\n  return import("./b.js");\n}\n'}, "main.js:2: dynamic import and import.meta are not allowed"),
        ({"main__js": "const here = import.meta.url;\n"}, "main.js:1: import is not allowed at the top level, nor dynamic import or import.meta"),
        ({"main__js": "const a = 1;\nawait a;\n"}, "main.js:2: await is not allowed at the top level, nor dynamic import or import.meta"),
        ({"main__js": "const { a, b } = c;\n"}, "main.js:1: destructuring is not allowed at the top level"),
        ({"main__js": "const a = 1,\n  b = 2;\nfunction b() {}\n"}, "main.js:3: b is declared twice"),
        ({"main__js": "// </script>\nconst a = '</script>'; // </script>\n"}, "main.js:2: '</script' would end the inline script element; split the string"),
        ({"main__js": '\nconst a = "<!--";\n'}, "main.js:2: '<!--' would end the inline script element; split the string"),
        ({"main__js": 'import { a } from "./gone.js";\n'}, "main.js:1: module gone.js does not exist"),
        ({"main__js": 'import { a } from "../up.js";\n'}, "main.js:1: ../up.js is outside of the front end"),
        (
            {"main__js": 'import { a } from "./b.js";\n', "b__js": "const a = 1;\n"},
            "main.js:1: b.js does not export a",
        ),
        (
            {"main__js": 'import { b } from "./b.js";\n', "b__js": '\nimport { c } from "./c.js";\nexport const b = 1;\n',
             "c__js": 'import { b } from "./b.js";\nexport const c = 1;\n'},
            "c.js:1: circular import: b.js -> c.js -> b.js",
        ),
        (
            {"main__js": 'import { b } from "./b.js";\nfunction clamp() {}\n', "b__js": "export const b = 1;\n\nconst clamp = 2;\n"},
            "main.js:2: clamp is declared at b.js:3 too; top-level names are unique over all modules",
        ),
        ({"a__css": "\n@import 'b.css';"}, "a.css:2: '@import': style sheets must not load anything or end their element"),
        ({"a__css": ".uwaga { background: url(x.png); }"}, "a.css:1: 'url(': style sheets must not load anything or end their element"),
        ({"a__css": "/* </style> */"}, "a.css:1: '</style': style sheets must not load anything or end their element"),
    ],
    ids=lambda x: "",
)  # fmt: skip
def test_unsupported_javascript_is_refused_with_file_and_line(
    tmp_path: Path, files: dict[str, str], message: str
) -> None:
    folder = write(tmp_path / "front", **files)
    with pytest.raises(BundleError) as caught:
        join(folder)
    assert str(caught.value) == message


@pytest.mark.slow
@pytest.mark.parametrize("lesson", [False, True])
def test_the_front_end_of_the_package_can_be_bundled(tmp_path: Path, *, lesson: bool) -> None:
    joined = bundle(FRONT, lesson=lesson)
    file = tmp_path / "all.mjs"
    file.write_text(joined.script("widget"))
    if shutil.which("node") is not None:
        subprocess.run(["node", "--check", str(file)], check=True)
    assert ".uwaga" in joined.css
    assert ("lesson-" in joined.css) == lesson
    modules = re.findall(r"^// ([\w/]+\.js)$", joined.modules, re.MULTILINE)
    of_lesson = {path.relative_to(FRONT).as_posix() for path in (FRONT / "lesson").glob("*.js")}
    assert set(modules) & of_lesson == (of_lesson if lesson else set())


def test_the_page_of_a_text_is_no_larger_than_it_was_when_it_held_the_lesson() -> None:
    assert len(bundle(FRONT).script("served").encode()) <= 539_936


def test_a_class_is_laid_out_by_one_style_sheet() -> None:
    """All sheets are one page's: two screens that share a class would have each other's layout. A screen may change what is inside it."""
    sheets: dict[str, set[str]] = {}
    for path in FRONT.rglob("*.css"):
        if "node_modules" in path.parts:
            continue
        text = re.sub(r"/\*.*?\*/", "", path.read_text(), flags=re.DOTALL)
        for selectors in re.findall(r"([^{}]+)\{", text):
            for selector in re.split(r",(?![^()]*\))", selectors):
                first = re.match(r"\s*\.uwaga\s+\.([\w-]+)(?!\S*:has\()", selector)
                if first is not None:
                    sheets.setdefault(first[1], set()).add(path.relative_to(FRONT).as_posix())
    assert {name: found for name, found in sheets.items() if len(found) > 1} == {}
    assert len(sheets) > 100


def test_a_packed_front_end_bundles_to_the_same(tmp_path: Path) -> None:
    folder = write(
        tmp_path / "front",
        main__js='// A reason.\nimport { one } from "./one.js"; // and another\nexport const main = one;\n',
        one__js="export const one = 1;\n",
        lesson_view__js="export const lessonView = 1;\n",
    )
    (folder / "page.css").write_text("a { color: red; }\n")
    packed = tmp_path / "front.json.bz2"
    pack(packed, folder)
    for lesson in (False, True):
        assert bundle(packed, lesson=lesson) == bundle(folder, lesson=lesson)
