"""Statistics of the weights of a sequence whose parts lie with several processes: each has those of its own queries and keys.

Letters as in sequence.py; R rows of a Ragged batch.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import wraps
from typing import Any, NamedTuple, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor

from uwaga._base.arguments import integer, is_int
from uwaga.maps.base import Shape
from uwaga.maps.map import AttentionMap
from uwaga.maps.spec import Selection
from uwaga.maps.statistics import arguments
from uwaga.maps.statistics.row_cache import RowCache
from uwaga.ops.attention.arguments import AttentionOptions, score_shape
from uwaga.ops.attention.call import Call
from uwaga.ops.biases import DistanceBias
from uwaga.ops.masks import Mask
from uwaga.ops.ragged import Operand, Ragged
from uwaga.ops.score_shape import ScoreShape
from uwaga.sequence_parallel.agreement import Divided, agree, check_equal, checksum_of_argument, divide
from uwaga.sequence_parallel.division import Division
from uwaga.sequence_parallel.exchange import Group
from uwaga.sequence_parallel.map_engine import MapEngine, RaggedMapEngine

_AT = "uwaga.sequence_parallel.attention_map:"

# What all processes compute together, by its name in AttentionMap, and the shape that each gets: of its n queries or m keys, or of the whole.
_OF_QUERIES = "(..., H, n), or Ragged (n, H)"
_METHODS = {
    "entropy": _OF_QUERIES,
    "topk": "(..., H, n, k) each",
    "peak": f"{_OF_QUERIES} each",
    "effective_count": _OF_QUERIES,
    "distance": _OF_QUERIES,
    "sink": f"{_OF_QUERIES} each",
    "mass": _OF_QUERIES,
    "diagonal": _OF_QUERIES,
    "prepare": "None",
    "received": "(..., H, m), or Ragged (m, H); `last` counts queries of the whole, `weights` are of this process's queries",
}
# Not of Ragged operands.
_OF_SEQUENCE = {
    "column": "(..., H, n)",
    "row": "(..., H, K), in every process",
    "diagonal_sums": "(..., H, Q+K-1), in every process, which holds some 70 bytes for each of them meanwhile",
    "pool": "(..., H, rows, cols), in every process",
}
READS = ("lse", "m[...]", *_METHODS, *_OF_SEQUENCE)


class AgreedEngine:
    """An engine of maps (maps/spec.py) whose first function in a read waits until all processes are known to read the same. By then the method
    has checked its arguments, so that the same message reports an error in them; a read that finds everything computed sends it in the end."""

    def __init__(self, group: Group, number: int, engine: Any) -> None:
        """Wrap an engine. `number`: that of the map's call."""
        self._group, self._number, self._engine = group, number, engine
        self._header: list[int] | None = None  # that is still to be sent in this read

    @contextmanager
    def reading(self, method: str) -> Iterator[None]:
        """Open a context for a read of one of READS; the method `with_arguments` gets its arguments."""
        with self._group.errors_reported():
            self._header = [READS.index(method), 0]
            try:
                yield
            except Exception as error:
                if self._header is not None:  # of this process's arguments
                    self._agree(error)
                raise
            self._agree()

    def with_arguments(self, *arguments: object) -> None:
        """Add arguments of the present read in the form that engines take."""
        if self._header is not None:
            for x in arguments:
                self._header[1] = checksum_of_argument(x, self._header[1])

    def _agree(self, failure: Exception | None = None) -> None:
        if self._header is None:
            return
        header, self._header = self._header, None
        by_rank = agree(self._group, "the arguments of its map", self._number, header, failure)
        check_equal("what they read of a map", [READS[x[0]] for x in by_rank])
        check_equal("the arguments of a map (checksums)", [x[1] for x in by_rank])

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # of a copy, say: no function of an engine
            raise AttributeError(name)
        self._agree()
        return getattr(self._engine, name)


class WholeMap(NamedTuple):
    """What a map knows of the whole of which this process has a part."""

    engine: Any  # of maps: an AgreedEngine
    score_shape: Mapping[str, Any]  # the fields that are others than those of the part
    lengths: tuple[Tensor, Tensor]  # (B,) queries and keys of each sequence, or (R,)
    first: tuple[int, int]  # where this process's queries and keys begin
    following: int | Tensor  # queries of its sequence after this process's, for all or for each of them

    @classmethod
    def of(cls, divided: Divided) -> "WholeMap":
        call, how, group = divided.call, divided.how, divided.how.group
        if isinstance(how, Division):
            queries, keys = how.sizes
            lengths = torch.full((call.query.shape[0],), queries), torch.full((call.query.shape[0],), keys)
            (first, last), (first_key, _) = how.own_interval(how.query_starts), how.own_interval(how.key_starts)
            engine = AgreedEngine(group, how.number, MapEngine(how))
            return cls(engine, {"queries": queries, "keys": keys}, lengths, (first, first_key), queries - last)
        of_queries, of_keys = how.offsets.diff(dim=0).unbind(1)
        first, first_key = how.lengths[: how.held[group.rank][0]].sum(0).tolist()
        engine = AgreedEngine(group, how.number, RaggedMapEngine(how))
        return cls(engine, how.score_shape(), (of_queries, of_keys), (first, first_key), how.following())


class SequenceMap:
    """The weights of `uwaga.sequence_parallel.attention(query, key, ...)`, as `attention_map` returns it.

    Results have the bits of `uwaga.AttentionMap(..., impl="cpu")` on the whole sequence, and are detached. All processes call each method, and
    read `lse` and entries `m[...]`, together and with the same arguments; positions, starts, masks, edges and spans are those of the whole.
    What has been computed is kept. A process holds its part and two blocks meanwhile, as attention does, and the result.

    Of Ragged operands statistics are Ragged, of this process's tokens, and positions are within each row. What is of the whole sequence in every
    process is rejected.

    Attributes:
        first_query, first_key: where this process's part begins in the whole sequence, or among the tokens of the whole batch.

    Raises (all methods):
        ValueError, TypeError, IndexError: an argument that `AttentionMap` rejects.
        ValueError: another method or other arguments in another process.
        ProcessGroupError: as `attention`; another process rejected its arguments, or reads another map.
    """

    def __init__(self, query: Operand, key: Operand, rows: RowCache, whole: WholeMap) -> None:
        self.first_query, self.first_key = whole.first
        self._engine = whole.engine
        self._map = _DividedMap(query, key, rows, whole)

    def __repr__(self) -> str:
        return f"SequenceMap(shape={self.shape}, first_query={self.first_query}, first_key={self.first_key})"

    @property
    def shape(self) -> Shape:
        """Return (..., H, Q, K) of the whole sequence; (R, H, None, None) of a Ragged batch."""
        return self._map.shape

    @property
    def lse(self) -> Operand:
        """Return (..., H, n), or Ragged (n, H): see `AttentionMap.lse`."""
        with self._engine.reading("lse"):
            return self._map.lse

    def __getitem__(self, index: object) -> "Tensor | Any":
        """Return the weights at ints, slices and lists of positions, in every process: see `AttentionMap`. Every process gets the queries of these
        rows."""
        with self._engine.reading("m[...]"):
            return self._map.of_sequence("m[...]")[index]

    def __iter__(self) -> NoReturn:
        raise TypeError(f"{_AT} a map over several processes cannot be iterated")

    def __contains__(self, value: object) -> NoReturn:
        raise TypeError(f"{_AT} a map over several processes cannot be searched")

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("_") and hasattr(AttentionMap, name):
            raise AttributeError(f"{_AT} {name} is not computed over several processes")
        return object.__getattribute__(self, name)


def _called_by_all(name: str, gives: str) -> Callable[..., Any]:
    """Make a method of AttentionMap that all processes call together; each sends the others its plain arguments before anything is computed."""
    method = getattr(AttentionMap, name)
    signature = inspect.signature(method)

    @wraps(method)
    def call(self: SequenceMap, *arguments: Any, **named: Any) -> Any:
        read = getattr(self._map, name)
        with self._engine.reading(name):
            if name in _OF_SEQUENCE:
                self._map.of_sequence(name)
            bound = signature.bind(self, *arguments, **named)
            bound.apply_defaults()
            plain = (
                x
                for x in list(bound.arguments.values())[1:]
                if x is None or is_int(x) or isinstance(x, bool | float | str)
            )
            self._engine.with_arguments(*plain)
            return read(*arguments, **named)

    call.__doc__ = f"{gives}: see `AttentionMap.{name}`."
    return call


for _name, _gives in (_METHODS | _OF_SEQUENCE).items():
    setattr(SequenceMap, _name, _called_by_all(_name, _gives))


class _DividedMap(AttentionMap):
    """The map of a whole of which this process has a part; nobody else sees it, since to read it all processes must read it."""

    def __init__(self, query: Operand, key: Operand, rows: RowCache, whole: WholeMap) -> None:
        self._set(query, key, "", rows)
        self._of_whole = whole

    @property
    def kind(self) -> str:
        return _AT.removesuffix(":")

    def of_sequence(self, name: str) -> "_DividedMap":
        """Return the map itself. Raises ValueError for a Ragged batch."""
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
        self._of_whole.engine.with_arguments(*selection, keys)
        return self._rows.engine.weights(self._call, self._rows.normalizer(), selection, keys)

    def column(self, j: int) -> Any:
        keys = self.shape[-1]
        at = integer(j, f"{_AT} column")
        if not -keys <= at < keys:
            raise IndexError(f"{_AT} column {at} is not one of the {keys} keys")
        return self.mass(torch.arange(keys) == at % keys)

    def entropy(self, normalize: bool = False) -> Operand:
        return super().entropy(bool(normalize))

    def _mass(self, program: arguments.Program) -> Tensor:
        self._of_whole.engine.with_arguments(program[0], *program[1])
        return super()._mass(program)

    def _pool(self, pooling: str, row_edges: Tensor, column_edges: Tensor) -> tuple[Tensor, Tensor | None]:
        self._of_whole.engine.with_arguments(pooling, row_edges, column_edges)
        return super()._pool(pooling, row_edges, column_edges)

    def _normalizer_of(self, row_edges: Tensor) -> Any:
        return self._rows.normalizer()

    def _lengths(self) -> tuple[Tensor, Tensor]:
        return self._of_whole.lengths

    def _row_weights(self, last: int | None, weights: Operand | None) -> Tensor | None:
        of_rows = arguments.row_weights(last, weights, self._query, self._call, self._of_whole.following)
        self._of_whole.engine.with_arguments(last, weights is None)
        return None if of_rows is None else of_rows.detach()

    def _score_shape(self) -> ScoreShape:
        return replace(score_shape(self._query, self._key, self._call), **self._of_whole.score_shape)


def call_of_map(call: Call) -> Call:
    """Return the call whose weights a map shows: without values, dropout and gradients."""
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
    """Make a map of the attention weights of one sequence, of which each process holds a contiguous part: their statistics, never the matrix.

    All processes of the group call this together.

    Args:
        query: (..., H, n, D), this process's part, or (n, D); or Ragged, this process's tokens of a batch.
        key: (..., G, m, D), its part of the keys; Ragged where the query is.
        group, mask, bias, scale, softcap, sinks: as in `uwaga.sequence_parallel.attention`.

    Raises:
        ShapeError, ValueError, ProcessGroupError, NotImplementedError: as `uwaga.sequence_parallel.attention`.
    """
    processes, options = Group.of(group), AttentionOptions(mask, bias, scale, "softmax", softcap, sinks)
    with torch.no_grad(), processes.errors_reported():
        divided = divide(processes, (query, key, None), options, None)
        whole = WholeMap.of(divided)
        return SequenceMap(query, key, RowCache(call_of_map(divided.call), whole.engine), whole)
