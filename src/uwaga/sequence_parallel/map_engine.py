"""The engine of a map over several processes: the functions of maps/spec.py, which all processes call together, of this process's queries and
keys. What travels is as in ring.py, with its bound on memory; letters as in sequence.py.

Sums of a row go through the blocks of keys in their order, sums of a key through those of queries. Sums over both, of diagonals and cells, are exact,
so that each process adds up what it computes and all add up what each has.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import wraps
from itertools import accumulate, pairwise
from math import prod
from typing import Any, NamedTuple, TypeVar, cast

import torch
from torch import Tensor

from uwaga.maps.engines import cpu, parts
from uwaga.maps.engines.reference import each_field
from uwaga.maps.spec import Normalizer, RowStatistics, RowStatisticsRequest, Selection
from uwaga.ops import mask_program
from uwaga.ops.attention.call import Call
from uwaga.ops.attention.parts import new_sums
from uwaga.ops.mask_program import START_LAST, START_VALUE, Interval, MaskProgram
from uwaga.sequence_parallel import agreement, ring
from uwaga.sequence_parallel.division import Division, RowPart, Rows, joined
from uwaga.sequence_parallel.schedule import Plan

Function = TypeVar("Function", bound=Callable[..., Any])


def reports_errors(function: Function) -> Function:
    """Return a method whose error in one process alone is reported to the others of `self.group`."""

    @wraps(function)
    def run(self: Any, *arguments: Any) -> Any:
        with self.group.errors_reported():
            return function(self, *arguments)

    return cast("Function", run)


class MapEngine:
    """An engine of maps for one divided call, and those with the same queries and keys."""

    def __init__(self, division: Division) -> None:
        self.division, self.group = division, division.group

    @reports_errors
    def rows(self, call: Call, request: RowStatisticsRequest) -> RowStatistics:
        """Return the statistics of all of this process's queries, whatever the selection."""
        start = request.distance
        if start is not None and start[0] == START_LAST:
            queries, keys = self.division.sizes
            start = (START_VALUE, keys - queries, None)
        self._agree(
            "the rows of its map",
            request.entropy,
            request.squares,
            request.top,
            start and start[:2],
            start and start[2],
        )
        results: dict[int, RowStatistics] = {}
        memory: dict[int, Tensor] = {}
        plan = ring.plan_of_queries(self.division, call)
        for visit in self._over_keys(call, plan):
            part, at = visit.part, visit.at
            of_visit = replace(request, selection=None, distance=start and _moved_start(start, visit))
            if visit.is_first:
                memory[at] = parts.new_row_sums(part, of_visit)
                results[at] = cpu.new_rows(part, of_visit)
            parts.rows(part, of_visit, results[at], parts.PartSums(memory[at], not visit.is_first), visit.is_last)
            if visit.is_last:
                del memory[at]
        return self._of_pieces(call, plan, request, [results[at] for at in sorted(results)])

    @reports_errors
    def mass(self, call: Call, normalizer: Normalizer, program: MaskProgram, tensors: tuple[Tensor, ...]) -> Tensor:
        """Return (B, H, n), of this process's queries; the second mask is that of the whole."""
        self._agree("the mass of its map", program, *tensors)
        results: dict[int, Tensor] = {}
        memory: dict[int, Tensor] = {}
        plan = ring.plan_of_queries(self.division, call, (program, tensors))
        for visit in self._over_keys(call, plan, normalizer):
            at, sizes = visit.at, visit.part.query.shape[:3]
            if visit.is_first:
                memory[at] = new_sums(prod(sizes), torch.float64)
            if visit.is_last:
                results[at] = torch.empty(sizes)
            second = mask_program.rectangle(program, tensors, self.division.sizes, visit.rows, visit.keys)
            sums = parts.PartSums(memory[at], not visit.is_first)
            parts.mass(visit.part, visit.normalizer, *second, sums, results.get(at))
            if visit.is_last:
                del memory[at]
        return self._home(call, plan, "mass", [results[at] for at in sorted(results)])

    @reports_errors
    def received(self, call: Call, normalizer: Normalizer, row_weights: Tensor | None) -> Tensor:
        """Return (B, H, m), of this process's keys; the weights are those of its queries."""
        self._agree("the received weights of its map", row_weights is None)
        division = self.division
        plan = ring.plan_of_keys(division, call)
        homes, pieces = ring.home_intervals(division.key_starts), ring.plan_intervals(division, plan)
        key = ring.move_rows(division, "key", [ring.by_rows(call.key)], homes, pieces)
        results = [torch.empty(len(x), *call.query.shape[:2], dtype=torch.float32) for x in key]
        memory: dict[int, Tensor] = {}
        travelling = [call.query, *normalizer, *(() if row_weights is None else (row_weights,))]
        by_interval = [[ring.by_rows(x) for x in travelling]]
        for at, keys, block, (query, *of_rows), is_first, is_last in ring.all_visits(
            division, plan, "queries", by_interval, ring.home_intervals(division.query_starts)
        ):
            part = ring.part_of(division, call, (query, key[at], key[at][..., :0]), block, keys)
            if is_first:
                memory[at] = new_sums(results[at].numel(), torch.float64)
            maximum, total, *weights = map(ring.by_heads, of_rows)
            out = ring.by_heads(results[at]) if is_last else None
            sums = parts.PartSums(memory[at], not is_first)
            parts.received(part, Normalizer(maximum, total), weights[0] if weights else None, sums, out)
            if is_last:
                del memory[at]
        return ring.by_heads(ring.move_rows(division, "received weights", results, pieces, homes)[0])

    @reports_errors
    def diagonal_sums(self, call: Call, normalizer: Normalizer) -> Tensor:
        """Return (B, H, Q+K-1), of the whole, in every process."""
        self._agree("the diagonals of its map")
        queries, keys = self.division.sizes
        shared, sums = self._new_sums(*call.query.shape[:2], max(queries + keys - 1, 0))
        for visit in self._over_keys(call, ring.plan_of_queries(self.division, call), normalizer):
            if visit.rows[0] < visit.rows[1] and visit.keys[0] < visit.keys[1]:
                first = visit.keys[0] - visit.rows[1] + queries
                parts.diagonal_sums(visit.part, visit.normalizer, sums, first)
        return self._added("diagonals", shared, sums.shape[:-1]).float()

    @reports_errors
    def pool(
        self, call: Call, normalizer: Normalizer, pooling: str, query_edges: Tensor, key_edges: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """Return cells (B, H, rows, cols) of the whole, and positions for "max", in every process; edges are those of the whole."""
        self._agree("the cells of its map", pooling, query_edges, key_edges)
        sizes = (*call.query.shape[:2], query_edges.shape[1] - 1, key_edges.shape[1] - 1)
        best = torch.zeros(sizes), torch.full((*sizes, 2), -1)
        shared, sums = self._new_sums(*sizes[:2], sizes[2] * sizes[3] if pooling == "sum" else 0)
        for visit in self._over_keys(call, ring.plan_of_queries(self.division, call), normalizer):
            rows, columns = (
                (edges - first).clamp(0, last - first)
                for edges, (first, last) in ((query_edges, visit.rows), (key_edges, visit.keys))
            )
            if pooling == "sum":
                parts.pool(visit.part, visit.normalizer, rows, columns, sums)
                continue
            cells, positions = cpu.pool(visit.part, visit.normalizer, pooling, rows, columns)
            assert positions is not None
            origin = torch.tensor([visit.rows[0], visit.keys[0]])
            best = _better(*best, cells, torch.where(positions < 0, positions, positions + origin))
        if pooling == "max":
            for cells, positions in zip(*(self._gathered("cells", x) for x in best), strict=True):
                best = _better(*best, cells, positions)
            return best
        counts_BR = query_edges.diff()[:, None, :, None]
        means = self._added("cells", shared, sizes) / counts_BR.clamp(min=1)
        return torch.where(counts_BR > 0, means, 0.0).float(), None

    @reports_errors
    def weights(self, call: Call, normalizer: Normalizer, selection: Selection, keys: Tensor) -> Tensor:
        """Return (sequences, heads, queries, keys) of a selection of the whole, in every process."""
        self._agree("the entries of its map", selection.sequences, selection.heads, selection.queries, keys)
        division, group = self.division, self.group
        runs, interval = _runs(selection.queries), division.own_interval(division.key_starts)
        homes = ring.home_intervals(division.query_starts)
        queries, maxima, totals = (
            group.rows(f"call {division.number}, rows", [ring.by_rows(x)], homes, [runs] * group.size)
            for x in (call.query, *normalizer)
        )
        counts = [int(((keys >= first) & (keys < last)).sum()) for first, last in pairwise(division.key_starts)]
        keys_here = keys[(keys >= interval[0]) & (keys < interval[1])] - interval[0]
        found = [torch.zeros(len(keys_here), len(selection.sequences), len(selection.heads), 0)]
        for rows, query, *of_rows in zip(runs, queries, maxima, totals, strict=True):
            part = division.part(call, ring.by_heads(query), call.key, call.value, rows, interval)
            some = selection._replace(queries=torch.arange(rows[1] - rows[0]))
            weights = cpu.weights(part, Normalizer(*map(ring.by_heads, of_rows)), some, keys_here)
            found.append(weights.movedim(3, 0))
        held = ring.home_intervals([0, *accumulate(counts)])
        everything = [[(0, len(keys))]] * group.size
        return group.rows(f"call {division.number}, entries", [torch.cat(found, 3)], held, everything)[0].movedim(0, 3)

    def _agree(self, subject: str, *arguments: object) -> None:
        """Check that all processes are at the same function, with the same arguments."""
        checksum = 0
        for x in arguments:
            checksum = agreement.checksum_of_argument(x, checksum)
        agreed = agreement.agree(self.group, subject, self.division.number, [checksum], None)
        agreement.check_equal("the arguments of a map (checksums)", [x[0] for x in agreed])

    def _over_keys(self, call: Call, plan: Plan, normalizer: Normalizer | None = None) -> "Iterator[_Visit]":
        """Return the blocks of keys at the queries that this process computes, and the normalizer of these."""
        division = self.division
        homes, pieces = ring.home_intervals(division.query_starts), ring.plan_intervals(division, plan)
        query, *softmax = (
            ring.move_rows(division, "query", [ring.by_rows(x)], homes, pieces)
            for x in (call.query, *(normalizer or ()))
        )
        for at, rows, keys, (key, value), is_first, is_last in ring.key_visits(division, call, plan, "keys"):
            part = ring.part_of(division, call, (query[at], key, value), rows, keys)
            yield _Visit(at, rows, keys, part, [ring.by_heads(x[at]) for x in softmax], is_first, is_last)

    def _home(self, call: Call, plan: Plan, name: str, computed: Sequence[Tensor]) -> Tensor:
        """Return (B, H, n, ...) of this process's queries, from those that it computed, piece by piece."""
        division = self.division
        pieces = ring.plan_intervals(division, plan)
        rows = [ring.by_rows(x) for x in computed or [torch.empty(*call.query.shape[:2], 0)]]
        (at_home,) = ring.move_rows(division, name, rows, pieces, ring.home_intervals(division.query_starts))
        return ring.by_heads(at_home)

    def _of_pieces(
        self, call: Call, plan: Plan, request: RowStatisticsRequest, computed: Sequence[RowStatistics]
    ) -> RowStatistics:
        """Return the statistics of this process's queries."""
        computed = computed or [cpu.new_rows(replace(call, query=call.query[:, :, :0]), request)]
        maximum, total = (self._home(call, plan, "softmax", [x.normalizer[n] for x in computed]) for n in range(2))
        others = {
            name: self._home(call, plan, name, [getattr(x, name) for x in computed])
            for name in RowStatistics._fields[1:]
            if getattr(computed[0], name) is not None
        }
        return RowStatistics(Normalizer(maximum, total), **others)

    def _gathered(self, name: str, tensor: Tensor) -> Tensor:
        """Return (P, ...): the tensors of all processes, in every process."""
        group = self.group
        held = [[(rank, rank + 1)] for rank in range(group.size)]
        what = f"call {self.division.number}, {name}"
        return group.rows(what, [tensor[None]], held, [[(0, group.size)]] * group.size)[0]

    def _new_sums(self, *sizes: int) -> tuple[Tensor, Tensor]:
        """Return exact sums that are 0: a share for each process, (P, n, 3), and a view of these as (..., 3)."""
        share = -(-prod(sizes) // self.group.size)
        shares = parts.new_exact_sums(self.group.size, share)
        return shares, shares.view(-1, 3)[: prod(sizes)].view(*sizes, 3)

    def _added(self, name: str, shares: Tensor, sizes: Sequence[int]) -> Tensor:
        """Return (...) float64, in every process: the exact sums of all processes; each process adds up its share."""
        size, what = self.group.size, f"call {self.division.number}, {name}"
        every = [(rank * size, (rank + 1) * size) for rank in range(size)]
        needed = [[(first + rank, first + rank + 1) for first, _ in every] for rank in range(size)]
        sums = parts.total(self.group.rows(what, [shares], [[x] for x in every], needed))
        return self._gathered(name, sums[0]).flatten()[: prod(sizes)].view(*sizes)


class _Visit(NamedTuple):
    """A block of keys at some of the queries that this process computes."""

    at: int  # which of its pieces
    rows: Interval
    keys: Interval
    part: Call
    softmax: Sequence[Tensor]  # the normalizer of the rows, where there is one
    is_first: bool
    is_last: bool

    @property
    def normalizer(self) -> Normalizer:
        return Normalizer(*self.softmax)


def _moved_start(start: tuple[int, int, Tensor | None], visit: _Visit) -> tuple[int, int, Tensor | None]:
    """Return a start of the whole, START_VALUE or per row, for these queries and keys."""
    moved = visit.rows[0] - visit.keys[0]
    mode, value, starts = start
    return mode, value + moved, None if starts is None else starts + moved


def _better(cells: Tensor, positions: Tensor, others: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
    """Return the larger of two largest weights, by the rule of Cells::is_better in native/drivers/weights_columns.cc."""
    is_first = (at[..., 0] < positions[..., 0]) | ((at[..., 0] == positions[..., 0]) & (at[..., 1] < positions[..., 1]))
    is_equal = (others == cells) | (others.isnan() & cells.isnan())
    is_larger = (others.isnan() & ~cells.isnan()) | (others > cells)
    is_better = (at[..., 0] >= 0) & ((positions[..., 0] < 0) | is_larger | (is_equal & is_first))
    return torch.where(is_better, others, cells), torch.where(is_better[..., None], at, positions)


def _runs(positions: Tensor) -> list[Interval]:
    """Return rising positions as intervals, at least one."""
    ends = (positions.diff() != 1).nonzero().flatten() + 1
    edges = [0, *ends.tolist(), len(positions)]
    return [(int(positions[a]), int(positions[b - 1]) + 1) for a, b in pairwise(edges) if a < b] or [(0, 0)]


class RaggedMapEngine:
    """An engine of maps for one call of this process's tokens of a Ragged batch, and those with the same queries and keys: rows that lie with one
    process are an ordinary call there, each of the others goes by the ring. Statistics of queries and of keys only."""

    def __init__(self, rows: Rows) -> None:
        self.group, self._rows = rows.group, rows

    @reports_errors
    def rows(self, call: Call, request: RowStatisticsRequest) -> RowStatistics:
        pieces = self._rows.parts_of_call(call)

        def of_rows(rows: slice) -> RowStatisticsRequest:
            if request.distance is None or request.distance[2] is None:
                return request
            return replace(request, distance=(*request.distance[:2], request.distance[2][rows].contiguous()))

        results = [_engine(division).rows(part, of_rows(rows)) for division, part, rows in pieces]
        return each_field(lambda *tensors: joined(tensors), *results)

    @reports_errors
    def mass(self, call: Call, normalizer: Normalizer, program: MaskProgram, tensors: tuple[Tensor, ...]) -> Tensor:
        pieces = self._rows.parts_of_call(call)
        with_second = replace(call, options=replace(call.options, mask_program=program), mask_tensors=tensors)
        second = self._rows.parts_of_call(with_second)
        results = []
        for (division, part, _), (_, other, _), softmax in zip(pieces, second, _split(pieces, normalizer), strict=True):
            results.append(_engine(division).mass(part, Normalizer(*softmax), program, other.mask_tensors))
        return joined(results)

    @reports_errors
    def received(self, call: Call, normalizer: Normalizer, row_weights: Tensor | None) -> Tensor:
        pieces = self._rows.parts_of_call(call)
        results = []
        for (division, part, _), (*softmax, weights) in zip(
            pieces, _split(pieces, [*normalizer, row_weights]), strict=True
        ):
            results.append(_engine(division).received(part, Normalizer(*softmax), weights))
        return joined(results)


def _engine(division: Division | None) -> Any:
    """Return the engine of a part: `cpu` for whole rows, a MapEngine for a row that several processes share."""
    return cpu if division is None else MapEngine(division)


def _split(pieces: list[RowPart], of_tokens: Sequence[Tensor | None]) -> list[Any]:
    """Return the tokens of each part, from tensors (1, H, N)."""
    lengths = [part.query.shape[2] for _, part, _ in pieces]
    split = [[None] * len(lengths) if x is None else x.split(lengths, dim=2) for x in of_tokens]
    return list(zip(*split, strict=True))
