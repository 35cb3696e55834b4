"""`uwaga bench`, and the cases that it shares with the programs in benchmarks/."""

import commands
import pytest
import torch

from uwaga.cli import cases
from uwaga.cli.timing import compare

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
        "8 x 16 to 32 bfloat16",
    ):
        assert what in said


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
