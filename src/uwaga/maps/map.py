"""AttentionMap: the weights of one attention as a virtual array, with their statistics.

Results of several tensors are NamedTuples; for a ragged map, fields per query or per key are Ragged, (N, H, ...).

Letters: B batch, H query heads, G key/value heads, Q queries, K keys, D query/key width, N packed tokens, R ragged rows.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Never, TypedDict, cast

import torch
from torch import Tensor

from uwaga._base import keywords
from uwaga._base.arguments import choice, integer
from uwaga._base.tracing import is_recorded, may_branch_on
from uwaga.maps.base import DerivedMap, Shape, WeightMap, integers, packed
from uwaga.maps.engines import available, reference, tiles
from uwaga.maps.spec import Normalizer, RowStatisticsRequest, Selection
from uwaga.maps.statistics import arguments, gradients
from uwaga.maps.statistics.row_cache import RowCache
from uwaga.ops.attention.arguments import AttentionOptions, make_call, score_shape, unflatten_lse, unflatten_output
from uwaga.ops.attention.call import Call, compute_dtype
from uwaga.ops.attention.sequences import split
from uwaga.ops.biases import DistanceBias
from uwaga.ops.engine_choice import Choice
from uwaga.ops.mask_program import Start, resolve_start
from uwaga.ops.masks import Mask
from uwaga.ops.ragged import Operand, Ragged
from uwaga.ops.score_shape import ScoreShape

_Part = tuple[Tensor, Tensor, Call, Normalizer | None]
_INFINITY = float("inf")


class TopK(NamedTuple):
    """Hold the k largest weights of each query in descending order, equal ones by position."""

    weights: Tensor | Ragged  # (..., H, Q, k); 0 if fewer than k keys are visible
    positions: Tensor | Ragged  # int64; -1 if fewer than k keys are visible


class Peak(NamedTuple):
    """Hold the largest weight of each query and its key."""

    weight: Tensor | Ragged  # (..., H, Q); 0 if no key is visible
    position: Tensor | Ragged  # int64; -1 if no key is visible


class Sink(NamedTuple):
    """Hold weights on attention sinks: the first key, and the learned sink of the softmax."""

    first_key: Tensor | Ragged  # (..., H, Q): the weight on the first key of the sequence
    learned: Tensor | Ragged  # (..., H, Q): the learned sink's share of the denominator; 0 without one


class Pooled(NamedTuple):
    """Hold a map pooled into cells; for a ragged map the first dimension counts sequences."""

    weights: Tensor  # (..., H, rows, cols)
    # (..., H, rows, cols, 2) int64, the query and key of the weight, (-1, -1) without one; None unless pooling="max".
    positions: Tensor | None


class ScoreMap(DerivedMap):
    """Compute the scores s_ij = softcap(q_i . k_j * scale) + bias of an `AttentionMap`; -inf if key j is hidden.

    PyTorch computes them when they are read, at any length. The kernels sum in another order, so exp(s_ij - lse_i) equals the
    weight up to float32's rounding of a score.

    >>> x = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
    >>> from uwaga import AttentionMap, Causal
    >>> AttentionMap(x, x, mask=Causal(), scale=1.0).scores[:]
    tensor([[1., -inf],
            [0., 4.]])
    """

    __slots__ = ()
    map: "AttentionMap"

    def __init__(self, map: "AttentionMap") -> None:
        self.map = map

    def describe(self) -> str:
        return self.map.describe()

    def read(self, selection: Selection, keys: Tensor) -> Tensor:
        with torch.no_grad():
            return reference.scores(self.map._call, selection, keys)

    def parts(self) -> "Sequence[ScoreMap] | None":
        parts = self.map.parts()
        return None if parts is None else [part.scores for part in parts]


class MapOptions(TypedDict):
    """Name the options of an AttentionMap."""

    mask: Mask | Tensor | None
    bias: DistanceBias | Tensor | None
    scale: float | None
    softcap: float | None
    sinks: Tensor | None


def map_options(options: Mapping[str, Any]) -> MapOptions:
    """Return the options of `uwaga.attention` that a map has too."""
    return cast("MapOptions", {name: options[name] for name in MapOptions.__annotations__})


class AttentionMap(WeightMap):
    """Compute the exact weights a_ij of `uwaga.attention(query, key, ...)` when they are read, at any length.

    Nothing of size Q x K is stored. Query and key are stored without a copy: do not read the map after changing them in
    place. Dropout is not applied.

    Statistics are (..., H, Q) or (..., H, K), without H for plain matrices, and Ragged with values (N, H) for a ragged map;
    their dtype is float32 (float64 for float64). For a query without a visible key they are 0, and the lse is -inf. `lse`,
    `entropy`, `received` and entries `m[...]` are twice differentiable if autograd records an operand; all other results are
    detached.

    Args:
        query: (..., H, Q, D), a plain matrix (Q, D), or Ragged with values (N, H, D) or (N, D).
        key: (..., G, K, D), with the same leading dimensions.
        mask, bias, scale, softcap, sinks: as in `uwaga.attention`.
        lse: a known lse with the sinks' terms, (..., H, Q) or Ragged (N, H), as `attend` returns it. It saves a pass over all keys
            before a weight is read. It is not checked against the scores.
        impl: None chooses an engine; "cpu", "triton" or "reference" uses that engine or raises. See `explain`.

    Raises:
        ShapeError, ValueError: as `uwaga.attention`; an lse whose shape, dtype or device does not fit.

    >>> x = torch.eye(3) * 9.0
    >>> m = AttentionMap(x, x)
    >>> m
    AttentionMap(shape=(3, 3), mask=None, float32, 36 bytes as a dense matrix)
    >>> m[1].round()
    tensor([0., 1., 0.])
    >>> m.peak().position
    tensor([0, 1, 2])
    """

    def __init__(
        self,
        query: Operand,
        key: Operand,
        *,
        mask: Mask | Tensor | None = None,
        bias: DistanceBias | Tensor | None = None,
        scale: float | None = None,
        softcap: float | None = None,
        sinks: Tensor | None = None,
        lse: Operand | None = None,
        impl: str | None = None,
        **other: Never,
    ) -> None:
        if other:
            keywords.refuse(other, AttentionMap.__init__)
        call = make_call(
            query, key, None, AttentionOptions(mask, bias, scale, "softmax", softcap, sinks), wants_lse=True
        )
        normalizer = None if lse is None else arguments.normalizer(lse, query, call)
        self._set(query, key, describe_mask(mask), RowCache(call, available.choose(call, impl), normalizer))

    @classmethod
    def _of(cls, query: Operand, key: Operand, mask: str, rows: RowCache) -> "AttentionMap":
        """Make the map of the call of `rows`."""
        made = cls.__new__(cls)
        made._set(query, key, mask, rows)
        return made

    def _set(self, query: Operand, key: Operand, mask: str, rows: RowCache) -> None:
        self._query, self._key, self._call, self._mask, self._rows = query, key, rows.call, mask, rows
        self._parts: list[AttentionMap] | None = None
        self._parts_have_graph = False

    @property
    def query(self) -> Operand:
        """The queries that the map was made from."""
        return self._query

    @property
    def key(self) -> Operand:
        """The keys that the map was made from."""
        return self._key

    @property
    def shape(self) -> Shape:
        if isinstance(self._query, Ragged):
            return (len(self._query), *self._query.values.shape[1:-1], None, None)
        return (*self._query.shape[:-1], self._call.key.shape[2])

    @property
    def dtype(self) -> torch.dtype:
        return compute_dtype(self._call.query.dtype)

    @property
    def device(self) -> torch.device:
        return self._call.query.device

    def describe(self) -> str:
        return f"mask={self._mask}"

    def explain(self) -> Choice:
        """Return the engine that computes this map, the reason, and the reason against each other engine.

        >>> x = torch.eye(3, dtype=torch.float64)
        >>> AttentionMap(x, x).explain().engine
        'reference'
        """
        return available.explain(self._call, self._rows.engine)

    def read(self, selection: Selection, keys: Tensor) -> Tensor:
        normalizer = self._rows.normalizer_of_rows(selection)
        with torch.no_grad():
            return self._rows.engine.weights(self._call, normalizer, selection, keys)

    def read_entries(self, selection: Selection, keys: Tensor) -> Tensor:
        return gradients.attach_weights(self.read(selection, keys), self._call, selection, keys)

    def parts(self) -> Sequence["AttentionMap"] | None:
        if not isinstance(self._query, Ragged) or not isinstance(self._key, Ragged):
            return None
        # Parts that were made without gradients are views without gradients.
        needs_graph = is_recorded(*self._call.operands)
        if self._parts is None or (needs_graph and not self._parts_have_graph):
            self._parts_have_graph = torch.is_grad_enabled()
            tiles.check_lengths()
            queries, keys = _sequences(self._query), _sequences(self._key)
            normalizers = _split_normalizer(self._rows.complete, self._query)
            self._parts = [
                self._of(query, key, self._mask, RowCache(call, self._rows.engine, normalizer))
                for query, key, call, normalizer in zip(queries, keys, split(self._call), normalizers, strict=True)
            ]
        return self._parts

    def select(self, *at: int) -> "AttentionMap":
        """Return the map of one sequence or head: m.select(b) is (H, Q, K) and m.select(b, h) is (Q, K).

        Its statistics are computed for that part only. Queries and keys are not copied.

        Raises:
            IndexError: too many indices, or one out of range.
        """
        result = _leading_indices(at, self.shape[:-2])
        parts = self.parts()
        if parts is not None:
            return parts[result[0]].select(*result[1:]) if result else self
        assert isinstance(self._query, Tensor)
        assert isinstance(self._key, Tensor)
        query, key, call, normalizer = _part(self._query, self._key, self._call, self._rows.complete, result)
        return self._of(query, key, self._mask, RowCache(call, self._rows.engine, normalizer))

    @property
    def scores(self) -> ScoreMap:
        """The scores before softmax as an array like this map: m.scores[..., i, j] is -inf if key j is hidden."""
        return ScoreMap(self)

    def diagonal(self, offset: int = 0, start: Start = None) -> Operand:
        """Compute `WeightMap.diagonal` in one pass over the tiles of the diagonal."""
        offset = integer(offset, "AttentionMap.diagonal: offset")
        start = integers(start, "AttentionMap.diagonal: start")
        return self._per_query(self._mass(arguments.diagonal(offset, start, self._score_shape(), self._call)))

    # Statistics per query.

    @property
    def lse(self) -> Operand:
        """log(sum_j exp(s_ij) + exp(sink)) of each query, (..., H, Q); -inf without a visible key or sink. Differentiable."""
        value = tiles.log_sum_exp(self._rows.normalizer())
        return self._per_query(gradients.attach(gradients.LSE, value, self._call))

    def entropy(self, normalize: bool = False) -> Operand:
        """Compute the entropy of each query's weights, -sum_j a_ij log a_ij in nats, (..., H, Q). Differentiable.

        The share of a learned sink adds no term. With `normalize`, the entropy is divided by the logarithm of the number of visible
        keys: 1 for equal weights on all visible keys, 0 if fewer than two keys are visible.
        """
        value = gradients.attach(gradients.ENTROPY, self._rows.entropy(), self._call)
        if normalize:
            # The logarithm of the number of keys that a query sees; -inf for no key.
            most = tiles.log_sum_exp(RowCache(_visible_keys_call(self._call), self._rows.engine).normalizer())
            sees_two = most > 0.5  # log 2 is 0.69
            value = torch.where(sees_two, value / torch.where(sees_two, most, 1.0), 0.0)
        return self._per_query(value)

    def topk(self, k: int) -> TopK:
        """Find the k largest weights of every query and their keys, (..., H, Q, k). Raises ValueError for k below 1."""
        weights, positions = self._rows.top(integer(k, "AttentionMap.topk: k", 1))
        return TopK(unflatten_output(self._query, weights), unflatten_output(self._query, positions))

    def peak(self) -> Peak:
        """Find the largest weight of every query and its key, (..., H, Q)."""
        return Peak(*(self._per_query(x[..., 0]) for x in self._rows.top(1)))

    def distance(self, start: Start = None) -> Operand:
        """Compute the mean distance of the keys in tokens, sum_j a_ij |j - (i + start)|, (..., H, Q); `start` as in masks."""
        start = integers(start, "AttentionMap.distance: start")
        return self._per_query(self._rows.distance(resolve_start(self._score_shape(), start)))

    def effective_count(self) -> Operand:
        """Compute the effective number of keys of each query, 1 / sum_j a_ij^2, (..., H, Q), a Hill number (Hill, "Diversity and
        Evenness", 1973).

        The result is n for n keys of weight 1/n, and 0 if no key is visible. A learned sink's share is not divided out: as it
        approaches 1, the result approaches infinity.
        """
        self._rows.compute(RowStatisticsRequest(squares=True, top=self._top_of_effective_count))
        squares = self._rows.squares()
        sees_none = self._rows.top(1)[1][..., 0] < 0 if self._top_of_effective_count else squares == 0
        return self._per_query(torch.where(sees_none, 0.0, 1.0 / squares))

    def sink(self) -> Sink:
        """Compute the weight on the first key and the share of the learned sink, each (..., H, Q).

        Xiao et al., "Efficient Streaming Language Models with Attention Sinks", 2023.
        """
        normalizer = self._rows.normalizer()
        first = self._mass(arguments.first_key(self._score_shape(), self._lengths()[1]))
        learned = _sink_share(normalizer, self._call.sinks)
        return Sink(self._per_query(first), self._per_query(learned))

    def mass(self, mask: Mask | Tensor) -> Operand:
        """Compute the sum of each query's weights on the keys that `mask` shows, (..., H, Q).

        Keys that are hidden in the map add nothing.

        Args:
            mask: Causal, Window, Documents, KeyLengths, a bool tensor, or these combined by & and |.
        """
        return self._per_query(self._mass(arguments.program(mask, self._score_shape(), self._call)))

    def prepare(
        self, *, entropy: bool = False, effective_count: bool = False, distance: bool = False, topk: int = 0
    ) -> None:
        """Compute in one pass what later calls need: `lse` always, and the statistics named here.

        Raises:
            ValueError: topk is not an integer of at least 0.
        """
        topk = integer(topk, "AttentionMap.prepare: topk", 0)
        start = resolve_start(self._score_shape(), None) if distance else None
        most = max(topk, self._top_of_effective_count) if effective_count else topk
        self._rows.compute(RowStatisticsRequest(entropy=entropy, squares=effective_count, distance=start, top=most))

    # Statistics per key, and pooling.

    def received(self, last: int | None = None, weights: Operand | None = None) -> Operand:
        """Compute the weight that each key receives from all queries, sum_i w_i a_ij. Differentiable.

        The result is (..., H, K), or Ragged (N, H).

        Args:
            last: sum only this many queries at the end of every sequence; None: all queries.
            weights: w, broadcastable to (..., H, Q), such as (Q,); for a ragged map Ragged with values (N, H) or (N,). None:
                ones. Rows of weight 0 are left out, even if they hold NaN.
        """
        row_weights = self._row_weights(last, weights)
        normalizer = self._rows.normalizer()
        with torch.no_grad():
            value = self._rows.engine.received(self._call, normalizer, row_weights)
        return unflatten_lse(self._key, gradients.attach(gradients.RECEIVED, value, self._call, row_weights))

    def diagonal_sums(self) -> Operand:
        """Compute the sum of all weights on each diagonal in one pass, without gradients.

        The result is (..., H, Q+K-1), or Ragged (sum of these, H). Entry n is the sum over the pairs with j - i = n - (Q - 1). With Q = K,
        entry 0 is the last query's weight on the first key, entry Q - 1 sums the weights of all queries on their own tokens, and entry
        Q - 2 sums their weights on the previous tokens. Slashes of a head are its large entries (Jiang et al., "MInference 1.0", 2024).

        >>> x = torch.zeros(3, 2)
        >>> from uwaga import Causal
        >>> AttentionMap(x, x, mask=Causal()).diagonal_sums()
        tensor([0.3333, 0.8333, 1.8333, 0.0000, 0.0000])
        """
        parts = self.parts()
        if parts is None:
            return unflatten_lse(self._query, self._diagonal_sums())
        rows = [part._diagonal_sums()[0] for part in parts]
        return packed(self, rows if len(self.shape) == 4 else [row[0] for row in rows])

    def _diagonal_sums(self) -> Tensor:
        """Compute `diagonal_sums` of a dense map, (B, H, Q+K-1)."""
        normalizer = self._rows.normalizer()
        with torch.no_grad():
            sums: Tensor = self._rows.engine.diagonal_sums(self._call, normalizer)
        return sums

    def pool(self, rows: arguments.Bins, cols: arguments.Bins, pooling: str = "sum") -> Pooled:
        """Pool the map into ranges of queries and keys, (..., H, rows, cols), or (R, H, rows, cols) for a ragged map.

        Args:
            rows: the number of equal ranges of queries, or their ascending edges, (rows+1,) or (batch..., rows+1). Of n
                ranges, range b is [floor(b * Q / n), floor((b + 1) * Q / n)), empty for some b if n > Q.
            cols: the number of equal ranges of keys, or their edges.
            pooling: "sum" sums over the keys of a cell and averages over its queries, so that the result is an attention
                matrix again, whose rows sum to 1; "max" takes the largest weight, with its query and key.

        Raises:
            ValueError: an unknown `pooling`, no range, or edges that descend or lie outside a sequence.
        """
        choice(pooling, "AttentionMap.pool: pooling", ("sum", "max"))
        queries_B, keys_B = self._lengths()
        batch = self._score_shape().batch
        row_edges = arguments.bin_edges(rows, queries_B, batch, "rows")
        column_edges = arguments.bin_edges(cols, keys_B, batch, "cols")
        cells, positions = self._pool(pooling, row_edges, column_edges)
        return Pooled(self._cells(cells), None if positions is None else self._cells(positions))

    def _pool(self, pooling: str, row_edges: Tensor, column_edges: Tensor) -> tuple[Tensor, Tensor | None]:
        normalizer = self._normalizer_of(row_edges)
        with torch.no_grad():
            return self._rows.engine.pool(self._call, normalizer, pooling, row_edges, column_edges)

    def _normalizer_of(self, row_edges: Tensor) -> Normalizer:
        """Return a normalizer for the rows between the edges: a few cells of a long map need no pass over all rows."""
        sequences, heads, queries, _ = self._call.query.shape
        if self.parts() is not None or not row_edges.numel() or not may_branch_on(row_edges):
            return self._rows.normalizer()
        rows = torch.arange(int(row_edges.min()), int(row_edges.max()), device=self.device)
        if len(rows) == queries:
            return self._rows.normalizer()
        return self._rows.normalizer_of_rows(Selection(tuple(range(sequences)), tuple(range(heads)), rows))

    def _mass(self, program: arguments.Program) -> Tensor:
        normalizer = self._rows.normalizer()
        with torch.no_grad():
            return self._rows.engine.mass(self._call, normalizer, *program)

    @property
    def _top_of_effective_count(self) -> int:
        """The number of largest weights that show whether a query sees a key: with a sink, all squares can underflow to 0."""
        return int(self._call.sinks is not None)

    # A map over several processes, each with a part of the call, overrides these methods.

    def _lengths(self) -> tuple[Tensor, Tensor]:
        return arguments.lengths(self._call)

    def _row_weights(self, last: int | None, weights: Operand | None) -> Tensor | None:
        return arguments.row_weights(last, weights, self._query, self._call)

    def _score_shape(self) -> ScoreShape:
        return score_shape(self._query, self._key, self._call)

    def _per_query(self, x_BHQ: Tensor) -> Operand:
        return unflatten_lse(self._query, x_BHQ)

    def _cells(self, x: Tensor) -> Tensor:
        """Reshape (S, H, rows, cols, ...) of S sequences to (..., H, rows, cols, ...)."""
        return x.reshape(*self.shape[:-2], *x.shape[2:])


def _leading_indices(at: Sequence[int], leading: Sequence[int]) -> tuple[int, ...]:
    """Return indices of leading dimensions, counted from the front.

    Raises:
        IndexError: too many indices, or one out of range.
        ValueError: an index that is not an integer.
    """
    if len(at) > len(leading):
        raise IndexError(f"AttentionMap.select: {len(at)} indices for the leading dimensions {tuple(leading)}")
    chosen = [integer(index, "AttentionMap.select: an index") for index in at]
    for axis, (index, size) in enumerate(zip(chosen, leading, strict=False)):
        if not -size <= index < size:
            raise IndexError(f"AttentionMap.select: index {index} is out of range for axis {axis} of size {size}")
    return tuple(index % size for index, size in zip(chosen, leading, strict=False))


def _part(query: Tensor, key: Tensor, call: Call, normalizer: Normalizer | None, at: tuple[int, ...]) -> _Part:
    """Return query (..., H, Q, D), key (..., G, K, D), call and normalizer of the rows at leading indices."""
    batch, heads = query.shape[:-3], call.query.shape[1]
    first, count = _flat_sequences(at[: len(batch)], batch)
    chosen = range(at[-1], at[-1] + 1) if len(at) > len(batch) else range(heads)
    if normalizer is not None:
        normalizer = Normalizer(*(x[first : first + count, chosen.start : chosen.stop] for x in normalizer))
    of_key = (*at[: len(batch)], *(head // call.heads_per_key_head for head in at[len(batch) :]))
    some = tiles.select_heads(call, tuple(range(first, first + count)), tuple(chosen))
    return query[at], key[of_key], some, normalizer


def _flat_sequences(at: tuple[int, ...], batch: Sequence[int]) -> tuple[int, int]:
    """Return the first of the consecutive sequences at leading indices, and their number."""
    first = 0
    for index, size in zip(at, batch, strict=False):
        first = first * size + index
    count = math.prod(batch[len(at) :])
    return first * count, count


def _sequences(operand: Ragged) -> list[Tensor]:
    """Return the sequences of a ragged operand as dense operands, (H, Q, D) or (Q, D)."""
    return [x.movedim(0, -2) for x in operand.to_list()]


def _split_normalizer(normalizer: Normalizer | None, query: Ragged) -> list[Normalizer | None]:
    """Split the normalizer of a ragged map by sequence."""
    if normalizer is None:
        return [None] * len(query)
    lengths = query.lengths.tolist()
    return [Normalizer(*x) for x in zip(*(x.split(lengths, dim=2) for x in normalizer), strict=True)]


def _sink_share(normalizer: Normalizer, sinks_H: Tensor | None) -> Tensor:
    """Compute exp(sink) / (sum_j exp(s_ij) + exp(sink)), (B, H, Q); 0 without sinks."""
    if sinks_H is None:
        return torch.zeros_like(normalizer.sum)
    is_empty = normalizer.sum == 0  # no visible key, and a sink of -inf
    exponential_BHQ = (sinks_H.detach()[:, None] - normalizer.maximum).exp()
    return torch.where(is_empty, 0.0, exponential_BHQ / torch.where(is_empty, 1.0, normalizer.sum))


def _visible_keys_call(call: Call) -> Call:
    """Make a call with the same mask and scores 0; its sum of exponentials is the number of visible keys."""
    bias = None if call.bias is None else torch.where(call.bias == -_INFINITY, call.bias.detach(), 0.0)
    zero = call.query.new_zeros(())
    query, key = (zero.expand(*x.shape[:3], 1) for x in (call.query, call.key))
    options = replace(call.options, scale=1.0, softcap=0.0)
    return replace(
        call,
        query=query,
        key=key,
        value=key[..., :0],
        relative=None,
        relative_starts=None,
        sinks=None,
        bias=bias,
        options=options,
    )


def describe_mask(mask: object) -> str:
    """Return a mask as the repr of a map shows it: tensors by dtype and shape."""
    if isinstance(mask, Tensor):
        return f"{str(mask.dtype).removeprefix('torch.')} {tuple(mask.shape)}"
    if not isinstance(mask, Mask) or not dataclasses.is_dataclass(mask):
        return repr(mask)
    parts = ", ".join(f"{field.name}={describe_mask(getattr(mask, field.name))}" for field in dataclasses.fields(mask))
    return f"{type(mask).__name__}({parts})"
