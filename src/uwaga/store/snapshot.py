"""One moment of a stored database: its segments that can be read, and which of their rows are live. What all databases share.

An object remembers what the catalog on the disk says, and nothing else. A change takes its memory away before it begins, and gives it
back after the commit; so what any exception ends, Ctrl-C included, leaves an object that knows nothing, and the next call rolls back
and reads. So does the first call in a child made by fork, which gets a catalog of its own and may only read.

Letters: n rows.
"""

import operator
import os
from collections.abc import Iterable, Sequence, Sized
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from uwaga._base.arguments import path_of
from uwaga._base.errors import SoftDatabaseError
from uwaga.store import segments
from uwaga.store.catalog import Catalog, Parameters, Record, Value
from uwaga.store.reading import LiveRows
from uwaga.store.segments import MOST_IDS, Entry, SegmentFile

SEGMENTS = "segments"


class Snapshot:
    """What a database shows at one moment, until `refresh`.

    Attributes:
        path: the folder.
        schema: what every row has.
        model: what made the keys, as `create` was told; None: nothing was said.
    """

    has_tokens = False  # whether a row has a vector for each token of a text: of `uwaga.store.TokenDatabase`

    def __init__(self, path: Path) -> None:
        """As `open`, which converts the path."""
        if not isinstance(path, Path):
            name = type(self).__name__
            raise TypeError(f"{name}: is made by {name}.open(path) or {name}.create(path, ...), not by its own name")
        self.path, self._catalog = path, Catalog(path, write=False)
        self._opened_by = os.getpid()
        self._is_closed = self._is_known = False  # whether the following is what the catalog says
        self._segments: dict[str, SegmentFile] = {}
        self._entries: list[Entry] = []
        self._broken: dict[str, str] = {}  # file: what is wrong
        self._live: LiveRows | None = None
        try:
            self.schema, self.model = self._catalog.schema(), self._catalog.setting("model")
            if self.schema.tokens != self.has_tokens:
                kind, other = (
                    ("TokenDatabase", "vectors of tokens")
                    if self.schema.tokens
                    else ("SoftDatabase", "one vector a row")
                )
                raise SoftDatabaseError(f"{path}: holds {other}; uwaga.store.{kind}.open opens it")
            self._check_open()
        except BaseException:
            self.close()
            raise

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Self:
        """An existing database, as it is now. Rows are mapped into memory and read when they are asked for.

        A damaged or missing segment is no error yet: `damaged` says which, everything that needs its rows raises, and the others can
        be read after these are deleted.

        Raises:
            SoftDatabaseError: there is none, or its catalog cannot be read.
        """
        return cls(path_of(path, f"{cls.__name__}.open: path"))

    def __repr__(self) -> str:
        name = type(self).__name__
        if self._is_closed:
            return f"{name}({str(self.path)!r}, closed)"
        try:
            rows = f"{len(self):,} rows"
        except SoftDatabaseError:
            rows = "cannot be read"
        settings = (f"{key}={value}" for key, value in segments.settings(self.schema).items() if value is not None)
        return f"{name}({str(self.path)!r}, {rows}, {', '.join(settings)})"

    def close(self) -> None:
        """Closes the files; calling it again has no effect."""
        self._is_closed = True
        self._catalog.close()
        self._segments.clear()
        self._live = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def refresh(self) -> None:
        """Shows the database as it is now, with what a writer has changed since. Raises SoftDatabaseError."""
        self._is_known = False
        self._check_open()

    def _check_open(self) -> None:
        """The door of every call: what this knows is what the catalog of this process says. Raises SoftDatabaseError."""
        if self._is_closed:
            raise SoftDatabaseError(f"{self.path}: the database is closed")
        if self._catalog.process != os.getpid():
            self._is_known, self._catalog = False, Catalog(self.path, write=False)
        before: set[str] | None = None
        while not self._is_known:
            self._catalog.refresh()
            self._entries = self._catalog.segments()
            self._map()
            self._live = None
            # The writer may have compacted between the catalog and the files; what is as broken at a later moment is damaged.
            self._is_known = not self._broken or set(self._broken) == before
            before = set(self._broken)

    def _segment_folder(self) -> Path:
        """Raises SoftDatabaseError where it is a link, whose files are those of another database."""
        folder = self.path / SEGMENTS
        if folder.is_symlink():
            raise SoftDatabaseError(f"{folder}: is a symbolic link, which no folder of segments is")
        return folder

    def _map(self) -> None:
        """Maps the segments; `_broken` says which cannot be."""
        folder = self._segment_folder()
        kept = {entry.file: self._segments[entry.file] for entry in self._entries if entry.file in self._segments}
        self._segments, self._broken = kept, {}
        for entry in self._entries:
            if entry.file not in kept:
                try:
                    kept[entry.file] = segments.open_segment(folder, entry, self.schema)
                except SoftDatabaseError as error:
                    self._broken[entry.file] = str(error)

    # What is in it.

    @property
    def damaged(self) -> list[str]:
        """What is wrong with segments that cannot be read, with their files and rows."""
        self._check_open()
        return list(self._broken.values())

    @property
    def fields(self) -> list[str]:
        """The names of the fields that records have had."""
        self._check_open()
        return list(self._catalog.fields)

    def __len__(self) -> int:
        self._check_open()
        return sum(entry.rows for entry in self._entries) - len(self._catalog.deleted())

    def ids(self) -> Tensor:
        """(n,) int64: the ids of all rows, rising."""
        live = self._all()
        return torch.from_numpy(live.ids(np.arange(len(live))))

    def records(self, ids: Iterable[int]) -> list[Record]:
        """The records of rows, in the order of `ids`; empty for a row without one, or that is not in the database."""
        self._check_open()
        listed = integers(ids, f"{type(self).__name__}.records")
        records = self._catalog.records(number for number in listed if 0 <= number < MOST_IDS)
        return [records.get(number, {}) for number in listed]

    def counts(self, field: str) -> dict[Value, int]:
        """How many rows have each value of a field of their records."""
        if not isinstance(field, str):
            raise ValueError(f"{type(self).__name__}.counts: field must be the name of a field, not {field!r}")
        self._check_open()
        return self._catalog.counts(field)

    def stats(self) -> dict[str, Any]:
        """Sizes and settings, as plain values."""
        self._check_open()
        rows = len(self)
        stored = sum(segment.keys.nbytes + (segment.values.nbytes if segment.values is not segment.keys else 0)
                     for segment in self._segments.values())  # fmt: skip
        return {
            "rows": rows, "deleted": len(self._catalog.deleted()), "records": self._catalog.count(),
            "segments": len(self._entries), "bytes": stored, **segments.settings(self.schema), "model": self.model,
            "fields": self.fields, "damaged": self.damaged,
        }  # fmt: skip

    # Which rows are live.

    def _all(self) -> LiveRows:
        """All rows."""
        self._check_open()
        self._drop_truncated()
        if self._live is None:
            deleted = self._catalog.deleted()
            rows: list[np.ndarray | None] = []
            for entry in self._entries:
                of_it = entry.among(deleted)
                self._check_readable(entry, len(of_it) < entry.rows)
                if entry.file not in self._segments:
                    rows.append(np.empty(0, np.int64))
                    continue
                gone = self._segments[entry.file].row_of(of_it)
                rows.append(np.delete(np.arange(entry.rows), gone) if len(gone) else None)
            self._live = self._live_rows(self._entries, rows)
        return self._live

    def _rows(self, where: str | None, parameters: Parameters) -> LiveRows:
        """The rows that meet a condition."""
        if where is None:
            if isinstance(parameters, Sized) and len(parameters):
                raise ValueError(f"{type(self).__name__}: parameters are the values of a condition; give where, too")
            return self._all()
        self._check_open()
        self._drop_truncated()
        ids = self._catalog.select(where, parameters)
        rows: list[np.ndarray | None] = []
        for entry in self._entries:
            self._check_readable(entry, bool(entry.among(ids).size))
            segment = self._segments.get(entry.file)
            rows.append(np.empty(0, np.int64) if segment is None else segment.row_of(ids))
        return self._live_rows(self._entries, rows)

    def _live_rows(self, entries: Sequence[Entry], rows: Sequence[np.ndarray | None]) -> LiveRows:
        pairs = [(self._segments[e.file], r) for e, r in zip(entries, rows, strict=True) if e.file in self._segments]
        return LiveRows([segment for segment, _ in pairs], [r for _, r in pairs])

    def _drop_truncated(self) -> None:
        """Segments whose file has become shorter since it was opened are damaged."""
        for entry in self._entries:
            if entry.file in self._segments and (reason := self._segments[entry.file].truncation()):
                self._broken[entry.file] = reason  # first: an interrupted call must not leave a segment in neither
                self._live = None
                del self._segments[entry.file]

    def _check_readable(self, entry: Entry, is_needed: bool) -> None:
        if is_needed and entry.file in self._broken:
            raise SoftDatabaseError(
                f"{self._broken[entry.file]}. Restore the file, or delete these rows to read the others"
            )


def integers(ids: Iterable[int], method: str) -> list[int]:
    """Ids as integers of Python. Raises ValueError."""
    if isinstance(ids, Tensor | np.ndarray):
        ids = ids.tolist()
    if not isinstance(ids, Iterable):
        raise ValueError(f"{method}: ids must be a list of integers, not {type(ids).__name__}")
    results = []
    for number in ids:
        try:
            is_integer, value = not isinstance(number, bool | np.bool_), operator.index(number)
        except TypeError:
            is_integer = False
        if not is_integer:
            raise ValueError(f"{method}: ids must be integers, not {number!r}")
        results.append(value)
    return results


def integer(value: object, least: int, name: str) -> int:
    try:
        result = None if isinstance(value, bool) else operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        result = None
    if result is None or result < least:
        raise ValueError(f"{name} must be an integer of at least {least}, not {value!r}")
    return result
