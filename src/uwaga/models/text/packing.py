"""How texts become groups, and sequences steps. Both depend on the texts alone, so that a second run does the same."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import TypeVar

import numpy as np

Item = TypeVar("Item")

# A group is what is tokenised at once, and held in memory at once.
GROUP_DOCUMENTS = 4096
GROUP_CHARACTERS = 1 << 20


def groups(
    items: Iterable[Item],
    characters: Callable[[Item], int],
    *,
    most_documents: int = GROUP_DOCUMENTS,
    most_characters: int = GROUP_CHARACTERS,
) -> Iterator[list[Item]]:
    """Lists of items one after the other, each within both bounds, but of one item at least.

    >>> list(groups(["a", "bb", "cccc", "d"], len, most_characters=3))
    [['a', 'bb'], ['cccc'], ['d']]
    """
    group: list[Item] = []
    total = 0
    for item in items:
        size = characters(item)
        if group and (len(group) == most_documents or total + size > most_characters):
            yield group
            group, total = [], 0
        group.append(item)
        total += size
    if group:
        yield group


def steps(lengths: Sequence[int] | np.ndarray, tokens_per_batch: int) -> list[slice]:
    """Sequences that the model takes at once: about `tokens_per_batch` tokens in each step, and no step much smaller.

    A step ends where its share of the tokens ends, so that there is no small step at the end. One sequence may be longer
    than `tokens_per_batch`; a step never holds more than `tokens_per_batch` and one sequence.

    >>> steps([4, 4, 4, 4, 4], tokens_per_batch=10)
    [slice(0, 2, None), slice(2, 5, None)]
    """
    if not len(lengths):
        return []
    ends = np.cumsum(lengths)
    count = max(1, -(-int(ends[-1]) // tokens_per_batch))
    shares = np.linspace(0, ends[-1], count + 1)[1:-1]
    # The sequence in which a share ends goes to the step that has more of it.
    middles = ends - np.asarray(lengths) / 2
    edges = sorted({0, len(lengths), *np.searchsorted(middles, shares).tolist()})
    return [slice(start, stop) for start, stop in pairwise(edges)]
