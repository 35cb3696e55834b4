"""The processes of a training run: one, or as many as torchrun started, with gloo between CPUs and NCCL between GPUs.

Each has a place on a grid, (data, context): the processes of one row share each sequence, and rows divide the micro-batches. Gradients are
sums over all processes, whichever way the work is divided.
"""

import datetime
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor

from uwaga.sequence_parallel.exchange import Group, Messages, ProcessGroupError, is_known, known_to_all
from uwaga.train.checkpoint import last_checkpoint_text
from uwaga.train.config import ParallelConfig
from uwaga.train.errors import ConfigError, DataError, LostProcessError, TrainingError

# While the first process prepares data or writes a large checkpoint the others wait; torchrun ends them if it fails.
_TIMEOUT = datetime.timedelta(hours=12)
_T = TypeVar("_T")
# Errors of the first process that all processes raise.
_SHARED_ERRORS = (ConfigError, DataError, TrainingError, OSError, ValueError)


@dataclass(frozen=True, kw_only=True)
class World:
    """The rank of this process, the number of processes (the world size), and the device of this process."""

    rank: int
    size: int
    device: torch.device
    context: int = 1  # the number of processes that share each sequence
    context_group: dist.ProcessGroup | None = None  # these processes; None: each process has whole sequences
    step_group: dist.ProcessGroup | None = None  # all processes, with the timeout of a step; None: the default group
    roll_call_group: dist.ProcessGroup | None = None  # all processes, for `lost_peer` alone

    @property
    def is_first(self) -> bool:
        """Return whether this is the process that writes."""
        return self.rank == 0

    @property
    def data_size(self) -> int:
        """Return the number of groups of processes over which micro-batches are divided."""
        return self.size // self.context

    @property
    def data_rank(self) -> int:
        """Return the number of this process's group among those."""
        return self.rank // self.context

    @property
    def context_rank(self) -> int:
        """Return the number of this process among those that share its sequences."""
        return self.rank % self.context

    @contextmanager
    def naming_errors(self, out: Path) -> Iterator[None]:
        """Raise an OSError, such as one of a full disk, and the loss of another process as a TrainingError that names the last good
        checkpoint of a run's folder. If the error is of this process alone, the other processes learn of it."""
        try:
            yield
        except TrainingError:
            raise
        except Exception as error:
            if isinstance(error, RuntimeError) and (lost := self.lost_peer(error)) is not None:
                raise LostProcessError(f"{lost}; {last_checkpoint_text(out)}") from error
            self.leave(error)
            if not isinstance(error, OSError):
                raise
            where = f"{error.filename}: " if error.filename else ""
            raise TrainingError(f"{where}{error.strerror or error}; {last_checkpoint_text(out)}") from error

    def lost_peer(self, error: RuntimeError) -> str | None:
        """Return which other process ended or did not answer within the timeout, if an error is about that; else None."""
        is_of_ring = isinstance(error, ProcessGroupError)
        if self.size == 1 or (not is_of_ring and "gloo" not in str(error)):
            return None
        if self.roll_call_group is None or (is_of_ring and self.size == 2):
            return str(error)
        # Others may wait for this one, which waited for the one that is lost. All call the roll once their own wait has ended: now.
        for group in (self.context_group, self.step_group):
            if group is not None:
                Group.of(group).close()
        try:
            Group.of(self.roll_call_group).headers("training", [])
        except ProcessGroupError as found:
            return str(found)
        return str(error)

    def leave(self, error: Exception) -> None:
        """Tell the other processes of an error, unless all have it: their waits end, and `lost_peer` finds it there."""
        if is_known(error):
            return
        for group in (self.roll_call_group, self.context_group, self.step_group):
            if group is not None:
                Group.of(group).leave(error)

    def all_reduce_sum(self, numbers: Tensor) -> Tensor:
        """Sum a tensor over all processes, in place; it has the same shape in each."""
        if self.size > 1:
            dist.all_reduce(numbers, group=self.step_group)
        return numbers

    def all_gather(self, mine: _T) -> list[_T]:
        """Return the objects of all processes, by rank."""
        if self.size == 1:
            return [mine]
        gathered: list[Any] = [None] * self.size
        dist.all_gather_object(gathered, mine, group=self.step_group)
        return gathered

    def on_first(self, act: Callable[[], _T]) -> _T:
        """Call a function in the first process and return its result in all of them; its errors are raised in all of them.

        The others wait for it as long as it takes; one of them that then does not answer is found within the timeout of a step.
        """
        if self.size == 1:
            return act()
        outcome: list[Any] = [None, None]  # result, error
        if self.is_first:
            try:
                outcome[0] = act()
            except _SHARED_ERRORS as error:
                outcome[1] = error
            except Exception as error:
                if self.step_group is not None:  # the others wait in the group of all
                    self.leave(error)
                    Group.of(None).leave(error)
                raise
        if self.step_group is not None:
            self._wait_for_first()
        dist.broadcast_object_list(outcome, src=0, group=self.step_group)
        if outcome[1] is not None:
            raise known_to_all(outcome[1])
        return cast(_T, outcome[0])

    def _wait_for_first(self) -> None:
        """Wait until the first process gets here, without a limit, and then until all do. Raises ProcessGroupError."""
        # Not a broadcast: in its tree one process waits for another that may hang, as would the first if it waited for its notes to arrive.
        every, note = Group.of(None), torch.zeros(1)
        with Messages(every, "training") as messages:
            if self.is_first:
                for rank in every.others:
                    messages.send(rank, note, 0)
            else:
                messages.wait([messages.receive(0, note, 0)])
            Group.of(self.step_group).headers("training", [])


@contextmanager
def process_group(device: str, parallel: ParallelConfig) -> Iterator[World]:
    """Give this process's `World`.

    It has a new process group under torchrun, an existing process group, or one process.

    Args:
        device: "cpu", "cuda", or "auto": CUDA if it is available.
        parallel: the section of the configuration.

    Raises:
        ConfigError: CUDA is asked for and not available; a parallel.context that does not divide the processes, or on GPUs.
    """
    is_cuda = device == "cuda" or (device == "auto" and torch.cuda.is_available())
    if is_cuda and not torch.cuda.is_available():
        raise ConfigError("run.device is 'cuda', and CUDA is not available")
    began = not dist.is_initialized() and dist.is_torchelastic_launched()
    if began:
        dist.init_process_group("cpu:gloo,cuda:nccl" if is_cuda else "gloo", timeout=_TIMEOUT)
    made: list[dist.ProcessGroup] = []

    def new_group(ranks: Iterable[int], timeout: datetime.timedelta) -> dist.ProcessGroup:
        made.append(dist.new_group(ranks, timeout=timeout))
        return made[-1]

    try:
        yield _world(is_cuda, parallel, new_group)
    finally:
        # With an existing process group, the groups that were made here alone.
        for group in [None] if began else made:
            dist.destroy_process_group(group)


def _world(
    is_cuda: bool, parallel: ParallelConfig, new_group: Callable[[Iterable[int], datetime.timedelta], dist.ProcessGroup]
) -> World:
    context = parallel.context
    if context > 1 and is_cuda:
        raise ConfigError(f"parallel.context is {context}, and this run is on a GPU: set run.device='cpu'")
    if not dist.is_initialized():
        if context > 1:
            raise ConfigError(
                f"parallel.context is {context}, and there is one process: start the command by torchrun, with {context} processes or a "
                "multiple of that"
            )
        return World(
            rank=0, size=1, device=torch.device("cuda", torch.cuda.current_device()) if is_cuda else torch.device("cpu")
        )
    device = torch.device("cpu")
    if is_cuda:
        device = torch.device("cuda", dist.get_node_local_rank() % torch.cuda.device_count())
        torch.cuda.set_device(device)
    rank, size = dist.get_rank(), dist.get_world_size()
    if size % context:
        raise ConfigError(f"parallel.context is {context}, and there are {size} processes, which is no multiple of it")
    if is_cuda or size == 1:
        return World(rank=rank, size=size, device=device)
    # A process that waits for one that waits for another gives up after as long again, so the roll is called for twice as long.
    timeout = datetime.timedelta(seconds=parallel.timeout / 3)
    # All processes make all groups.
    groups = [new_group(range(n, n + context), timeout) for n in range(0, size, context) if context > 1]
    return World(
        rank=rank,
        size=size,
        device=device,
        context=context,
        context_group=groups[rank // context] if groups else None,
        step_group=new_group(range(size), timeout),
        roll_call_group=new_group(range(size), 2 * timeout),
    )
