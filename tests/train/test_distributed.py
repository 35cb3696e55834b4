"""Training by 1, 2 and 4 processes over gloo: equal losses within rounding, and resuming with another number of processes."""

from pathlib import Path

import pytest
from trainings import Trainings, assert_same, lines

pytestmark = pytest.mark.stress


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The parent folder of all run folders."""
    trainings = Trainings(tmp_path_factory.mktemp("processes"))
    trainings.add("one", "transformer", 0)
    for size in (1, 2, 4):
        trainings.add(f"ddp{size}", "transformer", size)
    trainings.add("fsdp2", "transformer", 2, "--fsdp")
    trainings.add("from1to4", "transformer", 4, copy=("one", "step-000004"))
    trainings.add("from1to2sharded", "transformer", 2, "--fsdp", copy=("one", "step-000004"))
    trainings.add("from4to1", "transformer", 0, copy=("ddp4", "step-000004"))
    trainings.add("from2shardedto1", "transformer", 0, copy=("fsdp2", "step-000004"))
    for family in ("gpt2", "bert", "t5", "pairs"):
        trainings.add(f"{family}-one", family, 0)
        trainings.add(f"{family}-fsdp2", family, 2, "--fsdp")
    trainings.run()
    return trainings.folder


@pytest.mark.parametrize("name", ["ddp1", "ddp2", "ddp4", "fsdp2"])
def test_losses_and_weights_agree_with_one_process(trained: Path, name: str) -> None:
    assert_same(trained / "one", trained / name)


@pytest.mark.parametrize("name", ["from1to4", "from1to2sharded", "from4to1", "from2shardedto1"])
def test_resuming_with_another_number_of_processes(trained: Path, name: str) -> None:
    assert_same(trained / "one", trained / name)


@pytest.mark.parametrize("family", ["gpt2", "bert", "t5", "pairs"])
def test_every_family_can_be_sharded(trained: Path, family: str) -> None:
    assert_same(trained / f"{family}-one", trained / f"{family}-fsdp2")


def test_torchrun_with_one_process_is_bit_identical_to_none(trained: Path) -> None:
    one, other = ((trained / name / "step-000008" / "model.safetensors").read_bytes() for name in ("one", "ddp1"))
    assert one == other


def test_samples_and_attention_statistics_are_written_once(trained: Path) -> None:
    for name in ("ddp2", "fsdp2"):
        assert len(lines(trained / name, "sample")) == len(lines(trained / "one", "sample")) > 0
        statistics = [line["heads"] for out in ("one", name) for line in lines(trained / out, "attention")]
        assert statistics[0].keys() == statistics[-1].keys()
