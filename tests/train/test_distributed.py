"""Training by several processes over gloo: data parallel, or sharing each sequence (parallel.context). Losses and weights are those of
one process, whichever went on from the checkpoint of which. What one process that ends, hangs or fails does to the others.
"""

import re
import signal
from pathlib import Path

import pytest
from trainings import Trainings, assert_same, lines

pytestmark = pytest.mark.slow

CONTEXT = "parallel.context=2"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The parent folder of all run folders."""
    trainings = Trainings(tmp_path_factory.mktemp("context"))
    add_fault(trainings, IN_GATE)
    trainings.add("from2to1", "gpt2", 0, copy=("lost", "step-000004"))
    trainings.run()
    return trainings.folder


def test_the_others_end_and_name_the_rank_that_is_lost(trained: Path) -> None:
    """What they went on from, by two processes that share rows with dropout, ends as the training of one does."""
    check_fault(trained, IN_GATE)


def test_one_process_goes_on_from_what_two_wrote(trained: Path) -> None:
    assert_same(trained / "whole", trained / "from2to1")


def test_samples_and_attention_statistics_are_written_once(trained: Path) -> None:
    for kind in ("sample", "attention"):
        assert len(lines(trained / "resumed", kind)) == len(lines(trained / "whole", kind)) > 0


NO_DROPOUT = ("model.dropout=0.0",)
# Beside the gate: a family, processes, their options, and what one process has as well.
WAYS = {
    "torchrun alone": ("transformer", 1, (), ()),
    "2": ("transformer", 2, (), ()),
    "4": ("transformer", 4, (), ()),
    "shared": ("transformer", 2, (CONTEXT,), ()),
    "gpt2 shared by 3": ("gpt2", 3, ("parallel.context=3",), ()),
    "windows shared": ("gpt2", 2, (CONTEXT,), ("data.windows=true",)),
    "bert shared": ("bert", 2, (CONTEXT,), ()),
    "t5 shared": ("t5", 2, (CONTEXT,), NO_DROPOUT),
    "pairs shared by 3": ("pairs", 3, ("parallel.context=3",), NO_DROPOUT),
    "2 by 2": ("transformer", 4, (CONTEXT,), ()),
}


@pytest.mark.stress
@pytest.mark.parametrize("name", WAYS)
def test_every_way_agrees_with_one_process_and_goes_on_from_it(name: str, tmp_path: Path) -> None:
    family, size, options, both = WAYS[name]
    trainings = Trainings(tmp_path)
    trainings.add("one", family, 0, *both)
    trainings.add("several", family, size, *options, *both)
    trainings.add("from one", family, size, *options, *both, copy=("one", "step-000004"))
    trainings.add("from several", family, 0, *both, copy=("several", "step-000004"))
    trainings.run()
    for other in ("several", "from one", "from several"):
        assert_same(tmp_path / "one", tmp_path / other)
        assert len(lines(tmp_path / other, "sample")) == len(lines(tmp_path / "one", "sample"))
    if size == 1:
        one, other = ((tmp_path / run / "step-000008" / "model.safetensors").read_bytes() for run in ("one", "several"))
        assert one == other


# What a process is at when it is killed or stopped, or has an error: which rank of how many, the signal, or 0, a function, and the number
# of its call, after the checkpoint of step 4.
FAULTS = {
    "killed in forward": (1, 2, signal.SIGKILL, "uwaga.sequence_parallel.ring.forward", 40),
    "stopped in forward": (1, 2, signal.SIGSTOP, "uwaga.sequence_parallel.ring.forward", 40),
    "killed in backward": (0, 2, signal.SIGKILL, "uwaga.sequence_parallel.ring.backward", 30),
    "killed in a step": (2, 3, signal.SIGKILL, "uwaga.train.step.Optimizer.step", 6),
    "stopped in a step": (0, 3, signal.SIGSTOP, "uwaga.train.step.Optimizer.step", 6),
    "fails in forward": (1, 2, 0, "uwaga.train.step.Objective.forward", 20),
    "fails in a step": (2, 3, 0, "uwaga.train.step.Optimizer.step", 6),
    "fails while the others wait": (0, 3, 0, "uwaga.train.logger.MetricsLogger.log_attention", 2),
    # While the first one measures attention after step 8.
    "stopped while it waits": (2, 4, signal.SIGSTOP, "uwaga.train.parallel.World.on_first", 7),
}


IN_GATE = "killed in forward"


def add_fault(trainings: Trainings, name: str) -> None:
    """A training, the same with the fault, and one that resumes it."""
    rank, size, *fault = FAULTS[name]
    context = f"parallel.context={2 if size == 2 else 1}"
    trainings.add("whole", "gpt2", 0)
    # That one was killed, or has an error, the others learn at once. Else a wait has to run out, a third of the timeout, and no process that
    # lives may be slower than that.
    timeout = f"parallel.timeout={45 if signal.SIGSTOP in fault else 3600}"
    trainings.add("lost", "gpt2", size, context, timeout, fault=(rank, *fault))
    trainings.add("resumed", "gpt2", size, context, copy=("lost", "step-000004"))


@pytest.mark.stress
@pytest.mark.parametrize("name", [name for name in FAULTS if name != IN_GATE])
def test_the_others_end_and_name_the_rank_whatever_its_fault(name: str, tmp_path: Path) -> None:
    trainings = Trainings(tmp_path)
    add_fault(trainings, name)
    trainings.run()
    check_fault(tmp_path, name)


def check_fault(folder: Path, name: str) -> None:
    rank, size, *fault = FAULTS[name]
    what = (
        r"ended or did not answer within the group's timeout \(.*\): .*"
        if fault[0]
        else r"failed \(.*\): IndexError: index 80 is out of range"
    )
    expected = (
        rf"uwaga train: uwaga.sequence_parallel: rank {rank} {what}; "
        rf"the last good checkpoint is {re.escape(str(folder / 'lost' / 'step-000004'))}\n"
    )
    for other in set(range(size)) - {rank}:
        assert re.search(expected, (folder / f"lost.log.{other}").read_text(), re.DOTALL)
    assert sorted(x.name for x in (folder / "lost").glob("*step*")) == ["step-000004"]
    assert_same(folder / "whole", folder / "resumed")
