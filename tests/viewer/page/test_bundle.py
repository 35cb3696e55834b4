"""The front end's modules joined into one script: order and exports; and the title of the page."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from uwaga.viewer.page.bundle import FRONT, bundle, join, pack
from uwaga.viewer.page.html import page_title

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


@pytest.mark.slow
def test_the_bundled_script_does_the_same_as_the_modules(tmp_path: Path) -> None:
    folder = write(
        tmp_path / "front",
        main__js="""// A comment.
import { deep, DEEPER as deeper } from "./inner/deep.js";
import {
  base,
  Thing,
} from "./base.js";
const hidden = `import { a } from './b.js'; ${base()}`; // stays
/** A comment
 * of lines. */
export async function start(/** @type {number} */ more) {
  return [hidden, deep(), deeper, new Thing().name(), more].join("|");
}
""",
        inner_deep__js='import { base } from "../base.js";\nconst hidden = base();\nexport function deep() { return hidden + "!"; }\nexport const DEEPER = 1;\n',
        base__js='export function base() { return "base"; }\nexport class Thing { name() { return "thing"; } }\n',
    )
    joined = join(folder)
    said = node(joined.modules + f"\nconsole.log(await {joined.main}.start(5));", tmp_path)
    assert said == "import { a } from './b.js'; base|base!|1|thing|5\n"
    assert re.findall(r"^// .*", joined.modules, re.MULTILINE) == ["// base.js", "// inner/deep.js", "// main.js"]
    assert ("// stays" in joined.modules, "A comment" in joined.modules, "@type" in joined.modules) == (
        True,
        False,
        False,
    )


@pytest.mark.slow
@pytest.mark.parametrize("lesson", [False, True])
def test_the_front_end_exports_what_node_sees(tmp_path: Path, *, lesson: bool) -> None:
    joined = bundle(FRONT, lesson=lesson)
    constants = dict(re.findall(r"^// ([\w/]+\.js)\nconst (\$m\d+) = ", joined.modules, re.MULTILINE))
    of_lesson = {path.relative_to(FRONT).as_posix() for path in (FRONT / "lesson").glob("*.js")}
    assert (set(constants) & of_lesson, "lesson-" in joined.css) == (of_lesson if lesson else set(), lesson)
    describe = "(module) => Object.entries(module).map(([name, value]) => [name, typeof value, typeof value === 'function' ? value.name : JSON.stringify(value)]).sort()"
    ours = ", ".join(f"{json.dumps(name)}: {constant}" for name, constant in constants.items())
    theirs = ", ".join(f"{json.dumps(name)}: await import({json.dumps((FRONT / name).as_uri())})" for name in constants)
    script = f"{joined.modules}\nconst describe = {describe};\n"
    script += f"const [ours, theirs] = [{{ {ours} }}, {{ {theirs} }}].map((modules) => Object.entries(modules).map(([name, module]) => [name, describe(module)]));\n"
    found, expected = json.loads(node(script + "console.log(JSON.stringify([ours, theirs]));", tmp_path))
    assert found == expected
    assert sum(len(exports) for _, exports in found) > 200
    (tmp_path / "widget.mjs").write_text(joined.script("widget"))
    assert node('import it from "./widget.mjs"; console.log(Object.keys(it));', tmp_path) == "[ 'render' ]\n"


@pytest.mark.slow
def test_the_lesson_is_bundled_only_where_it_is_asked_for(tmp_path: Path) -> None:
    start = """import { shared } from "./shared.js";
export function startPage(root, lesson) { root.said = lesson ? lesson() : shared; }
export function render() {}
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
            assert (
                node(page + joined.script(host) + "\nconsole.log(root.id, root.said);", tmp_path) == f"uwaga {said}\n"
            )
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


def test_the_front_end_has_what_an_inline_script_and_style_may_have_alone() -> None:
    """A circular import would never end the bundle; an import or export of another form would stay in it, which is no JavaScript."""
    for lesson in (False, True):
        joined = bundle(FRONT, lesson=lesson)
        assert not re.search(r"</script|<!--", joined.modules, re.IGNORECASE)
        assert not re.search(r"^(?:import|export)\b", joined.modules, re.MULTILINE)
        assert not re.search(r"</style|@import|url\(\s*[\"']?(?!data:|#)", joined.css, re.IGNORECASE)


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


@pytest.mark.parametrize(
    ("title", "shown"),
    [
        ("a text", "a text - uwaga"),
        ("  a\n text\t", "a text - uwaga"),
        ("a\u202etext\u0000", "a text - uwaga"),
        ("\u200b", "uwaga"),
        ("", "uwaga"),
        ("żółw 🐢", "żółw 🐢 - uwaga"),
        ("x" * 300, "x" * 200 + " - uwaga"),
    ],
)
def test_a_title_is_one_line_without_control_and_bidirectional_characters(title: str, shown: str) -> None:
    assert page_title(title) == shown
