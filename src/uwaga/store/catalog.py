"""The catalog of a soft database: one SQLite file in WAL mode, which says which segments live, and holds the records.

    settings(name, value)                               layout, model, next_id, writer, unlisted
    segments(first_id, last_id, rows, file, checksums)  the rows, in ascending order of their ids
    deleted(id)                                         rows that are in a segment and no longer in the database
    records(id, ...)                                    one column for each field that a record has had

A row is in the database from the moment at which the transaction that lists its segment is on the disk. The file is the only truth:
whoever has it open reads it again after whatever ended a call before its end, and a commit is refused if another connection has
written meanwhile, if segments would overlap, or if the files are no longer those that were opened. A writer holds the lock of the
folder for as long as it has the catalog open. A child made by fork leaves its parent's catalog and lock alone, and opens its own.

SQLite alone opens the file: POSIX drops all locks that a process has on a file when the process closes it once. It locks readers and the
writer by the files -wal and -shm, which stay when nobody writes, so that those who may not write the folder lock too. If they are
missing and cannot be made, nobody writes: the file is read without a lock, and what was read is refused when they have appeared.

`unlisted` has the names of the files that a writer is about to write, and of those that it is about to remove: of a killed writer's files these can be removed, and
nothing else can, whatever its name. The version of the files is SQLite's user_version, which was 0 until there was one. A file of a
stranger is refused if its tables are not exactly these: there may be no trigger, view or computed column that would run with our
statements.
"""

import ctypes
import json
import os
import sqlite3
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from urllib.parse import quote
from weakref import WeakSet

import numpy as np
from torch import Tensor

from uwaga._base import durable, untrusted
from uwaga._base.arguments import check
from uwaga._base.errors import SoftDatabaseError
from uwaga._base.options import read
from uwaga._base.terminal import printable, short
from uwaga.store.segments import MOST_IDS, NAMES, VERSION, Entry, StoreSchema

FILE, _LOCK = "catalog.sqlite", "lock"
Value = str | int | float
Record = dict[str, Value]
Parameters = Sequence[Value | None] | Mapping[str, Value | None]

_APPLICATION_ID = 0x75776167  # "uwag"
_MOST_FIELDS, _MOST_NAME, _MOST_BYTES = 200, 200, untrusted.LINE_BYTES // 2
_VALUE_RULE = (
    f"a value must be a string of at most {_MOST_BYTES:,} bytes, a 64-bit integer, a float that is not NaN, or None"
)
_NAME_RULE = (
    f"a name must have 1 to {_MOST_NAME} printable characters, not be the database's own, such as id, and differ from other fields by "
    f"more than its case; records have at most {_MOST_FIELDS} fields"
)
_RESERVED = {"id", "rowid", "oid", "_rowid_"}
_TABLES = {
    "settings": "CREATE TABLE settings(name TEXT PRIMARY KEY, value TEXT NOT NULL)",
    "segments": (
        "CREATE TABLE segments(first_id INTEGER PRIMARY KEY, last_id INTEGER NOT NULL, rows INTEGER NOT NULL, "
        "file TEXT NOT NULL UNIQUE, checksums BLOB NOT NULL)"
    ),
    "deleted": "CREATE TABLE deleted(id INTEGER PRIMARY KEY)",
}
# Errors of a condition, and not of the file.
_OF_CONDITIONS = (sqlite3.SQLITE_ERROR, sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_MISMATCH, sqlite3.SQLITE_RANGE)
_AT_ONCE = 500  # parameters of one statement


class Catalog:
    """An open catalog.

    Args:
        folder: of the database.
        write: whether it is changed, by the one writer. Without, it shows one moment of the database until `refresh` is called.

    Raises:
        SoftDatabaseError: it is no such file, is damaged, or cannot be opened.
        BlockingIOError: there is another writer. OSError: the lock cannot be written.

    Attributes:
        path: of the SQLite file.
        writes: whether this is the writer's.
        process: that opened it; in another one nothing of it may be used.
        schema: the layout of all rows.
        model: that made the keys, or None.
        fields: the names of the fields that records have had, in the order of their first use.
        entries: all segments, in ascending order of their ids.
        deleted: ids of deleted rows that segments still have, int64, rising.
    """

    schema: StoreSchema
    model: str | None
    fields: list[str]
    entries: list[Entry]
    deleted: np.ndarray

    def __init__(self, folder: Path, *, write: bool) -> None:
        check_path(folder)
        if not folder.is_dir():
            raise SoftDatabaseError(f"{folder}: there is no such folder")
        self.path, self.writes, self.process = folder / FILE, write, os.getpid()
        self._connection: sqlite3.Connection | None = None
        self._lock = ExitStack()
        self._is_locked = True  # whether SQLite locks what is shown
        _OPEN.add(self)
        try:
            if write:
                self._lock.enter_context(durable.file_lock(folder / _LOCK, wait=False))
            self.refresh()
            if write:
                with self.transaction():
                    self.set("writer", str(self.process))
        except BaseException:
            self.close()
            raise

    @classmethod
    def create(cls, path: Path, schema: StoreSchema, model: str | None) -> None:
        """Write a new catalog; `path` does not exist. Raises sqlite3.Error."""
        new = {"layout": json.dumps(settings(schema), sort_keys=True), "next_id": "0", "writer": ""}
        if model is not None:
            new["model"] = model
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {VERSION}")
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("BEGIN IMMEDIATE")
            for sql in [*_TABLES.values(), _records_sql([])]:
                connection.execute(sql)
            connection.executemany("INSERT INTO settings VALUES (?, ?)", new.items())
            connection.execute("COMMIT")
            connection.execute("PRAGMA journal_mode = WAL")

    def close(self) -> None:
        """Close the file and release the lock; a second call has no effect."""
        if self.process != os.getpid():
            return
        with self._lock, ExitStack() as closing_last:
            connection, self._connection = self._connection, None
            if connection is None:
                return
            with suppress(sqlite3.Error, SoftDatabaseError):
                if self.writes:
                    # The last connection that is closed removes -wal and -shm; not this one, which may not write.
                    closing_last.callback(_connect(self.path, "ro").close)
            closing_last.callback(connection.close)
            with suppress(sqlite3.Error, SoftDatabaseError):
                if self.writes and _stamp(self.path, write=True) == self._stamp:
                    _roll_back(connection)
                    connection.execute("PRAGMA busy_timeout = 0")
                    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def refresh(self) -> None:
        """Show the database as it is now. Raises SoftDatabaseError."""
        with self._errors():
            if self._connection is None or not (self.writes or (self._is_locked and self._stamp == _stamp(self.path))):
                self._open()
            self.roll_back()
            if not self.writes:
                self._execute("BEGIN")
            self._version = self._data_version()
            self.fields, self.entries = self._fields(), self.segments()
            self.deleted = np.array(
                [number for (number,) in self._rows("SELECT id FROM deleted ORDER BY id")], np.int64
            )
            self.model, self.schema = self.setting("model"), self._schema()

    def roll_back(self) -> None:
        """End a transaction that was interrupted, or the moment that this shows."""
        with self._errors():
            _roll_back(self._connection)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Make all changes inside together: they are on the disk when the block ends, and an exception undoes them."""
        with self._errors():
            self.roll_back()
            if _stamp(self.path, write=True) != self._stamp:
                raise SoftDatabaseError(f"{self.path}: was moved or replaced while it was open; open it again")
            try:
                self._execute("BEGIN IMMEDIATE")
                if self._data_version() != self._version:
                    raise SoftDatabaseError(
                        f"{self.path}: another process has written it, whatever holds {_LOCK}; this call changed nothing, and the "
                        "next one reads what is there now"
                    )
                yield
                self._execute("COMMIT")
            except BaseException:
                with suppress(SoftDatabaseError):
                    self.roll_back()
                raise

    def _open(self) -> None:
        """Connect to the file that is there now. Raises SoftDatabaseError if it is no catalog of this version."""
        if self._connection is not None:
            self._connection.close()
        self._connection, self._is_locked = None, True
        _stamp(self.path, write=self.writes)
        # At first without a lock and a log, so that nothing of a stranger's file is changed.
        connection = _connect(self.path, "ro&immutable=1")
        try:
            if connection.execute("PRAGMA application_id").fetchone() != (_APPLICATION_ID,):
                raise SoftDatabaseError(f"{self.path}: is not a catalog of a soft database")
            before = _stamp(self.path)
            try:
                locked = _connect(self.path, "rw" if self.writes else "ro")
            except sqlite3.OperationalError:
                if self.writes or Path(f"{self.path}-wal").exists():
                    raise
                self._is_locked, self._stamp = False, before
            else:
                connection.close()
                connection = locked
                self._is_locked, self._stamp = True, _stamp(self.path)
            self._connection = connection
            self._check_tables()
        except BaseException:
            connection.close()
            self._connection = None
            raise

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Turn SQLite's errors, and a read without a lock during a write, into a SoftDatabaseError with the file."""
        try:
            yield
            self._check_unlocked()
        except (sqlite3.Error, UnicodeDecodeError, OverflowError) as error:
            self._check_unlocked()
            raise SoftDatabaseError(f"{self.path}: {_reason(error)}") from error

    def _check_unlocked(self) -> None:
        if not self._is_locked and self._stamp != _stamp(self.path):
            raise SoftDatabaseError(
                f"{self.path}: has been written since it was opened, when it could not be locked, as its folder cannot be written; "
                "call refresh()"
            )

    # What it says.

    def setting(self, name: str) -> str | None:
        """Return a setting, or None if it is not there."""
        rows = list(self._rows("SELECT value FROM settings WHERE name = ?", (name,)))
        return str(rows[0][0]) if rows else None

    def _schema(self) -> StoreSchema:
        try:
            text = (self.setting("layout") or "null")[:1000]  # more would be another's
            result: StoreSchema = read(StoreSchema, json.loads(text), path="layout")
            if result.tokens and (result.heads, result.value_width) != (1, None):
                raise ValueError("rows with a key for each token have one head, and no values besides the keys")
        except (ValueError, RecursionError) as error:
            raise SoftDatabaseError(f"{self.path}: is damaged: {error}") from error
        return result

    def segments(self) -> list[Entry]:
        """Return all segments, in ascending order of their ids. Raises SoftDatabaseError for descriptions that contradict each other."""
        entries, last = [], -1
        for row in self._rows("SELECT first_id, last_id, rows, file, checksums FROM segments ORDER BY first_id"):
            if not (all(isinstance(x, int) for x in row[:3]) and isinstance(row[3], str) and isinstance(row[4], bytes)):
                raise SoftDatabaseError(f"{self.path}: is damaged: a segment is described by values of other types")
            entry = Entry(*row)
            is_below = last < entry.first_id <= entry.last_id < MOST_IDS
            if not (is_below and 1 <= entry.rows <= entry.last_id - entry.first_id + 1):
                raise SoftDatabaseError(f"{self.path}: is damaged: its segments overlap at row {entry.first_id}")
            self._check_file(entry.file)
            entries.append(entry)
            last = entry.last_id
        if self.next_id() <= last:
            raise SoftDatabaseError(
                f"{self.path}: is damaged: its next id is {self.next_id()}, and it has a row {last}"
            )
        return entries

    def next_id(self) -> int:
        """Return the id of the row that is added next. Raises SoftDatabaseError."""
        text = self.setting("next_id") or "missing"
        if not (text.isascii() and text.isdigit() and len(text) <= len(str(MOST_IDS)) and int(text) <= MOST_IDS):
            raise SoftDatabaseError(
                f"{self.path}: is damaged: its next id is {printable(text[:40])}, and must be from 0 to {MOST_IDS:,}"
            )
        return int(text)

    def unlisted(self) -> list[str]:
        """Return the names of files that were announced or belonged to removed segments, and that no segment has."""
        result = (self.setting("unlisted") or "").split()
        for name in result:
            self._check_file(name)
        return result

    def parts(self) -> dict[str, str]:
        """Return the fields part of the records of each field file, with commas."""
        if not {"file", "part"} <= set(self.fields):
            return {}
        rows = self._rows("SELECT file, group_concat(part) FROM records WHERE file IS NOT NULL GROUP BY file")
        return {str(file): str(parts) for file, parts in rows}

    def records(self, ids: Iterable[int]) -> dict[int, Record]:
        """Return the records of the ids that have a record."""
        results: dict[int, Record] = {}
        numbers = sorted(set(ids))
        for start in range(0, len(numbers), _AT_ONCE):
            part = numbers[start : start + _AT_ONCE]
            marks = ", ".join("?" * len(part))
            for row in self._rows(f"SELECT {self._columns()} FROM records WHERE id IN ({marks})", part):
                results[row[0]] = self._record(row)
        return results

    def all_records(self, first: int, last: int) -> dict[int, Record]:
        """Return the records with ids from `first` to `last`."""
        sql = f"SELECT {self._columns()} FROM records WHERE id BETWEEN ? AND ?"
        return {row[0]: self._record(row) for row in self._rows(sql, (first, last))}

    def count(self) -> int:
        """Return the number of records."""
        ((number,),) = self._rows("SELECT count(*) FROM records")
        return int(number)

    def select(self, where: str, parameters: Parameters) -> np.ndarray:
        """Return the ids of the records that meet an SQL condition, int64, rising, without deleted ones.

        Raises ValueError: SQLite does not take the condition or its parameters."""
        check(isinstance(where, str), f"SoftDatabase: where must be a string, not {short(where)}")
        check(
            isinstance(parameters, Mapping | Sequence),
            f"SoftDatabase: parameters must be a list or a dict, not {short(parameters)}",
        )
        values = parameters.values() if isinstance(parameters, Mapping) else parameters
        # sqlite3 would take scalars of NumPy for blobs.
        plain = [
            value.item() if isinstance(value, np.generic | np.ndarray | Tensor) and value.ndim == 0 else value
            for value in values
        ]
        is_plain = all(isinstance(value, str | int | float | None) for value in plain)
        check(is_plain, "SoftDatabase: parameters must be strings, integers, floats or None")
        bound = dict(zip(parameters, plain, strict=True)) if isinstance(parameters, Mapping) else plain
        with self._errors():
            try:
                # CASE takes an expression, and no ORDER BY after it; a newline ends a comment.
                found = self._execute(f"SELECT id FROM records WHERE CASE WHEN\n{where}\nTHEN 1 END", bound)
                ids = np.array([row[0] for row in found], np.int64)
            except (sqlite3.Error, ValueError, OverflowError) as error:
                if getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) not in _OF_CONDITIONS:
                    raise  # of the file
                why, fields = str(error).replace("\nTHEN 1 END", ""), printable(", ".join(self.fields)) or "none"
                raise ValueError(
                    f"SoftDatabase: the condition {printable(where)} cannot be used: {why}. It must be an expression of SQL over the fields "
                    f"{fields}, with strings in single quotes"
                ) from error
        return np.setdiff1d(ids, self.deleted)

    def problems(self) -> list[str]:
        """Return what SQLite's own check of the whole file finds, or why a record cannot be read."""
        try:
            values = [str(value) for (value,) in self._rows("PRAGMA integrity_check(100)")]
            for row in self._rows(f"SELECT {self._columns()} FROM records") if values == ["ok"] else ():
                self._record(row)
        except SoftDatabaseError as error:
            values = [str(error).removeprefix(f"{self.path}: ")]
        return [] if values == ["ok"] else values

    # What changes it, in a transaction.

    def set(self, name: str, value: str) -> None:
        self._execute("INSERT OR REPLACE INTO settings VALUES (?, ?)", (name, value))

    def set_unlisted(self, names: Iterable[str]) -> None:
        self.set("unlisted", " ".join(names))

    def add_segment(self, entry: Entry) -> None:
        """Add a segment. Raises SoftDatabaseError if another segment has some of its ids."""
        inside = "SELECT 1 FROM segments WHERE first_id <= ? AND last_id >= ? LIMIT 1"
        if list(self._rows(inside, (entry.last_id, entry.first_id))):
            raise SoftDatabaseError(f"{self.path}: {entry.place} are in it already; nothing is changed")
        self._many("INSERT INTO segments VALUES (?, ?, ?, ?, ?)", [entry])
        self.set_unlisted(name for name in self.unlisted() if name != entry.file)

    def remove_segment(self, entry: Entry) -> None:
        """Remove a segment and the deletions of its rows; its file is unlisted from now on."""
        self._execute("DELETE FROM segments WHERE file = ?", (entry.file,))
        self._execute("DELETE FROM deleted WHERE id BETWEEN ? AND ?", (entry.first_id, entry.last_id))
        self.set_unlisted([*self.unlisted(), entry.file])

    def add_records(self, first: int, records: Sequence[Mapping[str, Value | None]]) -> None:
        """Add records with ids from `first` on. They were checked by `check_fields`."""
        for name in dict.fromkeys(name for record in records for name in record):
            if name not in self.fields:
                self._execute(f"ALTER TABLE records ADD COLUMN {_quoted(name)}")
                self.fields.append(name)
        marks = ", ".join("?" * (1 + len(self.fields)))
        rows = ([first + n, *map(record.get, self.fields)] for n, record in enumerate(records))
        self._many(f"INSERT INTO records({self._columns()}) VALUES ({marks})", rows)

    def remove_records(self, first: int, last: int) -> None:
        self._execute("DELETE FROM records WHERE id BETWEEN ? AND ?", (first, last))

    def delete(self, ids: Sequence[int]) -> None:
        """Delete rows."""
        self._many("INSERT INTO deleted VALUES (?)", zip(ids))
        self._many("DELETE FROM records WHERE id = ?", zip(ids))

    def check_fields(self, records: Iterable[Mapping[str, object]]) -> None:
        """Raise ValueError for a record that cannot be stored, with its number."""
        names, folded = set(self.fields), {name.lower() for name in self.fields} | _RESERVED
        for number, record in enumerate(records):
            if not isinstance(record, Mapping):
                raise ValueError(f"SoftDatabase: record {number} must be a dictionary, not {type(record).__name__}")
            for name, value in record.items():
                fault = "" if is_value(value) else f"{_VALUE_RULE}, not {short(value)}"
                if name not in names:
                    is_name = isinstance(name, str) and 1 <= len(name) <= _MOST_NAME and name.isprintable()
                    if not is_name or name.lower() in folded or len(names) == _MOST_FIELDS:
                        fault = _NAME_RULE
                    names.add(name)
                    folded.add(str(name).lower())
                if fault:
                    raise ValueError(f"SoftDatabase: record {number}, field {printable(str(name))}: {fault}")

    # Statements.

    def _check_file(self, file: str) -> None:
        if not NAMES.fullmatch(file):
            raise SoftDatabaseError(f"{self.path}: is damaged: {printable(file)} is not the name of a segment")

    def _columns(self) -> str:
        return ", ".join(["id", *map(_quoted, self.fields)])

    def _record(self, row: Sequence) -> Record:
        if bytes in map(type, row):
            raise SoftDatabaseError(
                f"{self.path}: is damaged: the record of row {row[0]} has bytes, which no record has"
            )
        return {name: value for name, value in zip(self.fields, row[1:], strict=True) if value is not None}

    def _fields(self) -> list[str]:
        return [row[1] for row in self._execute("PRAGMA table_info(records)")][1:]

    def _data_version(self) -> int:
        """Return a number that changes if another connection has written."""
        (number,) = self._execute("PRAGMA data_version").fetchone()
        return int(number)

    def _rows(self, sql: str, parameters: Parameters = ()) -> Iterator[Sequence]:
        with self._errors():
            rows = self._execute(sql, parameters)
            yield from rows if self._is_locked else rows.fetchall()

    def _execute(self, sql: str, parameters: Parameters = ()) -> sqlite3.Cursor:
        assert self._connection is not None
        return self._connection.execute(sql, parameters)

    def _many(self, sql: str, parameters: Iterable[Sequence[object]]) -> None:
        assert self._connection is not None
        self._connection.executemany(sql, parameters)

    def _check_tables(self) -> None:
        """Raise SoftDatabaseError if tables or settings are not a catalog's of this version."""
        (version,) = self._execute("PRAGMA user_version").fetchone()
        if version > VERSION:
            raise SoftDatabaseError(
                f"{self.path}: was written by a newer uwaga: version {version}, this one reads {VERSION}"
            )
        by_name = {
            name: (kind, sql)
            for kind, name, sql in self._execute("SELECT type, name, sql FROM sqlite_master")
            if not (kind == "index" and sql is None)  # an index of UNIQUE or PRIMARY KEY
        }
        expected = {name: ("table", sql) for name, sql in _TABLES.items()}
        expected["records"] = ("table", _records_sql(self._fields()))
        for name in sorted(by_name.keys() | expected.keys()):
            if by_name.get(name) != expected.get(name):
                kind = (by_name.get(name) or expected[name])[0]
                raise SoftDatabaseError(
                    f"{self.path}: is not a soft database of version {VERSION}: the {kind} {printable(name)} is unexpected, missing or "
                    "different"
                )


# Those of this process. A child leaves what its parent opened alone for ever: SQLite forbids to use and to close it there.
_OPEN: WeakSet[Catalog] = WeakSet()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        after_in_child=lambda: [ctypes.pythonapi.Py_IncRef(ctypes.py_object(opened)) for opened in list(_OPEN)]
    )


def check_path(path: Path) -> None:
    """Raise SoftDatabaseError for a path that SQLite and safetensors cannot open."""
    try:
        str(path).encode()
    except UnicodeEncodeError as error:
        raise SoftDatabaseError(f"{path}: its path is not UTF-8, as that of a database must be; rename it") from error


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    """Return a connection that has SQLite's shared lock and files, unless it is immutable."""
    address = f"file:{quote(str(path.absolute()))}?mode={mode}"
    connection = sqlite3.connect(address, uri=True, isolation_level=None, check_same_thread=False, timeout=30.0)
    try:
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, untrusted.LINE_BYTES)
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("PRAGMA cell_size_check = ON")
        connection.execute("PRAGMA mmap_size = 0")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA journal_mode = WAL" if mode == "rw" else "PRAGMA query_only = ON")
        if "immutable" not in mode:
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except BaseException:
        connection.close()
        raise
    return connection


def _roll_back(connection: sqlite3.Connection | None) -> None:
    if connection is not None and connection.in_transaction:
        connection.execute("ROLLBACK")


def _stamp(path: Path, *, write: bool = False) -> list[int]:
    """Return a stamp that differs if the catalog or its log is another file or, without a log, if the catalog was written.

    Raises SoftDatabaseError if it, or a file that SQLite opens next to it, is not a regular file, or is to be written and has a second
    name."""
    found = list[os.stat_result | None]()
    for ending in ("", "-wal", "-shm", "-journal"):
        file = f"{path}{ending}"
        try:
            status = os.lstat(file)
        except FileNotFoundError as error:
            if not ending:
                raise SoftDatabaseError(f"{path}: cannot be read: {error.strerror}") from error
            found.append(None)
            continue
        except OSError as error:
            raise SoftDatabaseError(f"{file}: cannot be read: {error.strerror or error}") from error
        if not stat.S_ISREG(status.st_mode):
            raise SoftDatabaseError(f"{file}: is a symbolic link or not a regular file")
        if write and status.st_nlink > 1:
            raise SoftDatabaseError(
                f"{file}: has a second name (a hard link), through which writing would change another database; copy the folder without "
                "links, as cp -a does, and open the copy"
            )
        found.append(status)
    catalog, log, *_ = found
    assert catalog is not None
    return [catalog.st_dev, catalog.st_ino, *([log.st_ino] if log else [catalog.st_size, catalog.st_mtime_ns])]


def _reason(error: Exception) -> str:
    if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_NOTADB:
        return "is not a catalog of a soft database"
    if isinstance(error, UnicodeDecodeError) or "UTF-8" in str(error):
        return f"is damaged: it has text that is not UTF-8: {printable(str(error))}"
    return str(error)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _records_sql(fields: Sequence[str]) -> str:
    return f"CREATE TABLE records({', '.join(['id INTEGER PRIMARY KEY', *map(_quoted, fields)])})"


def is_value(value: object) -> bool:
    """Return whether a field can have this value."""
    if isinstance(value, str):
        try:
            return len(value.encode()) <= _MOST_BYTES
        except UnicodeEncodeError:
            return False
    is_integer = type(value) is int and -(2**63) <= value < 2**63
    return value is None or is_integer or (type(value) is float and value == value)


def settings(schema: StoreSchema) -> dict[str, int | str | None]:
    """Return the fields of a schema, without `tokens` if it is false. Earlier versions do not know that field."""
    return {name: value for name, value in vars(schema).items() if name != "tokens" or value}
