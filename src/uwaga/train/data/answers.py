"""What evaluation of pairs asks, and every answer that the data lists for it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple

from uwaga.models.text.corpus import json_objects
from uwaga.train.data.store import made_again
from uwaga.train.errors import DataError


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
    """What was written. Raises DataError."""
    for place, found, _ in json_objects(path):
        source, targets = found.get("source"), found.get("targets")
        if not isinstance(source, str) or not isinstance(targets, list) or not all(isinstance(x, str) for x in targets):
            raise DataError(f"{place}: must have a source and a list of targets; {made_again(path.parent)}")
        yield Question(source, tuple(targets))
