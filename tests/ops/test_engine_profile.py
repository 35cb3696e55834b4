"""The engine profile: what is written is read back, what does not apply is refused, and the choice obeys what applies."""

import dataclasses
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from engines import needs_native
from processors import GENOA, forget

from uwaga import explain
from uwaga._base import processor
from uwaga.ops import engine_profile, engine_table
from uwaga.ops.attention import fast_path
from uwaga.ops.engine_profile import ProfileError, read, write

MEASURED = {
    "attention": {
        "float32": {"cpu": {"128 tokens": 0.5, "512 tokens": 0.8}, "torch": {"128 tokens": 1.0, "512 tokens": 1.0}},
        "bfloat16": {"cpu": {"128 tokens": 1.5}, "torch": {"128 tokens": 1.0}},
    },
    "linear": {"float32": {"onednn": {"384 to 384": 1.25}, "torch": {"384 to 384": 1.0}}},
}


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on: Callable[[processor.Processor], None]) -> Iterator[Path]:
    """Where the profile of this process, on a Zen 4, is; nothing is there yet."""
    on(dataclasses.replace(GENOA, name="Zen 4"))

    def clear() -> None:
        engine_profile.active.cache_clear()
        forget()

    monkeypatch.setenv("UWAGA_PROFILE", "1")
    monkeypatch.setenv("UWAGA_DATA", str(tmp_path / "data"))
    clear()
    yield tmp_path / "data" / "engines.json"
    clear()


def _changed(path: Path, *keys: str, to: Any) -> None:
    """Write a profile, with one value changed."""
    write(path, MEASURED, threads=2)
    table = json.loads(path.read_text())
    inner = table
    for key in keys[:-1]:
        inner = inner[key]
    inner[keys[-1]] = to
    path.write_text(json.dumps(table))


def test_what_was_written_is_read_back(path: Path) -> None:
    orders = write(path, MEASURED, threads=2)
    assert orders == {
        "attention": {"float32": ("torch", "cpu"), "bfloat16": ("cpu", "torch")},
        "linear": {"float32": ("onednn", "torch")},
    }
    profile = read(path)
    assert profile is not None
    assert (profile.path, profile.orders) == (path, orders)
    table = json.loads(path.read_text())
    assert table["date"] == profile.date
    assert table["threads"] == 2
    assert table["attention"]["float32"]["ratios"] == MEASURED["attention"]["float32"]


@pytest.mark.parametrize(("native_ratio", "first"), [(1.2, "cpu"), (0.91, "cpu"), (0.89, "torch")])
def test_the_native_kernels_come_first_where_they_are_within_a_tenth_of_the_fastest(
    native_ratio: float, first: str
) -> None:
    ratios = {"torch": {"384": 1.0}, "onednn": {"384": 0.95}, "cpu": {"384": native_ratio}}
    assert engine_profile.order(ratios)[0] == first


def test_writing_replaces_a_profile_and_leaves_no_other_file(path: Path) -> None:
    path.parent.mkdir()
    path.write_text("garbled")
    write(path, MEASURED, threads=2)
    assert read(path) is not None
    assert os.listdir(path.parent) == [path.name]


def test_the_choice_reads_it_once_and_names_it(path: Path) -> None:
    assert engine_profile.active().why == "not measured on this machine; `uwaga bench --save` measures"
    write(path, MEASURED, threads=2)
    engine_table._preference.cache_clear()
    profile = engine_profile.active().profile
    assert profile is not None
    why = f"measured on this machine on {profile.date} ({path})"
    assert engine_table.dense_attention(torch.float32) == (("torch", "cpu"), why, True)
    # Engines and dtypes that the file does not have come as in the table.
    assert engine_table.linear(torch.float32) == (("onednn", "torch", "cpu"), why, True)
    assert engine_table.linear(torch.bfloat16).why != why
    path.unlink()
    assert engine_table.dense_attention(torch.float32).why == why


@needs_native
def test_explain_and_attention_obey_it(path: Path) -> None:
    write(path, MEASURED, threads=2)
    x = torch.randn(1, 2, 9, 8)
    result = explain(x, x, x)
    assert result.engine == "torch"
    keeps = 'a row may have other bits in another batch: impl="cpu" keeps them, and UWAGA_PROFILE=0 in all calls'
    assert result.reason.endswith(f" ({path}); {keeps}")
    assert fast_path._dense_layout(
        x.dtype, *(x.shape,) * 3, *(x.stride(),) * 3, None, (None, "softmax", None, None)
    ) == (pytest.approx(8**-0.5),)


def test_a_variable_ignores_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.parent.mkdir()
    path.write_text("garbled")
    monkeypatch.setenv("UWAGA_PROFILE", "0")
    assert engine_profile.active() == (None, "UWAGA_PROFILE is 0", False)
    assert engine_table.dense_attention_engines(torch.float32) == ("cpu", "torch")


def test_one_that_does_not_apply_warns_once_and_the_table_serves(path: Path) -> None:
    path.parent.mkdir()
    path.write_text("[]")
    why = f"{path}: the file must be an object, not []"
    with pytest.warns(UserWarning, match="the file must be an object") as caught:
        orders = engine_table.dense_attention_engines(torch.float32), engine_table.linear_engines(torch.float32)
    assert (orders[0], orders[1][0]) == (("cpu", "torch"), "cpu")
    (warning,) = caught
    assert str(warning.message) == (
        f"{why}. It is not used; `uwaga bench --save` replaces it, UWAGA_PROFILE=0 ignores it"
    )
    assert engine_profile.active() == (None, why, True)


@pytest.mark.parametrize(
    ("keys", "value", "why"),
    [
        (("processor", "model"), 1, 'was measured with processor {"vendor": "AMD", "family": 25, "model": 1, "name": "Zen 4"}, '
            'and this is {"vendor": "AMD", "family": 25, "model": 17, "name": "Zen 4"}'),
        (("level",), "neon", 'was measured with level "neon", and this is '),
        (("versions", "torch"), "1.0", 'was measured with versions {"uwaga": '),
    ],
)  # fmt: skip
def test_a_profile_of_another_machine_is_refused(path: Path, keys: tuple[str, ...], value: object, why: str) -> None:
    _changed(path, *keys, to=value)
    with pytest.raises(ProfileError) as error:
        read(path)
    assert str(error.value).startswith(f"{path}: {why}")


def test_names_from_the_file_cannot_control_a_terminal(path: Path) -> None:
    _changed(path, "date", to="\u001b[2J today")
    profile = read(path)
    assert profile is not None
    assert profile.date == "'\\x1b[2J today'"
