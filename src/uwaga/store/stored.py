"""A stored database: the moment that it shows, and its writer, one process at a time, whose changes are on the disk when its calls return.
What all databases share.

An object remembers what the catalog on the disk says, and nothing else. A change takes its memory away before it begins, and gives it
back after the commit; so what any exception ends, Ctrl-C included, leaves an object that knows nothing, and the next call rolls back
and reads. So does the first call in a child made by fork, which gets a catalog of its own and may only read.

Letters: n rows.
"""

import json
import operator
import os
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from uwaga._base import durable
from uwaga._base.arguments import check, path_of
from uwaga._base.errors import ShapeError, SoftDatabaseError
from uwaga._base.options import OptionError, read
from uwaga._base.terminal import short
from uwaga.store import catalog, segments
from uwaga.store.catalog import Catalog, Parameters, Record, Value
from uwaga.store.reading import BLOCK, LiveRows
from uwaga.store.segments import DTYPES, MOST_IDS, Damage, Entry, SegmentFile, StoreSchema

SEGMENTS = "segments"
SEGMENT_BYTES = 2**28  # of keys and values; what compact() holds in memory at a time
_KINDS = {False: ("one vector a row", "SoftDatabase"), True: ("vectors of tokens", "TokenDatabase")}
_EXPORTED_AT_ONCE = 1024  # rows of a row group
NewRows = tuple[
    np.ndarray, Tensor, Tensor | None, Tensor | None
]  # what `segments.write` takes: ids, keys, values, offsets


class StoredDatabase(ABC):
    """The base of `SoftDatabase` and `TokenDatabase`, which define what a row is: rows that last on the disk.

    Attributes:
        path: the folder.
        schema: what every row has.
        model: the name of the model that made the keys, as `create` stored it, or None.
    """

    has_tokens = False  # whether a row has a vector for each token of a text: of `uwaga.store.TokenDatabase`

    # Of a kind of rows.

    @abstractmethod
    def __iter__(self) -> Iterator[Any]:
        """Return all rows, in ascending order of their ids."""

    append: Callable[..., range]

    @abstractmethod
    def _copied(self, live: LiveRows) -> list[NewRows]:
        """Return the rows, gathered into memory, as new segments."""

    # Opening and closing.

    def __init__(self, path: Path, opened: Catalog | None = None) -> None:
        """Open a database, as `open`, which converts the path. opened: its catalog, which this closes."""
        if not isinstance(path, Path):
            name = type(self).__name__
            raise TypeError(f"{name}: is made by {name}.open(path) or {name}.create(path, ...), not by its own name")
        self.path, self._catalog = path, opened or Catalog(path, write=False)
        self._opened_by = os.getpid()
        self._is_closed = self._is_known = False  # whether the following is what the catalog says
        self._segments: dict[str, SegmentFile] = {}
        self._entries: list[Entry] = []
        self._deleted = np.empty(0, np.int64)  # ids of deleted rows that segments still have
        self._broken: dict[str, str] = {}  # file: what is wrong
        self._live: LiveRows | None = None
        try:
            self.schema, self.model = self._catalog.schema, self._catalog.model
            if self.schema.tokens != self.has_tokens:
                rows, kind = _KINDS[self.schema.tokens]
                raise SoftDatabaseError(f"{path}: holds {rows}; uwaga.store.{kind}.open opens it")
            self._check_open()
        except BaseException:
            self.close()
            raise

    @classmethod
    def _create(cls, path: str | os.PathLike[str], layout: dict[str, Any], model: str | None) -> Self:
        """Create a database in a new folder. Raises ValueError, SoftDatabaseError."""
        is_text = model is None or (isinstance(model, str) and catalog.is_value(model))
        check(is_text, f"{cls.__name__}.create: model must be a string that UTF-8 can write, not {model!r}")
        try:
            schema = read(StoreSchema, layout)
        except OptionError as error:
            raise ValueError(f"{cls.__name__}.create: {error}") from None
        path = path_of(path, f"{cls.__name__}.create: path")
        catalog.check_path(path)
        if os.path.lexists(path):
            raise SoftDatabaseError(f"{path}: already exists; {cls.__name__}.open opens a database")
        try:
            with durable.atomic_folder(path) as made:
                durable.make_folder(made / SEGMENTS)
                Catalog.create(made / catalog.FILE, schema, model)
        except (OSError, sqlite3.Error) as error:
            reason = getattr(error, "strerror", None) or error
            raise SoftDatabaseError(f"{path}: cannot be created: {reason}") from error
        return cls.open(path)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Self:
        """Open an existing database as it is now. Rows are mapped into memory and read when a call needs them.

        A damaged or missing segment is no error yet: `damaged` says which, everything that needs its rows raises, and the others can
        be read after these are deleted.

        Raises:
            SoftDatabaseError: there is none, or its catalog cannot be read.
        """
        return cls(path_of(path, f"{cls.__name__}.open: path"))

    def __repr__(self) -> str:
        name = type(self).__name__
        try:
            rows = f"{len(self):,} rows"
        except SoftDatabaseError:
            rows = "closed" if self._is_closed else "cannot be read"
        return f"{name}({str(self.path)!r}, {rows})"

    def close(self) -> None:
        """Close the files; a second call has no effect."""
        self._is_closed = True
        self._catalog.close()
        self._segments.clear()
        self._live = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def refresh(self) -> None:
        """Show the database as it is now, with the changes of a writer. Raises SoftDatabaseError."""
        self._is_known = False
        self._check_open()

    def _check_open(self) -> None:
        """Read the catalog if its content is not known in this process. Every call begins here. Raises
        SoftDatabaseError."""
        if self._is_closed:
            raise SoftDatabaseError(f"{self.path}: the database is closed")
        if self._catalog.process != os.getpid():
            self._is_known, self._catalog = False, Catalog(self.path, write=False)
        before: set[str] | None = None
        while not self._is_known:
            self._catalog.refresh()
            self._entries, self._deleted = self._catalog.entries, self._catalog.deleted
            self._map()
            self._live = None
            # The writer may have compacted between the catalog and the files; what is as broken at a later moment is damaged.
            self._is_known = not self._broken or set(self._broken) == before
            before = set(self._broken)

    def _segment_folder(self) -> Path:
        """Return the folder of segments. Raises SoftDatabaseError if it is a link. The files of a link are another
        database's."""
        folder = self.path / SEGMENTS
        if folder.is_symlink():
            raise SoftDatabaseError(f"{folder}: is a symbolic link, which no folder of segments is")
        return folder

    def _map(self) -> None:
        """Map the segments into memory; `_broken` lists the segments that cannot be read."""
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
        """Return a reason for each segment that cannot be read, with its file and rows."""
        self._check_open()
        return list(self._broken.values())

    @property
    def fields(self) -> list[str]:
        """Return the names of all fields that records have had."""
        self._check_open()
        return list(self._catalog.fields)

    def __len__(self) -> int:
        self._check_open()
        return sum(entry.rows for entry in self._entries) - len(self._deleted)

    def ids(self) -> Tensor:
        """Return the ids of all rows, (n,) int64, in ascending order."""
        live = self._rows()
        return torch.from_numpy(live.ids(np.arange(len(live))))

    def records(self, ids: Iterable[int]) -> list[Record]:
        """Return the records of rows, in the order of `ids`. A record is empty if the row has no record or is not in the database."""
        self._check_open()
        numbers = integers(ids, f"{type(self).__name__}.records")
        records = self._catalog.records(number for number in numbers if 0 <= number < MOST_IDS)
        return [records.get(number, {}) for number in numbers]

    def parts(self) -> dict[str, str]:
        """Return the numbers of the passages of each file that `add_files` has added, with commas, by the field file."""
        self._check_open()
        return self._catalog.parts()

    def stats(self) -> dict[str, Any]:
        """Return sizes and settings as plain values."""
        self._check_open()
        rows = len(self)
        return {
            "rows": rows, "deleted": len(self._deleted), "records": self._catalog.count(),
            "segments": len(self._entries), "bytes": sum(segment.nbytes for segment in self._segments.values()), **catalog.settings(self.schema), "model": self.model,
            "fields": self.fields, "damaged": self.damaged,
        }  # fmt: skip

    # Which rows are live.

    def _rows(self, where: str | None = None, parameters: Parameters = ()) -> LiveRows:
        """Return all live rows, or the live rows that meet a condition."""
        self._check_open()
        self._drop_truncated()
        if where is None and self._live is not None:
            return self._live
        check(
            where is not None or not len(parameters),
            "SoftDatabase: parameters need where, which has their question marks",
        )
        ids = self._deleted if where is None else self._catalog.select(where, parameters)
        intact: list[SegmentFile] = []
        rows: list[np.ndarray | None] = []
        edges = np.searchsorted(ids, [(entry.first_id, entry.last_id + 1) for entry in self._entries]).reshape(-1, 2)
        for entry, (first, last) in zip(self._entries, edges, strict=True):
            inside, segment = ids[first:last], self._segments.get(entry.file)
            if segment is not None:
                found = segment.row_of(inside) if len(inside) else inside
                intact.append(segment)
                rows.append(
                    found if where is not None else np.delete(np.arange(entry.rows), found) if len(found) else None
                )
            elif len(inside) < entry.rows if where is None else len(inside):
                raise SoftDatabaseError(
                    f"{self._broken[entry.file]}. Restore the file, or delete these rows to read the others"
                )
        live = LiveRows(intact, rows)
        if where is None:
            self._live = live
        return live

    def _drop_truncated(self) -> None:
        """Treat segments as damaged if their file has become shorter since it was opened: reading the missing part would end the process
        (SIGBUS). A file that was removed meanwhile, as `compact` removes it, can be read until it is closed."""
        for file, segment in list(self._segments.items()):
            try:
                size = segment.path.stat().st_size
            except OSError:
                continue
            if size < segment.size:
                # First: an interrupted call must not leave a segment in neither.
                self._broken[file] = (
                    f"{segment.path} ({segment.entry.place}): was truncated while it was open, from {segment.size:,} to {size:,} bytes"
                )
                self._live = None
                del self._segments[file]

    # Arguments.

    def _check_dtype(self, x: Tensor, place: str) -> None:
        dtype = self.schema.dtype
        is_right = x.dtype in (torch.float32, DTYPES[dtype])
        check(is_right, f"{place} must be float32 or the database's {dtype}, not {dtype_name(x.dtype)}")

    def _query_values(self, x: Tensor, place: str) -> Tensor:
        """Return the values on the CPU, without a gradient, as float32. Raises ValueError."""
        self._check_dtype(x, place)
        values = x.detach().cpu().float()
        check(values.isfinite().all(), f"{place} has an entry that is NaN or infinite")
        return values

    # Writing.

    def export(self, path: str | os.PathLike[str]) -> None:
        """Write all rows to a Parquet file with the columns id; key and value (lists of H D and H E float32), or tokens (a list of
        vectors); and record (a JSON object). There is no value if the values are the keys. Raises SoftDatabaseError."""
        import pyarrow as pa
        from pyarrow import parquet

        path = path_of(path, f"{type(self).__name__}.export: path")
        width, heads = self.schema.key_width, self.schema.heads
        kinds = {"key": pa.list_(pa.float32(), heads * width)}
        if self.schema.value_width is not None:
            kinds["value"] = pa.list_(pa.float32(), heads * self.schema.value_width)
        if self.has_tokens:
            kinds = {"tokens": pa.list_(pa.list_(pa.float32(), width))}
        schema = pa.schema([("id", pa.int64()), *kinds.items(), ("record", pa.string())])
        try:
            with durable.atomic_replace(path) as file, parquet.ParquetWriter(file, schema) as writer:
                rows = iter(self)
                while part := list(islice(rows, _EXPORTED_AT_ONCE)):
                    columns = {"id": [row.id for row in part], "record": [json.dumps(row.record) for row in part]}
                    for name in kinds:
                        vectors = (getattr(row, name).float().numpy() for row in part)
                        columns[name] = [list(x) if self.has_tokens else x.reshape(-1) for x in vectors]
                    writer.write_table(pa.Table.from_pydict(columns, schema))
        except (OSError, pa.ArrowException) as error:
            raise SoftDatabaseError(
                f"{path}: cannot be written: {getattr(error, 'strerror', None) or error}"
            ) from error

    def _append(
        self,
        rows: str,
        count: int,
        new: Callable[[np.ndarray], list[NewRows]],
        records: Sequence[Mapping[str, Value | None]] | None,
    ) -> range:
        """Add `count` rows, called `rows` in messages, which `new` makes from their ids. Raises as `append`."""
        place = f"{type(self).__name__}.append"
        if records is not None and (not isinstance(records, Sequence) or isinstance(records, str | bytes)):
            raise ValueError(f"{place}: records must be a list of dictionaries, not {short(records)}")
        if records is not None and len(records) != count:
            raise ShapeError(f"{place}: {count} {rows} and {len(records)} records")
        self._begin_writing()
        self._catalog.check_fields(records or ())
        first = self._catalog.next_id()
        check(
            first + count <= MOST_IDS,
            f"{place}: {count} rows from id {first} on, and the ids of {self.path} are below {MOST_IDS:,}; "
            "export its rows and append them to a new database",
        )
        if count:
            self._add(new(np.arange(first, first + count)), (), records)
        return range(first, first + count)

    def delete(self, ids: Iterable[int], *, missing_ok: bool = False) -> None:
        """Remove rows from every answer. Their keys stay in the files until `compact`.

        A segment that cannot be read goes as a whole, with its file: every id from its first to its last is listed or was deleted
        before. So this removes what `check` reports:

            for damage in db.check():
                if damage.first_id is not None:
                    db.delete(range(damage.first_id, damage.last_id + 1), missing_ok=True)

        Args:
            ids: integers.
            missing_ok: ignore ids that belong to no row.

        Raises:
            ValueError: an id that is no integer, or, without `missing_ok`, of no row; nothing is removed.
            SoftDatabaseError: another process writes, the catalog cannot be written, or a part of a segment that cannot be
                read is listed; nothing is removed.
        """
        numbers = integers(ids, f"{type(self).__name__}.delete")
        self._begin_writing()
        self._drop_truncated()
        if self._broken:  # it may have been restored
            self.refresh()
        chosen = np.unique(np.array([number for number in numbers if 0 <= number < MOST_IDS], np.int64))
        is_there, is_lost, lost = np.zeros(len(chosen), bool), np.zeros(len(chosen), bool), []
        for entry in self._entries:
            inside, segment = (chosen >= entry.first_id) & (chosen <= entry.last_id), self._segments.get(entry.file)
            if segment is not None:
                is_there |= inside if segment.ids is None else np.isin(chosen, segment.ids)
            elif inside.any():
                gone = np.union1d(chosen[inside], entry.among(self._deleted))
                if gone.size <= entry.last_id - entry.first_id:
                    raise SoftDatabaseError(
                        f"{self._broken[entry.file]}. Restore the file, or delete all of range({entry.first_id}, {entry.last_id + 1})"
                    )
                lost.append(entry)
                is_lost |= inside
        is_there &= ~np.isin(chosen, self._deleted)
        missing = [number for number in numbers if not 0 <= number < MOST_IDS] + chosen[~(is_there | is_lost)].tolist()
        if missing and not missing_ok:
            raise ValueError(f"{type(self).__name__}.delete: row {min(missing)} is not in {self.path}")
        with self._change():
            for entry in lost:
                self._catalog.remove_segment(entry)
                self._catalog.remove_records(entry.first_id, entry.last_id)
            self._catalog.delete(chosen[is_there].tolist())
        self.refresh()
        if lost:
            self._remove_unlisted()

    def compact(self) -> int:
        """Rewrite segments that have deleted rows, and join small neighbouring segments. Ids and answers stay as they are.

        Returns the number of bytes of keys and values that this freed.

        Raises:
            SoftDatabaseError: another process writes, something cannot be read or written, or rows to write again differ from their
                checksum, which would be lost.
        """
        self._begin_writing()
        self._rows()  # raises for a segment that cannot be read
        before = sum(segment.nbytes for segment in self._segments.values())
        for group in self._groups():
            self._rewrite(group)
        self.refresh()
        return before - sum(segment.nbytes for segment in self._segments.values())

    def check(self) -> list[Damage]:
        """Return all damage of the database as it is now: compare every byte of every segment with its checksum, and let SQLite check
        the catalog."""
        self._check_open()
        with type(self).open(self.path) as now:
            results = [Damage(catalog.FILE, None, None, text) for text in now._catalog.problems()]
            for entry in now._entries:
                if entry.file in now._segments:
                    results += segments.check(now._segments[entry.file])
                else:
                    reason = now._broken[entry.file].partition("): ")[2]
                    results.append(Damage(entry.file, entry.first_id, entry.last_id, reason))
        return results

    def _begin_writing(self) -> None:
        """Become the writer, and remove what an interrupted call or another writer left. Raises SoftDatabaseError if
        there is a writer."""
        self._check_open()
        self._segment_folder()
        if self._opened_by != os.getpid():
            raise SoftDatabaseError(
                f"{self.path}: was opened by process {self._opened_by}, and this is its child, process {os.getpid()}, which may read alone; "
                "open the database here to write"
            )
        if not self._catalog.writes:
            try:
                writing = Catalog(self.path, write=True)
            except BlockingIOError as error:
                with closing(Catalog(self.path, write=False)) as now:
                    pid = now.setting("writer") or "unknown"
                raise SoftDatabaseError(f"{self.path}: another writer has it open: process {pid}") from error
            except OSError as error:
                raise SoftDatabaseError(f"{self.path}: cannot be written: {error.strerror or error}") from error
            self._is_known = False
            reading, self._catalog = self._catalog, writing
            reading.close()
            self._check_open()
        self._remove_unlisted()

    @contextmanager
    def _change(self) -> Iterator[None]:
        """Run one transaction, from whose beginning on nothing is known. `_is_known` is True again when this object
        knows what it has made."""
        self._is_known = False
        with self._catalog.transaction():
            yield

    def _remove_unlisted(self) -> None:
        """Remove the files that the catalog names and that are in no segment. A writer that failed or was killed left
        them, or their segments were replaced; a reader may still have these mapped. What cannot be removed now is
        removed when the next writer comes."""
        self._catalog.roll_back()  # what an interrupted transaction has removed is there still
        if unlisted := self._catalog.unlisted():
            names = set(unlisted) - {entry.file for entry in self._catalog.segments()}
            with suppress(OSError, SoftDatabaseError):
                durable.remove_files(self._segment_folder(), names)
                with self._catalog.transaction():
                    self._catalog.set_unlisted(())

    def _add(
        self,
        new: Sequence[NewRows],
        replaced: Sequence[Entry],
        records: Sequence[Mapping[str, Value | None]] | None = None,
    ) -> None:
        """Announce the files of segments, write them, and list them in the catalog in place of the replaced segments."""
        folder, entries = self._segment_folder(), list[Entry]()
        names = [segments.new_name(int(rows[0][0])) for rows in new]
        try:
            with self._change():
                self._catalog.set_unlisted([*self._catalog.unlisted(), *names])
            entries += [segments.write(folder / name, *rows) for name, rows in zip(names, new, strict=True)]
            with self._change():
                for entry in replaced:
                    self._catalog.remove_segment(entry)
                for entry in entries:
                    self._catalog.add_segment(entry)
                if not replaced:
                    self._catalog.set("next_id", str(int(new[-1][0][-1]) + 1))
                if records is not None:
                    self._catalog.add_records(int(new[0][0][0]), records)
        except BaseException as error:
            self._remove_unlisted()
            if isinstance(error, OSError):
                raise SoftDatabaseError(f"{folder}: cannot be written: {error.strerror or error}") from error
            raise
        if not replaced:
            self._entries += entries
            self._map()
            self._live, self._is_known = None, True

    @property
    def _row_bytes(self) -> int:
        """Return the bytes of a key and a value, or of a token's vector."""
        schema = self.schema
        return schema.heads * (schema.key_width + (schema.value_width or 0)) * DTYPES[schema.dtype].itemsize

    def _segment_rows(self) -> int:
        """Return the most rows of a segment that is written, or the most tokens of its rows. They are whole blocks, so
        that each block can be read where it is."""
        most = SEGMENT_BYTES // self._row_bytes
        return most if self.has_tokens else max(BLOCK, most // BLOCK * BLOCK)

    def _groups(self) -> list[list[Entry]]:
        """Return the groups of neighbouring segments that `compact` joins, and the segments that have deleted rows."""
        most, sizes = self._segment_rows() * self._row_bytes, {file: x.nbytes for file, x in self._segments.items()}
        groups: list[list[Entry]] = []
        for entry in self._entries:
            if groups and sum(sizes.get(part.file, 0) for part in [*groups[-1], entry]) <= most:
                groups[-1].append(entry)
            else:
                groups.append([entry])
        return [group for group in groups if len(group) > 1 or group[0].among(self._deleted).size]

    def _rewrite(self, group: list[Entry]) -> None:
        live = self._rows()
        kept = [pair for pair in zip(live.segments, live.rows, strict=True) if pair[0].entry in group]
        for segment, rows in kept:
            for lost in segments.damaged_rows(segment):
                if rows is None or ((rows >= lost.start) & (rows < lost.stop)).any():
                    raise SoftDatabaseError(
                        f"{segment.path} ({segment.entry.place}): some rows differ from their checksum; check() names them. Restore the "
                        "file, or delete these rows"
                    )
        part = LiveRows([segment for segment, _ in kept], [rows for _, rows in kept])
        if len(part):
            self._add(self._copied(part), group)
        else:
            with self._change():
                for entry in group:
                    self._catalog.remove_segment(entry)
        self.refresh()
        self._remove_unlisted()


def dtype_name(dtype: object) -> str:
    return str(dtype).removeprefix("torch.")


def integers(ids: Iterable[int], method: str) -> list[int]:
    """Return ids as Python integers. Raises ValueError, also for truth values: a mask is no list of ids."""
    values = ids.tolist() if isinstance(ids, Tensor | np.ndarray) else ids
    try:
        numbers = [operator.index("" if isinstance(value, bool) else value) for value in values]  # type: ignore[arg-type]
    except TypeError as error:
        raise ValueError(f"{method}: ids must be a list of integers, not {short(ids)}") from error
    return numbers


def nested(ids: Any, records: Mapping[int, Record]) -> Any:
    """Return records in the shape of their ids."""
    return [nested(part, records) for part in ids] if isinstance(ids, list) else records.get(ids, {})
