"""Joins the front end's modules into one script, and its style sheets into one.

Each module becomes a function that returns its exports, so the source is the script: no build step and no Node for `pip install`,
readable in the browser's debugger, and a changed module is served at the next load of the page. Two anchored expressions read imports
and exports; a test compares the exports with those that Node sees. Types and comments that are whole lines are left out.

There are two bundles: the explorer, and the explorer with the lesson, a third more, which only a page that shows the lesson needs.

`python bundle.py FILE`, which CMakeLists.txt runs for a wheel, packs the modules without comments and the style sheets into one
file: it has an eighth of their size, and two thirds of what they take in a wheel one by one.
"""

import bz2
import json
import posixpath
import re
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

FRONT = Path(__file__).parents[1] / "front"
_PACKED = FRONT.with_suffix(".json.bz2")  # in place of the folder, in a wheel
_EXCLUDED = ("tests", "node_modules")  # folders that no page needs
_FIRST_SHEET = "shell/base.css"  # custom properties that the other sheets use
_LESSON = "lesson/view.js"  # whose view main.js is given

HostName = Literal["served", "saved", "widget"]

_IMPORT = re.compile(r'^import \{([^}]*)\} from "(\.[^"]+)";', re.MULTILINE)
_EXPORT = re.compile(r"^export ((?:async )?(?:function\*?|class|const) ([\w$]+))", re.MULTILINE)
# Whole lines, and types within a line.
_COMMENT = re.compile(
    r"^[ \t]*(?://.*|/\*(?:(?!\*/)[\s\S])*\*/[ \t]*)\n|/\*\* @(?:type|param)\b[^\n]*?\*/ ?", re.MULTILINE
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """The front end, bundled."""

    modules: str  # a constant for each module; `script` adds what runs
    css: str
    main: str  # the constants of main.js, and of the lesson's view
    lesson: str | None

    def script(self, host: HostName) -> str:
        """Return one ES module for a host; that of a notebook exports what anywidget calls."""
        view = f", {self.lesson}.lessonView" if self.lesson else ""
        page = f'{self.main}.startPage(document.getElementById("uwaga"){view});\n'
        widget = f"export default {{ render: (context) => {self.main}.render(context{view}) }};\n"
        return f"{self.modules}\n{widget if host == 'widget' else page}"


_cache: dict[tuple[Path, bool], tuple[object, Bundle]] = {}
_lock = threading.Lock()


def bundle(folder: Path | None = None, *, lesson: bool = False) -> Bundle:
    """Return the bundle of a folder or a packed file, cached until a file changes.

    folder: None for the front end of this package.
    """
    if folder is None:
        folder = FRONT if FRONT.is_dir() else _PACKED
    key = (folder, lesson)
    state = tuple((path, path.stat().st_mtime_ns) for path in _files(folder))
    with _lock:
        if key not in _cache or _cache[key][0] != state:
            _cache[key] = (state, join(folder, lesson=lesson))
        return _cache[key][1]


def join(folder: Path, *, lesson: bool = False) -> Bundle:
    """Join the modules that main.js reaches, and the style sheets; with `lesson` also those of the lesson.

    Each module comes after its own imports.
    """
    texts = _texts(folder)
    ordered = _ordered(texts, ["main.js", *([_LESSON] if lesson else [])])
    constants = {name: f"$m{n}" for n, name in enumerate(ordered)}
    exported = {name: [match[2] for match in _EXPORT.finditer(text)] for name, text in ordered.items()}
    parts = []
    for name, text in ordered.items():

        def constant(match: re.Match[str], name: str = name) -> str:
            return f"const {{{match[1].replace(' as ', ': ')}}} = {constants[_target(name, match[2])]};"

        code = _EXPORT.sub(r"\1", _IMPORT.sub(constant, text)).rstrip("\n")
        parts.append(
            f"// {name}\nconst {constants[name]} = (() => {{\n{code}\nreturn {{ {', '.join(exported[name])} }};\n}})();\n"
        )
    return Bundle(
        modules="".join(parts),
        css=_styles(texts, lesson=lesson),
        main=constants["main.js"],
        lesson=constants[_LESSON] if lesson else None,
    )


def pack(target: Path, folder: Path = FRONT) -> None:
    """Write one file that bundles to the same as a folder, without comments."""
    texts = _texts(folder)
    kept = _ordered(texts, ["main.js", _LESSON])
    kept |= {name: text for name, text in texts.items() if name.endswith(".css")}
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(bz2.compress(json.dumps(kept, ensure_ascii=False).encode()))


def _texts(folder: Path) -> dict[str, str]:
    """Return modules and style sheets by their paths from the front end's folder."""
    if folder.is_file():
        return dict(json.loads(bz2.decompress(folder.read_bytes())))
    return {path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8") for path in _files(folder)}


def _ordered(texts: Mapping[str, str], roots: list[str]) -> dict[str, str]:
    """Return the modules that the roots import, without comments, each after its own imports."""
    result: dict[str, str] = {}

    def visit(name: str) -> None:
        if name not in result:
            text = _COMMENT.sub("", texts[name])
            for match in _IMPORT.finditer(text):
                visit(_target(name, match[2]))
            result[name] = text

    for root in roots:
        visit(root)
    return result


def _target(name: str, written: str) -> str:
    """Return the path of an imported module from the front end's folder."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(name), written))


def _styles(texts: Mapping[str, str], *, lesson: bool) -> str:
    names = [name for name in texts if name.endswith(".css")]
    names = [name for name in names if lesson or PurePosixPath(name).parent != PurePosixPath(_LESSON).parent]
    names.sort(key=lambda name: (name != _FIRST_SHEET, name))
    return "\n".join(f"/* {name} */\n{texts[name].strip()}\n" for name in names)


def _files(folder: Path) -> list[Path]:
    if folder.is_file():
        return [folder]
    result = (path for path in folder.rglob("*") if path.suffix in (".js", ".css"))
    return sorted(path for path in result if not set(path.relative_to(folder).parts) & set(_EXCLUDED))


if __name__ == "__main__":
    pack(Path(sys.argv[1]))
