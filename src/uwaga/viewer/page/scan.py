"""The little of JavaScript's grammar that joining modules takes: what is code, and what stands at the top level.

The front end is written for this (its README says how): imports and exports in their plainest forms, and names that are
unique over all modules. So no parser is needed; everything else is an error that names its file and line.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from uwaga.viewer.page.masking import mask

_NAME = r"[A-Za-z_$][\w$]*"
_IMPORT = re.compile(rf"import\s*\{{\s*({_NAME}(?:\s*,\s*{_NAME})*\s*,?)\s*\}}\s*from\s*", re.DOTALL)
_PATH = re.compile(r"""(["'])(\./|\.\./)([^"'\n]+\.js)\1\s*;""")
_DECLARED = re.compile(rf"(?:async\s+)?(?:function\s*\*?|class)\s+({_NAME})|(?:const|let|var)\s+({_NAME})")
_STATEMENT = re.compile(r"^(?:export|import|async|function|class|const|let|var)\b", re.MULTILINE)
_NEXT = re.compile(rf",\s*({_NAME})\s*(?==|,|;)")


Fail = Callable[[int, str], "BundleError"]


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
    masked = mask(text)
    flat = _top_level(masked)
    imports: list[Import] = []
    declared: dict[str, int] = {}
    exported: set[str] = set()
    cuts: list[tuple[int, int]] = []

    def fail(at: int, said: str) -> BundleError:
        return BundleError(f"{name}:{text.count(chr(10), 0, at) + 1}: {said}")

    _refuse_what_breaks_html(text, fail)
    for found in re.finditer(r"\bimport\s*[(.]|\bawait\b", flat):
        raise fail(found.start(), f"no {found[0].rstrip('(. ')} at the top level, and no dynamic import or import.meta")
    for found in re.finditer(r"(?<![\w$.])import\s*\(|(?<![\w$])import\s*\.\s*meta\b", masked):
        raise fail(found.start(), "no dynamic import or import.meta")
    for found in re.finditer(r"(?<![\w$.])(import|export)\b", flat):
        at = found.start()
        if found[1] == "import":
            made, stop = _import(text, masked, at)
            if made is None:
                raise fail(at, 'only import { a, b } from "./module.js"; is understood')
            line = text.count("\n", 0, at) + 1
            imports.append(Import(names=made[0], target=made[1], line=line))
            cuts.append((at, stop))
        else:
            behind = re.compile(r"export\s+").match(masked, at)
            what = behind and _DECLARED.match(masked, behind.end())
            if behind is None or what is None:
                raise fail(at, "only export function, class, const and let are understood")
            exported.add(what[1] or what[2])
            cuts.append((at, behind.end()))
    for at, declared_name in _declarations(flat, fail):
        if declared_name in declared:
            raise fail(at, f"{declared_name} is declared twice")
        declared[declared_name] = text.count("\n", 0, at) + 1
    return Module(
        name=name,
        code=_without(text, cuts).strip("\n") + "\n",
        imports=tuple(imports),
        declared=declared,
        exported=frozenset(exported),
    )


def module(path: Path, folder: Path) -> Module:
    """Of a file. Raises BundleError."""
    return scan(path.relative_to(folder).as_posix(), path.read_text(encoding="utf-8"))


def _refuse_what_breaks_html(text: str, fail: Fail) -> None:
    for found in re.finditer(r"</script|<!--", text, re.IGNORECASE):
        raise fail(
            found.start(),
            f"{found[0]!r} ends or bends the script element that a page puts this into; write it in two pieces",
        )


def _top_level(masked: str) -> str:
    """With blanks for what stands inside braces, brackets and parentheses; these themselves stay."""
    out, depth = [], 0
    for letter in masked:
        if letter in ")]}":
            depth = max(0, depth - 1)
        out.append(letter if depth == 0 or letter == "\n" else " ")
        if letter in "([{":
            depth += 1
    return "".join(out)


def _import(text: str, masked: str, at: int) -> tuple[tuple[tuple[str, ...], str] | None, int]:
    head = _IMPORT.match(masked, at)
    path = head and _PATH.match(text, head.end())
    if not head or not path:
        return None, at
    names = tuple(each.strip() for each in head[1].split(",") if each.strip())
    return (names, path[2] + path[3]), path.end()


def _declarations(flat: str, fail: Fail) -> Iterator[tuple[int, str]]:
    """Where a name of the top level is declared, and the name."""
    for found in re.finditer(r"(?<![\w$.])(?:const|let|var)\s*[\[{]", flat):
        raise fail(found.start(), "no destructuring at the top level")
    for found in re.finditer(rf"(?<![\w$.]){_DECLARED.pattern}", flat):
        if found[1] is not None and _is_expression(flat, found.start()):
            continue
        yield found.start(), found[1] or found[2]
        if found[2] is not None:
            yield from _others(flat, found.end())


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


def _without(text: str, cuts: list[tuple[int, int]]) -> str:
    kept, place = [], 0
    for start, stop in sorted(cuts):
        kept.append(text[place:start])
        place = stop
    return "".join([*kept, text[place:]])
