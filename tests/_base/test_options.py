"""Options: any JSON gives a value or an error that names the field, and an error's words come from the annotation."""

import dataclasses
import re
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError
from small_options import Inner, Outer

from uwaga._base.options import ListOf, OptionError, Text, keys, options, read
from uwaga.models import Config as ModelConfig
from uwaga.train.checkpoint import TrainingState
from uwaga.train.config import Config
from uwaga.viewer.service import TABLE

OPTIONS: list[Any] = [
    Config, TrainingState, dict[str, TrainingState], ModelConfig,
    *(entry.arguments for entry in TABLE.values()),
]  # fmt: skip


def test_a_table_becomes_options() -> None:
    table = {"inner": {"rate": 2, "names": ["x"], "either": [1, 2]}, "tables": {"any name": {"size": 1}}}
    made = read(Outer, table)
    assert made == Outer(inner=Inner(rate=2.0, names=("x",), either=(1, 2)), tables={"any name": Inner(size=1)})
    assert isinstance(made.inner.rate, float)
    assert dataclasses.replace(made.inner, size=5).size == 5


def test_a_million_wrong_entries_of_a_list_are_one_error() -> None:
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(ListOf[Text]).validate_python([0] * 1_000_000)
    assert caught.value.error_count() == 1


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
def test_any_json_gives_a_value_or_an_error_that_names_the_field(kind: Any) -> None:
    """Three examples for each key, up to forty."""
    paths = list(keys(kind))
    first = {path.split(".")[0] for path in paths}

    @settings(max_examples=min(3 * len(paths), 40), suppress_health_check=[HealthCheck.too_slow])
    @given(data=st.data())
    def check(data: st.DataObject) -> None:
        table: dict[str, Any] = {}
        for path in data.draw(st.lists(st.sampled_from(paths), max_size=8)):
            *parents, last = path.split(".")
            at = table
            for name in parents:
                at = at.setdefault(name, {}) if isinstance(at.get(name, {}), dict) else {}
            at[last] = data.draw(_JSON)
        error = None
        try:
            read(kind, table)
        except ValueError as raised:  # of a field, or of a rule between fields
            error = raised
        if isinstance(error, OptionError):
            assert re.split(r"[.\[]", error.path)[0] in table.keys() | first
            assert str(error).startswith((error.path, f"there is no key {error.path}"))
        assert not type(error).__module__.startswith("pydantic")

    check()
