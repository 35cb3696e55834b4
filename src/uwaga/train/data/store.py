"""Token files: rows of different lengths one after the other, and their offsets. Read as memory maps.

Letters: R rows, N tokens.
"""

import hashlib
import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import IO, Any, NamedTuple

import numpy as np

from uwaga._base import untrusted
from uwaga._base.durable import create_file, fsync, fsync_opened
from uwaga.data.documents import json_objects
from uwaga.train.errors import DataError

# Tokens that are checked at once.
_CHECKED = 2**20


class TokenWriter:
    """Writes NAME.tokens (N,) and NAME.offsets (R+1,) into a folder, token by token.

    Args:
        vocab_size: ids are below it; they are stored in two bytes where that is enough.
    """

    def __init__(self, folder: Path, name: str, vocab_size: int) -> None:
        self._dtype = token_dtype(vocab_size)
        self._folder, self._total = folder, 0
        self._digest = hashlib.sha256()
        self._tokens: IO[bytes] = create_file(folder / f"{name}.tokens")
        self._offsets: IO[bytes] = create_file(folder / f"{name}.offsets")
        self.rows = 0
        self._offsets.write(bytes(8))

    def add(self, ids: np.ndarray) -> None:
        """Append to the present row."""
        packed = ids.astype(self._dtype).tobytes()
        self._tokens.write(packed)
        self._digest.update(packed)
        self._total += len(ids)

    def end_row(self) -> None:
        """End the present row; the next token begins another."""
        packed = np.array(self._total, "<i8").tobytes()
        self._offsets.write(packed)
        self._digest.update(packed)
        self.rows += 1

    @property
    def metadata(self) -> dict[str, object]:
        return {"rows": self.rows, "tokens": self._total, "dtype": self._dtype, "sha256": self._digest.hexdigest()}

    def __enter__(self) -> "TokenWriter":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for file in (self._tokens, self._offsets):
            if error is None:
                file.flush()
                fsync_opened(file.fileno())
            file.close()
        if error is None:
            fsync(self._folder)


class TokenStore:
    """What a TokenWriter wrote: tokens (N,) and offsets (R+1,), memory maps.

    Args:
        metadata: that of the TokenWriter.
        vocab_size: ids are below it.

    Raises:
        DataError: a file is missing, or its content is not what was written.
    """

    def __init__(self, folder: Path, name: str, metadata: dict[str, Any], vocab_size: int) -> None:
        self.tokens = _mapped(folder / f"{name}.tokens", metadata["dtype"], metadata["tokens"])
        self.offsets = _mapped(folder / f"{name}.offsets", "<i8", metadata["rows"] + 1)
        self._check(folder, name, metadata["sha256"], vocab_size)

    def _check(self, folder: Path, name: str, sha256: str, vocab_size: int) -> None:
        """One pass over all tokens, a million at a time, in the order in which they were written."""
        offsets = np.array(self.offsets)
        if offsets[0] != 0 or offsets[-1] != len(self.tokens) or (np.diff(offsets) < 0).any():
            raise DataError(
                f"{folder / name}.offsets do not ascend from 0 to the number of tokens; {remake_hint(folder)}"
            )
        digest = hashlib.sha256()
        # Not by the memory map, whose pages would stay in memory.
        with untrusted.open_regular(folder / f"{name}.tokens") as file:
            for start, stop in pairwise(offsets.tolist()):
                for first in range(start, stop, _CHECKED):
                    part = file.read((min(first + _CHECKED, stop) - first) * self.tokens.itemsize)
                    largest = int(np.frombuffer(part, self.tokens.dtype).max())
                    if largest >= vocab_size:
                        what = f"has token {largest}, and the vocabulary has {vocab_size}"
                        raise DataError(f"{folder / name}.tokens {what}; {remake_hint(folder)}")
                    digest.update(part)
                digest.update(stop.to_bytes(8, "little"))
        if digest.hexdigest() != sha256:
            raise DataError(f"{folder / name}.tokens and .offsets are not what was written; {remake_hint(folder)}")

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def row(self, number: int) -> np.ndarray:
        """(T,) int64"""
        return self.tokens[self.offsets[number] : self.offsets[number + 1]].astype(np.int64)

    def lengths(self) -> np.ndarray:
        """(R,) int64"""
        return np.diff(self.offsets)


def token_dtype(vocab_size: int) -> str:
    """
    >>> token_dtype(2**16), token_dtype(2**16 + 1)
    ('<u2', '<u4')
    """
    return "<u2" if vocab_size <= 2**16 else "<u4"


def remake_hint(folder: Path) -> str:
    """The end of a message about prepared data that is not what was written."""
    return f"remove {folder} to prepare it again"


def _mapped(path: Path, kind: str, count: int) -> np.ndarray:
    expected = count * np.dtype(kind).itemsize
    try:
        result = untrusted.stat_regular(path).st_size
    except FileNotFoundError as error:
        what = f"is not there, and {expected} bytes were written"
        raise DataError(f"{path} {what}; {remake_hint(path.parent)}") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}; {remake_hint(path.parent)}") from error
    if result != expected:
        what = f"has {result} bytes, and {expected} bytes were written"
        raise DataError(f"{path} {what}; {remake_hint(path.parent)}")
    if not count:
        return np.empty(0, kind)  # an empty file cannot be mapped
    return np.memmap(path, kind, mode="r", shape=(count,))


# answers.jsonl, of pairs.


class ReferencePair(NamedTuple):
    """A source of the validation split, and all targets that the data lists for it, each once."""

    source: str
    targets: tuple[str, ...]


class Answers:
    """Collects the targets of each source."""

    def __init__(self) -> None:
        self._targets: dict[str, dict[str, None]] = {}  # a dict of None is an ordered set

    def add(self, source: str, target: str) -> None:
        self._targets.setdefault(source, {})[target] = None

    def write(self, file: IO[bytes]) -> None:
        """JSON lines, in the order in which the sources were first added."""
        for source, targets in self._targets.items():
            file.write((json.dumps({"source": source, "targets": list(targets)}, ensure_ascii=False) + "\n").encode())


def questions(path: Path) -> Iterator[ReferencePair]:
    """Read what `Answers.write` wrote. Raises DataError."""
    for place, value, _ in json_objects(path):
        source, targets = value.get("source"), value.get("targets")
        if not isinstance(source, str) or not isinstance(targets, list) or not all(isinstance(x, str) for x in targets):
            raise DataError(f"{place}: must have a source and a list of targets; {remake_hint(path.parent)}")
        yield ReferencePair(source, tuple(targets))
