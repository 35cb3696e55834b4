"""Former names are refused with the present one."""

import inspect
from dataclasses import dataclass, replace

import pytest

from uwaga._base import renamed
from uwaga._base.lazy import names


@renamed.parameters(width="d_model")
@dataclass(frozen=True, kw_only=True)
class _Config:
    d_model: int = 4


@renamed.parameters(long="overflow")
def _encode(text: str, *, overflow: str = "error") -> str:
    return text + overflow


def test_a_former_parameter_is_refused_with_its_new_name():
    with pytest.raises(TypeError) as error:
        _encode("a", long="mean")
    assert str(error.value) == "_encode: long is now called overflow"
    with pytest.raises(TypeError) as error:
        _Config(width=8)
    assert str(error.value) == "_Config: width is now called d_model"


def test_a_former_attribute_is_refused_with_its_new_name():
    with pytest.raises(AttributeError) as error:
        _ = _Config().width
    assert str(error.value) == "'_Config' object has no attribute 'width'; it is now called d_model"
    with pytest.raises(AttributeError) as error:
        _ = _Config().depth
    assert str(error.value) == "'_Config' object has no attribute 'depth'"


def test_what_is_decorated_stays_what_it_was():
    assert _encode("a", overflow="b") == "ab"
    assert str(inspect.signature(_encode)) == "(text: str, *, overflow: str = 'error') -> str"
    assert replace(_Config(d_model=8), d_model=16) == _Config(d_model=16)
    assert list(inspect.signature(_Config).parameters) == ["d_model"]


def test_a_former_name_of_a_module_is_refused_with_its_new_name():
    get, listed = names("uwaga.example", {"new": "uwaga._base.renamed"}, renamed={"old": "new"})
    with pytest.raises(AttributeError) as error:
        get("old")
    assert str(error.value) == "module 'uwaga.example' has no attribute 'old'; it is now called new"
    assert listed() == ["new"]
