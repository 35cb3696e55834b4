"""Which process computes which queries, and which blocks of keys travel past them: a function of the mask and the sizes alone, so that every
process finds the same. In the backward pass the other way round too: keys stay, and blocks of queries travel.

What stays is cut into pieces, some for each process. Where some processes would have more pairs than others, they are dealt out by that, back and forth (under a
causal mask a zigzag as in Llama 3's context parallelism, but with more turns; compare Brandon et al., "Striped Attention", 2023): every
process has about the same number of rows and the same work, and that with each block, since a process can be no more than two blocks ahead of
the next one.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from uwaga.ops.attention.parts import padded
from uwaga.ops.mask_program import Interval

# Blocks of a process's part: two of them are a quarter of it, unless they would be shorter than the kernels' sums allow.
_BLOCKS_OF_PART = 8
# Pieces of a process, and the rows that each has at least, unless two would be shorter.
_PIECES, _LEAST_ROWS = 16, 768
# Ranges of rows that the work of a piece is estimated by.
_RANGES = 16
# Where no process has more than so much of the mean, pieces stay in their order: as they do not travel, and their blocks are near, that is less
# than what dealing them out would cost.
_UNEVEN = 1.1


class Piece(NamedTuple):
    """What stays with one process."""

    rows: Interval
    rank: int


class Steps(NamedTuple):
    """Lengths that pieces and blocks are multiples of, except the last."""

    piece: int
    block: int


class Plan(NamedTuple):
    """Pieces cover what stays, in order; none is empty. Blocks cover what travels."""

    pieces: tuple[Piece, ...]
    blocks: tuple[Interval, ...]
    work: tuple[tuple[int, ...], ...]  # of each piece and block: how many pairs are seen, about; 0: none

    def intervals(self, size: int) -> list[list[Interval]]:
        """Return the pieces of each process, in order."""
        return [[piece.rows for piece in self.pieces if piece.rank == rank] for rank in range(size)]

    def pieces_of(self, rank: int) -> list[int]:
        return [n for n, piece in enumerate(self.pieces) if piece.rank == rank]

    def blocks_of(self, piece: int) -> list[int]:
        """Return the blocks that have pairs with a piece, in order."""
        return [b for b, pairs in enumerate(self.work[piece]) if pairs]

    def visits(self, block: int, first: int, size: int) -> list[int]:
        """Return the processes that need a block, in the order of a ring, from rank `first` on."""
        ranks = {piece.rank for piece, row in zip(self.pieces, self.work, strict=True) if row[block]}
        return sorted(ranks, key=lambda rank: (rank - first) % size)


def make_plan(sees: Callable[[Interval], Interval], staying: int, travelling: int, steps: Steps, size: int) -> Plan:
    """Return the plan of `size` processes.

    Args:
        sees: of an interval of what stays, an interval outside which it has no pairs with what travels.
        staying, travelling: how many rows there are of each.
    """
    length = padded(max(travelling // (_BLOCKS_OF_PART * size), 1), steps.block)
    blocks = tuple(pairwise([*range(0, travelling, length), travelling]))
    count = 2 * size
    pieces, work = _cut(sees, staying, steps.piece, blocks, count)
    ranks = [n // 2 for n in range(count)]
    of_ranks = [sum(map(sum, work[2 * rank : 2 * rank + 2])) for rank in range(size)]
    if max(of_ranks) > _UNEVEN * sum(of_ranks) / size:
        count *= max(1, min(_PIECES, staying // (size * _LEAST_ROWS)) // 2)
        pieces, work = _cut(sees, staying, steps.piece, blocks, count)
        order = sorted(range(count), key=lambda n: (sum(work[n]), n))
        turns = {n: at % (2 * size) for at, n in enumerate(order)}
        ranks = [min(turns[n], 2 * size - 1 - turns[n]) for n in range(count)]
    chosen = [n for n, (first, last) in enumerate(pieces) if first < last]
    return Plan(tuple(Piece(pieces[n], ranks[n]) for n in chosen), blocks, tuple(work[n] for n in chosen))


def _cut(
    sees: Callable[[Interval], Interval], staying: int, step: int, blocks: Sequence[Interval], count: int
) -> tuple[list[Interval], list[tuple[int, ...]]]:
    """Return so many pieces of what stays, which begin at multiples of `step`, and the work of each."""
    steps = -(-staying // step)
    pieces = list(pairwise(min(steps * n // count * step, staying) for n in range(count + 1)))
    return pieces, [_work(sees, rows, blocks) for rows in pieces]


def _work(sees: Callable[[Interval], Interval], rows: Interval, blocks: Sequence[Interval]) -> tuple[int, ...]:
    """Return the pairs of these rows and each block, from what ranges of the rows see."""
    step = max(-(-(rows[1] - rows[0]) // _RANGES), 1)
    ranges = [(first, min(first + step, rows[1])) for first in range(rows[0], rows[1], step)]
    counts, seen = np.array([b - a for a, b in ranges]), np.array([sees(some) for some in ranges]).reshape(-1, 2, 1)
    edges = np.array(blocks).reshape(-1, 2).T
    pairs = np.minimum(seen[:, 1], edges[1]) - np.maximum(seen[:, 0], edges[0])
    return tuple(map(int, (counts[:, None] * pairs.clip(0)).sum(0)))
