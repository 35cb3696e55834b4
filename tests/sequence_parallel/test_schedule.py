"""How work is divided over processes, and which blocks travel where."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from uwaga import Causal, Window
from uwaga.ops.attention.arguments import AttentionOptions, make_call
from uwaga.ops.mask_program import Interval
from uwaga.sequence_parallel import ring
from uwaga.sequence_parallel.schedule import Plan, Steps, make_plan

STEPS = Steps(192, 2048)


def causal(rows: Interval) -> Interval:
    return 0, rows[1]


def work_of_ranks(plan: Plan, size: int) -> list[int]:
    return [sum(sum(plan.work[n]) for n in plan.pieces_of(rank)) for rank in range(size)]


def test_one_long_document_is_divided_among_all() -> None:
    """Rows of 30,000 tokens that see one another, and 10,000 that see 100 each."""

    def sees(rows: Interval) -> Interval:
        return (0, 30_000) if rows[0] < 30_000 else (rows[0], min(rows[1] + 100, 40_000))

    work = work_of_ranks(make_plan(sees, 40_000, 40_000, STEPS, 4), 4)
    assert max(work) < 1.4 * sum(work) / 4


@pytest.mark.parametrize("size", [2, 3, 4, 8])
def test_causal_work_is_even_block_by_block(size: int) -> None:
    """A process is at most two blocks ahead of the next one, so it waits for the one that has most work with these."""
    plan = make_plan(causal, 64 * 2048, 64 * 2048, STEPS, size)
    by_block = [
        [sum(plan.work[n][b] for n in plan.pieces_of(rank)) for rank in range(size)] for b in range(len(plan.blocks))
    ]
    assert sum(map(max, by_block)) < 1.1 * sum(map(sum, by_block)) / size


def test_a_narrow_second_mask_moves_few_blocks() -> None:
    tokens = 100_000
    call = make_call(*[torch.empty(1, 1, tokens, 1)] * 3, AttentionOptions(Causal()), wants_lse=True)
    division: Any = SimpleNamespace(sizes=(tokens, tokens), group=SimpleNamespace(size=2))
    near = make_call(*[call.query] * 3, AttentionOptions(Window(99, 0)), wants_lse=True)
    second = near.options.mask_program, near.mask_tensors
    whole, narrow = (ring.plan_of_queries(division, call, *masks) for masks in ((), (second,)))
    most = max(len(narrow.blocks_of(n)) for n in range(len(narrow.pieces)))
    assert sum(map(sum, narrow.work)) < 0.05 * sum(map(sum, whole.work))
    assert most <= 2 + len(narrow.blocks) // len(narrow.pieces)
