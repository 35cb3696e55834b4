"""Tokens in files: rows of different lengths one after the other, and where each ends. Read as memory maps."""

import hashlib
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np

from uwaga._base import untrusted
from uwaga._base.durable import create_file, fsync
from uwaga.train.errors import DataError

# Tokens that are compared with what was written at once.
_CHECKED = 2**20


class Writer:
    """NAME.tokens (N,) and NAME.offsets (R+1,) of a folder, as they come.

    Args:
        vocabulary: ids are below it; they take two bytes where that is enough.
    """

    def __init__(self, folder: Path, name: str, vocabulary: int) -> None:
        self._dtype = dtype(vocabulary)
        self._folder, self._total = folder, 0
        self._digest = hashlib.sha256()
        self._tokens: IO[bytes] = create_file(folder / f"{name}.tokens")
        self._offsets: IO[bytes] = create_file(folder / f"{name}.offsets")
        self.rows = 0
        self._offsets.write(bytes(8))

    def add(self, ids: np.ndarray) -> None:
        """More of the row that is open."""
        packed = ids.astype(self._dtype).tobytes()
        self._tokens.write(packed)
        self._digest.update(packed)
        self._total += len(ids)

    def end_row(self) -> None:
        """The next token begins another row."""
        packed = np.array(self._total, "<i8").tobytes()
        self._offsets.write(packed)
        self._digest.update(packed)
        self.rows += 1

    @property
    def about(self) -> dict[str, object]:
        return {"rows": self.rows, "tokens": self._total, "dtype": self._dtype, "sha256": self._digest.hexdigest()}

    def __enter__(self) -> "Writer":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        import os

        for file in (self._tokens, self._offsets):
            if error is None:
                file.flush()
                os.fsync(file.fileno())
            file.close()
        if error is None:
            fsync(self._folder)


class Store:
    """What a Writer wrote: tokens (N,) and offsets (R+1,), on disk until they are read.

    Args:
        about: what the Writer said of it.
        vocabulary: ids are below it.

    Raises:
        DataError: files that are not there, or hold something else than what was written.
    """

    def __init__(self, folder: Path, name: str, about: dict[str, Any], vocabulary: int) -> None:
        self.tokens = _mapped(folder / f"{name}.tokens", about["dtype"], about["tokens"])
        self.offsets = _mapped(folder / f"{name}.offsets", "<i8", about["rows"] + 1)
        self._check(folder, name, about["sha256"], vocabulary)

    def _check(self, folder: Path, name: str, sha256: str, vocabulary: int) -> None:
        """By one pass over all tokens, a million at a time, in the order in which they were written."""
        offsets = np.array(self.offsets)
        if offsets[0] != 0 or offsets[-1] != len(self.tokens) or (np.diff(offsets) < 0).any():
            raise DataError(f"{folder / name}.offsets are no rising places of tokens; {made_again(folder)}")
        digest = hashlib.sha256()
        # Not by the map, whose pages would stay in memory.
        with untrusted.open_regular(folder / f"{name}.tokens") as file:
            for start, stop in pairwise(offsets.tolist()):
                for first in range(start, stop, _CHECKED):
                    part = file.read((min(first + _CHECKED, stop) - first) * self.tokens.itemsize)
                    largest = int(np.frombuffer(part, self.tokens.dtype).max())
                    if largest >= vocabulary:
                        said = f"has token {largest}, and the vocabulary ends before {vocabulary}"
                        raise DataError(f"{folder / name}.tokens {said}; {made_again(folder)}")
                    digest.update(part)
                digest.update(stop.to_bytes(8, "little"))
        if digest.hexdigest() != sha256:
            raise DataError(f"{folder / name}.tokens and .offsets are not what was written; {made_again(folder)}")

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def row(self, number: int) -> np.ndarray:
        """(T,) int64"""
        return self.tokens[self.offsets[number] : self.offsets[number + 1]].astype(np.int64)

    def lengths(self) -> np.ndarray:
        """(R,) int64"""
        return np.diff(self.offsets)


def dtype(vocabulary: int) -> str:
    """
    >>> dtype(2**16), dtype(2**16 + 1)
    ('<u2', '<u4')
    """
    return "<u2" if vocabulary <= 2**16 else "<u4"


def made_again(folder: Path) -> str:
    """The end of a message about prepared data that is not as it was written."""
    return f"remove {folder}, and it is made again"


def _mapped(path: Path, kind: str, count: int) -> np.ndarray:
    expected = count * np.dtype(kind).itemsize
    try:
        found = untrusted.stat_regular(path).st_size
    except FileNotFoundError as error:
        said = f"is not there, and {expected} bytes were written"
        raise DataError(f"{path} {said}; {made_again(path.parent)}") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}; {made_again(path.parent)}") from error
    if found != expected:
        said = f"has {found} bytes, and {expected} bytes were written"
        raise DataError(f"{path} {said}; {made_again(path.parent)}")
    if not count:
        return np.empty(0, kind)  # an empty file cannot be mapped
    return np.memmap(path, kind, mode="r", shape=(count,))
