"""The groups of processes of a training run, in one process: torch's fake group, which sends nothing."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch.distributed as dist
from torch.distributed.distributed_c10d import _world
from torch.testing._internal.distributed.fake_pg import FakeStore

from uwaga.train.config import ParallelConfig
from uwaga.train.errors import ConfigError
from uwaga.train.parallel import process_group


@pytest.fixture(autouse=True)
def _group() -> Iterator[None]:
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=4)
    yield
    dist.destroy_process_group()


def _groups() -> set[Any]:
    return set(_world.pg_map)


def test_a_run_leaves_an_existing_process_group_as_it_was() -> None:
    before = _groups()
    for _ in range(3):
        with process_group("cpu", ParallelConfig(context=2)) as world:
            assert {world.context_group, world.step_group, world.roll_call_group} <= _groups() - before
        assert _groups() == before
    with pytest.raises(KeyError), process_group("cpu", ParallelConfig()):
        raise KeyError
    with pytest.raises(ConfigError), process_group("cpu", ParallelConfig(context=3)):
        pass
    assert _groups() == before
