"""Options: any JSON gives a value or an error that names the field, and an error's words come from the annotation."""

import dataclasses
import math
import re
from dataclasses import field
from typing import Annotated, Any, Literal

import pytest
from annotated_types import Ge, Gt, Le
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import StringConstraints, TypeAdapter, ValidationError

from uwaga._base.options import (
    Count,
    FractionBelow1,
    ListOf,
    Name,
    OptionError,
    Positive,
    Real,
    Size,
    Switch,
    Text,
    Words,
    keys,
    options,
    read,
    words,
)  # fmt: skip
from uwaga.models import Config as ModelConfig
from uwaga.train.checkpoint import TrainingState
from uwaga.train.config import Config
from uwaga.viewer.service import TABLE

OPTIONS: list[Any] = [
    Config, TrainingState, dict[str, TrainingState], ModelConfig,
    *(entry.arguments for entry in TABLE.values()),
]  # fmt: skip


@options
class Inner:
    size: Size = 3
    rate: Positive = 1.0
    names: tuple[Name, ...] = ()
    pair: tuple[FractionBelow1, FractionBelow1] = (0.0, 0.0)
    kind: Literal["a", "b"] = "a"
    limit: Size | None = None
    either: Size | tuple[Size, ...] | None = None
    digits: Annotated[Text, StringConstraints(pattern="^[0-9]+$"), Words("digits")] = "1"

    def __post_init__(self) -> None:
        if self.size == 7:
            raise ValueError("size must not be seven")


@options
class Outer:
    inner: Inner
    tables: dict[str, Inner] = field(default_factory=dict)


def test_a_table_becomes_options() -> None:
    table = {"inner": {"rate": 2, "names": ["x"], "either": [1, 2]}, "tables": {"any name": {"size": 1}}}
    made = read(Outer, table)
    assert made == Outer(inner=Inner(rate=2.0, names=("x",), either=(1, 2)), tables={"any name": Inner(size=1)})
    assert isinstance(made.inner.rate, float)
    assert dataclasses.replace(made.inner, size=5).size == 5


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({}, "inner is missing: it must be an object"),
        ({"inner": 1}, "inner must be an object, not 1"),
        ({"inner": {}, "tables": 1}, "tables must be an object of objects, not 1"),
        ({"inner": {}, "tables": {"x": {"sise": 1}}}, "there is no key tables.x.sise; the nearest is tables.NAME.size"),
        ({"inner": {"sise": 1, "rate": 0}}, "there is no key inner.sise; the nearest is inner.size"),
        ({"inner": {5: 1}}, "there is no key inner.5; the nearest is inner"),
        ({"inner": {"size": 0}}, "inner.size must be a whole number of at least 1, not 0"),
        ({"inner": {"size": True}}, "inner.size must be a whole number of at least 1, not True"),
        ({"inner": {"size": 1.0}}, "inner.size must be a whole number of at least 1, not 1.0"),
        ({"inner": {"size": "1"}}, "inner.size must be a whole number of at least 1, not '1'"),
        ({"inner": {"size": 2**62}}, f"inner.size must be a whole number of at least 1, not {2**62}"),
        ({"inner": {"size": 10**5000}}, "inner.size must be a whole number of at least 1, not an integer of more than 20 digits"),
        ({"inner": {"rate": math.nan}}, "inner.rate must be a number above 0, not nan"),
        ({"inner": {"rate": math.inf}}, "inner.rate must be a number above 0, not inf"),
        ({"inner": {"rate": 10**400}}, "inner.rate must be a number above 0, not an integer of more than 20 digits"),
        ({"inner": {"names": ["x", 3]}}, "inner.names[1] must be a string that is not empty, not 3"),
        ({"inner": {"names": "x"}}, "inner.names must be a list, each a string that is not empty, not 'x'"),
        ({"inner": {"kind": []}}, "inner.kind must be one of 'a', 'b', not []"),
        ({"inner": {"limit": 0}}, "inner.limit must be a whole number of at least 1, not 0"),
        ({"inner": {"either": [1, 0]}},
         "inner.either must be a whole number of at least 1 or a list, each a whole number of at least 1, not [1, 0]"),
        ({"inner": {"digits": "x"}}, "inner.digits must be digits, not 'x'"),
        ({"inner": {"size": 7}}, "size must not be seven"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_named_with_its_rule(table: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        read(Outer, table)


def test_an_unknown_key_of_a_table_with_free_names_is_named() -> None:
    with pytest.raises(OptionError, match=r"^there is no key x\.sise; the nearest is NAME\.size$"):
        read(dict[str, Inner], {"x": {"sise": 1}})


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_number_alone_is_finite(value: float) -> None:
    with pytest.raises(OptionError, match=f"^x must be a number, not {value}$"):
        read(Real, value, path="x")


def test_a_caller_in_python_is_checked_alike() -> None:
    with pytest.raises(ValueError, match=r"^Inner: size must be a whole number of at least 1, not 0$"):
        Inner(size=0)
    with pytest.raises(ValueError, match=r"^Inner: there is no key sise; the nearest is size$"):
        Inner(sise=0)  # type: ignore[call-arg]
    with pytest.raises(ValueError, match=r"^size must not be seven$"):
        Inner(size=7)
    with pytest.raises(dataclasses.FrozenInstanceError):
        Inner().size = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("kind", "rule"),
    [
        (Switch, "true or false"),
        (Count, "a whole number of at least 0"),
        (Real, "a number"),
        (Annotated[Real, Gt(0), Le(1)], "a number above 0 and up to 1"),
        (Annotated[Real, Ge(1), Le(1_000_000)], "a number from 1 to 1,000,000"),
        (FractionBelow1, "a number from 0 to less than 1"),
        (Literal["x"], "'x'"),
        (dict[str, Any], "an object"),
        (tuple[Size, Size], "a list of 2: a whole number of at least 1, a whole number of at least 1"),
    ],
)
def test_words_come_from_the_annotation(kind: Any, rule: str) -> None:
    assert words(kind) == rule


def test_a_million_wrong_entries_of_a_list_are_one_error() -> None:
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(ListOf[Text]).validate_python([0] * 1_000_000)
    assert caught.value.error_count() == 1
    with pytest.raises(OptionError, match=r"^x\[0\] must be a string, not 0$"):
        read(ListOf[Text], [0] * 1_000_000, path="x")


def test_a_field_must_not_accept_other_types() -> None:
    with pytest.raises(TypeError, match=r"^Loose.size: int would accept other types"):

        @options
        class Loose:
            size: int


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(st.text(max_size=5), inside, max_size=3),
    max_leaves=5,
)


@pytest.mark.slow
@pytest.mark.parametrize("kind", OPTIONS, ids=lambda kind: getattr(kind, "__name__", None))
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # both look at the clock
@given(data=st.data())
def test_any_json_gives_a_value_or_an_error_that_names_the_field(kind: Any, data: st.DataObject) -> None:
    known = list(keys(kind))
    table: dict[str, Any] = {}
    for path in data.draw(st.lists(st.sampled_from(known), max_size=8)):
        *around, last = path.split(".")
        at = table
        for name in around:
            at = at.setdefault(name, {}) if isinstance(at.get(name, {}), dict) else {}
        at[last] = data.draw(_JSON)
    error = None
    try:
        read(kind, table)
    except ValueError as raised:  # of a field, or of a rule between fields
        error = raised
    if isinstance(error, OptionError):
        assert re.split(r"[.\[]", error.path)[0] in table.keys() | {path.split(".")[0] for path in known}
        assert str(error).startswith((error.path, f"there is no key {error.path}"))
    assert not type(error).__module__.startswith("pydantic")
