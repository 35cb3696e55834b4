"""SoftDatabase: attention over rows that are stored.

Letters: Q queries, H heads, n rows, D key width, E value width, k listed rows.
"""

import functools
import math
import operator
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, ParamSpec, TypeVar, cast

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from uwaga._base import durable
from uwaga._base.errors import ShapeError, SoftDatabaseError
from uwaga.maps.map import AttentionMap
from uwaga.store import catalog, parquet, reading, segments
from uwaga.store.catalog import Catalog, Parameters, Record, Value
from uwaga.store.reading import BLOCK, LiveRows, PassOptions
from uwaga.store.segments import DTYPES, MOST_IDS, Damage, Entry, SegmentFile, StoredRow, StoreSchema

_SEGMENTS, _LOCK = "segments", "lock"
_WRITTEN_AT_ONCE = 2  # segments of an append
_SEGMENT_BYTES = 2**28  # of keys and values; what compact() holds in memory at a time
_MAP_BYTES = 2**32
_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


class Top(NamedTuple):
    """The rows with the largest scores for each query, in descending order, equal ones by id."""

    ids: Tensor  # (..., k) int64; -1 where there are fewer rows; k as asked, at most the number of rows that the files have, and 1
    weights: Tensor  # (..., k) float64; NaN for `search`, which does not compute them
    scores: Tensor  # (..., k) float64: scale q.k; -inf where there are fewer rows
    records: Any  # lists in the shape of `ids`, of the rows' records; None where there are fewer rows


class Answer(NamedTuple):
    """What a database says to queries; for each, over all of its rows."""

    value: Tensor  # (..., E) float32: the weighted mean of the values; zeros without a row
    lse: Tensor  # (...) float64: the log-sum-exp of the scores; -inf without a row
    top: Top
    unlisted_weight: Tensor  # (...) float64: the weight on the rows that `top` does not list
    entropy: Tensor  # (...) float64: of the weights, in nats
    effective_count: Tensor  # (...) float64: exp(entropy), the effective number of rows (Hill number of order 1)
    skipped: int  # rows that were not read, since their bounds say that they cannot matter; of the last 256 queries
    skipped_weight_bound: Tensor  # (...) float64: the most weight that skipped rows may have; 0 without `tolerance`
    rows: int  # how many rows the answer is about: all, or those that meet the condition


def _uncompiled(method: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """The method, which torch.compile calls and does not look into. Decorated by torch.compiler.disable at once, it would import
    torch._dynamo, which takes 2 s, in every program."""

    @functools.wraps(method)
    def call(*arguments: _Arguments.args, **options: _Arguments.kwargs) -> _Result:
        if torch.compiler.is_dynamo_compiling():
            return torch.compiler.disable(method)(*arguments, **options)
        return method(*arguments, **options)

    return call


class SoftDatabase:
    """Attention over stored rows: keys, values and records that last on the disk.

    An array answers `attention(query, keys, values)` as long as the program runs. This database keeps the rows in files, reads them
    where they lie, and says with each answer which rows it came from and how much of the weight is on the others. Opened by
    `open` it shows one moment of the database until `refresh`. The first call that changes something makes it the database's only
    writer, until `close`. Not safe to use from two threads at once.

    Made by `create` and `open`, not by its name.

    Attributes:
        path: the folder.
        schema: heads, key_width, value_width (None: the values are the keys) and dtype of all rows.
        model: what made the keys, as `create` was told; None: nothing was said.

    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> db = SoftDatabase.create(folder.name + "/db", key_width=2)
    >>> db.append(torch.eye(2) * 9.0, records=[{"text": "east"}, {"text": "north"}])
    range(0, 2)
    >>> answer = db.attend(torch.tensor([0.0, 1.0]), scale=1.0, top=1)
    >>> answer.top.records, answer.unlisted_weight < 0.001
    ([{'text': 'north'}], tensor(True))
    >>> db.close()
    >>> folder.cleanup()
    """

    def __init__(self, path: Path, open_catalog: Catalog) -> None:
        self.path, self._catalog = path, open_catalog
        self._writer = ExitStack()
        self._is_writer = self._is_closed = False
        self._segments: dict[str, SegmentFile] = {}
        self._entries: list[Entry] = []
        self._broken: dict[str, str] = {}  # file: what is wrong
        self._live: LiveRows | None = None
        schema = open_catalog.setting("layout") or "null"
        try:
            self.schema = segments.schema_of(schema)
        except (ValueError, RecursionError) as error:
            raise SoftDatabaseError(f"{open_catalog.path}: is damaged: {error}") from error
        self.model = open_catalog.setting("model")

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        *,
        key_width: int,
        value_width: int | None = None,
        heads: int = 1,
        dtype: torch.dtype = torch.float32,
        model: str | None = None,
    ) -> "SoftDatabase":
        """A new database in a new folder.

        Args:
            path: the folder; it does not exist.
            key_width: D.
            value_width: E; None: the values are the keys, and are stored once.
            heads: H; a row has a key and a value for each.
            dtype: float32, bfloat16 or float16, of what is stored. Arithmetic is float32 and sums of blocks float64.
            model: a name of what makes the keys; `append` refuses those of another one.

        Raises:
            ValueError: a size below 1, or another dtype.
            SoftDatabaseError: the folder exists or cannot be written.
        """
        if model is not None and not _is_text(model):
            raise ValueError(f"SoftDatabase.create: model must be a string that UTF-8 can write, not {model!r}")
        schema = StoreSchema(heads, key_width, value_width, str(dtype).removeprefix("torch."))
        settings = {"layout": segments.settings_of(_checked(schema)), "next_id": "0", "writer": ""}
        if model is not None:
            settings["model"] = model
        path = Path(path)
        if os.path.lexists(path):
            raise SoftDatabaseError(f"{path}: already exists; SoftDatabase.open opens a database")
        try:
            with durable.atomic_folder(path) as made:
                durable.make_folder(made / _SEGMENTS)
                Catalog.create(made / catalog.FILE, settings)
        except OSError as error:
            raise SoftDatabaseError(f"{path}: cannot be created: {error.strerror or error}") from error
        return cls.open(path)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> "SoftDatabase":
        """An existing database, as it is now. Rows are mapped into memory and read when they are asked for.

        A damaged or missing segment is no error yet: `damaged` says which, everything that needs its rows raises, and the others can
        be read after these are deleted.

        Raises:
            SoftDatabaseError: there is none, or its catalog cannot be read.
        """
        path = Path(path)
        if not path.is_dir():
            raise SoftDatabaseError(f"{path}: there is no such folder")
        database = cls(path, Catalog(path / catalog.FILE, write=False))
        try:
            database.refresh()
        except BaseException:
            database.close()
            raise
        return database

    def close(self) -> None:
        """Closes the files; calling it again has no effect."""
        self._is_closed = True
        self._catalog.close()
        self._segments.clear()
        self._live = None
        self._writer.close()

    def __enter__(self) -> "SoftDatabase":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def refresh(self) -> None:
        """Shows the database as it is now, with what a writer has changed since. Raises SoftDatabaseError."""
        self._check_open()
        self._catalog.refresh()
        before: set[str] | None = None
        while True:
            self._entries = self._catalog.segments()
            self._map()
            # The writer may have compacted between the catalog and the files; what is as broken at a later moment is damaged.
            if not self._broken or set(self._broken) == before:
                break
            before = set(self._broken)
            self._catalog.refresh()
        self._live = None

    def _segment_folder(self) -> Path:
        """Raises SoftDatabaseError where it is a link, whose files are those of another database."""
        folder = self.path / _SEGMENTS
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
        return list(self._broken.values())

    @property
    def fields(self) -> list[str]:
        """The names of the fields that records have had."""
        return list(self._catalog.fields)

    def __len__(self) -> int:
        self._check_open()
        return sum(entry.rows for entry in self._entries) - len(self._catalog.deleted())

    def ids(self) -> Tensor:
        """(n,) int64: the ids of all rows, rising."""
        live = self._all()
        return torch.from_numpy(live.ids(np.arange(len(live))))

    def __iter__(self) -> Iterator[StoredRow]:
        """All rows, in ascending order of their ids."""
        live = self._all()
        for start in range(0, len(live), BLOCK):
            stop = min(start + BLOCK, len(live))
            ids = live.ids(np.arange(start, stop)).tolist()
            records = dict(self._catalog.all_records(ids[0], ids[-1]))
            keys = self._stored(live.keys(start, stop))
            values = self._stored(live.values(start, stop)) if live.has_values() else keys
            for n, number in enumerate(ids):
                yield StoredRow(number, keys[n], values[n], records.get(number, {}))

    def records(self, ids: Iterable[int]) -> list[Record]:
        """The records of rows, in the order of `ids`; empty for a row without one, or that is not in the database."""
        self._check_open()
        listed = _integers(ids, "records")
        records = self._catalog.records(number for number in listed if 0 <= number < MOST_IDS)
        return [records.get(number, {}) for number in listed]

    def counts(self, field: str) -> dict[Value, int]:
        """How many rows have each value of a field of their records."""
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
            "segments": len(self._entries), "bytes": stored, **self.schema._asdict(), "model": self.model,
            "fields": self.fields, "damaged": self.damaged,
        }  # fmt: skip

    # Reading.

    @_uncompiled
    def attend(
        self,
        query: Tensor,
        *,
        scale: float | None = None,
        where: str | None = None,
        parameters: Parameters = (),
        top: int = 10,
        tolerance: float = 0.0,
    ) -> Answer:
        """Attention of queries over all rows: what the whole database says, and which rows say it.

        The rows are read once for up to 256 queries, in blocks, and nothing of their number is held in memory. An answer has the same
        bits alone or in a batch, on any number of threads, and however the rows are spread over segments, deleted ones between them
        or not. Rows whose scores lie so far below the largest that float64 would not hold their weights beside it are left out.

        Args:
            query: (..., D), or (..., H, D) with several heads, in float32 or the dtype of the database.
            scale: of the scores; None for 1/sqrt(D).
            where: an SQL condition over the fields of the records, such as "source = ? AND year > ?": attention over the rows that
                meet it. A row without a record meets none.
            parameters: the values of its question marks, or a dictionary for names such as :year.
            top: how many rows to list for each query; at most as many as the segments of the database have, or 1 where they have none.
            tolerance: the weight that may be left out: blocks of rows are skipped whose bounds say that they have no more together.
                `skipped_weight_bound` says how much it was at most. Which rows share a block then matters.

        Where autograd records and the query needs a gradient, `value` has one, over all rows, by one more pass over them; other results
        are detached.

        Raises:
            ShapeError, ValueError: a query of another width or dtype, or not finite; options that are not valid; a score that is beyond
                float32, with its row.
            SoftDatabaseError: rows that cannot be read.
        """
        top = _integer(top, 0, "attend: top")
        share = _real(tolerance)
        if not 0.0 <= share < 1.0:
            raise ValueError(f"SoftDatabase.attend: tolerance must be at least 0 and below 1, not {tolerance!r}")
        options = PassOptions(self._scale(scale, "attend"), top, True, share)
        queries, live = self._queries(query, "attend"), self._rows(where, parameters)
        answer = self._answer(queries, options, live)
        if not (torch.is_grad_enabled() and isinstance(query, Tensor) and query.requires_grad):
            return answer
        return answer._replace(value=cast("Tensor", _Value.apply(query, answer, live, queries.flat, options.scale)))

    @_uncompiled
    def search(
        self, query: Tensor, k: int, *, scale: float = 1.0, where: str | None = None, parameters: Parameters = ()
    ) -> Top:
        """The k rows with the largest scores scale q.k, exactly: every row is compared, or its bound says that it is not among them.

        Columns as `top` of `attend`. Arguments and errors as `attend`.
        """
        options = PassOptions(self._scale(scale, "search"), _integer(k, 1, "search: k"), False)
        return self._answer(self._queries(query, "search"), options, self._rows(where, parameters)).top

    @_uncompiled
    def map(self, query: Tensor, *, scale: float | None = None, max_bytes: int = _MAP_BYTES) -> AttentionMap:
        """The attention map of queries over all rows, (Q, n) or (H, Q, n): its keys are the rows in the order of `ids()`.

        The keys are those in the file where it is one segment of float32 without deleted rows, and a copy in memory otherwise.

        Args:
            query: (Q, D), or (Q, H, D) with several heads.
            scale: as in `attend`.
            max_bytes: of the copy.

        Raises:
            ValueError: the copy would be larger than `max_bytes`; otherwise as `attend`.
        """
        queries = self._queries(query, "map")
        live = self._all()
        max_bytes = _integer(max_bytes, 0, "map: max_bytes")
        size = 4 * len(live) * self.schema.heads * self.schema.key_width
        if size > max_bytes:
            raise ValueError(
                f"SoftDatabase.map: the keys are {size:,} bytes as float32, more than max_bytes={max_bytes:,}; "
                "attend() needs no copy of them"
            )
        keys = live.keys(0, len(live)) if len(live) else torch.zeros(0, self.schema.heads, self.schema.key_width)
        query_HQD, key_HKD = queries.flat.transpose(0, 1), keys.transpose(0, 1)
        if self.schema.heads == 1:
            query_HQD, key_HKD = query_HQD[0], key_HKD[0]
        return AttentionMap(query_HQD, key_HKD, scale=self._scale(scale, "map"))

    def _answer(self, queries: "_Queries", options: PassOptions, live: LiveRows) -> Answer:
        # Larger results would have nothing but what stands for no row.
        options = options._replace(top=min(options.top, max(sum(entry.rows for entry in self._entries), 1)))
        parts = [reading.read(live, part, options) for part in queries.flat.split(reading.QUERIES)]
        shape, schema = queries.shape, self.schema

        def joined(name: str) -> Tensor:
            arrays = [
                torch.as_tensor(getattr(part, name)).unflatten(0, (schema.heads, -1)).transpose(0, 1) for part in parts
            ]
            whole = torch.cat(arrays)
            return whole.reshape((*shape, *whole.shape[2:]))

        ids, weights = joined("top_ids"), joined("top_weights")
        if not options.attention:
            weights = torch.full_like(weights, math.nan)
        result = self._catalog.records(ids[ids >= 0].tolist())
        top = Top(ids, weights, joined("top_scores"), _nested(ids.tolist(), result))
        entropy = joined("entropy")
        lse = joined("lse")
        unlisted_weight = torch.where(lse.isinf(), 0.0, (1.0 - weights.sum(-1)).clamp(min=0.0))
        effective_count = torch.where(lse.isinf(), 0.0, entropy.exp())
        value = joined("value")
        if not live.segments:  # none of them says how wide values are
            value = torch.zeros(*shape, schema.value_width or schema.key_width)
        skipped, bound = parts[-1].skipped, joined("skipped_weight_bound")
        return Answer(value, lse, top, unlisted_weight, entropy, effective_count, skipped, bound, len(live))

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
                del self._segments[entry.file]
                self._broken[entry.file] = reason
                self._live = None

    def _check_readable(self, entry: Entry, is_needed: bool) -> None:
        if is_needed and entry.file in self._broken:
            raise SoftDatabaseError(
                f"{self._broken[entry.file]}. Restore the file, or delete these rows to read the others"
            )

    def _stored(self, tensor: Tensor) -> Tensor:
        """Rows (n, H, width) as a user gave them."""
        tensor = tensor.to(DTYPES[self.schema.dtype])
        return tensor[:, 0] if self.schema.heads == 1 else tensor

    def _scale(self, scale: float | None, method: str) -> float:
        factor = 1 / math.sqrt(self.schema.key_width) if scale is None else _real(scale)
        if not abs(factor) <= torch.finfo(torch.float32).max:
            raise ValueError(f"SoftDatabase.{method}: scale must be finite in float32, not {scale!r}")
        return factor

    def _queries(self, query: Tensor, method: str) -> "_Queries":
        query = torch.as_tensor(query)
        heads, width = self.schema.heads, self.schema.key_width
        tail = (width,) if heads == 1 else (heads, width)
        if query.shape[-len(tail) :] != tail:
            raise ShapeError(
                f"SoftDatabase.{method}: the query is {tuple(query.shape)}, and the keys of {self.path} are {tail}: "
                "their last sizes must agree"
            )
        if query.dtype not in (torch.float32, DTYPES[self.schema.dtype]):
            raise ValueError(
                f"SoftDatabase.{method}: the query must be float32 or the database's {self.schema.dtype}, "
                f"not {str(query.dtype).removeprefix('torch.')}"
            )
        flat = query.detach().cpu().float().reshape(-1, heads, width)
        if not flat.isfinite().all():
            raise ValueError(f"SoftDatabase.{method}: the query has an entry that is NaN or infinite")
        shape = query.shape[: query.dim() - len(tail)]
        return _Queries(flat, shape if heads == 1 else (*shape, heads))

    def _check_open(self) -> None:
        if self._is_closed:
            raise SoftDatabaseError(f"{self.path}: the database is closed")

    # Writing.

    def append(
        self,
        keys: Tensor,
        values: Tensor | None = None,
        records: Sequence[Mapping[str, Value | None]] | None = None,
        *,
        model: str | None = None,
    ) -> range:
        """Adds rows; they are on the disk, all of them, when this returns. Returns their ids.

        Args:
            keys: (n, D), or (n, H, D) with several heads, in float32 or the dtype of the database.
            values: (n, E), or (n, H, E); None where the values are the keys.
            records: a dictionary for each row, from names to strings, 64-bit integers and floats. None stands for no value.
            model: what made the keys; refused where the database was created for another one.

        Raises:
            ShapeError, ValueError: sizes, dtypes or records that do not fit, numbers that are NaN or infinite, more rows than there
                are ids below 10^12; nothing is added.
            SoftDatabaseError: another process writes, or the rows cannot be written; nothing is added.
        """
        self._check_open()
        if model is not None and model != self.model:
            raise ValueError(
                f"SoftDatabase.append: the keys were made by {model!r}, and {self.path} was created for {self.model!r}"
            )
        if (values is None) != (self.schema.value_width is None):
            stored = "the keys are the values" if values is not None else "values of their own are needed"
            raise ValueError(f"SoftDatabase.append: in {self.path} {stored}, as it was created")
        key = self._checked_rows(keys, self.schema.key_width, "keys")
        value = None if values is None else self._checked_rows(values, self.schema.value_width, "values")
        if value is not None and len(value) != len(key):
            raise ShapeError(f"SoftDatabase.append: {len(key)} keys and {len(value)} values")
        if records is not None and len(records) != len(key):
            raise ShapeError(f"SoftDatabase.append: {len(key)} keys and {len(records)} records")
        self._begin_writing()
        self._catalog.check_fields(records or ())
        first = self._catalog.next_id()
        if first + len(key) > MOST_IDS:
            raise ValueError(
                f"SoftDatabase.append: {len(key)} rows from id {first} on, and the ids of {self.path} are below {MOST_IDS:,}; "
                "export its rows and append them to a new database"
            )
        if len(key):
            self._add(np.arange(first, first + len(key)), key, value, (), records)
        return range(first, first + len(key))

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
        numbers = _integers(ids, "delete")
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
            raise ValueError(f"SoftDatabase.delete: row {min(missing)} is not in {self.path}")
        with self._catalog.transaction():
            for entry in lost:
                self._catalog.remove_segment(entry)
                self._catalog.remove_records(entry.first_id, entry.last_id)
            self._catalog.delete(listed[is_there].tolist())
            self._catalog.remove_orphan_rows(listed[~is_anywhere].tolist())
        if lost:
            self.refresh()
            self._remove_unlisted()
        self._live = None

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
            for table, ids in self._catalog.orphan_rows().items():
                results += [Damage(catalog.FILE, n, n, f"the row is in {table} and in no segment") for n in ids]
        return results

    def _is_listed_now(self, entry: Entry) -> bool:
        """Whether a segment is in the database still, and not only at the moment that this shows."""
        if self._is_writer:
            return True
        with closing(Catalog(self.path / catalog.FILE, write=False)) as now:
            return entry in now.segments()

    def export(self, path: str | os.PathLike[str]) -> None:
        """Writes all rows to a Parquet file: id, key, value (where it is not the key) and record, as JSON. See `uwaga.store.parquet`."""
        parquet.export(Path(path), self, self.schema)

    def append_parquet(self, path: str | os.PathLike[str], *, key: str = "key", value: str = "value") -> range:
        """Adds the rows of a Parquet file, as `export` or `uwaga encode` writes it, 4,096 in a transaction. Returns their ids.

        Args:
            path: the file.
            key: the column of the keys, lists of H D numbers.
            value: the column of the values, where the database has values of its own.
                The other columns become fields of the records, except id; record holds JSON objects of fields.

        Raises:
            DataError: the file cannot be read. Otherwise as `append`.
        """
        first, last = None, 0
        for keys, values, records in parquet.read(Path(path), self.schema, key, value):
            added = self.append(keys, values, records)
            first, last = added.start if first is None else first, added.stop
        return range(first or 0, last)

    def _checked_rows(self, tensor: Tensor, width: int | None, name: str) -> Tensor:
        """(n, H, width) in the dtype of the database."""
        tensor, dtype = torch.as_tensor(tensor).detach().cpu(), DTYPES[self.schema.dtype]
        heads = self.schema.heads
        tail = (width,) if heads == 1 else (heads, width)
        if tensor.dim() != 1 + len(tail) or tensor.shape[1:] != tail:
            raise ShapeError(
                f"SoftDatabase.append: {name} must be (n, {', '.join(map(str, tail))}) for {self.path}, "
                f"not {tuple(tensor.shape)}"
            )
        if tensor.dtype not in (torch.float32, dtype):
            raise ValueError(
                f"SoftDatabase.append: {name} must be float32 or the database's {self.schema.dtype}, "
                f"not {str(tensor.dtype).removeprefix('torch.')}"
            )
        stored = tensor.to(dtype).reshape(-1, heads, width or 0)
        # A sum that is finite has no term that is not, and is computed faster; a sum that is not may have overflowed.
        if not stored.sum().isfinite() and not (is_finite := stored.isfinite().flatten(1).all(1)).all():
            bad = int((~is_finite).nonzero()[0])
            raise ValueError(
                f"SoftDatabase.append: {name}[{bad}] has an entry that is NaN or infinite in {self.schema.dtype}"
            )
        return stored

    def _begin_writing(self) -> None:
        """Makes this the writer. Raises SoftDatabaseError where another one is."""
        self._check_open()
        self._segment_folder()
        if self._is_writer:
            return
        try:
            self._writer.enter_context(durable.file_lock(self.path / _LOCK, wait=False))
        except BlockingIOError as error:
            self._catalog.refresh()
            pid = self._catalog.setting("writer") or "unknown"
            raise SoftDatabaseError(f"{self.path}: another writer has it open: process {pid}") from error
        except OSError as error:
            raise SoftDatabaseError(f"{self.path}: cannot be written: {error.strerror or error}") from error
        try:
            writing = Catalog(self.path / catalog.FILE, write=True)
            with writing.transaction():
                writing.set("writer", str(os.getpid()))
        except BaseException:
            self._writer.close()
            raise
        self._catalog.close()
        self._catalog, self._is_writer = writing, True
        self.refresh()
        self._remove_unlisted()

    def _remove_unlisted(self) -> None:
        """Removes the files that the catalog names and that are of no segment: those of a writer that failed or was killed, and of
        segments that were replaced, which a reader may still have mapped. What cannot be removed now is when the next writer comes."""
        names = set(self._catalog.unlisted()) - {entry.file for entry in self._catalog.segments()}
        if names:
            with suppress(OSError, SoftDatabaseError):
                durable.remove_files(self._segment_folder(), names)
                with self._catalog.transaction():
                    self._catalog.set_unlisted(())

    def _add(
        self,
        ids: np.ndarray,
        keys: Tensor,
        values: Tensor | None,
        replaced: Sequence[Entry],
        records: Sequence[Mapping[str, Value | None]] | None = None,
    ) -> None:
        """Announces the files of segments, writes them, then the transaction that makes them true and the replaced ones untrue."""
        folder, entries = self._segment_folder(), list[Entry]()
        at_once = self._rows_per_segment()
        parts = [slice(start, start + at_once) for start in range(0, len(ids), at_once)]
        names = [segments.new_name(int(ids[part.start])) for part in parts]
        try:
            with self._catalog.transaction():
                self._catalog.set_unlisted([*self._catalog.unlisted(), *names])
            with ThreadPoolExecutor(_WRITTEN_AT_ONCE) as pool:  # the disk writes one while the next one is computed
                entries += pool.map(
                    lambda name, part: segments.write(
                        folder / name, ids[part], keys[part], None if values is None else values[part]
                    ),
                    names,
                    parts,
                )
            with self._catalog.transaction():
                for entry in replaced:
                    self._catalog.remove_segment(entry)
                for entry in entries:
                    self._catalog.add_segment(entry)
                if not replaced:
                    self._catalog.set("next_id", str(int(ids[-1]) + 1))
                if records is not None:
                    self._catalog.add_records(int(ids[0]), records)
        except BaseException as error:
            self._remove_unlisted()
            if isinstance(error, OSError):
                raise SoftDatabaseError(f"{folder}: cannot be written: {error.strerror or error}") from error
            raise
        if not replaced:
            self._entries += entries
            self._map()
            self._live = None

    def _rows_per_segment(self) -> int:
        schema = self.schema
        width = schema.heads * (schema.key_width + (schema.value_width or 0)) * DTYPES[schema.dtype].itemsize
        return max(BLOCK, _SEGMENT_BYTES // width // BLOCK * BLOCK)

    def _groups(self) -> list[list[Entry]]:
        """The neighbouring segments that are to become one, and those that have deleted rows."""
        deleted, most = self._catalog.deleted(), self._rows_per_segment()
        groups: list[list[Entry]] = []
        for entry in self._entries:
            if groups and sum(each.rows for each in groups[-1]) + entry.rows <= most:
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
        dtype = DTYPES[self.schema.dtype]
        if len(part):
            keys = part.keys(0, len(part)).to(dtype)
            values = part.values(0, len(part)).to(dtype) if self.schema.value_width is not None else None
            self._add(part.ids(np.arange(len(part))), keys, values, group)
        else:
            with self._catalog.transaction():
                for entry in group:
                    self._catalog.remove_segment(entry)
        self.refresh()
        self._remove_unlisted()

    def _bytes(self) -> int:
        schema = self.schema
        width = schema.heads * (schema.key_width + (schema.value_width or 0)) * DTYPES[schema.dtype].itemsize
        return width * sum(entry.rows for entry in self._entries)


class _Value(torch.autograd.Function):
    """The value of an answer, with its gradient with respect to the query."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, answer: Answer, live: LiveRows, flat_QHD: Tensor, scale: float) -> Tensor:
        ctx.answer, ctx.live, ctx.flat, ctx.scale = answer, live, flat_QHD, scale
        ctx.shape, ctx.dtype, ctx.device = query.shape, query.dtype, query.device
        return answer.value.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None, None]:
        count, heads, _ = ctx.flat.shape
        of_queries = [x.cpu().reshape(count, heads, *x.shape[x.dim() - 1 :]) for x in (ctx.answer.value, grad)]
        lse = ctx.answer.lse.reshape(count, heads)
        parts = [
            reading.query_gradient(ctx.live, query, ctx.scale, value, at, change)
            for query, value, change, at in zip(
                *(x.split(reading.QUERIES) for x in (ctx.flat, *of_queries, lse)), strict=True
            )
        ]
        result = torch.cat(parts) if parts else torch.zeros(ctx.shape)
        return result.reshape(ctx.shape).to(ctx.device, ctx.dtype), None, None, None, None


class _Queries(NamedTuple):
    flat: Tensor  # (Q, H, D) float32
    shape: tuple[int, ...]  # of the result for each query and head


def _check_undamaged(segment: SegmentFile, rows: np.ndarray | None) -> None:
    """Raises SoftDatabaseError where rows of a segment (None: all) differ from their checksum."""
    ids = None if rows is None else segment.id_of(rows)
    for first, last in segments.damaged_rows(segment):
        if ids is None or bool(((ids >= first) & (ids <= last)).any()):
            raise SoftDatabaseError(
                f"{segment.path} (rows {first} to {last}): the rows differ from their checksum. Restore the file, or delete these rows"
            )


def _checked(schema: StoreSchema) -> StoreSchema:
    for name in ("key_width", "value_width", "heads"):
        size = getattr(schema, name)
        if not (size is None and name == "value_width") and (type(size) is not int or not 1 <= size <= 2**20):
            raise ValueError(f"SoftDatabase.create: {name} must be an integer from 1 to {2**20:,}, not {size!r}")
    if schema.dtype not in DTYPES:
        raise ValueError(f"SoftDatabase.create: dtype must be {', '.join(DTYPES)}, not {schema.dtype}")
    return schema


def _is_text(value: object) -> bool:
    """Whether it is a string that UTF-8 can write: one without lone surrogates."""
    return isinstance(value, str) and not any("\ud800" <= character <= "\udfff" for character in value)


def _integer(value: object, least: int, name: str) -> int:
    try:
        result = None if isinstance(value, bool) else operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        result = None
    if result is None or result < least:
        raise ValueError(f"SoftDatabase.{name} must be an integer of at least {least}, not {value!r}")
    return result


def _real(value: object) -> float:
    """NaN for what is no real number."""
    try:
        return math.nan if isinstance(value, str | bytes | bytearray) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return math.nan


def _integers(ids: Iterable[int], method: str) -> list[int]:
    """Ids as integers of Python. Raises ValueError."""
    if isinstance(ids, Tensor | np.ndarray):
        ids = ids.tolist()
    if not isinstance(ids, Iterable):
        raise ValueError(f"SoftDatabase.{method}: ids must be a list of integers, not {type(ids).__name__}")
    results = []
    for number in ids:
        try:
            is_integer, value = not isinstance(number, bool | np.bool_), operator.index(number)
        except TypeError:
            is_integer = False
        if not is_integer:
            raise ValueError(f"SoftDatabase.{method}: ids must be integers, not {number!r}")
        results.append(value)
    return results


def _nested(ids: Any, records: Mapping[int, Record]) -> Any:
    if isinstance(ids, list):
        return [_nested(each, records) for each in ids]
    return None if ids < 0 else records.get(ids, {})
