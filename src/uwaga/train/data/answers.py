"""What evaluation of pairs asks, and every answer that the data lists for it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple


class Question(NamedTuple):
    """A source of the validation side."""

    source: str
    targets: tuple[str, ...]  # all of its answers, each once


class Answers:
    """Gathers answers by their sources."""

    def __init__(self) -> None:
        self._targets: dict[str, dict[str, None]] = {}  # an ordered set for each

    def add(self, source: str, target: str) -> None:
        self._targets.setdefault(source, {})[target] = None

    def write(self, file: IO[bytes]) -> None:
        """JSON lines, in the order of the sources' first answers."""
        for source, targets in self._targets.items():
            file.write((json.dumps({"source": source, "targets": list(targets)}, ensure_ascii=False) + "\n").encode())


def questions(path: Path) -> Iterator[Question]:
    """What was written."""
    with path.open(encoding="utf-8") as file:
        for line in file:
            found = json.loads(line)
            yield Question(found["source"], tuple(found["targets"]))
