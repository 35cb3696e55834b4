"""The learning rate over the steps."""

from itertools import pairwise

import pytest

from uwaga.train.schedule import share
from uwaga.train.sections import ScheduleConfig


def rates(**given: object) -> list[float]:
    schedule = ScheduleConfig(**given)  # type: ignore[arg-type]
    return [share(step, schedule) for step in range(schedule.steps)]


@pytest.mark.parametrize("kind", ["cosine", "linear"])
def test_it_rises_to_the_full_rate_and_falls_to_the_final_one(kind: str) -> None:
    found = rates(kind=kind, steps=100, warmup_steps=10, final_lr_ratio=0.1)
    assert found[:10] == pytest.approx([n / 10 for n in range(1, 11)])
    assert found[9] == 1.0
    assert found[-1] == pytest.approx(0.1)
    assert all(a > b for a, b in pairwise(found[9:]))


def test_half_way_down_both_have_the_mean() -> None:
    for kind in ("cosine", "linear"):
        assert rates(kind=kind, steps=21, warmup_steps=1, final_lr_ratio=0.2)[10] == pytest.approx(0.6)


def test_a_constant_one_stays() -> None:
    assert rates(kind="constant", steps=4, warmup_steps=2) == [0.5, 1.0, 1.0, 1.0]


def test_without_a_warm_up_it_begins_full() -> None:
    assert rates(kind="linear", steps=3, final_lr_ratio=0.0) == [1.0, 0.5, 0.0]


@pytest.mark.parametrize("kind", ["cosine", "linear", "constant"])
def test_one_step_is_at_the_full_rate(kind: str) -> None:
    assert rates(kind=kind, steps=1) == [1.0]


def test_warm_up_to_the_end() -> None:
    assert rates(kind="cosine", steps=4, warmup_steps=4) == [0.25, 0.5, 0.75, 1.0]
