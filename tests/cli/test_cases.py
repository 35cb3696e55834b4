from functools import partial

import pytest
import torch

from uwaga.cli import cases

TINY = [
    partial(cases.forward, 1, 2, 9, 8),
    partial(cases.forward, 2, 3, 9, 8, causal=True),
    partial(cases.backward, 1, 2, 9, 8),
    partial(cases.backward, 1, 2, 9, 8, causal=True),
    partial(cases.ragged, [3, 1, 7], 2, 8),
    partial(cases.decode, 2, 50, 8),
    partial(cases.attention_engines, 2, 9, 8),
    partial(cases.linear_engines, 9, 8, 12),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("make", TINY, ids=lambda make: make.func.__name__)
def test_both_sides_compute_the_same(make: partial[cases.Case], dtype: torch.dtype) -> None:
    make(dtype).check()


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
