"""Statistics of the weights of a sequence whose parts lie with several processes: each has those of its own queries and keys.

Letters as in sequence.py; R rows of a Ragged batch.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, NoReturn, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from uwaga.maps.base import Shape, integer
from uwaga.maps.map import AttentionMap, Peak, Pooled, Sink, TopK
from uwaga.maps.spec import Selection
from uwaga.maps.statistics import arguments
from uwaga.maps.statistics.pooling import Bins, Spans
from uwaga.maps.statistics.row_cache import RowCache
from uwaga.ops.attention.arguments import AttentionOptions, score_shape
from uwaga.ops.attention.call import Call
from uwaga.ops.biases import DistanceBias
from uwaga.ops.mask_program import Start
from uwaga.ops.masks import Mask
from uwaga.ops.ragged import Operand, Ragged
from uwaga.ops.score_shape import ScoreShape
from uwaga.sequence_parallel.division import Division, divide
from uwaga.sequence_parallel.exchange import Group
from uwaga.sequence_parallel.map_engine import MapEngine
from uwaga.sequence_parallel.map_reads import AgreedEngine
from uwaga.sequence_parallel.ragged import Rows, divide_rows
from uwaga.sequence_parallel.ragged_map import RaggedMapEngine

_AT = "uwaga.sequence_parallel.attention_map:"

Result = TypeVar("Result")


class Whole(NamedTuple):
    """What a map knows of the whole of which this process has a part."""

    engine: Any  # of maps: an AgreedEngine
    score_shape: Mapping[str, Any]  # the fields that are others than those of the part
    lengths: tuple[Tensor, Tensor]  # (B,) queries and keys of each sequence, or (R,)
    first: tuple[int, int]  # where this process's queries and keys begin
    following: int | Tensor  # queries of its sequence after this process's, for all or for each of them

    @classmethod
    def of_sequence(cls, division: Division, call: Call) -> "Whole":
        queries, keys = division.sizes
        lengths = torch.full((call.query.shape[0],), queries), torch.full((call.query.shape[0],), keys)
        first, last = division.own(division.query_starts)
        first_key, _ = division.own(division.key_starts)
        shape = {"queries": queries, "keys": keys}
        engine = AgreedEngine(division.group, division.number, MapEngine(division))
        return cls(engine, shape, lengths, (first, first_key), queries - last)

    @classmethod
    def of_rows(cls, group: Group, rows: Rows) -> "Whole":
        queries, keys = rows.offsets.diff(dim=0).unbind(1)
        first, first_key = rows.lengths[: rows.held[group.rank][0]].sum(0).tolist()
        engine = AgreedEngine(group, rows.number, RaggedMapEngine(group, rows))
        return cls(engine, rows.score_shape(), (queries, keys), (first, first_key), rows.following())


class SequenceMap:
    """The weights of `uwaga.sequence_parallel.attention(query, key, ...)`, as `attention_map` returns it.

    Results have the bits of `uwaga.AttentionMap(..., impl="cpu")` on the whole sequence, and are detached. All processes call each method, and
    read `lse`, together and with the same arguments; positions, starts, masks, edges and spans are those of the whole. What has been
    computed is kept. A process holds its part and two blocks meanwhile, as attention does, and the result.

    Of Ragged operands statistics are Ragged, of this process's tokens, and positions are within each row. What is of the whole sequence in every
    process is refused.

    Attributes:
        first_query, first_key: where this process's part begins in the whole sequence, or among the tokens of the whole batch.

    Raises (all methods):
        ValueError, TypeError, IndexError: an argument that `AttentionMap` refuses.
        ValueError: another method or other arguments in another process.
        ProcessGroupError: as `attention`; another process refused its arguments, or reads another map.
    """

    def __init__(self, query: Operand, key: Operand, rows: RowCache, whole: Whole) -> None:
        self.first_query, self.first_key = whole.first
        self._engine = whole.engine
        self._map = _DividedMap(query, key, rows, whole)

    def __repr__(self) -> str:
        return f"SequenceMap(shape={self.shape}, first_query={self.first_query}, first_key={self.first_key})"

    @property
    def shape(self) -> Shape:
        """(..., H, Q, K) of the whole sequence; (R, H, None, None) of a Ragged batch."""
        return self._map.shape

    # Of this process's queries: (..., H, n), or Ragged (n, H).

    @property
    def lse(self) -> Operand:
        """(..., H, n): see `AttentionMap.lse`."""
        return self._read("lse", lambda m: m.lse)

    def entropy(self, normalize: bool = False) -> Operand:
        """(..., H, n), in nats: see `AttentionMap.entropy`."""
        return self._read("entropy", lambda m: m.entropy(normalize))

    def topk(self, k: int) -> TopK:
        """The k largest weights of each query, and their keys, (..., H, n, k): see `AttentionMap.topk`."""
        return self._read("topk", lambda m: m.topk(k), k)

    def peak(self) -> Peak:
        """The largest weight of each query, and its key, (..., H, n): see `AttentionMap.peak`."""
        return self._read("peak", lambda m: m.peak())

    def effective_count(self, order: int = 2) -> Operand:
        """(..., H, n): see `AttentionMap.effective_count`."""
        return self._read("effective_count", lambda m: m.effective_count(order), order)

    def distance(self, start: Start = None) -> Operand:
        """(..., H, n): see `AttentionMap.distance`."""
        return self._read("distance", lambda m: m.distance(start), start)

    def sink(self) -> Sink:
        """(..., H, n) each: see `AttentionMap.sink`."""
        return self._read("sink", lambda m: m.sink())

    def mass(self, mask: Mask | Tensor) -> Operand:
        """(..., H, n): see `AttentionMap.mass`."""
        return self._read("mass", lambda m: m.mass(mask))

    def diagonal(self, offset: int = 0, start: Start = None) -> Operand:
        """(..., H, n): see `AttentionMap.diagonal`."""
        return self._read("diagonal", lambda m: m.diagonal(offset, start))

    def column(self, key: int) -> Operand:
        """(..., H, n): the weight of each query on one key, from the end where negative. Raises IndexError: no such key."""
        return self._read("column", lambda m: m.of_sequence("column").column(key))

    def prepare(
        self, *, entropy: bool = False, effective_count: bool = False, distance: bool = False, topk: int = 0
    ) -> None:
        """Compute in one pass what later calls need: see `AttentionMap.prepare`."""
        self._read(
            "prepare",
            lambda m: m.prepare(entropy=entropy, effective_count=effective_count, distance=distance, topk=topk),
            *(entropy, effective_count, distance, topk),
        )

    # Of this process's keys.

    def received(self, last: int | None = None, weights: Operand | None = None) -> Operand:
        """(..., H, m), or Ragged (m, H): the weight that each key receives from all queries, see `AttentionMap.received`.

        Args:
            last: the number of queries, at the end of the whole sequence or of each whole row, that are summed; None: all.
            weights: of this process's queries, broadcastable to (..., H, n), or Ragged; in all processes or in none.
        """
        return self._read("received", lambda m: m.received(last, weights))

    # Of the whole sequence, in every process.

    def diagonal_sums(self) -> Operand:
        """(..., H, Q+K-1), in every process: see `AttentionMap.diagonal_sums`. Meanwhile a process holds some
        70 bytes for each of them."""
        return self._read("diagonal_sums", lambda m: m.of_sequence("diagonal_sums").diagonal_sums())

    def pool(self, rows: Bins, cols: Bins, pooling: str = "sum") -> Pooled:
        """(..., H, rows, cols), in every process: see `AttentionMap.pool`."""
        return self._read("pool", lambda m: m.of_sequence("pool").pool(rows, cols, pooling))

    def between(self, spans: Spans, key_spans: Spans | None = None) -> Tensor:
        """(..., H, S, T), in every process: see `AttentionMap.between`."""
        return self._read("between", lambda m: m.of_sequence("between").between(spans, key_spans))

    def max_logit(self) -> Tensor:
        """(..., H), in every process: see `AttentionMap.max_logit`."""
        return self._read("max_logit", lambda m: m.of_sequence("max_logit").max_logit())

    def row(self, query: int) -> Tensor:
        """(..., H, K): the weights of one query, from the end where negative, in every process. Raises IndexError: no such query."""
        return self._read("row", lambda m: m.of_sequence("row").row(query))

    def __getitem__(self, index: object) -> "Tensor | Any":
        """The weights at ints, slices and lists of positions, in every process: see `AttentionMap`. Every process gets the queries of these
        rows."""
        return self._read("m[...]", lambda m: m.of_sequence("m[...]")[index])

    def __iter__(self) -> NoReturn:
        raise TypeError(f"{_AT} a map over several processes cannot be iterated")

    def __contains__(self, value: object) -> NoReturn:
        raise TypeError(f"{_AT} a map over several processes does not look for values")

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("_") and hasattr(AttentionMap, name):
            raise AttributeError(f"{_AT} {name} is not computed over several processes")
        return object.__getattribute__(self, name)

    def _read(self, method: str, read: "Callable[[_DividedMap], Result]", *arguments: object) -> Result:
        with self._engine.reading(method, *arguments):
            return read(self._map)


class _DividedMap(AttentionMap):
    """The map of a whole of which this process has a part; nobody else sees it, since to read it all processes must read it."""

    def __init__(self, query: Operand, key: Operand, rows: RowCache, whole: Whole) -> None:
        self._set(query, key, "", rows)
        self._of_whole = whole

    @property
    def kind(self) -> str:
        return _AT.removesuffix(":")

    def of_sequence(self, name: str) -> "_DividedMap":
        """The map itself. Raises ValueError for a Ragged batch."""
        if isinstance(self._query, Ragged):
            raise ValueError(f"{_AT} {name} is not computed for Ragged batches over several processes")
        return self

    @property
    def shape(self) -> Shape:
        if isinstance(self._query, Ragged):
            return (len(self._of_whole.lengths[0]), *self._query.values.shape[1:-1], None, None)
        sizes = self._of_whole.score_shape
        return (*self._query.shape[:-2], sizes["queries"], sizes["keys"])

    def read(self, selection: Selection, keys: Tensor) -> Tensor:
        self._of_whole.engine.given(*selection, keys)
        return self._rows.engine.weights(self._call, self._rows.normalizer(), selection, keys)

    def column(self, j: int) -> Any:
        keys = self.shape[-1]
        at = integer(j, f"{_AT} column")
        if not -keys <= at < keys:
            raise IndexError(f"{_AT} column {at} is not one of the {keys} keys")
        return self.mass(torch.arange(keys) == at % keys)

    def entropy(self, normalize: bool = False) -> Operand:
        self._of_whole.engine.given(normalize := bool(normalize))
        return super().entropy(normalize)

    def max_logit(self) -> Tensor:
        own_BHn = self._rows.max_logit()
        none_BH1 = own_BHn.new_full((*own_BHn.shape[:2], 1), -torch.inf)
        return self._per_head(self._rows.engine.largest(torch.cat((own_BHn, none_BH1), dim=-1).amax(-1)))

    def _mass(self, program: arguments.Program) -> Tensor:
        self._of_whole.engine.given(program[0], *program[1])
        return super()._mass(program)

    def _pool(self, pooling: str, row_edges: Tensor, column_edges: Tensor) -> tuple[Tensor, Tensor | None]:
        self._of_whole.engine.given(pooling, row_edges, column_edges)
        return super()._pool(pooling, row_edges, column_edges)

    def _normalizer_of(self, row_edges: Tensor) -> Any:
        return self._rows.normalizer()

    def _lengths(self) -> tuple[Tensor, Tensor]:
        return self._of_whole.lengths

    def _row_weights(self, last: int | None, weights: Operand | None) -> Tensor | None:
        given = arguments.row_weights(last, weights, self._query, self._call, self._of_whole.following)
        self._of_whole.engine.given(last, weights is None)
        return None if given is None else given.detach()

    def _score_shape(self) -> ScoreShape:
        return replace(score_shape(self._query, self._key, self._call), **self._of_whole.score_shape)


def call_of_map(call: Call) -> Call:
    """The call whose weights a map shows: without values, dropout and gradients."""
    detached = Call.of([None if x is None else x.detach() for x in call.tensors], call.options)
    options = replace(call.options, dropout=0.0)
    return replace(detached, value=detached.key[..., :0], seed=None, options=options)


def attention_map(
    query: Operand,
    key: Operand,
    *,
    group: dist.ProcessGroup | None = None,
    mask: Mask | Tensor | None = None,
    bias: DistanceBias | Tensor | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> SequenceMap:
    """The attention weights of one sequence, of which each process holds a contiguous part: their statistics, never the matrix.

    All processes of the group call this together.

    Args:
        query: (..., H, n, D), this process's part, or (n, D); or Ragged, this process's tokens of a batch.
        key: (..., G, m, D), its part of the keys; Ragged where the query is.
        group, mask, bias, scale, softcap, sinks: as in `uwaga.sequence_parallel.attention`.

    Raises:
        ShapeError, ValueError, ProcessGroupError, NotImplementedError: as `uwaga.sequence_parallel.attention`.
    """
    own, options = Group.of(group), AttentionOptions(mask, bias, scale, "softmax", softcap, sinks)
    with torch.no_grad(), own.errors_told():
        if isinstance(query, Ragged) or isinstance(key, Ragged):
            rows, call, _ = divide_rows(own, query, key, None, options, None)
            whole = Whole.of_rows(own, rows)
        else:
            call, division, _ = divide(own, query, key, None, options, None)
            whole = Whole.of_sequence(division, call)
        return SequenceMap(query, key, RowCache(call_of_map(call), whole.engine), whole)
