"""The arguments of a question, checked one by one: what a page sends is not trusted."""

import reprlib
from collections.abc import Mapping, Sequence

from uwaga.viewer.desk.reply import QuestionError


class Arguments:
    """Reads a question; `done` refuses what nobody has read."""

    def __init__(self, question: Mapping[str, object]) -> None:
        self._question = question
        self._read: set[str] = set()
        self.ask = self.text("ask")

    def text(self, name: str, choices: Sequence[str] | None = None) -> str:
        """A string, one of the choices where there are such."""
        value = self._value(name)
        if not isinstance(value, str):
            raise self.wrong(name, "a string", value)
        if choices is not None and value not in choices:
            raise self.wrong(name, f"one of {', '.join(choices)}", value)
        return value

    def integer(self, name: str, low: int, high: int) -> int:
        """A whole number, low <= it < high."""
        value = self._value(name)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.wrong(name, "a whole number", value)
        if not low <= value < high:
            raise self.wrong(name, f"from {low} to {high - 1}" if low < high else "nothing, since there is none", value)
        return value

    def range(self, name: str, size: int) -> tuple[int, int]:
        """[a, b] with 0 <= a <= b <= size."""
        return self._pair(name, self._value(name), size)

    def ranges(self, name: str, size: int, most: int) -> list[tuple[int, int]]:
        """From 1 to `most` pairs [a, b], as `range`."""
        value = self._value(name)
        if not isinstance(value, list) or not 1 <= len(value) <= most:
            raise self.wrong(name, f"a list of 1 to {most} pairs [a, b]", value)
        return [self._pair(name, pair, size) for pair in value]

    def questions(self, name: str, most: int) -> list[dict[str, object]]:
        """At most so many questions."""
        value = self._value(name)
        if not isinstance(value, list) or len(value) > most or not all(isinstance(each, dict) for each in value):
            raise self.wrong(name, f"a list of at most {most} questions", value)
        return value

    def done(self) -> None:
        """Refuse arguments that were not read."""
        for name in self._question:
            if name not in self._read:
                raise QuestionError(f"{self.ask}: there is no argument {_short(name)}")

    def wrong(self, name: str, rule: str, value: object) -> QuestionError:
        return QuestionError(f"{self._name}: {name} must be {rule}, not {_short(value)}")

    @property
    def _name(self) -> str:
        """Of the question, in messages."""
        asked = self._question.get("ask")
        return asked if isinstance(asked, str) and len(asked) <= 20 else "a question"

    def _value(self, name: str) -> object:
        if name not in self._question:
            raise QuestionError(f"{self._name}: {name} is missing")
        self._read.add(name)
        return self._question[name]

    def _pair(self, name: str, value: object, size: int) -> tuple[int, int]:
        rule = f"[a, b] with 0 <= a <= b <= {size}"
        if not isinstance(value, list) or len(value) != 2:
            raise self.wrong(name, rule, value)
        first, last = value
        if not all(isinstance(x, int) and not isinstance(x, bool) for x in value) or not 0 <= first <= last <= size:
            raise self.wrong(name, rule, value)
        return first, last


_REPR = reprlib.Repr()  # looks into nothing deep or long
_REPR.maxstring = _REPR.maxother = _REPR.maxlong = 200


def _short(value: object) -> str:
    text = _REPR.repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
