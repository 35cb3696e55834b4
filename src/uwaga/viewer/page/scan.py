"""The little of JavaScript's grammar that joining modules takes: what is code, and what stands at the top level.

The front end is written for this (its README says how): imports and exports in their plainest forms, and names that are
unique over all modules. So no parser is needed; everything else is an error that names its file and line.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from uwaga.viewer.page.masking import mask

_NAME = r"[A-Za-z_$][\w$]*"
_IMPORT = re.compile(rf"import\s*\{{\s*({_NAME}(?:\s*,\s*{_NAME})*\s*,?)\s*\}}\s*from\s*", re.DOTALL)
_PATH = re.compile(r"""(["'])(\./|\.\./)([^"'\n]+\.js)\1\s*;""")
_DECLARED = rf"(?:(?:async\s+)?(?:function\s*\*?|class)\s+({_NAME})|(?:const|let|var)\s+({_NAME}))"
_EXPORTED = re.compile(rf"export\s+({_DECLARED})")
_STATEMENT = re.compile(r"^(?:export|import|async|function|class|const|let|var)\b", re.MULTILINE)
_NEXT = re.compile(rf",\s*({_NAME})\s*(?==|,|;)")
_BRACKET = re.compile(r"[()\[\]{}]")
_NOT_A_LINE = re.compile(r"[^\n]")


class BundleError(ValueError):
    """The front end cannot be joined: a module that does more than the bundler understands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Import:
    """`import { names } from "target";`"""

    names: tuple[str, ...]
    target: str  # as written, relative to the module
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """A module's code as it goes into the bundle, and what it takes and gives."""

    name: str  # its path from the front end's folder
    code: str  # without imports, and without the word export
    imports: tuple[Import, ...]
    declared: dict[str, int]  # every name of the top level, and its line
    exported: frozenset[str]


def scan(name: str, text: str) -> Module:
    """Raises BundleError."""
    return _Scanner(name, text).module()


def module(path: Path, folder: Path) -> Module:
    """Of a file. Raises BundleError."""
    return scan(path.relative_to(folder).as_posix(), path.read_text(encoding="utf-8"))


class _Scanner:
    def __init__(self, name: str, text: str) -> None:
        self.name, self.text = name, text
        self.masked, comments = mask(text)
        self.flat = _top_level(self.masked)
        self.cuts = [span for comment in comments if (span := _lines(text, *comment))]
        self.imports: list[Import] = []
        self.declared: dict[str, int] = {}
        self.exported: set[str] = set()

    def module(self) -> Module:
        self._refuse_what_runs_late()
        for found in re.finditer(r"(?<![\w$.])(import|export)\b", self.flat):
            (self._import if found[1] == "import" else self._export)(found.start())
        for at, name in self._declarations():
            if name in self.declared:
                raise self._wrong(at, f"{name} is declared twice")
            self.declared[name] = self._line(at)
        return Module(
            name=self.name,
            code=self._code(),
            imports=tuple(self.imports),
            declared=self.declared,
            exported=frozenset(self.exported),
        )

    def _refuse_what_runs_late(self) -> None:
        for found in re.finditer(r"\bimport\s*[(.]|\bawait\b", self.flat):
            word = found[0].rstrip("(. ")
            raise self._wrong(found.start(), f"no {word} at the top level, and no dynamic import or import.meta")
        for found in re.finditer(r"(?<![\w$.])import\s*\(|(?<![\w$])import\s*\.\s*meta\b", self.masked):
            raise self._wrong(found.start(), "no dynamic import or import.meta")

    def _import(self, at: int) -> None:
        head = _IMPORT.match(self.masked, at)
        path = head and _PATH.match(self.text, head.end())
        if not head or not path:
            raise self._wrong(at, 'only import { a, b } from "./module.js"; is understood')
        names = tuple(each.strip() for each in head[1].split(",") if each.strip())
        self.imports.append(Import(names=names, target=path[2] + path[3], line=self._line(at)))
        self.cuts.append((at, path.end()))

    def _export(self, at: int) -> None:
        what = _EXPORTED.match(self.masked, at)
        if what is None:
            raise self._wrong(at, "only export function, class, const and let are understood")
        self.exported.add(what[2] or what[3])
        self.cuts.append((at, what.start(1)))

    def _declarations(self) -> Iterator[tuple[int, str]]:
        """Where a name of the top level is declared, and the name."""
        flat = self.flat
        for found in re.finditer(r"(?<![\w$.])(?:const|let|var)\s*[\[{]", flat):
            raise self._wrong(found.start(), "no destructuring at the top level")
        for found in re.finditer(rf"(?<![\w$.]){_DECLARED}", flat):
            if found[1] is not None and _is_expression(flat, found.start()):
                continue
            yield found.start(), found[1] or found[2]
            if found[2] is not None:
                yield from _others(flat, found.end())

    def _code(self) -> str:
        """Without what was cut; what is left can stand inside a script element."""
        kept, place = [], 0
        for start, stop in sorted([*self.cuts, (len(self.text), len(self.text))]):
            for found in re.finditer(r"</script|<!--", self.text[place:start], re.IGNORECASE):
                what = "ends or bends the script element that a page puts this into; write it in two pieces"
                raise self._wrong(place + found.start(), f"{found[0]!r} {what}")
            kept.append(self.text[place:start])
            place = stop
        return "".join(kept).strip("\n") + "\n"

    def _wrong(self, at: int, said: str) -> BundleError:
        return BundleError(f"{self.name}:{self._line(at)}: {said}")

    def _line(self, at: int) -> int:
        return self.text.count("\n", 0, at) + 1


def _lines(text: str, start: int, stop: int) -> tuple[int, int] | None:
    """The whole lines of a comment that has them for itself."""
    begin, end = text.rfind("\n", 0, start) + 1, text.find("\n", stop)
    end = len(text) if end < 0 else end + 1
    return None if text[begin:start].strip() or text[stop:end].strip() else (begin, end)


def _top_level(masked: str) -> str:
    """With blanks for what stands inside braces, brackets and parentheses; these themselves stay where they are outermost."""
    out, depth, place = [], 0, 0
    for found in _BRACKET.finditer(masked):
        opens, between = found[0] in "([{", masked[place : found.start()]
        if not opens:
            out.append(between if depth == 0 else _NOT_A_LINE.sub(" ", between))
            depth = max(0, depth - 1)
            out.append(found[0] if depth == 0 else " ")
        else:
            out.append(between + found[0] if depth == 0 else _NOT_A_LINE.sub(" ", between) + " ")
            depth += 1
        place = found.end()
    rest = masked[place:]
    out.append(rest if depth == 0 else _NOT_A_LINE.sub(" ", rest))
    return "".join(out)


def _is_expression(flat: str, at: int) -> bool:
    """`const f = function name() {}` declares f alone."""
    return re.search(r"[=(,:?&|]\s*(?:async\s*)?$", flat[max(0, at - 40) : at]) is not None


def _others(flat: str, start: int) -> Iterator[tuple[int, str]]:
    """The further names of `const a = 1, b = 2;`"""
    end = flat.find(";", start)
    following = _STATEMENT.search(flat, start)
    stop = min(end if end >= 0 else len(flat), following.start() if following else len(flat))
    for found in _NEXT.finditer(flat, start, min(stop + 1, len(flat))):
        yield found.start(1), found[1]
