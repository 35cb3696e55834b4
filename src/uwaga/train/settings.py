"""From tables of TOML to checked sections: every key is known, every value is of its kind.

A section is a frozen dataclass with a `KINDS` that says what its fields may be, and `SECTIONS` for fields that are sections
themselves. Messages name a key by its whole path, `optimizer.lr`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, fields
from difflib import SequenceMatcher
from typing import Any, ClassVar, Protocol, TypeVar

from uwaga._base import env, untrusted
from uwaga._base.options import FRACTION_BELOW_1, OptionValidator, is_number, number, whole
from uwaga.train.errors import ConfigError


class Section(Protocol):
    """What a section's class offers."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]
    KINDS: ClassVar[Mapping[str, OptionValidator]]
    SECTIONS: ClassVar[Mapping[str, Any]]


_T = TypeVar("_T")


def read(section: type[_T], table: object, path: str, known: frozenset[str]) -> _T:
    """A section from a table. `path` is where it stands, "" for the whole; `known` are all keys. Raises ConfigError."""
    if not isinstance(table, Mapping):
        raise ConfigError(f"{path} must be a table, not {format_value(table)}")
    names = {each.name for each in fields(section)}  # type: ignore[arg-type]
    for name in table:
        if name not in names:
            raise unknown(_join(path, name), known)
    values = {name: _value(section, name, value, path, known) for name, value in table.items()}
    for each in fields(section):  # type: ignore[arg-type]
        if each.name not in values and each.default is MISSING and each.default_factory is MISSING:
            raise ConfigError(f"{_join(path, each.name)} is missing: it must be {_words(section, each.name)}")
    return section(**values)


def unknown(path: str, known: frozenset[str]) -> ConfigError:
    """The error of a key that does not exist; it names the one that looks most like it."""
    path = path if len(path) <= 100 else path[:100] + "..."  # likeness takes the square of the length in time
    wanted = path.rpartition(".")[2]
    initials = "".join(word[:1] for word in wanted.split("_"))

    def likeness(candidate: str) -> tuple[float, float, str]:
        last = candidate.rpartition(".")[2]
        whole = SequenceMatcher(None, path, candidate).ratio()
        own = 1.0 if last == initials else SequenceMatcher(None, wanted, last).ratio()
        return max(whole, own), whole, candidate

    return ConfigError(f"there is no key {path}; the nearest is {max(known, key=likeness)}")


def keys(section: type, path: str = "") -> Iterator[str]:
    """The paths of all fields, those of sections inside included."""
    sections: Mapping[str, Any] = section.SECTIONS  # type: ignore[attr-defined]
    for each in fields(section):
        inside = sections.get(each.name)
        yield _join(path, each.name)
        if isinstance(inside, type):
            yield from keys(inside, _join(path, each.name))


def _value(section: Any, name: str, value: object, path: str, known: frozenset[str]) -> Any:
    inside, here = section.SECTIONS.get(name), _join(path, name)
    if isinstance(inside, type):
        return read(inside, value, here, known)
    if isinstance(inside, Named):
        if not isinstance(value, Mapping):
            raise ConfigError(f"{here} must be a table of tables, not {format_value(value)}")
        below = frozenset(keys(inside.section, f"{here}.NAME"))
        return {each: read(inside.section, table, f"{here}.{each}", below) for each, table in value.items()}
    value = tuple(value) if isinstance(value, list) else value
    # A number without a point is as good where a number is meant, and reads back as the same.
    is_real = section.KINDS[name].is_real and type(value) is int and is_number(value)
    return float(value) if is_real else value  # type: ignore[arg-type]


def check(section: Any, path: str = "") -> None:
    """Every value of a section is of its kind, and of the sections inside. Raises ConfigError."""
    for each in fields(section):
        value, here = getattr(section, each.name), _join(path, each.name)
        inside = section.SECTIONS.get(each.name)
        if isinstance(inside, Named):
            for name, below in value.items():
                check(below, f"{here}.{name}")
        elif isinstance(inside, type):
            if value is not None:
                check(value, here)
        elif not (value is None and each.default is None) and not section.KINDS[each.name].accepts(value):
            shown = list(value) if isinstance(value, tuple) else value
            raise ConfigError(f"{here} must be {section.KINDS[each.name].words}, not {format_value(shown)}")
        elif any("\0" in text for text in (value if isinstance(value, tuple) else (value,)) if isinstance(text, str)):
            raise ConfigError(f"{here} must have no NUL character, which no file name has: {format_value(value)}")


def format_value(value: object) -> str:
    """A value in a message: 200 characters of it at most."""
    text = repr(value)
    return text if len(text) <= 200 else text[:200] + "..."


def _words(section: Any, name: str) -> str:
    return section.KINDS[name].words if name in section.KINDS else "a table"


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


class Named:
    """A table whose keys are free names, each of a section."""

    def __init__(self, section: type) -> None:
        self.section = section


NOT_NEGATIVE = number("a number of at least 0", lambda x: x >= 0)
SHARE = number("a number from 0 to 1", lambda x: 0 <= x <= 1)
PART = FRACTION_BELOW_1
COUNT, SIZE = whole(0), whole(1)
SECONDS = number("a number of seconds from 1 to 1,000,000", lambda x: 1 <= x <= 1e6)
# The tokenizers library allocates as many entries as a vocabulary may get, and PyTorch as many threads.
VOCABULARY, THREADS = whole(1, untrusted.TOKENIZER_IDS), whole(1, env.MAX_THREADS)
TEXT = OptionValidator("a string", lambda x: isinstance(x, str))
NAME = OptionValidator("a string that is not empty", lambda x: isinstance(x, str) and x != "")
NAMES = OptionValidator(
    "a list of strings", lambda x: isinstance(x, tuple) and all(isinstance(each, str) and each for each in x)
)
BETAS = OptionValidator(
    "a list of two numbers from 0 to less than 1",
    lambda x: isinstance(x, tuple) and len(x) == 2 and all(map(PART.accepts, x)),
)
