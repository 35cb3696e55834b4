"""Options: classes whose annotations are their rules. Files, requests and Python callers are checked by one declaration.

`options` makes a frozen dataclass that checks its fields. `read` makes one from a table of TOML or JSON. pydantic checks; the words of an
error are made here from the annotation, so that no version of pydantic changes a message. A field's annotation is one of the types below,
a Literal, an options class, or a tuple, dict or union of these. Rules between fields are a `__post_init__` that raises ValueError.

This module imports pydantic, 0.2 s: import it where options are needed, not where a package begins.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import is_dataclass
from difflib import SequenceMatcher
from functools import cache
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    TypeVar,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

from annotated_types import Ge, Gt, Le, Lt, MinLen
from pydantic import AllowInfNan, ConfigDict, FailFast, Strict, TypeAdapter, ValidationError
from pydantic import dataclasses as pydantic_dataclasses

from uwaga._base.terminal import printable, short

_LARGEST = 2**62  # what is below fits into 64 bits with room to count


class Words(NamedTuple):
    """An annotation: the rule in words that follow "must be", where they are not made from the type."""

    text: str


class _FirstError(FailFast):
    """An annotation of a list of an untrusted file: a million wrong entries are one error."""

    __hash__ = object.__hash__  # readers are cached by the annotation


Switch = Annotated[bool, Strict()]
Integer = Annotated[int, Strict()]
Text = Annotated[str, Strict()]
Name = Annotated[Text, MinLen(1)]
Count = Annotated[Integer, Ge(0), Lt(_LARGEST)]
Size = Annotated[Integer, Ge(1), Lt(_LARGEST)]
Real = Annotated[float, Strict(), AllowInfNan(False)]  # an integer is accepted, and becomes the same float
Positive = Annotated[Real, Gt(0)]
NotNegative = Annotated[Real, Ge(0)]
Share = Annotated[Real, Ge(0), Le(1)]
FractionBelow1 = Annotated[Real, Ge(0), Lt(1)]

_T = TypeVar("_T")
ListOf = Annotated[list[_T], _FirstError()]
_CONFIG = ConfigDict(extra="forbid")
_CHECKED_TYPES = (bool, int, float, str)


class OptionError(ValueError):
    """An option that breaks its rule: `path` is its place, such as "optimizer.lr"."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(message)
        self.path = path


@dataclass_transform(kw_only_default=True, frozen_default=True)
def options(made: type[_T]) -> type[_T]:
    """Make a class a frozen dataclass of keywords whose constructor checks them: ValueError "CLASS: FIELD must be ..."."""
    for name, kind in get_type_hints(made, include_extras=True).items():
        if kind in _CHECKED_TYPES:
            raise TypeError(
                f"{made.__name__}.{name}: {kind.__name__} would accept other types; use a type of uwaga._base.options"
            )
    checked = pydantic_dataclasses.dataclass(frozen=True, kw_only=True, config=_CONFIG)(made)
    init: Callable[..., None] = checked.__init__

    def __init__(self: object, *arguments: object, **values: object) -> None:
        try:
            init(self, *arguments, **values)
        except ValidationError as error:
            found = _explain(error, checked, values, "")
            raise (
                OptionError(found.path, f"{made.__name__}: {found}") if isinstance(found, OptionError) else found
            ) from None

    # pydantic calls an __init__ that it does not know for each section inside, and would lose where the section stands.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]
    checked.__init__ = __init__  # type: ignore[method-assign]
    return checked  # type: ignore[return-value]


def read(kind: Any, table: object, *, path: str = "", noun: str = "object") -> Any:
    """Read options from a table of TOML or JSON: sections are tables, tuples are lists.

    Args:
        kind: a class made by `options`, or any annotation.
        table: what a parser returned.
        path: of the table itself, in messages.
        noun: what messages call a table: "object" in JSON, "table" in TOML.

    Raises:
        OptionError: the first unknown key, else the first missing one, else the first value that breaks the rule of its field.
        What a `__post_init__` raises if it is a ValueError.
    """
    try:
        return _adapter(kind).validate_python(table)
    except ValidationError as error:
        raise _explain(error, kind, table, path, noun) from None


@cache
def field_rules(kind: Any) -> dict[str, Any]:
    """Return the annotations of an options class by the names of its fields."""
    return get_type_hints(kind, include_extras=True)


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def keys(kind: Any, path: str = "") -> Iterator[str]:
    """Return the paths of all fields in an annotation, those of sections inside included; NAME stands for a free name."""
    for part in _members(kind):
        plain, here = part, path
        if get_origin(plain) is dict:
            plain, here = get_args(plain)[1], _join(path, "NAME")
        if isinstance(plain, type) and is_dataclass(plain):
            for name, rules in field_rules(plain).items():
                yield _join(here, name)
                yield from keys(rules, _join(here, name))


def unknown_key(path: str, valid_keys: Iterable[str]) -> str:
    """Return the message about a key that does not exist, with the known one that looks most like it."""
    path = path if len(path) <= 100 else path[:100] + "..."  # likeness takes the square of the length in time
    last_part = path.rpartition(".")[2]
    initials = "".join(word[:1] for word in last_part.split("_"))

    def likeness(candidate: str) -> tuple[float, float, str]:
        last = candidate.rpartition(".")[2]
        whole = SequenceMatcher(None, path, candidate).ratio()
        ratio = 1.0 if last == initials else SequenceMatcher(None, last_part, last).ratio()
        return max(whole, ratio), whole, candidate

    return f"there is no key {path}; the nearest is {max(valid_keys, key=likeness)}"


def _explain(error: ValidationError, kind: Any, rejected: Any, path: str, noun: str = "object") -> ValueError:
    """Return the error that replaces pydantic's: the one that a `__post_init__` raised, or an OptionError about the field."""
    found = error.errors(include_url=False)
    order = ("unexpected_keyword_argument", "missing")
    first = min(found, key=lambda detail: order.index(detail["type"]) if detail["type"] in order else len(order))
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, ValueError):
        return cause
    at, field, value, is_missing = path, kind, rejected, first["type"] == "missing"
    for left, part in reversed(list(enumerate(reversed(first["loc"])))):
        if (inside := _inside(field, part)) is None:
            if first["type"] in ("unexpected_keyword_argument", "invalid_key"):
                at = _join(at, printable(str(part)))
                return OptionError(at, unknown_key(at, keys(kind, path)))
            is_missing = False
            break
        field, at = inside, f"{at}[{part}]" if isinstance(part, int) else _join(at, printable(str(part)))
        if left or not is_missing:
            value = _part(value, part)
    rule = f"must be {words(field, noun)}"
    return OptionError(at, f"{at} is missing: it {rule}" if is_missing else f"{at} {rule}, not {short(value)}")


def words(kind: Any, noun: str = "object") -> str:
    """Return the rule of an annotation, in words that follow "must be".

    >>> words(Size), words(Literal["a", "b"]), words(tuple[FractionBelow1, ...] | None)
    ('a whole number of at least 1', "one of 'a', 'b'", 'a list, each a number from 0 to less than 1')
    """
    plain, rules = _split(kind)
    of_table = f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"
    for rule in rules:
        if isinstance(rule, Words):
            return rule.text
    origin, inside = get_origin(plain), get_args(plain)
    if origin in (Union, UnionType):
        return " or ".join(words(member, noun) for member in inside if member is not NoneType)  # a key can be left out
    if origin is Literal:
        return f"one of {', '.join(map(repr, inside))}" if len(inside) > 1 else repr(inside[0])
    if origin in (tuple, list):
        if origin is list or inside[-1] is Ellipsis:
            not_empty = " that is not empty" * any(isinstance(rule, MinLen) for rule in rules)
            return f"a list{not_empty}, each {words(inside[0], noun)}"
        return f"a list of {len(inside)}: {', '.join(words(member, noun) for member in inside)}"
    if origin is dict:
        return f"{of_table} of {noun}s" if is_dataclass(inside[1]) else of_table
    named = {bool: "true or false", int: "a whole number", float: "a number", str: "a string"}
    if plain is str and any(isinstance(rule, MinLen) for rule in rules):
        return "a string that is not empty"
    return named.get(plain, of_table) + _limits(rules)


def _limits(rules: Iterable[object]) -> str:
    """
    >>> _limits([Gt(0), Le(1)]), _limits([Ge(1), Lt(2**62)]), _limits([Ge(1), Le(4096)])
    (' above 0 and up to 1', ' of at least 1', ' from 1 to 4,096')
    """
    low = high = ""
    for rule in rules:
        match rule:
            case Gt(x):
                low = f" above {_written(x)}"
            case Ge(x):
                low = f" from {_written(x)}"
            case Le(x):
                high = f" and up to {_written(x)}" if " above" in low else f" to {_written(x)}"
            case Lt(x) if x != _LARGEST:
                high = f" to less than {_written(x)}"
    return low + high if high else low.replace(" from ", " of at least ")


def _written(x: Any) -> str:
    return f"{int(x):,}" if x == int(x) else str(x)


def _split(kind: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return a type without its annotations, and the annotations."""
    if get_origin(kind) is Annotated:
        plain, *rules = get_args(kind)
        return plain, tuple(rules)
    return kind, ()


def _members(kind: Any) -> tuple[Any, ...]:
    plain, _ = _split(kind)
    return get_args(plain) if get_origin(plain) in (Union, UnionType) else (kind,)


def _part(value: Any, part: str | int) -> Any:
    if isinstance(value, dict):
        return value[part]
    return value[int(part)] if isinstance(value, list | tuple) else getattr(value, str(part), value)


def _inside(kind: Any, part: str | int) -> Any:
    """Return the annotation of a part of a value, as pydantic names parts; None if it is the branch of a union, or the
    rule of the whole has words of its own."""
    members = [member for member in _members(kind) if member is not NoneType]
    plain, rules = _split(members[0])
    if len(members) > 1 or any(isinstance(rule, Words) for rule in rules):
        return None
    origin, inside = get_origin(plain), get_args(plain)
    if isinstance(plain, type) and is_dataclass(plain):
        return field_rules(plain).get(str(part))
    if origin is dict:
        return inside[1] if part != "[key]" else None
    if origin in (tuple, list) and isinstance(part, int):
        return inside[part] if origin is tuple and inside[-1] is not Ellipsis else inside[0]
    return None


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
