"""The front end's modules as one script, and its styles as one sheet: what every host of the page runs."""

import re
import threading
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

from uwaga.viewer.page.scan import BundleError, Module, module

__all__ = ["FRONT", "Bundle", "BundleError", "bundle", "join"]

FRONT = Path(__file__).parents[1] / "front"
_APART = ("tests", "node_modules")  # folders that no page needs
_FIRST = "shell/base.css"  # the colours and sizes that the others build upon

# What main.js offers its hosts: a page starts itself, and a notebook calls the module's default export.
_PAGE = 'startPage(document.getElementById("uwaga"));\n'
_ENTRIES = {"served": _PAGE, "saved": _PAGE, "widget": "export default { render };\n"}

HostName = Literal["served", "saved", "widget"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """The front end, joined."""

    modules: str  # without an entry: declarations alone
    css: str

    def script(self, host: HostName) -> str:
        """One ES module for this host; that of the widget has the default export that anywidget runs."""
        return f"{self.modules}\n{_ENTRIES[host]}"


_kept: dict[Path, tuple[object, Bundle]] = {}
_lock = threading.Lock()


def bundle(folder: Path | None = None) -> Bundle:
    """The front end in a folder, this package's own for None; joined again when a file of it has changed.

    Raises BundleError.
    """
    folder = FRONT if folder is None else folder
    state = tuple((path, path.stat().st_mtime_ns) for path in _files(folder, ".js", ".css"))
    with _lock:
        if folder not in _kept or _kept[folder][0] != state:
            _kept[folder] = (state, join(folder))
        return _kept[folder][1]


def join(folder: Path) -> Bundle:
    """All modules that main.js reaches, each behind those that it imports; all styles. Raises BundleError."""
    ordered = _ordered(folder)
    _need_unique_names(ordered)
    parts = [f"// {each.name}\n{each.code}" for each in ordered]
    return Bundle(modules="\n".join(parts), css=_styles(folder))


def _ordered(folder: Path) -> list[Module]:
    modules: dict[str, Module] = {}
    done: list[Module] = []

    def visit(name: str, trail: tuple[str, ...], asked: str) -> Module:
        if name in trail:
            around = " -> ".join((*trail[trail.index(name) :], name))
            raise BundleError(f"{asked}: modules import each other in a circle: {around}")
        if name in modules:
            return modules[name]
        path = folder / name
        if not path.is_file():
            raise BundleError(f"{asked}: there is no module {name}")
        found = module(path, folder)
        for each in found.imports:
            asked = f"{name}:{each.line}"
            target = visit(_target(name, each.target, asked), (*trail, name), asked)
            for wanted in each.names:
                if wanted not in target.exported:
                    raise BundleError(f"{asked}: {target.name} exports no {wanted}")
        modules[name] = found
        done.append(found)
        return found

    visit("main.js", (), str(folder))
    return done


def _target(name: str, written: str, asked: str) -> str:
    """The module that a path means, from the front end's folder."""
    parts: list[str] = list(PurePosixPath(name).parent.parts)
    for part in written.split("/"):
        if part == "..":
            if not parts:
                raise BundleError(f"{asked}: {written} lies outside of the front end")
            parts.pop()
        elif part != ".":
            parts.append(part)
    return "/".join(parts)


def _need_unique_names(modules: list[Module]) -> None:
    """Joined, all modules share one scope."""
    homes: dict[str, str] = {}
    for each in modules:
        for name, line in each.declared.items():
            here = f"{each.name}:{line}"
            if name in homes:
                raise BundleError(
                    f"{here}: {name} is declared at {homes[name]} too; top-level names are unique over all modules"
                )
            homes[name] = here


def _styles(folder: Path) -> str:
    files = _files(folder, ".css")
    names = [path.relative_to(folder).as_posix() for path in files]
    names.sort(key=lambda name: (name != _FIRST, name))
    parts = []
    for name in names:
        text = (folder / name).read_text(encoding="utf-8")
        for found in re.finditer(r"</style|@import|url\(\s*[\"']?(?!data:|#)", text, re.IGNORECASE):
            line = text.count("\n", 0, found.start()) + 1
            raise BundleError(f"{name}:{line}: {found[0]!r}: a sheet fetches nothing and stands inside HTML")
        parts.append(f"/* {name} */\n{text.strip()}\n")
    return "\n".join(parts)


def _files(folder: Path, *suffixes: str) -> list[Path]:
    found = (path for path in folder.rglob("*") if path.suffix in suffixes)
    return sorted(path for path in found if not set(path.relative_to(folder).parts) & set(_APART))
