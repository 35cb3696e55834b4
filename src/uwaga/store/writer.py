"""The writer of a stored database: one process at a time, whose changes are on the disk when its calls return. What all databases share."""

import os
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from uwaga._base import durable
from uwaga._base.arguments import path_of
from uwaga._base.errors import ShapeError, SoftDatabaseError
from uwaga._base.terminal import short
from uwaga.store import catalog, parquet, segments
from uwaga.store.catalog import Catalog, Value
from uwaga.store.reading import LiveRows
from uwaga.store.segments import DTYPES, MOST_IDS, Damage, Entry, SegmentFile, StoreSchema
from uwaga.store.snapshot import SEGMENTS, Snapshot, integers

_WRITTEN_AT_ONCE = 2  # segments of an append
SEGMENT_BYTES = 2**28  # of keys and values; what compact() holds in memory at a time


class NewSegment(NamedTuple):
    """Rows that become a segment."""

    ids: np.ndarray  # int64, rising
    write: Callable[[Path], Entry]


class StoredDatabase(Snapshot, ABC):
    """Rows that last on the disk. `SoftDatabase` and `TokenDatabase` say what a row is."""

    # Of a kind of rows.

    @abstractmethod
    def __iter__(self) -> Iterator[Any]:
        """All rows, in ascending order of their ids."""

    append: Callable[..., range]

    @abstractmethod
    def _size(self, entry: Entry) -> int:
        """The bytes of keys and values of a segment."""

    @abstractmethod
    def _segment_bytes(self) -> int:
        """The most bytes of keys and values of a segment that is written."""

    @abstractmethod
    def _copied(self, live: LiveRows) -> list[NewSegment]:
        """The rows, gathered into memory, as new segments."""

    # Writing.

    @classmethod
    def _create(cls, path: str | os.PathLike[str], schema: StoreSchema, model: str | None) -> Self:
        """A new database in a new folder. Raises ValueError, SoftDatabaseError."""
        if model is not None and not _is_text(model):
            raise ValueError(f"{cls.__name__}.create: model must be a string that UTF-8 can write, not {model!r}")
        settings = {"layout": segments.settings_of(checked(schema, cls.__name__)), "next_id": "0", "writer": ""}
        if model is not None:
            settings["model"] = model
        path = path_of(path, f"{cls.__name__}.create: path")
        catalog.check_path(path)
        if os.path.lexists(path):
            raise SoftDatabaseError(f"{path}: already exists; {cls.__name__}.open opens a database")
        try:
            with durable.atomic_folder(path) as made:
                durable.make_folder(made / SEGMENTS)
                Catalog.create(made / catalog.FILE, settings)
        except (OSError, sqlite3.Error) as error:
            reason = getattr(error, "strerror", None) or error
            raise SoftDatabaseError(f"{path}: cannot be created: {reason}") from error
        return cls.open(path)

    def export(self, path: str | os.PathLike[str]) -> None:
        """Writes all rows to a Parquet file, whose columns `uwaga.store.parquet` describes. Raises SoftDatabaseError."""
        parquet.export(path_of(path, f"{type(self).__name__}.export: path"), self, self.schema)

    def _append_parquet(self, path: str | os.PathLike[str], names: Mapping[str, str]) -> range:
        """Adds the rows of a Parquet file. names: of the column of each argument of `append`."""
        first, last = None, 0
        for vectors, records in parquet.read(
            path_of(path, f"{type(self).__name__}.append_parquet: path"), self.schema, names
        ):
            added = self.append(**vectors, records=records)
            first, last = added.start if first is None else first, added.stop
        return range(first or 0, last)

    def _check_model(self, model: str | None, vectors: str) -> None:
        """Raises ValueError: what is appended was made by another model."""
        if model is not None and model != self.model:
            raise ValueError(
                f"{type(self).__name__}.append: the {vectors} were made by {model!r}, and {self.path} was created for {self.model!r}"
            )

    def _append(
        self,
        count: int,
        new: Callable[[np.ndarray], list[NewSegment]],
        records: Sequence[Mapping[str, Value | None]] | None,
    ) -> range:
        """Adds so many rows, which `new` makes of their ids. Raises as `append`."""
        name = type(self).__name__
        self._begin_writing()
        self._catalog.check_fields(records or ())
        first = self._catalog.next_id()
        if first + count > MOST_IDS:
            raise ValueError(
                f"{name}.append: {count} rows from id {first} on, and the ids of {self.path} are below {MOST_IDS:,}; "
                "export its rows and append them to a new database"
            )
        if count:
            self._add(new(np.arange(first, first + count)), (), records)
        return range(first, first + count)

    def _check_records(self, records: object, count: int, rows: str) -> None:
        """Raises ShapeError, ValueError: there is not one record for each of the rows."""
        place = f"{type(self).__name__}.append"
        if records is not None and (not isinstance(records, Sequence) or isinstance(records, str | bytes)):
            raise ValueError(f"{place}: records must be a list of dictionaries, not {short(records)}")
        if records is not None and len(records) != count:
            raise ShapeError(f"{place}: {count} {rows} and {len(records)} records")

    def delete(self, ids: Iterable[int], *, missing_ok: bool = False) -> None:
        """Removes rows. Their keys stay in the files until `compact`; no answer has them any more.

        A segment that cannot be read goes as a whole, with its file, where every id from its first to its last is listed or was
        deleted before: which of them it had cannot be known. So this removes what `check` reports:

            for damage in db.check():
                if damage.first_id is not None:
                    db.delete(range(damage.first_id, damage.last_id + 1), missing_ok=True)

        Args:
            ids: integers.
            missing_ok: pass over ids that are of no row.

        Raises:
            ValueError: an id that is no integer, or, without `missing_ok`, of no row; nothing is removed.
            SoftDatabaseError: another process writes, the catalog cannot be written, or some rows of a segment are listed that
                cannot be read and says itself which it has; nothing is removed.
        """
        numbers = integers(ids, f"{type(self).__name__}.delete")
        self._begin_writing()
        self._drop_truncated()
        if self._broken:  # it may have been restored
            self._map()
            self._live = None
        listed = np.unique(np.array([number for number in numbers if 0 <= number < MOST_IDS], np.int64))
        deleted = self._catalog.deleted()
        is_there, is_anywhere, is_lost = (np.zeros(len(listed), bool) for _ in range(3))
        lost = []
        for entry in self._entries:
            inside = (listed >= entry.first_id) & (listed <= entry.last_id)
            is_anywhere |= inside
            if not inside.any():
                continue
            segment, is_consecutive = self._segments.get(entry.file), entry.last_id - entry.first_id + 1 == entry.rows
            if segment is not None:
                is_there |= inside if segment.ids is None else np.isin(listed, segment.ids)
            elif np.union1d(listed[inside], entry.among(deleted)).size == entry.last_id - entry.first_id + 1:
                lost.append(entry)
                is_lost |= inside
            elif is_consecutive:
                is_there |= inside
            else:
                raise SoftDatabaseError(
                    f"{self._broken[entry.file]}. Which rows it had is not known: delete all of "
                    f"range({entry.first_id}, {entry.last_id + 1})"
                )
        is_there &= ~np.isin(listed, deleted)
        missing = [number for number in numbers if not 0 <= number < MOST_IDS] + listed[~(is_there | is_lost)].tolist()
        if missing and not missing_ok:
            raise ValueError(f"{type(self).__name__}.delete: row {min(missing)} is not in {self.path}")
        with self._change():
            for entry in lost:
                self._catalog.remove_segment(entry)
                self._catalog.remove_records(entry.first_id, entry.last_id)
            self._catalog.delete(listed[is_there].tolist())
            self._catalog.remove_orphan_rows(listed[~is_anywhere].tolist())
        if lost:
            self.refresh()
            self._remove_unlisted()
        self._live, self._is_known = None, True

    def compact(self) -> int:
        """Writes segments with deleted rows, and neighbouring small ones, anew; ids and answers stay as they are.

        Returns how many bytes of keys and values that has freed.

        Raises:
            SoftDatabaseError: another process writes, something cannot be read or written, or rows to write anew differ from their
                checksum, which would be lost.
        """
        self._begin_writing()
        before = self._bytes()
        for group in self._groups():
            self._rewrite(group)
        self.refresh()
        return before - self._bytes()

    def check(self) -> list[Damage]:
        """Everything that is wrong: every byte of every segment is compared with its checksum, and the catalog checked by SQLite.

        Of a segment that a writer has replaced since the moment that is shown, the bytes that are still mapped are compared."""
        self._check_open()
        results = [Damage(catalog.FILE, None, None, text) for text in self._catalog.problems()]
        for entry in self._entries:
            damages = list(segments.check(self._segment_folder(), entry, self.schema))
            if damages and entry.file in self._segments and not self._is_listed_now(entry):
                damages = list(segments.check_mapped(self._segments[entry.file]))
            results += damages
        if not results:
            results += [Damage(catalog.FILE, n, n, text) for n, text in self._catalog.unreadable_records()]
            for table, ids in self._catalog.orphan_rows().items():
                results += [Damage(catalog.FILE, n, n, f"the row is in {table} and in no segment") for n in ids]
        return results

    def _is_listed_now(self, entry: Entry) -> bool:
        """Whether a segment is in the database still, and not only at the moment that this shows."""
        if self._catalog.writes:
            return True
        with closing(Catalog(self.path, write=False)) as now:
            return entry in now.segments()

    def _begin_writing(self) -> None:
        """Makes this the writer, and removes what an interrupted call or another writer has left. Raises SoftDatabaseError where another one is."""
        self._check_open()
        self._segment_folder()
        if self._opened_by != os.getpid():
            raise SoftDatabaseError(
                f"{self.path}: was opened by process {self._opened_by}, and this is its child, process {os.getpid()}, which may read alone; "
                "open the database here to write"
            )
        if not self._catalog.writes:
            self._become_writer()
        self._remove_unlisted()

    def _become_writer(self) -> None:
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

    @contextmanager
    def _change(self) -> Iterator[None]:
        """One transaction, from whose beginning on nothing is known; `_is_known` is True again when this knows what it has made."""
        self._is_known = False
        with self._catalog.transaction():
            yield

    def _remove_unlisted(self) -> None:
        """Removes the files that the catalog names and that are of no segment: those of a writer that failed or was killed, and of
        segments that were replaced, which a reader may still have mapped. What cannot be removed now is when the next writer comes."""
        self._catalog.roll_back()  # what an interrupted transaction has removed is there still
        if unlisted := self._catalog.unlisted():
            names = set(unlisted) - {entry.file for entry in self._catalog.segments()}
            with suppress(OSError, SoftDatabaseError):
                durable.remove_files(self._segment_folder(), names)
                with self._catalog.transaction():
                    self._catalog.set_unlisted(())

    def _add(
        self,
        new: Sequence[NewSegment],
        replaced: Sequence[Entry],
        records: Sequence[Mapping[str, Value | None]] | None = None,
    ) -> None:
        """Announces the files of segments, writes them, then the transaction that makes them true and the replaced ones untrue."""
        folder, entries = self._segment_folder(), list[Entry]()
        names = [segments.new_name(int(each.ids[0])) for each in new]
        try:
            with self._change():
                self._catalog.set_unlisted([*self._catalog.unlisted(), *names])
            with segments.threads(
                min(_WRITTEN_AT_ONCE, len(new))
            ) as each:  # the disk writes one while the next one is computed
                entries += each(lambda name, one: one.write(folder / name), names, new)
            with self._change():
                for entry in replaced:
                    self._catalog.remove_segment(entry)
                for entry in entries:
                    self._catalog.add_segment(entry)
                if not replaced:
                    self._catalog.set("next_id", str(int(new[-1].ids[-1]) + 1))
                if records is not None:
                    self._catalog.add_records(int(new[0].ids[0]), records)
        except BaseException as error:
            self._remove_unlisted()
            if isinstance(error, OSError):
                raise SoftDatabaseError(f"{folder}: cannot be written: {error.strerror or error}") from error
            raise
        if not replaced:
            self._entries += entries
            self._map()
            self._live, self._is_known = None, True

    def _groups(self) -> list[list[Entry]]:
        """The neighbouring segments that are to become one, and those that have deleted rows."""
        deleted, most = self._catalog.deleted(), self._segment_bytes()
        groups: list[list[Entry]] = []
        for entry in self._entries:
            if groups and sum(map(self._size, groups[-1])) + self._size(entry) <= most:
                groups[-1].append(entry)
            else:
                groups.append([entry])

        def has_deleted(group: Sequence[Entry]) -> bool:
            return bool(((deleted >= group[0].first_id) & (deleted <= group[-1].last_id)).any())

        return [group for group in groups if len(group) > 1 or has_deleted(group)]

    def _rewrite(self, group: list[Entry]) -> None:
        live = self._all()
        kept = [n for n, segment in enumerate(live.segments) if segment.entry in group]
        for n in kept:
            _check_undamaged(live.segments[n], live.rows[n])
        part = LiveRows([live.segments[n] for n in kept], [live.rows[n] for n in kept])
        if len(part):
            self._add(self._copied(part), group)
        else:
            with self._change():
                for entry in group:
                    self._catalog.remove_segment(entry)
        self.refresh()
        self._remove_unlisted()

    def _bytes(self) -> int:
        return sum(map(self._size, self._entries))


def _check_undamaged(segment: SegmentFile, rows: np.ndarray | None) -> None:
    """Raises SoftDatabaseError where rows of a segment (None: all) differ from their checksum."""
    ids = None if rows is None else segment.id_of(rows)
    for first, last in segments.damaged_rows(segment):
        if ids is None or bool(((ids >= first) & (ids <= last)).any()):
            raise SoftDatabaseError(
                f"{segment.path} (rows {first} to {last}): the rows differ from their checksum. Restore the file, or delete these rows"
            )


def checked(schema: StoreSchema, name: str) -> StoreSchema:
    for size_name in ("key_width", "value_width", "heads"):
        size = getattr(schema, size_name)
        if not (size is None and size_name == "value_width") and (type(size) is not int or not 1 <= size <= 2**20):
            raise ValueError(f"{name}.create: {size_name} must be an integer from 1 to {2**20:,}, not {size!r}")
    if schema.dtype not in DTYPES:
        raise ValueError(f"{name}.create: dtype must be {', '.join(DTYPES)}, not {schema.dtype}")
    return schema


def _is_text(value: object) -> bool:
    """Whether it is a string that UTF-8 can write: one without lone surrogates."""
    return isinstance(value, str) and not any("\ud800" <= character <= "\udfff" for character in value)
