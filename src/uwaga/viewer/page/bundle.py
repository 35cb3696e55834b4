"""Bundles the front end: its JavaScript modules into one script, and its style sheets into one.

Why not esbuild at build time: `pip install` from a checkout or a source distribution would then need Node, or a second way to
serve the page without it; and here the script is the source, readable in the browser's debugger without source maps, and a
changed module is served at the next load of the page, without a watcher. No parser of JavaScript is needed, since the modules
keep to a subset of the language that `front/README.md` describes: imports and exports in their plainest forms, and top-level
names that are unique over all modules. Anything else is an error with its file and line. Comments are left out.

There are two bundles: the explorer, and the explorer with the lesson, a third more, which only a page that shows the lesson needs.

`python bundle.py FILE`, which CMakeLists.txt runs for a wheel, packs the modules without comments and the style sheets into one
file: it has an eighth of their size, and two thirds of what they take in a wheel one by one.
"""

import bz2
import json
import re
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal, NamedTuple

FRONT = Path(__file__).parents[1] / "front"
_PACKED = FRONT.with_suffix(".json.bz2")  # in place of the folder, in a wheel
_EXCLUDED = ("tests", "node_modules")  # folders that no page needs
_FIRST_SHEET = "shell/base.css"  # custom properties that the other sheets use

# What main.js offers its hosts: a page starts itself; in a notebook anywidget calls the module's default export.
_PAGE = 'startPage(document.getElementById("uwaga"));\n'
_ENTRIES = {"served": _PAGE, "saved": _PAGE, "widget": "export default { render };\n"}
# The same with the lesson, whose view main.js is given.
_LESSON = "lesson/view.js"
_LESSON_PAGE = 'startPage(document.getElementById("uwaga"), lessonView);\n'
_LESSON_WIDGET = "export default { render: (context) => render(context, lessonView) };\n"
_LESSON_ENTRIES = {"served": _LESSON_PAGE, "saved": _LESSON_PAGE, "widget": _LESSON_WIDGET}

HostName = Literal["served", "saved", "widget"]


_NAME = r"[A-Za-z_$][\w$]*"
_IMPORT = re.compile(rf"import\s*\{{\s*({_NAME}(?:\s*,\s*{_NAME})*\s*,?)\s*\}}\s*from\s*", re.DOTALL)
_PATH = re.compile(r"""(["'])(\./|\.\./)([^"'\n]+\.js)\1\s*;""")
_DECLARED = rf"(?:(?:async\s+)?(?:function\s*\*?|class)\s+({_NAME})|(?:const|let|var)\s+({_NAME}))"
_EXPORTED = re.compile(rf"export\s+({_DECLARED})")
_STATEMENT = re.compile(r"^(?:export|import|async|function|class|const|let|var)\b", re.MULTILINE)
_NEXT = re.compile(rf",\s*({_NAME})\s*(?==|,|;)")
_BRACKET = re.compile(r"[()\[\]{}]")
_NOT_A_LINE = re.compile(r"[^\n]")

# What a slash may follow to begin a regular expression: an operator or one of these words. Elsewhere it divides.
_BEFORE_REGEX = re.compile(r"(?:^|[(,=:\[!&|?{};+\-*%~^<>]|\b(?:return|typeof|case|in|of|delete|void|yield|await))\s*$")
_TOKENS = re.compile(
    r"""(?P<comment>//[^\n]*|/\*.*?\*/)|(?P<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')|(?P<quote>`)|(?P<slash>/)"""
    r"|(?P<open>\{)|(?P<close>\})",
    re.DOTALL,
)
_REGEX = re.compile(r"/(?![*/])(?:[^/\\\[\n]|\\.|\[(?:[^\]\\\n]|\\.)*\])+/[A-Za-z]*")
_TEMPLATE = re.compile(r"(?:[^`\\$]|\\.|\$(?!\{))*", re.DOTALL)


class BundleError(ValueError):
    """The front end cannot be bundled: a module is outside of the subset of JavaScript that is supported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """The front end, bundled."""

    modules: str  # declarations only; `script` adds what runs
    css: str
    lesson: bool

    def script(self, host: HostName) -> str:
        """One ES module for a host: a served page, a saved page, or an anywidget (with a default export)."""
        return f"{self.modules}\n{(_LESSON_ENTRIES if self.lesson else _ENTRIES)[host]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Import:
    """`import { names } from "target";`"""

    names: tuple[str, ...]
    target: str  # as written, relative to the module
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Module:
    """A module's code as it goes into the bundle, and its imports, top-level names and exports."""

    name: str  # path from the front end's folder
    code: str  # without imports, and without the word export
    imports: tuple[_Import, ...]
    declared: dict[str, int]  # top-level names and their lines
    exported: frozenset[str]


_cache: dict[tuple[Path, bool], tuple[object, Bundle]] = {}
_lock = threading.Lock()


def bundle(folder: Path | None = None, *, lesson: bool = False) -> Bundle:
    """The bundle of a folder or a packed file, cached until a file changes. None: the front end of this package.

    Raises BundleError.
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
    """All modules that main.js reaches, with the lesson also those of its view, each after those that it imports, and all style
    sheets, those of the lesson only with it. Raises BundleError."""
    texts = _texts(folder)
    ordered = _ordered(folder, texts, ["main.js", *([_LESSON] if lesson else [])])
    _check_unique_names(ordered)
    parts = [f"// {each.name}\n{each.code}" for each in ordered]
    return Bundle(modules="\n".join(parts), css=_styles(texts, lesson=lesson), lesson=lesson)


def pack(target: Path, folder: Path = FRONT) -> None:
    """Write one file with the modules of both bundles, without comments, and the style sheets; it bundles to the same. Raises BundleError."""
    texts = _texts(folder)
    modules = [each.name for each in _ordered(folder, texts, ["main.js", _LESSON])]
    kept = {name: _Scanner(name, texts[name]).without_comments() for name in modules}
    kept |= {name: text for name, text in texts.items() if name.endswith(".css")}
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(bz2.compress(json.dumps(kept, ensure_ascii=False).encode()))


def _texts(folder: Path) -> dict[str, str]:
    """Modules and style sheets by their paths from the front end's folder."""
    if folder.is_file():
        return dict(json.loads(bz2.decompress(folder.read_bytes())))
    return {path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8") for path in _files(folder)}


def _ordered(folder: Path, texts: Mapping[str, str], roots: list[str]) -> list[_Module]:
    modules: dict[str, _Module] = {}
    done: list[_Module] = []

    def visit(name: str, importers: tuple[str, ...], where: str) -> _Module:
        if name in importers:
            around = " -> ".join((*importers[importers.index(name) :], name))
            raise BundleError(f"{where}: circular import: {around}")
        if name in modules:
            return modules[name]
        if name not in texts:
            raise BundleError(f"{where}: module {name} does not exist")
        result = _scan(name, texts[name])
        for each in result.imports:
            where = f"{name}:{each.line}"
            target = visit(_target(name, each.target, where), (*importers, name), where)
            for wanted in each.names:
                if wanted not in target.exported:
                    raise BundleError(f"{where}: {target.name} does not export {wanted}")
        modules[name] = result
        done.append(result)
        return result

    for root in roots:
        visit(root, (), str(folder))
    return done


def _target(name: str, written: str, where: str) -> str:
    """The path of an imported module from the front end's folder."""
    parts: list[str] = list(PurePosixPath(name).parent.parts)
    for part in written.split("/"):
        if part == "..":
            if not parts:
                raise BundleError(f"{where}: {written} is outside of the front end")
            parts.pop()
        elif part != ".":
            parts.append(part)
    return "/".join(parts)


def _check_unique_names(modules: list[_Module]) -> None:
    """In the bundle all modules share one scope."""
    homes: dict[str, str] = {}
    for each in modules:
        for name, line in each.declared.items():
            here = f"{each.name}:{line}"
            if name in homes:
                raise BundleError(
                    f"{here}: {name} is declared at {homes[name]} too; top-level names are unique over all modules"
                )
            homes[name] = here


def _styles(texts: Mapping[str, str], *, lesson: bool) -> str:
    names = [name for name in texts if name.endswith(".css")]
    names = [name for name in names if lesson or PurePosixPath(name).parent != PurePosixPath(_LESSON).parent]
    names.sort(key=lambda name: (name != _FIRST_SHEET, name))
    parts = []
    for name in names:
        text = texts[name]
        for match in re.finditer(r"</style|@import|url\(\s*[\"']?(?!data:|#)", text, re.IGNORECASE):
            line = text.count("\n", 0, match.start()) + 1
            raise BundleError(f"{name}:{line}: {match[0]!r}: style sheets must not load anything or end their element")
        parts.append(f"/* {name} */\n{text.strip()}\n")
    return "\n".join(parts)


def _files(folder: Path) -> list[Path]:
    if folder.is_file():
        return [folder]
    result = (path for path in folder.rglob("*") if path.suffix in (".js", ".css"))
    return sorted(path for path in result if not set(path.relative_to(folder).parts) & set(_EXCLUDED))


def _scan(name: str, text: str) -> _Module:
    """Raises BundleError."""
    return _Scanner(name, text).module()


class _Scanner:
    def __init__(self, name: str, text: str) -> None:
        self.name, self.text = name, text
        self.masked, comments = _mask(text)
        self.flat = _top_level(self.masked)
        self.comments = [_whole_lines(text, *comment) or _in_line(text, *comment) for comment in comments]
        self.cuts = list(self.comments)
        self.imports: list[_Import] = []
        self.declared: dict[str, int] = {}
        self.exported: set[str] = set()

    def without_comments(self) -> str:
        """The text with its imports and exports."""
        return self._without(self.comments)

    def module(self) -> _Module:
        self._refuse_dynamic()
        for match in re.finditer(r"(?<![\w$.])(import|export)\b", self.flat):
            (self._import if match[1] == "import" else self._export)(match.start())
        for at, name in self._declarations():
            if name in self.declared:
                raise self._error(at, f"{name} is declared twice")
            self.declared[name] = self._line(at)
        return _Module(
            name=self.name,
            code=self._without(self.cuts),
            imports=tuple(self.imports),
            declared=self.declared,
            exported=frozenset(self.exported),
        )

    def _refuse_dynamic(self) -> None:
        for match in re.finditer(r"\bimport\s*[(.]|\bawait\b", self.flat):
            word = match[0].rstrip("(. ")
            raise self._error(
                match.start(), f"{word} is not allowed at the top level, nor dynamic import or import.meta"
            )
        for match in re.finditer(r"(?<![\w$.])import\s*\(|(?<![\w$])import\s*\.\s*meta\b", self.masked):
            raise self._error(match.start(), "dynamic import and import.meta are not allowed")

    def _import(self, at: int) -> None:
        head = _IMPORT.match(self.masked, at)
        path = head and _PATH.match(self.text, head.end())
        if not head or not path:
            raise self._error(at, 'unsupported import: only import { a, b } from "./module.js"; is allowed')
        names = tuple(each.strip() for each in head[1].split(",") if each.strip())
        self.imports.append(_Import(names=names, target=path[2] + path[3], line=self._line(at)))
        self.cuts.append((at, path.end()))

    def _export(self, at: int) -> None:
        what = _EXPORTED.match(self.masked, at)
        if what is None:
            raise self._error(at, "unsupported export: only export function, class, const and let are allowed")
        self.exported.add(what[2] or what[3])
        self.cuts.append((at, what.start(1)))

    def _declarations(self) -> Iterator[tuple[int, str]]:
        """Offset and name of each top-level declaration."""
        flat = self.flat
        for result in re.finditer(r"(?<![\w$.])(?:const|let|var)\s*[\[{]", flat):
            raise self._error(result.start(), "destructuring is not allowed at the top level")
        for result in re.finditer(rf"(?<![\w$.]){_DECLARED}", flat):
            if result[1] is not None and _is_expression(flat, result.start()):
                continue
            yield result.start(), result[1] or result[2]
            if result[2] is not None:
                yield from _others(flat, result.end())

    def _without(self, cuts: list[tuple[int, int]]) -> str:
        """The text without these ranges; it can be put into an inline script element."""
        kept, place = [], 0
        for start, stop in sorted([*cuts, (len(self.text), len(self.text))]):
            for output in re.finditer(r"</script|<!--", self.text[place:start], re.IGNORECASE):
                what = "would end the inline script element; split the string"
                raise self._error(place + output.start(), f"{output[0]!r} {what}")
            kept.append(self.text[place:start])
            place = stop
        return "".join(kept).strip("\n") + "\n"

    def _error(self, at: int, message: str) -> BundleError:
        return BundleError(f"{self.name}:{self._line(at)}: {message}")

    def _line(self, at: int) -> int:
        return self.text.count("\n", 0, at) + 1


def _whole_lines(text: str, start: int, stop: int) -> tuple[int, int] | None:
    """The range of the whole lines of a comment, if nothing else is on them."""
    begin, end = text.rfind("\n", 0, start) + 1, text.find("\n", stop)
    end = len(text) if end < 0 else end + 1
    return None if text[begin:start].strip() or text[stop:end].strip() else (begin, end)


def _in_line(text: str, start: int, stop: int) -> tuple[int, int]:
    """The range of a comment beside code, with the blank that parts them: types, which nothing reads in a browser."""
    if text.startswith("//", start):
        return len(text[:start].rstrip(" ")), stop
    parts = re.match(r"[\w$]", text[start - 1 : start]) and start > 0
    return start, stop + (text.startswith(" ", stop) and not parts)


def _top_level(masked: str) -> str:
    """The text with blanks for what is inside of braces, brackets and parentheses; the outermost of these stay."""
    out, depth, place = [], 0, 0
    for match in _BRACKET.finditer(masked):
        opens, between = match[0] in "([{", masked[place : match.start()]
        if not opens:
            out.append(between if depth == 0 else _NOT_A_LINE.sub(" ", between))
            depth = max(0, depth - 1)
            out.append(match[0] if depth == 0 else " ")
        else:
            out.append(between + match[0] if depth == 0 else _NOT_A_LINE.sub(" ", between) + " ")
            depth += 1
        place = match.end()
    rest = masked[place:]
    out.append(rest if depth == 0 else _NOT_A_LINE.sub(" ", rest))
    return "".join(out)


def _is_expression(flat: str, at: int) -> bool:
    """Whether `function` or `class` is an expression: `const f = function name() {}` declares f only."""
    return re.search(r"[=(,:?&|]\s*(?:async\s*)?$", flat[max(0, at - 40) : at]) is not None


def _others(flat: str, start: int) -> Iterator[tuple[int, str]]:
    """The names after the first of `const a = 1, b = 2;`"""
    end = flat.find(";", start)
    following = _STATEMENT.search(flat, start)
    stop = min(end if end >= 0 else len(flat), following.start() if following else len(flat))
    for match in _NEXT.finditer(flat, start, min(stop + 1, len(flat))):
        yield match.start(1), match[1]


class _Masked(NamedTuple):
    """A module's text with blanks for comments and for the contents of strings, templates and regular expressions."""

    code: str  # of the same length and line breaks as the text
    comments: list[tuple[int, int]]  # (start, stop)


def _mask(text: str) -> _Masked:
    """Blank out what is not code. Expressions inside of templates are code."""
    reader = _Masker(text)
    reader.read()
    return _Masked("".join(reader.out), reader.comments)


class _Masker:
    def __init__(self, text: str) -> None:
        self.text, self.place = text, 0
        self.out: list[str] = []
        self.comments: list[tuple[int, int]] = []
        self.in_template: list[bool] = []  # for every open brace: whether it opens a template's expression

    def read(self) -> None:
        while match := _TOKENS.search(self.text, self.place):
            self._keep(match.start())
            kind, stop = match.lastgroup, match.end()
            if kind == "comment":
                self.comments.append(match.span())
                self._blank(stop)
            elif kind == "string":
                self._quoted(stop)
            elif kind == "slash":
                self._slash()
            else:
                self._keep(stop)
                if kind == "open":
                    self.in_template.append(False)
                elif kind == "quote" or (self.in_template and self.in_template.pop()):
                    self._template()
        self._keep(len(self.text))

    def _template(self) -> None:
        """Blank a template from its quote, or from the end of an expression, to the next expression or the closing quote."""
        within = _TEMPLATE.match(self.text, self.place)
        assert within is not None, "it matches the empty string too"
        self._blank(within.end())
        if self.text.startswith("${", self.place):
            self._keep(self.place + 2)
            self.in_template.append(True)
        else:
            self._keep(min(self.place + 1, len(self.text)))

    def _slash(self) -> None:
        pattern = _REGEX.match(self.text, self.place)
        if pattern is not None and _BEFORE_REGEX.search("".join(self.out[-8:])[-200:]):
            self._quoted(pattern.end())
        else:
            self._keep(self.place + 1)

    def _quoted(self, stop: int) -> None:
        self._keep(self.place + 1)
        self._blank(stop - 1)
        self._keep(stop)

    def _keep(self, stop: int) -> None:
        self.out.append(self.text[self.place : stop])
        self.place = stop

    def _blank(self, stop: int) -> None:
        self.out.append(re.sub(r"[^\n]", " ", self.text[self.place : stop]))
        self.place = stop


if __name__ == "__main__":
    pack(Path(sys.argv[1]))
