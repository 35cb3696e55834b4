"""What was asked before, within a bound of memory: what was used longest ago is forgotten first."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Value = TypeVar("Value")


class Recent(Generic[Value]):
    """Values by name.

    Args:
        most: what all of them may weigh; one that is heavier alone is kept alone.
        weight: of a value, by itself when it is put in.
    """

    def __init__(self, most: int, weight: Callable[[Value], int] = lambda _: 1) -> None:
        self._most, self._weight = most, weight
        self._kept: OrderedDict[Hashable, tuple[Value, int]] = OrderedDict()
        self._total = 0

    def get(self, name: Hashable) -> Value | None:
        """What is kept under a name."""
        if name not in self._kept:
            return None
        self._kept.move_to_end(name)
        return self._kept[name][0]

    def put(self, name: Hashable, value: Value) -> Value:
        """Keep a value."""
        self.drop(name)
        weight = self._weight(value)
        self._kept[name] = value, weight
        self._total += weight
        while self._total > self._most and len(self._kept) > 1:
            self.drop(next(iter(self._kept)))
        return value

    def drop(self, name: Hashable) -> None:
        """Forget a value, where it is there."""
        if name in self._kept:
            self._total -= self._kept.pop(name)[1]

    def __len__(self) -> int:
        return len(self._kept)
