"""Statistics of the weights of a sequence whose parts lie with several processes: each has those of its own queries and keys.

Letters as in sequence.py.
"""

from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from uwaga.maps.engines import cpu, tiles
from uwaga.maps.map import AttentionMap, Peak, TopK
from uwaga.maps.spec import Normalizer, Selection
from uwaga.maps.statistics import arguments
from uwaga.maps.statistics.row_cache import RowCache
from uwaga.ops import mask_program
from uwaga.ops.attention.arguments import AttentionOptions, score_shape, unflatten_lse, unflatten_output
from uwaga.ops.attention.call import Call
from uwaga.ops.biases import DistanceBias
from uwaga.ops.mask_program import START_LAST, START_VALUE, Start, resolve_start
from uwaga.ops.masks import Mask
from uwaga.ops.score_shape import ScoreShape
from uwaga.ops.validation import is_integer
from uwaga.sequence_parallel import ring
from uwaga.sequence_parallel.division import KEYS, RECEIVED, ROW, SOFTMAX, Division, agree, check_equal, divide
from uwaga.sequence_parallel.exchange import Group


class SequenceMap:
    """The weights of `uwaga.sequence_parallel.attention(query, key, ...)`, as `attention_map` returns it.

    Results have the bits of `uwaga.AttentionMap(..., impl="cpu")` on the whole sequence, and are detached. All processes call
    each method together, and read `lse` together. The first of `lse` and `received` computes the softmax, and both hold a part and two blocks,
    as attention does; the first of the others fetches the keys that this process's queries see, which are kept.

    Attributes:
        first_query, first_key: where this process's part begins in the whole sequence.
    """

    def __init__(self, query: Tensor, key: Tensor, call: Call, division: Division) -> None:
        rank = division.group.rank
        self._query, self._key, self._call, self._division = query, key, call, division
        self.first_query, self.first_key = division.query_starts[rank], division.key_starts[rank]
        self._keys = division.keys_seen(call)
        self._first_visible = self._keys[rank][0]

    @cached_property
    def _rows(self) -> RowCache:
        """Of this process's queries, against the keys that they see, which are fetched when they are first needed."""
        division = self._division
        agree(division.group, KEYS, division.number, [], None)
        return RowCache(division.of_own_queries(self._call, self._keys), cpu)

    @cached_property
    def _softmax(self) -> tuple[Normalizer, ring.SoftmaxRows]:
        """Of this process's queries, and of those that it computes, when it is first needed."""
        division = self._division
        agree(division.group, SOFTMAX, division.number, [], None)
        maximum, total, rows = ring.softmax(division, self._call)
        return Normalizer(maximum, total), rows

    @property
    def shape(self) -> tuple[Any, ...]:
        """(..., H, Q, K) of the whole sequence."""
        return (*self._query.shape[:-2], self._division.query_starts[-1], self._division.key_starts[-1])

    @property
    def lse(self) -> Tensor:
        """(..., H, n), of this process's queries: see `AttentionMap.lse`."""
        return self._per_query(tiles.log_sum_exp(self._softmax[0]))

    def entropy(self) -> Tensor:
        """(..., H, n), of this process's queries, in nats: see `AttentionMap.entropy`."""
        return self._per_query(self._rows.entropy())

    def topk(self, k: int) -> TopK:
        """The k largest weights of each of this process's queries, and their keys by their positions in the whole sequence,
        (..., H, n, k). Raises ValueError for k below 1."""
        if isinstance(k, bool) or not isinstance(k, int) or k < 1:
            raise ValueError(f"uwaga.sequence_parallel.attention_map: topk needs a k of at least 1, not {k!r}")
        weights, positions = self._rows.top(k)
        positions = torch.where(positions < 0, positions, positions + self._first_visible)
        return TopK(unflatten_output(self._query, weights), unflatten_output(self._query, positions))

    def peak(self) -> Peak:
        """The largest weight of each of this process's queries, and its key by its position in the whole sequence, (..., H, n)."""
        weights, positions = self.topk(1)
        assert isinstance(weights, Tensor)
        assert isinstance(positions, Tensor)
        return Peak(weights[..., 0], positions[..., 0])

    def effective_count(self, order: int = 2) -> Tensor:
        """(..., H, n), of this process's queries: see `AttentionMap.effective_count`. Raises ValueError for another order."""
        own = AttentionMap._of(self._query, self._key, "", self._rows)
        result = own.effective_count(order)
        assert isinstance(result, Tensor)
        return result

    def distance(self, start: Start = None) -> Tensor:
        """(..., H, n), of this process's queries: see `AttentionMap.distance`; `start` is that of the whole sequence."""
        queries, keys = self.shape[-2:]
        mode, value, starts = resolve_start(self._score_shape(), start)
        moved = self.first_query - self._first_visible
        if starts is not None:
            return self._per_query(self._rows.distance((mode, value, starts + moved)))
        value = keys - queries if mode == START_LAST else value
        return self._per_query(self._rows.distance((START_VALUE, value + moved, None)))

    def mass(self, mask: Mask | Tensor) -> Tensor:
        """(..., H, n): the weight of each of this process's queries on the keys that `mask`, which is that of the whole sequence, shows. Masks
        are those of `AttentionMap.mass`."""
        program, tensors = arguments.program(mask, self._score_shape(), self._call)
        rank, rows = self._division.group.rank, self._rows
        own = self._division.own(self._division.query_starts)
        part = mask_program.rectangle(program, tensors, self.shape[-2:], own, self._keys[rank])
        return self._per_query(cpu.mass(rows.call, rows.normalizer(), *part))

    def received(self) -> Tensor:
        """(..., H, m): the weight that each of this process's keys receives from all queries of the sequence.

        All processes call it together: queries, and two numbers for each query and head, are sent to where they are needed.
        """
        agree(self._division.group, RECEIVED, self._division.number, [], None)
        result = unflatten_lse(self._key, ring.received(self._division, self._call, self._softmax[1]))
        assert isinstance(result, Tensor)
        return result

    def row(self, query: int) -> Tensor:
        """(..., H, K): the weights of one query, by its position in the whole sequence, in every process.

        All processes call it together, with the same query.

        Raises:
            IndexError: no such query.
            ValueError: not an integer; another one in another process.
        """
        failure = None
        if not is_integer(query):
            failure = ValueError(f"uwaga.sequence_parallel.attention_map: row needs an integer, not {query!r}")
        division, queries = self._division, self._division.query_starts[-1]
        agreed = agree(division.group, ROW, division.number, [0 if failure else query], failure)
        check_equal("the query of a row", [x[0] for x in agreed])
        if not 0 <= query < queries:
            raise IndexError(f"uwaga.sequence_parallel.attention_map: row {query} is not one of the {queries} queries")
        rows = self._rows
        owner = max(rank for rank in range(division.group.size) if division.query_starts[rank] <= query)
        batch, heads = self._call.query.shape[:2]
        row_1BHK = torch.zeros(int(division.group.rank == owner), batch, heads, division.key_starts[-1])
        if division.group.rank == owner:
            part, first = rows.call, self._first_visible
            chosen = Selection(tuple(range(batch)), tuple(range(heads)), torch.tensor([query - self.first_query]))
            keys = torch.arange(part.key.shape[2])
            with torch.no_grad():
                weights = cpu.weights(part, rows.normalizer_of_rows(chosen), chosen, keys)
            row_1BHK[0, :, :, first : first + len(keys)] = weights[:, :, 0]
        held = [[(0, int(rank == owner))] for rank in range(division.group.size)]
        (row_1BHK,) = division.group.rows("row", [row_1BHK], held, [[(0, 1)]] * division.group.size)
        return self._per_query(row_1BHK[0])

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("_") and hasattr(AttentionMap, name):
            raise AttributeError(
                f"uwaga.sequence_parallel.attention_map: {name} is not computed over several processes"
            )
        return object.__getattribute__(self, name)

    def _score_shape(self) -> ScoreShape:
        queries, keys = self.shape[-2:]
        return replace(score_shape(self._query, self._key, self._call), queries=queries, keys=keys)

    def _per_query(self, statistic_BHn: Tensor) -> Tensor:
        result = unflatten_lse(self._query, statistic_BHn)
        assert isinstance(result, Tensor)
        return result


def attention_map(
    query: Tensor,
    key: Tensor,
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
        query: (..., H, n, D), this process's part, or (n, D).
        key: (..., G, m, D), its part of the keys.
        group, mask, bias, scale, softcap, sinks: as in `uwaga.sequence_parallel.attention`.

    Raises:
        ShapeError, ValueError, ProcessGroupError, NotImplementedError: as `uwaga.sequence_parallel.attention`.
    """
    with torch.no_grad():
        call, division, _ = divide(
            Group.of(group), query, key, None, AttentionOptions(mask, bias, scale, "softmax", softcap, sinks), None
        )
        return SequenceMap(query, key, call, division)
