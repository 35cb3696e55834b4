"""Files that are whole or not there at all, whenever the machine stops; and one process at a time that makes them."""

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


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """One process at a time, by a file that stays empty; the system ends the wait when the other one ends, however it does."""
    import fcntl  # where there is one: no other system is served here, but files are replaced on all

    lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)
