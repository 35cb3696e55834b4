"""TokenDatabase: texts as the vectors of their tokens, and their MaxSim with a query.

Letters: Q queries, t tokens of one, n rows, N tokens of rows, D width, k listed rows.
"""

import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from uwaga._base.arguments import check, integer, path_of
from uwaga._base.errors import ShapeError
from uwaga.ops.linear.api import linear_map
from uwaga.ops.maxsim import maxsim
from uwaga.ops.ragged import Ragged
from uwaga.ops.validation import tensor_of
from uwaga.store.catalog import Catalog, Parameters, Value
from uwaga.store.database import SoftDatabase, Top
from uwaga.store.reading import LiveRows
from uwaga.store.segments import DTYPES, MOST_IDS, SegmentFile, StoredTokens
from uwaga.store.stored import NewRows, StoredDatabase, dtype_name, nested

_BLOCK_BYTES = 2**25  # of the vectors that are scored at a time, if one row has no more
_RECORDS_AT_ONCE = 512


class TokenMatches(NamedTuple):
    """The tokens that make the score of a row: for each token of the query, the best token of the row."""

    tokens: Tensor  # (t,) int64: the place in the row of the token with the largest product, the first of equal ones
    products: Tensor  # (t,) float32: that product; one after another they sum to the score
    score: float


class TokenDatabase(StoredDatabase):
    """A database of texts as the vectors of their tokens (ColBERT: Khattab and Zaharia 2020), with records. The score of a row is
    `uwaga.maxsim`, and every row is scored.

    Files, durability, readers, the writer, conditions and damage are as in `SoftDatabase`. A score has the bits of `uwaga.maxsim`
    alone, whatever other rows and queries there are and however the rows lie in the files. Not safe to use from two threads at once.

    Made by `create` and `open`, not by its own name.

    Attributes:
        path: the folder.
        schema: key_width and dtype of all vectors.
        model: the name of the model that made the vectors, as `create` stored it, or None.

    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> db = TokenDatabase.create(folder.name + "/db", width=2)
    >>> db.append(Ragged.from_list([torch.eye(2), torch.tensor([[3.0, 1.0]])]), records=[{"text": "a b"}, {"text": "c"}])
    range(0, 2)
    >>> query = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
    >>> top = db.search(Ragged.from_list([query]), 1)
    >>> top.scores, top.records
    (tensor([[5.]], dtype=torch.float64), [[{'text': 'c'}]])
    >>> db.matches(query, 0)
    TokenMatches(tokens=tensor([0, 1]), products=tensor([1., 2.]), score=3.0)
    >>> db.close()
    >>> folder.cleanup()
    """

    has_tokens = True

    @classmethod
    def create(
        cls, path: str | os.PathLike[str], *, width: int, dtype: torch.dtype = torch.float32, model: str | None = None
    ) -> "TokenDatabase":
        """Create a database in a new folder.

        Args:
            path: the folder; it does not exist.
            width: D, the width of a vector.
            dtype: float32, bfloat16 or float16, of what is stored. Arithmetic is float32.
            model: a name of the model that makes the vectors, such as `model_name` gives for `encoder_of`.

        Raises:
            ValueError: a width below 1, or another dtype. SoftDatabaseError: the folder exists or cannot be written.
        """
        layout = {"heads": 1, "key_width": width, "value_width": None, "dtype": dtype_name(dtype), "tokens": True}
        return cls._create(path, layout, model)

    def __iter__(self) -> Iterator[StoredTokens]:
        """Yield all rows, in ascending order of their ids."""
        live = self._rows()
        for start in range(0, len(live), _RECORDS_AT_ONCE):
            stop = min(start + _RECORDS_AT_ONCE, len(live))
            ids = live.ids(np.arange(start, stop)).tolist()
            records = self._catalog.all_records(ids[0], ids[-1])
            rows = (tokens for _, block in _blocks(live, start, stop) for tokens in block.to_list())
            for number, tokens in zip(ids, rows, strict=True):
                yield StoredTokens(number, tokens, records.get(number, {}))

    def search(self, query: Ragged, k: int = 10, *, where: str | None = None, parameters: Parameters = ()) -> Top:
        """Return the k rows with the largest MaxSim for each query. The result is exact: every row is scored.

        Rows are read once for all queries, in blocks from the files, and nothing of their number is held in memory.

        Args:
            query: Ragged with values (T, D), a row of tokens for each of Q queries, such as `TextEncoder.encode` with output="tokens" gives with
                task="query".
            k: the largest number of rows to list.
            where, parameters: rows that meet a condition, as `SoftDatabase.attend`.

        Returns:
            Top of (Q, k), in descending order of the scores, equal ones by id; its weights are NaN.

        Raises:
            ShapeError, ValueError: a query of another width or dtype, or not finite; an option that is not valid. SoftDatabaseError: rows
                that cannot be read.
        """
        query = self._query(query, "search")
        k = integer(k, "TokenDatabase.search: k", 1)
        live = self._rows(where, parameters)
        # The largest scores so far, and the positions of their live rows.
        scores, positions = np.empty((len(query), 0)), np.empty((len(query), 0), np.int64)
        with torch.no_grad():
            for start, tokens in _blocks(live, 0, len(live)):
                block_QS = maxsim(query, tokens).numpy()
                if not np.isfinite(block_QS).all():
                    number, row = np.argwhere(~np.isfinite(block_QS))[0]
                    raise ValueError(
                        f"TokenDatabase.search: the score of row {live.ids(np.array([start + row]))[0]} for query {number} is beyond "
                        "float32; store smaller vectors"
                    )
                positions_QS = np.broadcast_to(np.arange(start, start + block_QS.shape[1]), block_QS.shape)
                joined = np.concatenate([scores, block_QS], 1), np.concatenate([positions, positions_QS], 1)
                # Stable: what came first has the smaller position.
                order = np.argsort(-joined[0], axis=1, kind="stable")[:, :k]
                scores, positions = (np.take_along_axis(array, order, 1) for array in joined)
        ids = live.ids(positions)
        records = self._catalog.records(ids.flatten().tolist())
        top = torch.from_numpy(scores)
        return Top(torch.from_numpy(ids), torch.full_like(top, math.nan), top, nested(ids.tolist(), records))

    def matches(self, query: Tensor, id: int) -> TokenMatches:
        """Return the tokens of a row that make its score for a query.

        query: (t, D), of one query. id: of the row.

        Raises as `search`; ValueError: there is no such row.
        """
        tokens = tensor_of(query, "TokenDatabase.matches: the query")
        if tokens.dim() != 2:
            raise ShapeError(
                f"TokenDatabase.matches: the query must be (t, {self.schema.key_width}), not {tuple(tokens.shape)}"
            )
        (tokens,) = self._query(Ragged.from_list([tokens]), "matches").to_list()
        row = self.tokens(id).float()
        with torch.no_grad():
            products = linear_map(row, tokens).numpy()
        largest = torch.from_numpy(products.max(0))
        return TokenMatches(torch.from_numpy(products.argmax(0)), largest, largest.cumsum(0)[-1].item())

    def tokens(self, id: int) -> Tensor:
        """Return the vectors of a row, (n, D), in the dtype of the database. Raises ValueError: there is no such row; SoftDatabaseError: it cannot
        be read."""
        number, live = integer(id, "TokenDatabase.tokens: id", 0, sys.maxsize), self._rows()
        for segment in live.segments:
            if number < MOST_IDS and (rows := segment.row_of(np.array([number]))).size:
                if number in self._deleted:
                    break
                return _tokens(segment, rows).values
        raise ValueError(f"TokenDatabase.tokens: row {number} is not in {self.path}")

    def append(self, tokens: Ragged, records: Sequence[Mapping[str, Value | None]] | None = None) -> range:
        """Add rows and return their ids. All rows are on the disk when the call returns.

        Args:
            tokens: Ragged with values (N, D), a row for each text, in float32 or the dtype of the database.
            records: as `SoftDatabase.append`.

        Raises:
            ShapeError, ValueError: sizes, dtypes or records that do not fit, a row without tokens, numbers that are NaN or infinite;
                nothing is added.
            SoftDatabaseError: another process writes, or the rows cannot be written; nothing is added.
        """
        tokens = self._checked(tokens, "TokenDatabase.append: tokens")
        values = tokens.values.to(DTYPES[self.schema.dtype])
        if not values.isfinite().all():
            bad = int((~values.isfinite().all(-1)).nonzero()[0])
            row = int(torch.searchsorted(tokens.offsets, bad, right=True)) - 1
            raise ValueError(
                f"TokenDatabase.append: tokens of row {row} have an entry that is NaN or infinite in {self.schema.dtype}"
            )
        new = tokens.with_values(values)
        return self._append("rows of tokens", len(tokens), lambda ids: self._new(ids, new), records)

    def _query(self, query: Ragged, method: str) -> Ragged:
        place = f"TokenDatabase.{method}: the query"
        query = self._checked(query, place)
        return query.with_values(self._query_values(query.values, place))

    def _checked(self, tokens: Ragged, place: str) -> Ragged:
        """Return the tokens on the CPU, without a gradient. Raises ShapeError, ValueError."""
        is_ragged = isinstance(tokens, Ragged)
        check(is_ragged, f"{place} must be Ragged, a row for each text, not {type(tokens).__name__}")
        values, width = tokens.values.detach().cpu(), self.schema.key_width
        if values.dim() != 2 or values.shape[1] != width:
            raise ShapeError(f"{place} must have values (N, {width}) for {self.path}, not {tuple(values.shape)}")
        self._check_dtype(values, place)
        offsets = tokens.offsets.cpu()
        if bool((empty := offsets.diff() == 0).any()):
            raise ValueError(f"{place} has no tokens in row {int(empty.nonzero()[0])}")
        return Ragged(values, offsets)

    def _new(self, ids: np.ndarray, tokens: Ragged) -> list[NewRows]:
        """Return segments of as many rows as `_segment_rows` has room for, at least one."""
        new: list[NewRows] = []
        for start, stop in _cut(tokens.lengths.numpy(), self._segment_rows()):
            first, last = int(tokens.offsets[start]), int(tokens.offsets[stop])
            new.append((ids[start:stop], tokens.values[first:last], None, tokens.offsets[start : stop + 1] - first))
        return new

    def _copied(self, live: LiveRows) -> list[NewRows]:
        blocks = [block for _, block in _blocks(live, 0, len(live))]
        tokens = _ragged([part.values for part in blocks], torch.cat([part.lengths for part in blocks]))
        return self._new(live.ids(np.arange(len(live))), tokens)


def open_database(path: str | os.PathLike[str]) -> SoftDatabase | TokenDatabase:
    """Open an existing SoftDatabase or TokenDatabase. Raises SoftDatabaseError."""
    folder = path_of(path, "open_database: path")
    opened = Catalog(folder, write=False)
    return (TokenDatabase if opened.schema.tokens else SoftDatabase)(folder, opened)


def _blocks(live: LiveRows, start: int, stop: int) -> Iterator[tuple[int, Ragged]]:
    """Yield live rows from `start` up to `stop`: the first of a block, and their tokens. A block has as many rows as
    _BLOCK_BYTES have room for."""
    for n, rows in live.pieces(start, stop):
        segment = live.segments[n]
        live_rows = np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows
        assert segment.offsets is not None
        lengths = segment.offsets.diff().numpy()[live_rows]
        for first, last in _cut(lengths, max(1, _BLOCK_BYTES // segment.keys[0].nbytes)):
            yield start + first, _tokens(segment, live_rows[first:last])
        start += len(live_rows)


def _tokens(segment: SegmentFile, rows: np.ndarray) -> Ragged:
    """Return the tokens of rows in ascending order; a view of the file if they lie together."""
    assert segment.offsets is not None
    offsets = segment.offsets
    edges = np.flatnonzero(np.diff(rows) != 1) + 1
    runs = [segment.keys[int(offsets[run[0]]) : int(offsets[run[-1] + 1])] for run in np.split(rows, edges)]
    return _ragged(runs, offsets.diff()[torch.from_numpy(rows)])


def _ragged(values: list[Tensor], lengths: Tensor) -> Ragged:
    offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    return Ragged(values[0] if len(values) == 1 else torch.cat(values), offsets)


def _cut(lengths: np.ndarray, most: int) -> list[tuple[int, int]]:
    """Cut rows into consecutive ranges (start, stop) with at most so many tokens, one row at least.

    >>> _cut(np.array([3, 3, 9, 1, 1, 1]), 6)
    [(0, 2), (2, 3), (3, 6)]
    """
    ends, results, start = np.cumsum(lengths), [], 0
    while start < len(lengths):
        before = int(ends[start - 1]) if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, before + most, side="right")))
        results.append((start, stop))
        start = stop
    return results
