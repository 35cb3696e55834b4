"""Reading a lesson's question value by value; every rule that is broken is said in words."""

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from uwaga.viewer.desk.reply import QuestionError

# Beyond this a number says nothing about attention, and sums of products of it leave the range of float32.
LARGEST = 1000.0
_LONGEST_WORD = 64


class Reader:
    """The values of one JSON object.

    Raises:
        QuestionError: from every method, and here for a name that is not known.
    """

    def __init__(self, subject: str, values: Mapping[str, object], known: Sequence[str]) -> None:
        self._subject, self._values = subject, values
        for name in values:
            if name not in known:
                raise self._error(f"there is no argument {_short(name)}")

    def mapping(self, name: str) -> Mapping[str, object]:
        value = self._values.get(name)
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            raise self._wrong(name, "an object", value)
        return value

    def words(self, name: str, most: int, default: Sequence[str]) -> tuple[str, ...]:
        value = self._values.get(name)
        return tuple(default) if value is None else self._words(name, value, most)

    def sentences(
        self, name: str, most: int, most_words: int, default: Sequence[tuple[str, ...]]
    ) -> tuple[tuple[str, ...], ...]:
        value = self._values.get(name)
        if value is None:
            return tuple(default)
        if not isinstance(value, list) or not 1 <= len(value) <= most:
            raise self._wrong(name, f"a list of 1 to {most} sentences", value)
        return tuple(self._words(f"{name}[{place}]", each, most_words) for place, each in enumerate(value))

    def truth(self, name: str, default: bool) -> bool:
        value = self._values.get(name, default)
        if not isinstance(value, bool):
            raise self._wrong(name, "true or false", value)
        return value

    def whole(self, name: str, low: int, high: int, default: int) -> int:
        """low <= it <= high."""
        value = self._values.get(name, min(max(default, low), high))
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self._wrong(name, f"a whole number from {low} to {high}", value)
        return value

    def number(self, name: str, default: float) -> float:
        return self._number(name, self._values.get(name, default))

    def heads(self, name: str, most: int, *widths: int) -> int:
        """A number of heads that divides the widths; 2 where it can be."""
        fitting = [n for n in range(1, most + 1) if all(width % n == 0 for width in widths)]
        value = self._values.get(name, 2 if 2 in fitting else 1)
        if isinstance(value, bool) or value not in fitting:
            inner = " and ".join(map(str, dict.fromkeys(widths)))
            choices = ", ".join(map(str, fitting))
            raise self._wrong(name, f"one of {choices}, which divide the inner width {inner}", value)
        return int(str(value))

    def order(self, name: str, count: int) -> tuple[int, ...]:
        """A permutation of 0 to count - 1; from last to first where nothing else is said."""
        value = self._values.get(name)
        if value is None:
            return tuple(range(count - 1, -1, -1))
        if (
            not isinstance(value, list)
            or any(isinstance(place, bool) or not isinstance(place, int) for place in value)
            or sorted(value) != list(range(count))
        ):
            raise self._wrong(name, f"each of 0 to {count - 1} once", value)
        return tuple(value)

    def rows(self, name: str, count: int, most: int) -> tuple[int | None, list[list[float] | None] | None]:
        """The common width of the rows, and the rows, of which some may be missing; None where there are none."""
        value = self._values.get(name)
        if value is None:
            return None, None
        if not isinstance(value, list) or len(value) != count:
            found = _counted(len(value), "row") if isinstance(value, list) else _short(value)
            raise self._error(f"{name} must be a list of {_counted(count, 'row')}, not {found}")
        rows = [None if row is None else self._row(f"{name}[{n}]", row, most) for n, row in enumerate(value)]
        widths = sorted({len(row) for row in rows if row is not None})
        if len(widths) > 1:
            raise self._error(f"{name} must have rows of one width, not of {' and '.join(map(str, widths))}")
        return (widths[0] if widths else None), rows

    def height(self, name: str, most: int) -> int | None:
        """The number of rows; None where there are none, or too many, which `matrix` will say."""
        value = self._values.get(name)
        return len(value) if isinstance(value, list) and 1 <= len(value) <= most else None

    def matrix(
        self, name: str, shape: tuple[int, int | None], most: int, default: Callable[[int | None], Tensor]
    ) -> Tensor:
        """float32 of the shape; a width None is any."""
        height, width = shape
        found, rows = self.rows(name, height, most)
        if rows is None or found is None:
            return default(width)
        if None in rows:
            raise self._error(f"{name}[{rows.index(None)}] is missing")
        if width is not None and found != width:
            raise self._error(f"{name} must have {_counted(width, 'column')}, not {found}")
        return torch.tensor(rows, dtype=torch.float32)

    def _words(self, name: str, value: object, most: int) -> tuple[str, ...]:
        if not isinstance(value, list) or not 1 <= len(value) <= most:
            found = f"{len(value)} of them" if isinstance(value, list) else _short(value)
            raise self._error(f"{name} must be a list of 1 to {most} words, not {found}")
        for place, word in enumerate(value):
            if not isinstance(word, str) or not 1 <= len(word) <= _LONGEST_WORD:
                raise self._wrong(f"{name}[{place}]", f"a word of 1 to {_LONGEST_WORD} characters", word)
            if any("\ud800" <= letter <= "\udfff" for letter in word):
                raise self._error(f"{name}[{place}] has half of a surrogate pair, which is no character")
        return tuple(value)

    def _row(self, name: str, value: object, most: int) -> list[float]:
        if not isinstance(value, list) or not 1 <= len(value) <= most:
            found = f"{len(value)} of them" if isinstance(value, list) else _short(value)
            raise self._error(f"{name} must be a list of 1 to {most} numbers, not {found}")
        return [self._number(f"{name}[{place}]", number) for place, number in enumerate(value)]

    def _number(self, name: str, value: object) -> float:
        rule = f"a number from -{LARGEST:.0f} to {LARGEST:.0f}"
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._wrong(name, rule, value)
        if not abs(value) <= LARGEST or not math.isfinite(value):
            raise self._wrong(name, rule, value)
        return float(value)

    def _wrong(self, name: str, rule: str, value: object) -> QuestionError:
        return self._error(f"{name} must be {rule}, not {_short(value)}")

    def _error(self, text: str) -> QuestionError:
        return QuestionError(f"{self._subject}: {text}")


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _short(value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > 10**20:
        return "a number of too many digits"  # and repr would refuse a longer one
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
