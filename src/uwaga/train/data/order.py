"""The order of an epoch: which rows make which micro-batch. A pure function of (seed, epoch).

Rows come in the order of a permutation and fill a micro-batch until the next one does not fit; lengths are mixed as they
come. To sort them would save nothing, since there is no padding, and would tell each step about one kind of row.
"""

import numpy as np

from uwaga.train.data.counter import permutation


def filled(lengths: np.ndarray, tokens: int) -> np.ndarray:
    """(micro-batches + 1,) int64: where each starts among rows of these lengths, filled with at most so many tokens.

    >>> filled(np.array([3, 3, 2, 4, 9]), 8).tolist()
    [0, 3, 4, 5]
    """
    ends = np.cumsum(lengths)
    starts, row, before = [0], 0, 0
    while row < len(lengths):
        row = max(int(np.searchsorted(ends, before + tokens, side="right")), row + 1)
        before = int(ends[row - 1])
        starts.append(row)
    return np.array(starts, np.int64)


class Order:
    """The order of one epoch.

    Args:
        lengths: (R,) tokens of each row.
        tokens: of a micro-batch at most.
        seed, epoch: what the order is a function of; seed None: the rows as they are.
    """

    def __init__(self, lengths: np.ndarray, tokens: int, seed: int | None, epoch: int) -> None:
        order = np.arange(len(lengths)) if seed is None else permutation(len(lengths), "order", seed, epoch)
        self._order, self._starts = order, filled(lengths[order], tokens)

    def __len__(self) -> int:
        """Micro-batches."""
        return len(self._starts) - 1

    def rows(self, micro: int) -> tuple[int, ...]:
        """The numbers of its rows."""
        return tuple(self._order[self._starts[micro] : self._starts[micro + 1]].tolist())
