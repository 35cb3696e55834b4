"""A least-recently-used cache that is bounded by the total weight of its values, such as their bytes.

functools.lru_cache counts entries and not bytes, and wraps a function, while a value here is replaced by a later one under
the same key. cachetools.LRUCache takes a size per value, but refuses one that is larger than the bound, which is kept here
(work that was begun must be found again); for these lines it would be one more dependency at run time.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Value = TypeVar("Value")


class LRUCache(Generic[Value]):
    """Values by key; beyond the bound the least recently used ones are evicted. Not thread-safe.

    Args:
        max_weight: bound on the sum of the values' weights; a single value above it is kept alone.
        weigh: the weight of a value, taken once, when it is stored; by default each counts 1.
    """

    def __init__(self, max_weight: int, weigh: Callable[[Value], int] = lambda _: 1) -> None:
        self._max_weight, self._weigh = max_weight, weigh
        self._entries: OrderedDict[Hashable, tuple[Value, int]] = OrderedDict()
        self._total = 0

    def get(self, key: Hashable) -> Value | None:
        """The value under a key, which is now the most recently used one; None where there is none."""
        if key not in self._entries:
            return None
        self._entries.move_to_end(key)
        return self._entries[key][0]

    def put(self, key: Hashable, value: Value) -> Value:
        """Store a value and return it."""
        self.discard(key)
        weight = self._weigh(value)
        self._entries[key] = value, weight
        self._total += weight
        while self._total > self._max_weight and len(self._entries) > 1:
            self.discard(next(iter(self._entries)))
        return value

    def discard(self, key: Hashable) -> None:
        """Remove a value if it is there."""
        if key in self._entries:
            self._total -= self._entries.pop(key)[1]

    def __len__(self) -> int:
        return len(self._entries)
