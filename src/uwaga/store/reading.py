"""One pass over the rows of a soft database: attention over all of them, and the largest scores.

The live rows in ascending order of their ids are cut into blocks of BLOCK rows. A block is one sequence for the engines of
`uwaga.attend`, which give a row the same bits in any batch and on any number of threads, and blocks are merged one after another in
that order. So an answer has the same bits however the rows are spread over segments, and whether deleted rows still lie between them.

Merging in float64, with z_b the output, l_b the lse and H_b the entropy of block b:

    L = log sum_b exp(l_b)    z = sum_b exp(l_b - L) z_b    H = sum_b exp(l_b - L) (H_b + L - l_b)

where l_b is the largest score and the logarithm of a sum, which are added separately: a large score would hide the logarithm.

A search skips blocks. A chunk of keys lies in a ball with centre c and radius r, so that scale q.c + |scale| |q| r is the most that a
score can be, and with a minus the least.

Letters: Q queries, H heads, R = H Q rows of the result, n blocks of one call, b blocks, D key width, E value width, k listed.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from uwaga._base.arguments import check
from uwaga._base.errors import SoftDatabaseError
from uwaga.maps.engines import available
from uwaga.maps.spec import RowStatistics, RowStatisticsRequest
from uwaga.ops.attention.arguments import AttentionOptions, make_call
from uwaga.store.segments import CHUNK, SegmentFile

BLOCK = 2048  # rows; the engines' own unit of keys, with a softmax of its own
QUERIES = 256  # that share a pass: enough to be bound by arithmetic, and its memory does not grow with their number
# Blocks that are visited at once, at first, then, and at last: what a search finds may spare it others.
_FIRST, _NEXT, _MOST = 4, 64, 512
_COPIED = 8  # most of those that are copied first
_CALL_FLOATS = 2**22  # of their outputs together
# Rounding of a float32 score of width D, relative to |scale| |q| |k|: each of D + 2 operations by 2^-24, doubled.
_ROUNDING = 2.0**-23
_LARGEST = 1e300  # of bounds that are not known; no score is below minus this
_FLOAT32 = float(torch.finfo(torch.float32).max)
_UNDERFLOW = -80.0  # a weight of zero in float32 is below exp of this


class LiveRows:
    """The rows that a pass visits, in ascending order of their ids.

    Args:
        segments: in that order.
        rows: of each segment, the rows (int64, rising), or None for all of them.
    """

    def __init__(self, segments: Sequence[SegmentFile], rows: Sequence[np.ndarray | None]) -> None:
        self.segments, self.rows = segments, rows
        counts = [s.entry.rows if r is None else len(r) for s, r in zip(segments, rows, strict=True)]
        self.ends = np.cumsum([0, *counts])
        self.blocks = -(-len(self) // BLOCK)

    def __len__(self) -> int:
        return int(self.ends[-1])

    def pieces(self, start: int, stop: int) -> Iterator[tuple[int, slice | np.ndarray]]:
        """Yield the number of each segment with live rows from `start` up to `stop`, and these rows."""
        n = int(np.searchsorted(self.ends, start, "right")) - 1
        while start < stop:
            end = min(stop, int(self.ends[n + 1]))
            first, last = start - int(self.ends[n]), end - int(self.ends[n])
            if last > first:
                live = self.rows[n]
                yield n, slice(first, last) if live is None else live[first:last]
            start, n = end, n + 1

    def ids(self, positions: np.ndarray) -> np.ndarray:
        """Return the ids of the live rows at these positions, int64, in their shape."""
        result = np.empty(positions.shape, np.int64)
        numbers = np.searchsorted(self.ends, positions, "right") - 1
        for n in np.unique(numbers).tolist():
            is_here, live = numbers == n, self.rows[n]
            rows, segment = positions[is_here] - self.ends[n], self.segments[n]
            rows = rows if live is None else live[rows]
            result[is_here] = rows + segment.entry.first_id if segment.ids is None else segment.ids[rows]
        return result

    def keys(self, start: int, stop: int) -> Tensor:
        """Return the keys of the live rows from `start` up to `stop`, (rows, H, D) float32; a view if they lie together as float32."""
        return _gathered([(self.segments[n].keys, rows) for n, rows in self.pieces(start, stop)])

    def keys_and_values(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Return the keys as `keys` does, and the values (rows, H, E); rows whose keys are the values are copied once."""
        keys = self.keys(start, stop)
        if all(segment.values is segment.keys for segment in self.segments):
            return keys, keys
        return keys, _gathered([(self.segments[n].values, rows) for n, rows in self.pieces(start, stop)])

    @cached_property
    def chunks(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the chunks of each block's rows, and where each block begins in that list. Chunks are counted over all
        segments."""
        firsts = np.cumsum([0, *(len(segment.radii) for segment in self.segments)])
        chunks: list[np.ndarray] = []
        for start in range(0, len(self), BLOCK):
            parts = []
            for n, rows in self.pieces(start, min(start + BLOCK, len(self))):
                where = np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows
                parts.append(firsts[n] + np.unique(where // CHUNK))
            chunks.append(np.concatenate(parts))
        return np.concatenate(chunks), np.cumsum([0, *map(len, chunks[:-1])])

    @cached_property
    def places(self) -> np.ndarray:
        """Return the segment that each block can be read from without a copy; -1 if there is none."""
        starts = np.arange(self.blocks) * BLOCK
        ends = starts + self.count(np.arange(self.blocks))
        n = np.searchsorted(self.ends, starts, "right") - 1
        plain = [r is None and s.keys.dtype == torch.float32 for s, r in zip(self.segments, self.rows, strict=True)]
        return np.where((ends <= self.ends[n + 1]) & np.array(plain, bool)[n], n, -1)

    @cached_property
    def balls(self) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Return the chunks of each segment as balls, float64. Each has the centres (H, c, D), and the radii and the
        largest norms (H, 1, c)."""
        balls = []
        for segment in self.segments:
            centres, radii = segment.centres.double().transpose(0, 1), segment.radii.double().T[:, None]
            balls.append((centres, radii, centres.square().sum(-1).sqrt()[:, None] + radii))
        return balls

    @cached_property
    def largest_norm(self) -> float:
        """Return a bound on the norm of all keys of these segments."""
        norms = [float(norm.amax()) for _, _, norm in self.balls]
        return min(max([0.0, *(norm if norm == norm else _LARGEST for norm in norms)]) * (1 + 1e-5), 1e300)

    def count(self, blocks: np.ndarray) -> np.ndarray:
        """Return the number of rows of each of these blocks."""
        return np.minimum((blocks + 1) * BLOCK, len(self)) - blocks * BLOCK


class PassResult(NamedTuple):
    """The result of a pass for R = H Q rows, heads first."""

    value: Tensor  # (R, E) float32; E is 0 without attention
    lse: np.ndarray  # (R,) float64
    entropy: np.ndarray  # (R,)
    top_ids: np.ndarray  # (R, k) int64
    top_weights: np.ndarray  # (R, k)
    top_scores: np.ndarray  # (R, k)


def passes(live: LiveRows, query_QHD: Tensor, scale: float, top: int, *, attention: bool) -> list[PassResult]:
    """Compute the passes of any number of queries, float32, at most QUERIES of them in a pass.

    top: how many of the largest scores, at most the number of rows. attention: whether value, lse, entropy and weights too."""
    parts = (part.transpose(0, 1).contiguous() for part in query_QHD.split(QUERIES))
    return [_Pass(live, part, scale, top, attention=attention).result() for part in parts]


def query_gradient(
    live: LiveRows, query_QHD: Tensor, scale: float, value_QHE: Tensor, lse_QH: Tensor, grad_QHE: Tensor
) -> Tensor:
    """Return the gradient (Q, H, D) of sum(value * grad) with respect to the queries, in one more pass: with the weights
    a_j = exp(scale q.k_j - lse), value z and its gradient g,

        dq = scale sum_j a_j (g.v_j - g.z) k_j

    Raises as a pass of rows that cannot be read."""
    query_HQD, grad_HQE, value_HQE = (x.float().transpose(0, 1) for x in (query_QHD, grad_QHE, value_QHE))
    lse_HQ1 = lse_QH.transpose(0, 1)[..., None]
    offset_HQ1 = (grad_HQE.double() * value_HQE.double()).sum(-1, keepdim=True)
    found_HQD = torch.zeros(query_HQD.shape, dtype=torch.float64)

    for start in range(0, len(live), BLOCK):
        stop = min(start + BLOCK, len(live))
        key_HnD, value_HnE = (x.transpose(0, 1) for x in live.keys_and_values(start, stop))
        weights_HQn = (scale * (query_HQD @ key_HnD.mT).double() - lse_HQ1).exp()
        change_HQn = weights_HQn * ((grad_HQE @ value_HnE.mT).double() - offset_HQ1)
        found_HQD += (change_HQn.float() @ key_HnD).double()
    return (scale * found_HQD).float().transpose(0, 1)


class _Pass:
    def __init__(self, live: LiveRows, query_HQD: Tensor, scale: float, top: int, *, attention: bool) -> None:
        self._live, self._query, self._scale, self._attention = live, query_HQD, scale, attention
        heads, queries, _ = query_HQD.shape
        rows = heads * queries
        width = live.segments[0].values.shape[2] if attention and live.segments else 0
        # Over the blocks so far: the largest score, and relative to exp(it) the sums of weights, of weights times (entropy + largest
        # score - lse), and of weights times outputs.
        self._largest, self._sums = np.full(rows, -_LARGEST), torch.zeros(rows, 2 + width, dtype=torch.float64)
        self._top = _Top(live, query_HQD, scale, top)
        self._factor = max(1.0, abs(scale))
        largest_query = float(query_HQD.double().square().sum(-1).max().sqrt()) if rows else 0.0
        self._may_overflow = self._factor * largest_query * max(1.0, live.largest_norm) > _FLOAT32 / 2
        self._run(max(1, _CALL_FLOATS // max(rows * width, 1)))

    def _run(self, room: int) -> None:
        """Visit the blocks, at most `room` of them in a call."""
        left, upper, at_once = np.arange(self._live.blocks), None, _MOST
        if not self._attention and self._live.blocks > 1:
            # The largest scores are the same in any order, and the blocks of the highest bounds say which others have none.
            upper = self._top.bounds()
            order = np.argsort(-(upper - upper.max(1, keepdims=True)).max(0), kind="stable")
            left, at_once = np.concatenate([np.sort(order[:_FIRST]), np.sort(order[_FIRST:])]), _FIRST
        while len(left):
            blocks, left = np.split(left, [min(at_once, room)])
            if upper is not None:
                blocks = blocks[(upper[:, blocks] >= self._top.lowest[:, None]).any(0)]
            for first, stop in self._runs(blocks):
                self._visit(first, stop)
            at_once = min(max(2 * at_once, _NEXT), _MOST)

    def _runs(self, blocks: np.ndarray) -> Iterator[tuple[int, int]]:
        """Yield neighbouring blocks that have one call: the first, and the one after the last."""
        places, whole = self._live.places, len(self._live) // BLOCK
        ends = np.flatnonzero((np.diff(blocks) > 1) | (np.diff(places[blocks]) != 0) | (blocks[1:] == whole)) + 1
        for run in np.split(blocks, ends) if len(blocks) else ():
            most = len(run) if places[run[0]] >= 0 else _COPIED
            for n in range(0, len(run), most):
                yield int(run[n]), int(run[n : n + most][-1]) + 1

    def _visit(self, first: int, stop: int) -> None:
        """Compute attention within each of some blocks, and add it to the sums and the largest scores."""
        live, count = self._live, stop - first
        rows = min(BLOCK, len(live) - first * BLOCK)
        part = first * BLOCK, first * BLOCK + count * rows
        keys, values = live.keys_and_values(*part) if self._attention else (live.keys(*part), None)
        if self._may_overflow:
            # A score, a sum on the way to it, or the query that a kernel multiplies by the scale before the keys.
            query = self._query.double().abs() * self._factor
            largest = max(float((query @ x.double().abs().permute(1, 2, 0)).max()) for x in keys.split(BLOCK))
            check(
                max(float(query.max()), largest) <= _FLOAT32,
                "SoftDatabase: a score, or scale times the query, is beyond float32; give a smaller scale or query, or store smaller keys",
            )
        key_nHKD = keys.unflatten(0, (count, rows)).transpose(1, 2)
        value_nHKE = None if values is None else values.unflatten(0, (count, rows)).transpose(1, 2)
        query_nHQD = self._query.expand(count, -1, -1, -1)
        call = make_call(query_nHQD, key_nHKD, value_nHKE, AttentionOptions(scale=self._scale), wants_lse=True)
        top, is_read = min(self._top.top, rows), self._attention
        found = available.choose(call, None).rows(call, RowStatisticsRequest(output=is_read, entropy=is_read, top=top))
        maximum_nR, sum_nR = (x.flatten(1).double().numpy() for x in found.normalizer[:2])
        if not np.isfinite(sum_nR).all():
            ids = live.ids(np.array([part[0], part[1] - 1]))
            raise SoftDatabaseError(
                f"SoftDatabase: rows {ids[0]} to {ids[1]} have a number that is NaN or infinite; check() names damaged rows"
            )
        if found.output is not None and found.entropy is not None:
            entropy_nR = found.entropy.flatten(1).double().numpy()
            self._add(maximum_nR, sum_nR, entropy_nR, found.output.flatten(1, 2).double())
        if top:
            self._top.merge(first, keys, found, maximum_nR, sum_nR)

    def _add(self, maximum_nR: np.ndarray, sum_nR: np.ndarray, entropy_nR: np.ndarray, output_nRE: Tensor) -> None:
        """Add blocks one after another, so that the bits do not depend on how many a call has."""
        largest = np.maximum.accumulate(np.concatenate([self._largest[None], maximum_nR]))
        rise = np.diff(largest, axis=0)
        kept, weight = np.exp(-rise), sum_nR * np.exp(maximum_nR - largest[1:])
        parts = np.stack([np.ones_like(sum_nR), entropy_nR - np.log(sum_nR) + (largest[1:] - maximum_nR)], -1)
        terms = torch.cat([torch.from_numpy(parts), output_nRE], -1) * torch.from_numpy(weight)[..., None]
        for more, factor, term in zip(torch.from_numpy(rise), torch.from_numpy(kept)[..., None], terms, strict=True):
            self._sums[:, 1] += more * self._sums[:, 0]  # differences from the largest score, which has risen
            self._sums = self._sums * factor + term
        self._largest = largest[-1]

    def result(self) -> PassResult:
        ids, scores = self._live.ids(self._top.positions), self._top.scores
        if not (len(self._live) and self._attention):
            rows = len(scores)
            lse = np.full(rows, -np.inf)
            return PassResult(self._sums[:, 2:].float(), lse, np.zeros(rows), ids, np.full_like(scores, np.nan), scores)
        total, log = self._sums[:, 0].numpy(), self._sums[:, 0].log().numpy()
        entropy = self._sums[:, 1].numpy() / total + log
        # The largest score of the sums has the rounding of float32, and differences of scores have not: their sum may be above 1 by it.
        weights = np.exp(scores - scores[:, :1]) / total[:, None]
        weights /= np.maximum(weights.sum(1, keepdims=True), 1.0)
        value = (self._sums[:, 2:] / self._sums[:, :1]).float()
        return PassResult(value, self._largest + log, np.maximum(entropy, 0.0), ids, weights, scores)


class _Top:
    """The largest scores of every row. Scores of candidates are computed in float64, so that keys of different blocks are compared without
    the rounding of these blocks' own sums; of equal ones the smaller id comes first."""

    def __init__(self, live: LiveRows, query_HQD: Tensor, scale: float, top: int) -> None:
        self._live, self._scale, self.top = live, scale, top
        self._heads, self._queries, width = query_HQD.shape
        rows = self._heads * self._queries
        self._query = query_HQD.double()
        self._norm = abs(scale) * self._query.square().sum(-1, keepdim=True).sqrt()  # (H, Q, 1)
        self._relative = (width + 2) * _ROUNDING
        with np.errstate(over="ignore"):  # then nothing is told apart by a rounding
            self._rounding = self._norm.numpy().reshape(rows) * live.largest_norm * self._relative
        self.lowest = np.full(rows, -np.inf)  # no row with a lower score will be listed
        self.scores = np.full((rows, top), -np.inf)
        self.positions = np.full((rows, top), 2**62)  # among the live rows

    def bounds(self) -> np.ndarray:
        """Return the most that the score of a row can be for each query and block, (R, b), and note the least as `lowest`."""
        uppers, lowers = [], []
        for centres, radii, largest in self._live.balls:
            middle = self._scale * (self._query @ centres.transpose(-1, -2))  # (H, Q, c)
            reach = self._norm * (radii + largest * self._relative)
            uppers.append((middle + reach).flatten(0, 1).numpy())
            lowers.append((middle - reach).flatten(0, 1).numpy())
        chunks, starts = self._live.chunks
        # Squares of very large keys overflow: then a bound says nothing.
        high = np.nan_to_num(np.concatenate(uppers, axis=1), nan=_LARGEST, posinf=_LARGEST, neginf=-_LARGEST)
        low = np.nan_to_num(np.concatenate(lowers, axis=1), nan=-_LARGEST, posinf=_LARGEST, neginf=-_LARGEST)
        lower = np.minimum.reduceat(low[:, chunks], starts, axis=1)
        enough = self._live.count(np.arange(self._live.blocks)) >= self.top
        self.lowest = lower[:, enough].max(1, initial=-np.inf)
        return np.maximum.reduceat(high[:, chunks], starts, axis=1)

    def merge(self, first: int, keys: Tensor, found: RowStatistics, maximum_nR: np.ndarray, sum_nR: np.ndarray) -> None:
        """Merge the candidates of blocks from `first` on, which have these keys (rows, H, D), largest scores and sums."""
        r = np.flatnonzero((maximum_nR + self._rounding >= self.lowest).any(0))
        if not len(r):
            return
        assert found.top_weights is not None
        assert found.top_positions is not None
        weight, position = (
            x.flatten(1, 2).numpy()[:, r] for x in (found.top_weights, found.top_positions)
        )  # (n, r, k)
        position = position + BLOCK * np.arange(len(position))[:, None, None]
        # Scores as the engine's weights give them; if a weight is zero, only that the score is not above this one.
        is_known, lse = weight > 0, (maximum_nR + np.log(sum_nR))[:, r, None]
        score = lse + np.where(is_known, np.log(np.where(is_known, weight, 1.0), dtype=np.float64), _UNDERFLOW)
        score, position, is_known = (x.transpose(1, 0, 2).reshape(len(r), -1) for x in (score, position, is_known))
        slack = (2 * self._rounding[r] + 1e-5)[:, None]
        scores = np.concatenate([self.scores[r], np.where(is_known, score, -np.inf)], axis=1)
        enough = np.partition(scores, -self.top, axis=1)[:, -self.top]
        is_near = score + slack >= np.maximum(enough, self.lowest[r])[:, None]
        row, column = np.nonzero(is_near)
        if not len(row):
            return
        # Row by row, with as many places as the row with the most candidates needs.
        counts = is_near.sum(1)
        place = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
        head = torch.from_numpy(r[row] // self._queries)
        chosen = keys[torch.from_numpy(position[row, column]), head].double().numpy()
        query = self._query.flatten(0, 1).numpy()[r[row]]
        added = np.full((len(r), int(counts.max())), -np.inf)
        places = np.full(added.shape, 2**62)
        added[row, place] = (chosen * query).sum(-1) * self._scale
        places[row, place] = position[row, column] + first * BLOCK
        scores, places = np.concatenate([self.scores[r], added], 1), np.concatenate([self.positions[r], places], 1)
        order = np.lexsort((places, -scores), axis=-1)[:, : self.top]
        self.scores[r], self.positions[r] = (np.take_along_axis(x, order, axis=1) for x in (scores, places))
        self.lowest = np.maximum(self.lowest, self.scores[:, -1])


def _gathered(parts: Sequence[tuple[Tensor, slice | np.ndarray]]) -> Tensor:
    if len(parts) == 1 and isinstance(parts[0][1], slice) and parts[0][0].dtype == torch.float32:
        return parts[0][0][parts[0][1]]
    counts = [rows.stop - rows.start if isinstance(rows, slice) else len(rows) for _, rows in parts]
    whole = torch.empty(sum(counts), *parts[0][0].shape[1:], dtype=torch.float32)
    for (tensor, rows), part in zip(parts, whole.split(counts), strict=True):
        part.copy_(tensor[rows] if isinstance(rows, slice) else tensor[torch.from_numpy(rows)])
    return whole
