"""`uwaga bench`, and the cases that it shares with the programs in benchmarks/."""

from pathlib import Path

import commands
import pytest
import torch

from uwaga.cli import cases
from uwaga.cli.timing import compare
from uwaga.ops import engine_profile

WIDE = {"env": {"COLUMNS": "160"}}


def test_a_row_for_each_question() -> None:
    """Each case is checked before it is timed: both sides compute the same."""
    said = commands.run("bench", "--tiny", "--seconds", "0", **WIDE)
    for what in (
        "forward",
        "causal",
        "with backward",
        "ragged",
        "decode",
        "linear map",
        "onednn",
        "8 x 16 to 32 bfloat16",
    ):
        assert what in said


def test_which_engine_is_fastest_is_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UWAGA_DATA", str(tmp_path / "data"))
    said = commands.run("bench", "--save", "--tiny", "--seconds", "0", **WIDE)
    profile = engine_profile.read(tmp_path / "data" / "engines.json")
    assert profile is not None
    for operation, orders in profile.orders.items():
        for dtype, engines in orders.items():
            assert f"{operation}" in said
            assert f"{dtype}" in said
            assert " > ".join(engines) in said
    for operation in ("attention", "linear"):
        assert profile.orders[operation].keys() == set(engine_profile.DTYPES)
    assert f"Saved in {profile.path}. Choices follow it from the next process on" in said
    assert "UWAGA_PROFILE is 0, so that the file is ignored." in said
    monkeypatch.setenv("UWAGA_DATA", str(profile.path))
    said = commands.refusal("bench", "--save", "--tiny", "--seconds", "0")
    assert said == f"{profile.path / 'engines.json'}: cannot be written: File exists"


def test_sides_that_disagree_are_refused() -> None:
    right = cases.forward(1, 1, 4, 4, torch.float32)
    wrong = cases.Case({**right.sides, cases.OURS: lambda: torch.zeros(1, 1, 4, 4)}, right.flops, right.read)
    with pytest.raises(AssertionError, match=r"^uwaga differs from torch by "):
        wrong.check()


def test_work_is_counted_in_visible_pairs() -> None:
    assert cases.forward(1, 1, 3, 5, torch.float32).flops == 9 * 4 * 5
    assert cases.forward(1, 1, 3, 5, torch.float32, causal=True).flops == 6 * 4 * 5
    assert cases.backward(1, 1, 3, 5, torch.float32).flops == 9 * 14 * 5
    assert cases.ragged([3, 1], 2, 5, torch.float32).flops == 2 * (9 + 1) * 4 * 5


def test_sides_run_in_turn_and_the_order_turns_round() -> None:
    calls: list[str] = []
    measured = compare({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, seconds=0.0, least=2, most=2)
    assert measured.rounds == 2
    order = [name for at, name in enumerate(calls) if at == 0 or calls[at - 1] != name]
    assert order == ["a", "b", "a", "b", "a"]  # warm-up of each, then a b, then b a
