"""SoftDatabase: attention over rows that are stored.

Letters: Q queries, H heads, n rows, D key width, E value width, k listed rows.
"""

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from numbers import Integral, Real
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from uwaga._base.arguments import check
from uwaga._base.errors import ShapeError
from uwaga._base.terminal import short
from uwaga._base.tracing import uncompiled
from uwaga.maps.map import AttentionMap
from uwaga.ops.validation import tensor_of
from uwaga.store import reading
from uwaga.store.catalog import Parameters, Value
from uwaga.store.reading import BLOCK, LiveRows, PassResult
from uwaga.store.segments import DTYPES, StoredRow
from uwaga.store.stored import NewRows, StoredDatabase, dtype_name, nested


class Top(NamedTuple):
    """The rows with the largest scores for each query, in descending order; rows with equal scores are in the order of their ids."""

    ids: Tensor  # (..., k) int64; k as asked, at most the number of rows that meet the condition
    weights: Tensor  # (..., k) float64; NaN for `search`, which does not compute them
    scores: Tensor  # (..., k) float64: scale q.k
    records: Any  # lists in the shape of `ids`, of the rows' records


class Answer(NamedTuple):
    """The answer of a database to queries, over all of its rows."""

    value: Tensor  # (..., E) float32: the weighted mean of the values; zeros without a row
    lse: Tensor  # (...) float64: the log-sum-exp of the scores; -inf without a row
    top: Top
    unlisted_weight: Tensor  # (...) float64: the weight on the rows that `top` does not list
    entropy: Tensor  # (...) float64: of the weights, in nats
    effective_count: Tensor  # (...) float64: exp(entropy), the effective number of rows (Hill number of order 1)
    rows: int  # how many rows the answer is about: all, or those that meet the condition


class SoftDatabase(StoredDatabase):
    """A database that answers queries with attention over all of its rows: keys, values and records on the disk.

    An array answers `attention(query, keys, values)` as long as the program runs. This database keeps the rows in files, reads them
    where they lie, and says with each answer which rows it came from and how much of the weight is on the others. Opened by
    `open` it shows one moment of the database until `refresh`. The first call that changes something makes it the database's only
    writer, until `close`. Not safe to use from two threads at once.

    Made by `create` and `open`, not by its own name.

    Attributes:
        path: the folder.
        schema: heads, key_width, value_width (None: the values are the keys) and dtype of all rows.
        model: the name of the model that made the keys, as `create` stored it, or None.

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
        """Create a database in a new folder.

        Args:
            path: the folder; it does not exist.
            key_width: D.
            value_width: E; None: the values are the keys, and are stored once.
            heads: H; a row has a key and a value for each.
            dtype: float32, bfloat16 or float16, of what is stored. Arithmetic is float32 and sums of blocks float64.
            model: a name of the model that makes the keys, such as `model_name` gives for `encoder_of`.

        Raises:
            ValueError: a size below 1, or another dtype.
            SoftDatabaseError: the folder exists or cannot be written.
        """
        layout = {"heads": heads, "key_width": key_width, "value_width": value_width, "dtype": dtype_name(dtype)}
        return cls._create(path, layout, model)

    def __iter__(self) -> Iterator[StoredRow]:
        """Yield all rows, in ascending order of their ids."""
        live = self._rows()
        for start in range(0, len(live), BLOCK):
            stop = min(start + BLOCK, len(live))
            ids = live.ids(np.arange(start, stop)).tolist()
            records = self._catalog.all_records(ids[0], ids[-1])
            keys, values = map(self._stored, live.keys_and_values(start, stop))
            for n, number in enumerate(ids):
                yield StoredRow(number, keys[n], values[n], records.get(number, {}))

    # Reading.

    @uncompiled
    def attend(
        self,
        query: Tensor,
        *,
        scale: float | None = None,
        where: str | None = None,
        parameters: Parameters = (),
        top: int = 10,
    ) -> Answer:
        """Compute attention of queries over all rows, and list the rows with the largest weights.

        The rows are read once for up to 256 queries, in blocks, and nothing of their number is held in memory. An answer has the same
        bits alone or in a batch, on any number of threads, and however the rows are spread over segments, deleted ones between them
        or not.

        Args:
            query: (..., D), or (..., H, D) with several heads, in float32 or the dtype of the database.
            scale: the factor on the scores; None for 1/sqrt(D).
            where: an SQL condition over the fields of the records, such as "source = ? AND year > ?": attention over the rows that
                meet it. A row without a record meets none. Values of strangers belong in `parameters`.
            parameters: the values of its question marks, or a dictionary for names such as :year.
            top: the largest number of rows to list for each query.

        If autograd records and the query needs a gradient, `value` has one, over all rows, by one more pass over them; other results
        are detached.

        Raises:
            ShapeError, ValueError: a query of another width or dtype, or not finite; options that are not valid; a score that is beyond
                float32.
            SoftDatabaseError: rows that cannot be read.
        """
        is_count = isinstance(top, Integral) and top >= 0
        check(is_count, f"SoftDatabase.attend: top must be an integer of at least 0, not {top!r}")
        scale, query_QHD, shape = self._queries(query, scale, "attend")
        live = self._rows(where, parameters)
        answer = self._answer(reading.passes(live, query_QHD, scale, min(top, len(live)), attention=True), shape, live)
        if not (torch.is_grad_enabled() and isinstance(query, Tensor) and query.requires_grad):
            return answer
        return answer._replace(value=cast("Tensor", _Value.apply(query, answer, live, query_QHD, scale)))

    @uncompiled
    def search(
        self, query: Tensor, k: int = 10, *, scale: float = 1.0, where: str | None = None, parameters: Parameters = ()
    ) -> Top:
        """Return the k rows with the largest scores scale q.k. The result is exact: a row is compared, or its bound excludes it.

        Columns as `top` of `attend`. Arguments and errors as `attend`.
        """
        is_count = isinstance(k, Integral) and k >= 1
        check(is_count, f"SoftDatabase.search: k must be an integer of at least 1, not {k!r}")
        scale, query_QHD, shape = self._queries(query, scale, "search")
        live = self._rows(where, parameters)
        return self._answer(reading.passes(live, query_QHD, scale, min(k, len(live)), attention=False), shape, live).top

    @uncompiled
    def map(self, query: Tensor, *, scale: float | None = None) -> AttentionMap:
        """Return the attention map of queries over all rows, (Q, n) or (H, Q, n). Its keys are the rows in the order of `ids()`.

        The keys are those in the file if it is one segment of float32 without deleted rows, and a copy in memory otherwise.

        Args:
            query: (Q, D), or (Q, H, D) with several heads.
            scale: as in `attend`, whose errors this raises.
        """
        scale, query_QHD, _ = self._queries(query, scale, "map")
        live = self._rows()
        keys = live.keys(0, len(live)) if len(live) else torch.zeros(0, self.schema.heads, self.schema.key_width)
        query_HQD, key_HKD = query_QHD.transpose(0, 1), keys.transpose(0, 1)
        if self.schema.heads == 1:
            query_HQD, key_HKD = query_HQD[0], key_HKD[0]
        return AttentionMap(query_HQD, key_HKD, scale=scale)

    def _answer(self, parts: Sequence[PassResult], shape: tuple[int, ...], live: LiveRows) -> Answer:
        """Join the results of passes. shape: the shape of a result for each query and head."""

        def joined(name: str) -> Tensor:
            arrays = [
                torch.as_tensor(getattr(part, name)).unflatten(0, (self.schema.heads, -1)).transpose(0, 1)
                for part in parts
            ]
            whole = torch.cat(arrays)
            return whole.reshape((*shape, *whole.shape[2:]))

        ids, weights, entropy, lse, value = map(joined, ("top_ids", "top_weights", "entropy", "lse", "value"))
        if not live.segments:  # none of them says how wide values are
            value = torch.zeros(*shape, self.schema.value_width or self.schema.key_width)
        records = self._catalog.records(ids.flatten().tolist())
        top = Top(ids, weights, joined("top_scores"), nested(ids.tolist(), records))
        unlisted_weight = torch.where(lse.isinf(), 0.0, (1.0 - weights.sum(-1)).clamp(min=0.0))
        effective_count = torch.where(lse.isinf(), 0.0, entropy.exp())
        return Answer(value, lse, top, unlisted_weight, entropy, effective_count, len(live))

    def _stored(self, tensor: Tensor) -> Tensor:
        """Return rows (n, H, width) in the shape and dtype in which a user added them."""
        tensor = tensor.to(DTYPES[self.schema.dtype])
        return tensor[:, 0] if self.schema.heads == 1 else tensor

    def _queries(self, query: Tensor, scale: float | None, method: str) -> tuple[float, Tensor, tuple[int, ...]]:
        """Return the scale, the queries as (Q, H, D) float32, and the shape of a result for each query and head."""
        factor = 1 / math.sqrt(self.schema.key_width) if scale is None else scale
        is_finite = isinstance(factor, Real) and abs(factor) <= torch.finfo(torch.float32).max
        if not is_finite:
            rule = "scale must be a number that is finite in float32"
            raise ValueError(f"SoftDatabase.{method}: {rule}, not {short(scale)}")
        place = f"SoftDatabase.{method}: the query"
        tail = self._tail(self.schema.key_width)
        query = tensor_of(query, place, "; uwaga.store.ask takes a text")
        if query.shape[-len(tail) :] != tail:
            raise ShapeError(
                f"{place} is {tuple(query.shape)}, and the keys of {self.path} are {tail}: their last sizes must agree"
            )
        flat = self._query_values(query, place).reshape(-1, self.schema.heads, self.schema.key_width)
        return float(factor), flat, (*query.shape[: query.dim() - len(tail)], *tail[:-1])

    def _tail(self, width: int | None) -> tuple[int | None, ...]:
        """Return the last sizes of keys or values of this width."""
        return (width,) if self.schema.heads == 1 else (self.schema.heads, width)

    # Writing.

    def append(
        self,
        keys: Tensor,
        values: Tensor | None = None,
        records: Sequence[Mapping[str, Value | None]] | None = None,
    ) -> range:
        """Add rows and return their ids. All rows are on the disk when the call returns.

        Args:
            keys: (n, D), or (n, H, D) with several heads, in float32 or the dtype of the database.
            values: (n, E), or (n, H, E); None if the values are the keys.
            records: a dictionary for each row, from names to strings, 64-bit integers and floats. None stands for no value.

        Raises:
            ShapeError, ValueError: sizes, dtypes or records that do not fit, numbers that are NaN or infinite, more rows than there
                are ids below 10^12; nothing is added.
            SoftDatabaseError: another process writes, or the rows cannot be written; nothing is added.
        """
        has_values = self.schema.value_width is not None
        stored = "values of their own are needed" if has_values else "the keys are the values"
        check((values is not None) == has_values, f"SoftDatabase.append: in {self.path} {stored}, as it was created")
        key = self._checked_rows(keys, self.schema.key_width, "keys")
        value = None if values is None else self._checked_rows(values, self.schema.value_width, "values")
        if value is not None and len(value) != len(key):
            raise ShapeError(f"SoftDatabase.append: {len(key)} keys and {len(value)} values")
        return self._append("keys", len(key), lambda ids: self._new(ids, key, value), records)

    def _checked_rows(self, rows: Tensor, width: int | None, name: str) -> Tensor:
        """Return rows (n, H, width) in the dtype of the database."""
        place = f"SoftDatabase.append: {name}"
        tensor = tensor_of(rows, place, "; uwaga.store.add_files takes files of texts").detach().cpu()
        tail = self._tail(width)
        if tensor.dim() != 1 + len(tail) or tensor.shape[1:] != tail:
            sizes = ", ".join(map(str, tail))
            raise ShapeError(f"{place} must be (n, {sizes}) for {self.path}, not {tuple(tensor.shape)}")
        self._check_dtype(tensor, place)
        stored = tensor.to(DTYPES[self.schema.dtype]).reshape(-1, self.schema.heads, width or 0)
        # A sum that is finite has no term that is not, and is computed faster; a sum that is not may have overflowed.
        if not stored.sum().isfinite() and not (is_finite := stored.isfinite().flatten(1).all(1)).all():
            bad = int((~is_finite).nonzero()[0])
            raise ValueError(f"{place}[{bad}] has an entry that is NaN or infinite in {self.schema.dtype}")
        return stored

    def _new(self, ids: np.ndarray, keys: Tensor, values: Tensor | None) -> list[NewRows]:
        at_once = self._segment_rows()
        parts = [slice(start, start + at_once) for start in range(0, len(ids), at_once)]
        return [(ids[part], keys[part], None if values is None else values[part], None) for part in parts]

    def _copied(self, live: LiveRows) -> list[NewRows]:
        keys, values = (x.to(DTYPES[self.schema.dtype]) for x in live.keys_and_values(0, len(live)))
        ids = live.ids(np.arange(len(live)))
        return self._new(ids, keys, None if self.schema.value_width is None else values)


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
            reading.query_gradient(ctx.live, query, ctx.scale, value, part_lse, change)
            for query, value, change, part_lse in zip(
                *(x.split(reading.QUERIES) for x in (ctx.flat, *of_queries, lse)), strict=True
            )
        ]
        result = torch.cat(parts) if parts else torch.zeros(ctx.shape)
        return result.reshape(ctx.shape).to(ctx.device, ctx.dtype), None, None, None, None
