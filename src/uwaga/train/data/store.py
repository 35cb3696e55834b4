"""Tokens in files: rows of different lengths one after the other, and where each ends. Read as memory maps."""

import hashlib
from pathlib import Path
from types import TracebackType
from typing import IO

import numpy as np

from uwaga._base.durable import new_file, sync
from uwaga.train.errors import DataError


class Writer:
    """NAME.tokens (N,) and NAME.offsets (R+1,) of a folder, as they come.

    Args:
        vocabulary: ids are below it; they take two bytes where that is enough.
    """

    def __init__(self, folder: Path, name: str, vocabulary: int) -> None:
        self._dtype = dtype(vocabulary)
        self._folder, self._total = folder, 0
        self._digest = hashlib.sha256()
        self._tokens: IO[bytes] = new_file(folder / f"{name}.tokens")
        self._offsets: IO[bytes] = new_file(folder / f"{name}.offsets")
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
            sync(self._folder)


class Store:
    """What a Writer wrote: tokens (N,) and offsets (R+1,), on disk until they are read. Raises DataError: not whole."""

    def __init__(self, folder: Path, name: str, about: dict[str, object]) -> None:
        rows, tokens = about["rows"], about["tokens"]
        assert isinstance(rows, int)
        assert isinstance(tokens, int)
        self.tokens = _mapped(folder / f"{name}.tokens", str(about["dtype"]), tokens)
        self.offsets = _mapped(folder / f"{name}.offsets", "<i8", rows + 1)

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


def _mapped(path: Path, kind: str, count: int) -> np.ndarray:
    expected, found = count * np.dtype(kind).itemsize, path.stat().st_size if path.exists() else None
    if found != expected:
        size = "is not there" if found is None else f"has {found} bytes"
        raise DataError(f"{path} {size}, and {expected} bytes were written; remove {path.parent}, and it is made again")
    if not count:
        return np.empty(0, kind)  # an empty file cannot be mapped
    return np.memmap(path, kind, mode="r", shape=(count,))
