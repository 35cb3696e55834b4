"""One pass over the rows of a soft database: attention over all of them, and the largest scores.

The live rows in ascending order of their ids are cut into blocks of BLOCK rows. A block is one sequence for the engines of
`uwaga.attend`, which give a row the same bits in any batch and on any number of threads, and blocks are merged one after another in
that order. So an answer has the same bits however the rows are spread over segments, and whether deleted rows still lie between them.

Merging in float64, with z_b the output, l_b the lse and H_b the entropy of block b:

    L = log sum_b exp(l_b)    z = sum_b exp(l_b - L) z_b    H = sum_b exp(l_b - L) (H_b + L - l_b)

Blocks are summed in bands of l_b of BAND nats; a band that lies BANDS bands or more below the highest is left out, whether its
blocks were read or skipped. Each row in it has less than exp(-(BANDS - 1) BAND) = 1.4e-21 of the largest weight, less than float64
can hold next to it. What is left out depends on the blocks alone, so that skipping a block whose bound says that it will be left out
changes no bit.

The bound: a chunk of keys lies in a ball with centre c and radius r, so that scale q.c + |scale| |q| r is the most that a score can
be, and with a minus the least.

Letters: Q queries, H heads, R = H Q rows of the result, n blocks of one call, b blocks, D key width, E value width, k listed.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from uwaga.maps.engines import available
from uwaga.maps.spec import RowStatistics, RowStatisticsRequest
from uwaga.ops.attention.arguments import AttentionOptions, make_call
from uwaga.store.segments import CHUNK, SegmentFile

BLOCK = 2048  # rows; the engines' own unit of keys, with a softmax of its own
QUERIES = 256  # that share a pass: enough to be bound by arithmetic, and its memory does not grow with their number
BAND, BANDS = 16.0, 4
_VISITED = 64, 512  # most blocks that are visited at once, at first and at last: what they find may spare others
_FIRST = 4  # blocks that a search visits for a first idea of the largest scores
_COPIED = 8  # most of those that are copied first, and whose copies are held
_CALL_FLOATS = 2**22  # of their outputs together
_SMALL = 2**13  # floats of an output that are added by one operation; more would leave the cache
# Rounding of a float32 score of width D, relative to |scale| |q| |k|: each of D + 2 operations by 2^-24, doubled.
_ROUNDING = 2.0**-23
_LARGEST = 1e300  # of bounds that are not known
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
            rows = positions[is_here] - self.ends[n]
            result[is_here] = self.segments[n].id_of(rows if live is None else live[rows])
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


class PassOptions(NamedTuple):
    """The options of a pass."""

    scale: float
    top: int  # how many of the largest scores
    attention: bool  # whether value, lse and entropy too
    tolerance: float = 0.0  # the weight that may be left out
    skip: bool = True  # by bounds; False reads everything


class PassResult(NamedTuple):
    """The result of a pass for R = H Q rows, heads first."""

    value: Tensor  # (R, E) float32
    lse: np.ndarray  # (R,) float64
    entropy: np.ndarray  # (R,)
    top_ids: np.ndarray  # (R, k) int64; -1 if there are fewer rows
    top_weights: np.ndarray  # (R, k)
    top_scores: np.ndarray  # (R, k)
    skipped_weight_bound: np.ndarray  # (R,) the most weight that skipped rows may have
    skipped: int  # rows that were not read


def read(live: LiveRows, query_QHD: Tensor, options: PassOptions) -> PassResult:
    """Compute one pass for at most QUERIES queries, float32."""
    query_HQD = query_QHD.transpose(0, 1).contiguous()
    one_pass = _Pass(live, query_HQD, options)
    skipped = one_pass.run()
    return one_pass.result(skipped)


def passes(live: LiveRows, query_QHD: Tensor, options: PassOptions) -> list[PassResult]:
    """Compute the passes of any number of queries, at most QUERIES of them in a pass."""
    return [read(live, part, options) for part in query_QHD.split(QUERIES)]


def query_gradient(
    live: LiveRows, query_QHD: Tensor, scale: float, value_QHE: Tensor, lse_QH: Tensor, grad_QHE: Tensor
) -> Tensor:
    """Return the gradient (Q, H, D) of sum(value * grad) with respect to the queries, in one more pass: with the weights
    a_j = exp(scale q.k_j - lse), value z and its gradient g,

        dq = scale sum_j a_j (g.v_j - g.z) k_j

    Raises as `read` of rows that cannot be read."""
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


# What one call found in neighbouring blocks: the first of them, the keys of their rows (rows, H, D), and statistics of each block for R rows.
_BlockResults = tuple[int, Tensor, RowStatistics]


class _Pass:
    def __init__(self, live: LiveRows, query_HQD: Tensor, options: PassOptions) -> None:
        self._live, self._query, self._options = live, query_HQD, options
        heads, queries, _ = query_HQD.shape
        self._rows = heads * queries
        width = live.segments[0].values.shape[2] if live.segments else 0
        self._width = width if options.attention else 0
        # Bands by band modulo BANDS: their numbers, and the sums over their blocks relative to exp(their upper end).
        self._held = np.full((BANDS, self._rows), -np.inf)
        self._outputs = torch.zeros(BANDS, self._rows, self._width, dtype=torch.float64)
        self._sums = np.zeros((BANDS, self._rows))
        self._entropies = np.zeros((BANDS, self._rows))
        self._highest = np.full(self._rows, -np.inf)
        self._top = _Top(live, query_HQD, options.scale, options.top)
        # Of each block, (R, b): no row has a larger score; the lse of its rows is not larger. None: everything is read.
        self._score_upper: np.ndarray | None = None
        self._lse_upper: np.ndarray | None = None
        largest_query = float(query_HQD.double().square().sum(-1).max().sqrt()) if self._rows else 0.0
        self._factor = max(1.0, abs(options.scale))
        self._may_overflow = self._factor * largest_query * max(1.0, live.largest_norm) > _FLOAT32 / 2
        self._skipped_weight_bound = np.zeros(self._rows)

    def run(self) -> int:
        """Visit the blocks, and return the number of rows that were skipped."""
        live, options = self._live, self._options
        if options.skip and live.blocks > 1:
            self._score_upper, lower, self._lse_upper = _bounds(live, self._query, options.scale)
            self._highest = np.maximum(self._highest, np.floor(lower.max(1) / BAND))
            self._top.expect(lower, live.count(np.arange(live.blocks)))
            if options.tolerance:
                return self._by_bound(self._lse_upper)
        skipped, left = 0, np.arange(live.blocks)
        if self._score_upper is not None and not options.attention:
            # The largest scores are the same in any order, and are found early in the order of the bounds.
            left = _descending(self._score_upper)
            self._visit(np.sort(left[:_FIRST]))
            left = np.sort(left[_FIRST:])
        at_once, most = _VISITED
        room = max(1, _CALL_FLOATS // max(self._rows * self._width, 1))
        while len(left):
            blocks, left = np.split(left, [min(at_once, room)])
            needed = blocks[self._is_needed(blocks)]
            self._visit(needed)
            skipped += int(live.count(blocks).sum() - live.count(needed).sum())
            at_once = min(2 * at_once, most)
        return skipped

    def _is_needed(self, blocks: np.ndarray) -> np.ndarray:
        """Return whether some query needs each of the blocks."""
        if self._score_upper is None or self._lse_upper is None:
            return np.ones(len(blocks), bool)
        needed = np.zeros(len(blocks), bool)
        if self._options.attention:
            needed |= (self._highest[:, None] - np.floor(self._lse_upper[:, blocks] / BAND) < BANDS).any(0)
        if self._options.top:
            needed |= (self._score_upper[:, blocks] >= self._top.lowest()[:, None]).any(0)
        return needed

    def _by_bound(self, upper: np.ndarray) -> int:
        """Visit blocks by descending bound, until the other blocks have at most the tolerated weight."""
        order = _descending(upper)
        # Of the blocks from the n-th on, the logarithm of the largest sum of weights that they may have: rest[:, n].
        rest = np.logaddexp.accumulate(upper[:, order][:, ::-1], axis=1)[:, ::-1]
        for n in range(len(order)):
            if n:
                share = (1 + 1e-5) / (1 + np.exp(np.minimum(self._lse() - rest[:, n], 700.0)))
                if (share <= self._options.tolerance).all():
                    self._skipped_weight_bound = share
                    return int(self._live.count(order[n:]).sum())
            self._visit(order[n : n + 1])
        return 0

    def _visit(self, blocks: np.ndarray) -> None:
        """Compute attention within each of the blocks, and add it to the sums. Neighbours in one segment share a call.
        The results of several calls are added together."""
        held: list[_BlockResults] = []
        copied = 0
        for first, stop, is_copied in self._runs(blocks):
            count = stop - first if is_copied else 0
            if count and copied + count > _COPIED:
                self._merge(held)
                held, copied = [], 0
            held.append(self._call(first, stop))
            copied += count
        if held:
            self._merge(held)

    def _runs(self, blocks: np.ndarray) -> Iterator[tuple[int, int, bool]]:
        """Yield neighbouring blocks that have one call. Each is the first block, the block after the last, and whether
        their rows are copied."""
        places, whole = self._live.places[blocks], len(self._live) // BLOCK
        ends = np.flatnonzero((np.diff(blocks) > 1) | (np.diff(places) != 0) | (blocks[1:] == whole)) + 1
        for run, place in zip(
            np.split(blocks, ends), places[np.concatenate([[0], ends])] if len(blocks) else (), strict=False
        ):
            most = len(run) if place >= 0 else _COPIED
            for n in range(0, len(run), most):
                yield int(run[n]), int(run[n : n + most][-1]) + 1, bool(place < 0)

    def _call(self, first: int, stop: int) -> _BlockResults:
        live, options, count = self._live, self._options, stop - first
        start = first * BLOCK
        rows = min(BLOCK, len(live) - start)
        value_nHKE: Tensor | None = None
        if options.attention:
            keys, values = live.keys_and_values(start, start + count * rows)
            value_nHKE = values.unflatten(0, (count, rows)).transpose(1, 2)
        else:
            keys = live.keys(start, start + count * rows)
        if self._may_overflow:
            for n in range(count):
                self._check_scores(keys[n * rows : (n + 1) * rows], start + n * rows)
        key_nHKD, query_nHQD = keys.unflatten(0, (count, rows)).transpose(1, 2), self._query.expand(count, -1, -1, -1)
        call = make_call(query_nHQD, key_nHKD, value_nHKE, AttentionOptions(scale=options.scale), wants_lse=True)
        wants = RowStatisticsRequest(output=options.attention, entropy=options.attention, top=min(options.top, rows))
        return first, keys, available.choose(call, None).rows(call, wants)

    def _merge(self, results: Sequence[_BlockResults]) -> None:
        """Add the results of some blocks, in their order."""
        found = [statistics for _, _, statistics in results]
        maximum_nR = _joined([block.normalizer.maximum for block in found]).astype(np.float64)
        sum_nR = _joined([block.normalizer.sum for block in found]).astype(np.float64)
        lse_nR = maximum_nR + np.log(sum_nR)
        if self._options.attention:
            outputs = [block.output.flatten(1, 2) for block in found if block.output is not None]
            entropies = [block.entropy for block in found if block.entropy is not None]
            self._add(lse_nR, torch.cat(outputs), _joined(entropies).astype(np.float64))
        if self._options.top:
            self._top.merge(results, maximum_nR, lse_nR)

    def _check_scores(self, keys: Tensor, start: int) -> None:
        """Raise ValueError if a score of these rows, or a sum on the way to it, is beyond float32."""
        query, key_HDn = self._query.double(), keys.double().permute(1, 2, 0)
        scores = (query.abs() * self._factor) @ key_HDn.abs()
        beyond = scores > _FLOAT32
        if beyond.any():
            head, number, row = beyond.nonzero()[0].tolist()
            score = self._options.scale * float(query[head, number] @ key_HDn[head, :, row])
            raise ValueError(
                f"SoftDatabase: the score of row {self._live.ids(np.array([start + row]))[0]} for query {number} is "
                f"{score:.3g}, or a sum on the way to it is beyond float32; give a smaller scale or query, or store smaller keys"
            )

        is_large = (query.abs() * self._factor).amax(2) > _FLOAT32  # kernels may multiply it before the keys
        if is_large.any():
            raise ValueError(
                f"SoftDatabase: scale times query {is_large.nonzero()[0, 1]} is beyond float32; give a smaller scale or query"
            )

    def _add(self, lse_nR: np.ndarray, output_nRE: Tensor, entropy_nR: np.ndarray) -> None:
        band_nR = np.floor(lse_nR / BAND)  # an integer, of any size that a float may have
        self._highest = np.maximum(self._highest, band_nR.max(0))
        output = output_nRE.double()
        for slot in range(BANDS):
            is_in = (band_nR % BANDS == slot) & (self._highest - band_nR < BANDS)
            if not is_in.any():
                continue
            # All blocks of a query that are in this slot are of one band: others are BANDS below it.
            band_R = np.where(is_in, band_nR, -np.inf).max(0)
            fresh = is_in.any(0) & (band_R != self._held[slot])
            if fresh.any():
                self._held[slot][fresh] = band_R[fresh]
                self._outputs[slot][torch.from_numpy(fresh)] = 0.0
                self._sums[slot][fresh] = self._entropies[slot][fresh] = 0.0
            below_nR = np.where(is_in, lse_nR - BAND * (band_R + 1), -np.inf)
            weight_nR = np.exp(below_nR)
            below_nR = np.where(is_in, below_nR, 0.0)
            weighted = output * torch.from_numpy(weight_nR)[:, :, None]
            blocks = np.flatnonzero(is_in.any(1))
            self._outputs[slot] = _added_to(self._outputs[slot], weighted, blocks)
            self._sums[slot] = _added(np.concatenate([self._sums[slot][None], weight_nR[blocks]]))
            terms = (weight_nR * (entropy_nR - below_nR))[blocks]
            self._entropies[slot] = _added(np.concatenate([self._entropies[slot][None], terms]))

    def _bands(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the factor of each band, (BANDS, R), and the upper end of the highest, (R,). The factor is exp(the
        band's upper end - the highest), 0 for bands that are left out."""
        top_R = BAND * (self._held.max(0) + 1)
        with np.errstate(invalid="ignore"):  # a query may have no band yet
            is_kept = self._held.max(0) - self._held < BANDS
            relative = np.exp(np.maximum(BAND * (self._held + 1) - top_R, -745.0))
        factor = np.where(is_kept & (self._sums > 0), relative, 0.0)
        return factor, top_R

    def _lse(self) -> np.ndarray:
        """Return the lse of the blocks so far, (R,)."""
        factor, top_R = self._bands()
        with np.errstate(divide="ignore"):  # all of a query's blocks were left out
            return top_R + np.log(_added(factor * self._sums))

    def result(self, skipped: int) -> PassResult:
        value = torch.zeros(self._rows, self._width)
        entropy = np.zeros(self._rows)
        lse = np.full(self._rows, -np.inf)
        if len(self._live) and self._options.attention:
            factor, top_R = self._bands()
            total = _added(factor * self._sums)
            lse = top_R + np.log(total)
            share = np.ascontiguousarray(factor / total)
            spread = self._entropies + np.log(total) * self._sums
            # The bands' terms are relative to their own upper ends.
            offset = np.where(factor > 0, top_R - BAND * (np.where(factor > 0, self._held, 0.0) + 1), 0.0)
            entropy = np.maximum(_added(share * (spread + offset * self._sums)), 0.0)
            output = torch.zeros(self._rows, self._width, dtype=torch.float64)
            for slot in range(BANDS):
                output += self._outputs[slot] * torch.from_numpy(share[slot])[:, None]
            value = output.float()
        weights, scores = self._top.weights(lse)
        if self._options.attention:
            _order(weights, scores)
        ids = self._top.ids()
        return PassResult(value, lse, entropy, ids, weights, scores, self._skipped_weight_bound, skipped)


class _Top:
    """The largest scores of every row, with their weights. Scores of candidates are computed in float64, so that keys of different
    blocks are compared without the rounding of these blocks' own sums; of equal ones the smaller id comes first."""

    def __init__(self, live: LiveRows, query_HQD: Tensor, scale: float, top: int) -> None:
        self._live, self._scale, self.top = live, scale, top
        self._query = query_HQD.double().numpy()
        heads, queries, _ = query_HQD.shape
        self._queries, rows = queries, heads * queries
        norm = np.sqrt(np.square(self._query).sum(-1)).reshape(-1)
        with np.errstate(over="ignore"):  # then nothing is told apart by a rounding
            self._rounding = abs(scale) * norm * live.largest_norm * (query_HQD.shape[2] + 2) * _ROUNDING
        self._expected = np.full(rows, -np.inf)
        self._scores = np.full((rows, top), -np.inf)
        self._positions = np.full((rows, top), 2**62)  # among the live rows
        self._weights = np.zeros((rows, top))  # within their blocks
        self._lse = np.full((rows, top), -np.inf)  # of these

    def expect(self, lower_Rb: np.ndarray, count_b: np.ndarray) -> None:
        """Note that blocks of so many rows have no lower scores than these."""
        if self.top and (enough := count_b >= self.top).any():
            self._expected = lower_Rb[:, enough].max(1)

    def lowest(self) -> np.ndarray:
        """Return the score, (R,), below which no row will be listed."""
        return np.maximum(self._scores[:, -1], self._expected) if self.top else self._expected

    def merge(self, results: Sequence[_BlockResults], maximum_nR: np.ndarray, lse_nR: np.ndarray) -> None:
        """Merge the candidates of some blocks, which have these largest scores and this lse."""
        lowest = self.lowest()
        r = np.flatnonzero((maximum_nR + self._rounding >= lowest).any(0))
        if not len(r):
            return
        weights, positions, blocks = _candidates(results, self.top)
        # Scores as the engine's weights give them; if a weight is zero, only that the score is not above this one.
        lse = np.broadcast_to(lse_nR[:, r, None], (*lse_nR[:, r].shape, weights.shape[2]))
        weight, position = (
            x[:, r].transpose(1, 0, 2).reshape(len(r), -1).astype(x.dtype) for x in (weights, positions)
        )
        lse = lse.transpose(1, 0, 2).reshape(len(r), -1)
        is_row, position = position >= 0, position + np.repeat(blocks * BLOCK, weights.shape[2])
        is_known = weight > 0
        score = lse + np.where(is_known, np.log(np.where(is_known, weight, 1.0), dtype=np.float64), _UNDERFLOW)
        slack = (2 * self._rounding[r] + 1e-5)[:, None]
        scores = np.concatenate([self._scores[r], np.where(is_known, score, -np.inf)], axis=1)
        enough = np.partition(scores, -self.top, axis=1)[:, -self.top]
        is_near = is_row & (score + slack >= np.maximum(enough, lowest[r])[:, None])
        counts = is_near.sum(1)
        row, column = np.nonzero(is_near)
        if not len(row):
            return
        # Row by row, with as many places as the row with the most candidates needs.
        place = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
        shape = (len(r), int(counts.max()))
        result = _keys_at(results, position[row, column], r[row] // self._queries)
        query = self._query.reshape(len(lowest), -1)[r[row]]
        new = [np.full(shape, -np.inf), np.full(shape, 2**62), np.zeros(shape), np.full(shape, -np.inf)]
        for array, candidates in zip(
            new,
            ((result * query).sum(-1) * self._scale, position[row, column], weight[row, column], lse[row, column]),
            strict=True,
        ):
            array[row, place] = candidates
        olds = (self._scores, self._positions, self._weights, self._lse)
        joined = [np.concatenate([old[r], array], axis=1) for old, array in zip(olds, new, strict=True)]
        order = np.lexsort((joined[1], -joined[0]), axis=-1)[:, : self.top]
        for old, array in zip(olds, joined, strict=True):
            old[r] = np.take_along_axis(array, order, axis=1)

    def weights(self, lse: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return weights and scores, (R, k)."""
        with np.errstate(invalid="ignore"):
            weights = self._weights * np.exp(self._lse - lse[:, None])
        return np.where(self._positions < 2**62, weights, 0.0), self._scores

    def ids(self) -> np.ndarray:
        """Return the ids, (R, k); -1 if there are fewer rows."""
        is_there = self._positions < 2**62
        ids = np.full(self._positions.shape, -1, np.int64)
        ids[is_there] = self._live.ids(self._positions[is_there])
        return ids


def _bounds(live: LiveRows, query_HQD: Tensor, scale: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return bounds for each query and block, (R, b). They are the most and the least that a row's score can be, and
    the most that the block's lse can be."""
    query = query_HQD.double()
    rows = query.shape[0] * query.shape[1]
    norm = query.square().sum(-1).sqrt()[:, :, None] * abs(scale)  # (H, Q, 1)
    uppers, lowers = [], []
    for centres, radii, largest in live.balls:
        middle = scale * (query @ centres.transpose(-1, -2))  # (H, Q, c)
        reach = norm * (radii + largest * ((query.shape[2] + 2) * _ROUNDING))
        uppers.append((middle + reach).reshape(rows, -1).numpy())
        lowers.append((middle - reach).reshape(rows, -1).numpy())
    chunks, starts = live.chunks
    # Squares of very large keys overflow: then a bound says nothing.
    high = np.nan_to_num(np.concatenate(uppers, axis=1), nan=_LARGEST, posinf=_LARGEST, neginf=-_LARGEST)
    low = np.nan_to_num(np.concatenate(lowers, axis=1), nan=-_LARGEST, posinf=_LARGEST, neginf=-_LARGEST)
    upper = np.maximum.reduceat(high[:, chunks], starts, axis=1)
    lower = np.minimum.reduceat(low[:, chunks], starts, axis=1)
    count = np.log(live.count(np.arange(live.blocks)))
    return upper, lower, upper + count + 1e-6 * (1 + np.abs(upper))


def _descending(upper_Rb: np.ndarray) -> np.ndarray:
    """Return the blocks from the highest bound to the lowest. A block counts by the query for which it is nearest to
    that query's highest bound."""
    return np.argsort(-(upper_Rb - upper_Rb.max(1, keepdims=True)).max(0), kind="stable")


def _gathered(parts: Sequence[tuple[Tensor, slice | np.ndarray]]) -> Tensor:
    if len(parts) == 1 and isinstance(parts[0][1], slice) and parts[0][0].dtype == torch.float32:
        return parts[0][0][parts[0][1]]
    counts = [rows.stop - rows.start if isinstance(rows, slice) else len(rows) for _, rows in parts]
    whole = torch.empty(sum(counts), *parts[0][0].shape[1:], dtype=torch.float32)
    for (tensor, rows), part in zip(parts, whole.split(counts), strict=True):
        part.copy_(tensor[rows] if isinstance(rows, slice) else tensor[torch.from_numpy(rows)])
    return whole


def _joined(parts_nHQ: Sequence[Tensor]) -> np.ndarray:
    """Join the parts to one array (n, R)."""
    return np.concatenate([part.flatten(1).numpy() for part in parts_nHQ])


def _candidates(results: Sequence[_BlockResults], top: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the largest weights of all blocks, their places, (n, R, k), and the blocks, (n,). A block with fewer rows
    than `top` has weights of zero and places of -1 at the end."""
    weights, positions, blocks = [], [], []
    for first, _, found in results:
        assert found.top_weights is not None
        assert found.top_positions is not None
        fill = ((0, 0), (0, 0), (0, top - found.top_weights.shape[-1]))
        weights.append(np.pad(found.top_weights.flatten(1, 2).numpy(), fill))
        positions.append(np.pad(found.top_positions.flatten(1, 2).numpy(), fill, constant_values=-1))
        blocks.append(np.arange(first, first + len(found.top_weights)))
    return np.concatenate(weights), np.concatenate(positions), np.concatenate(blocks)


def _keys_at(results: Sequence[_BlockResults], positions: np.ndarray, heads: np.ndarray) -> np.ndarray:
    """Return the keys (n, D), float64, of live rows of these blocks, each for a head."""
    keys = np.empty((len(positions), results[0][1].shape[2]))
    part = np.searchsorted([first * BLOCK for first, _, _ in results], positions, "right") - 1
    for n in np.unique(part).tolist():
        is_here, (first, block_keys, _) = part == n, results[n]
        rows = positions[is_here] - first * BLOCK
        keys[is_here] = block_keys[torch.from_numpy(rows), torch.from_numpy(heads[is_here])].double().numpy()
    return keys


def _added(terms: np.ndarray) -> np.ndarray:
    """Return the sum over the first axis, one term after another: `sum` would associate by shape."""
    return np.add.accumulate(terms, axis=0)[-1]


def _order(weights_Rk: np.ndarray, scores_Rk: np.ndarray) -> None:
    """Correct weights that contradict their scores, which descend and are more exact. Neighbours share the sum of their
    weights by their scores, until weights descend too and rows with equal scores have equal weights."""
    before, after = weights_Rk[:, :-1], weights_Rk[:, 1:]
    wrong = (before < after) | ((before != after) & (scores_Rk[:, :-1] == scores_Rk[:, 1:]))
    for r in np.flatnonzero(wrong.any(1)).tolist():
        groups: list[np.ndarray] = []  # of weights
        for n, weight in enumerate(weights_Rk[r]):
            group, start = np.array([weight]), n
            while groups and (
                groups[-1][-1] < group[0]
                or (scores_Rk[r, start - 1] == scores_Rk[r, start] and groups[-1][-1] != group[0])
            ):
                group = np.concatenate([groups.pop(), group])
                start = n + 1 - len(group)
                share = np.exp(scores_Rk[r, start : n + 1] - scores_Rk[r, start])
                group = share * (_added(group) / _added(share))
            groups.append(group)
        weights_Rk[r] = np.concatenate(groups)


def _added_to(whole: Tensor, terms_nRE: Tensor, blocks: np.ndarray) -> Tensor:
    """Add the terms of these blocks to `whole`, one after another; both ways give the same bits."""
    if whole.numel() <= _SMALL:
        return torch.from_numpy(_added(np.concatenate([whole[None].numpy(), terms_nRE.numpy()[blocks]])))
    for n in blocks.tolist():
        whole += terms_nRE[n]
    return whole
