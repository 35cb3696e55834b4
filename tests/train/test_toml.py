"""TOML that is written reads back equal."""

import tomllib

from hypothesis import given
from hypothesis import strategies as st

from uwaga.train import toml

_TEXT = st.text(st.characters(exclude_categories=["Cs"]))
_VALUE = st.one_of(st.booleans(), st.integers(-(2**62), 2**62), st.floats(allow_nan=False, allow_infinity=False), _TEXT)
_TABLE = st.recursive(
    st.dictionaries(_TEXT, _VALUE | st.lists(_VALUE)), lambda inside: st.dictionaries(_TEXT, _VALUE | inside)
)


@given(_TABLE)
def test_any_table_reads_back_equal(table: dict) -> None:
    assert tomllib.loads(toml.written(table)) == table


def test_what_has_no_value_is_left_out() -> None:
    assert toml.written({"run": {"out": "a", "threads": None}}) == '[run]\nout = "a"\n'
