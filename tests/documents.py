"""The pages of the documentation: where they are, their examples, and how an example is run."""

import contextlib
import doctest
import io
import re
import shlex
import textwrap
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [
    path
    for path in sorted(DOCS.rglob("*.md"))
    if len(path.relative_to(DOCS).parts[0]) > 2 and path.parent.name != "site"
]
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *PAGES]
TRANSLATED = sorted(DOCS.glob("??/*.md"))
ORIGINALS = {"concepts": DOCS / "concepts" / "attention.md", "lesson": DOCS / "tutorials" / "teach-attention.md"}
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
# A block that this comment precedes is shown and not run.
_NOT_RUN = re.compile(r"<!-- not run: [^>]+ -->\n+\Z")
_FENCE = re.compile(r"^( *)```(\w+)[^\n]*\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)


def table_rows(page: Path, heading: str) -> list[list[str]]:
    """The cells of the table under a first heading, that heading's row first."""
    lines = page.read_text(encoding="utf-8").splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith(f"| {heading} |"))
    rows = [line for line in lines[start:] if line.startswith("|") or not line]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in rows[: rows.index("")]]


class Block(NamedTuple):
    language: str
    text: str
    line: int
    runs: bool


def name_of(page: Path) -> str:
    """`guides/encode` of docs/guides/encode.md, README of README.md."""
    return page.relative_to(DOCS if DOCS in page.parents else ROOT).with_suffix("").as_posix()


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(
            found[2],
            textwrap.dedent(found[3]),
            text.count("\n", 0, found.start()) + 1,
            not _NOT_RUN.search(text, 0, found.start()),
        )
        for found in _FENCE.finditer(text)
    ]


def examples(page: Path) -> str:
    """The Python blocks of a page, one session after the other."""
    return "\n".join(block.text for block in blocks(page) if block.language == "python")


def commands(block: str) -> list[tuple[str, str]]:
    """The commands after `$` in a block, each with the output that follows it. A line that ends in a backslash goes on."""
    joined = block.replace("\\\n", " ")
    parts = re.split(r"^\$ (.*)\n?", joined, flags=re.MULTILINE)[1:]
    return list(zip(parts[::2], parts[1::2], strict=True))


def uwaga_arguments(command: str) -> list[str] | None:
    """The arguments of a single `uwaga` command; None for any other program and for pipes."""
    words = shlex.split(command, comments=True)
    plain = words[:1] == ["uwaga"] and not {"|", ">", ">>", "<", "&&", "&", ";"} & set(words)
    return words[1:] if plain else None


def run_examples(page: Path) -> None:
    """Run the `python` and `console` blocks of a page in the present folder, in order; compare what they print.

    Raises:
        AssertionError: with every output that differs.
    """
    names: dict[str, Any] = {}
    failures: list[str] = []
    runner = doctest.DocTestRunner(optionflags=OPTIONS)
    for block in blocks(page):
        if not block.runs:
            continue
        place = f"{name_of(page)}:{block.line}"
        if block.language == "console":
            failures += [_run_command(command, expected, place) for command, expected in commands(block.text)]
        elif block.language == "python" and ">>> " not in block.text:
            exec(compile(block.text, place, "exec"), names)
        elif block.language == "python":
            session = doctest.DocTestParser().get_doctest(block.text, names, place, str(page), block.line)
            runner.run(session, out=failures.append, clear_globs=False)
            names.update(session.globs)
    assert not any(failures), "\n".join(filter(None, failures))


def _run_command(command: str, expected: str, place: str) -> str:
    """Run a command; what differs from its expected output, or nothing."""
    printed = (
        _run_printf(shlex.split(command)) if command.startswith("printf ") else _run_uwaga(shlex.split(command)[1:])
    )
    if not expected.strip() or doctest.OutputChecker().check_output(expected, printed, OPTIONS):
        return ""
    return f"{place}: $ {command}\nexpected:\n{expected}\nprinted:\n{printed}"


def _run_uwaga(arguments: list[str]) -> str:
    from uwaga.cli import app

    printed = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", newline="\n")
    with contextlib.redirect_stdout(printed):
        status = app(arguments, standalone_mode=False)
    assert not status, f"uwaga {shlex.join(arguments)} ended with status {status}"
    printed.seek(0)
    return printed.read()


def _run_printf(words: list[str]) -> str:
    """`printf TEXT > FILE`, or >> FILE: how a page makes its files."""
    _, text, mode, name = words
    with Path(name).open({">": "w", ">>": "a"}[mode], encoding="utf-8") as file:
        file.write(text.replace(r"\n", "\n").replace("%%", "%"))
    return ""
