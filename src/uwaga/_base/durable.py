"""Files that are whole or not there at all, whenever the machine stops."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A file to write, which takes its name when all of it is on the disk. What a failure leaves is removed."""
    unfinished = path.with_name(path.name + ".unfinished")
    try:
        with unfinished.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)  # a full disk has better use for the space
        raise
    sync(path.parent)


def sync(path: Path) -> None:
    """What a file holds, or the names in a folder, are on the disk."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
