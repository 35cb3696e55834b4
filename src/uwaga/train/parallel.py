"""The processes of a training run: one, or as many as torchrun started, with gloo between CPUs and NCCL between GPUs.

Each has a place on a grid, (data, context): the processes of one row share each sequence, and rows divide the micro-batches. Gradients are
sums over all processes, whichever way the work is divided.
"""

import datetime
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from uwaga._base.tracing import is_plain_tensor
from uwaga.ops.dropout import rows_from
from uwaga.ops.ragged import Ragged
from uwaga.train.config import ParallelConfig
from uwaga.train.errors import ConfigError, DataError, TrainingError

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

# While the first process prepares data or writes a large checkpoint the others wait; torchrun ends them if it fails.
_TIMEOUT = datetime.timedelta(hours=12)
_T = TypeVar("_T")
# Errors of the first process that all processes raise.
_SHARED_ERRORS = (ConfigError, DataError, TrainingError, OSError, ValueError)


class World:
    """The rank of this process, the number of processes (the world size), and the device of this process.

    Args:
        context: how many processes share each sequence.
        context_group: these; None: each process has whole sequences.
        step_group: all processes, with the timeout of a step; None: that of torch.distributed.
        roll_call_group: the same, for `lost_peer` alone.

    Attributes:
        is_first: whether this is the process that writes.
        data_size, data_rank: over how many micro-batches are divided, and the place of this process among these.
        context_rank: its place among those that share a sequence.
    """

    def __init__(
        self,
        *,
        rank: int,
        size: int,
        device: torch.device,
        context: int = 1,
        context_group: dist.ProcessGroup | None = None,
        step_group: dist.ProcessGroup | None = None,
        roll_call_group: dist.ProcessGroup | None = None,
    ) -> None:
        self.rank, self.size, self.device, self.context = rank, size, device, context
        self.context_group, self.step_group, self.roll_call_group = context_group, step_group, roll_call_group
        self.is_first = rank == 0
        self.data_size, self.data_rank, self.context_rank = size // context, rank // context, rank % context

    @contextmanager
    def attention_of_parts(self, first_token: int = 0) -> Iterator[None]:
        """Inside it attention is that of the processes that share a sequence. first_token: see `Batch`."""
        if self.context == 1:
            yield
            return
        from uwaga.sequence_parallel.sequence import sequence_parallel

        with sequence_parallel(self.context_group), rows_from(first_token):
            yield

    def lost_peer(self, error: RuntimeError) -> str | None:
        """Which other process ended or did not answer within the timeout, where an error is about that; else None."""
        from uwaga.sequence_parallel.exchange import Group, ProcessGroupError

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
        from uwaga.sequence_parallel.exchange import Group, is_known

        if is_known(error):
            return
        for group in (self.roll_call_group, self.context_group, self.step_group):
            if group is not None:
                Group.of(group).leave(error)

    def all_reduce_sum(self, numbers: Tensor) -> Tensor:
        """In place, the sum over all processes of a tensor that has the same shape in each."""
        if self.size > 1:
            dist.all_reduce(numbers, group=self.step_group)
        return numbers

    def all_gather(self, own: _T) -> list[_T]:
        """The objects of all processes, by rank."""
        if self.size == 1:
            return [own]
        gathered: list[Any] = [None] * self.size
        dist.all_gather_object(gathered, own, group=self.step_group)
        return gathered

    def on_first(self, act: Callable[[], _T]) -> _T:
        """Call a function in the first process and return its result in all of them; its errors are raised in all of them.

        The others wait for it as long as it takes; one of them that then does not answer is found within the timeout of a step.
        """
        if self.size == 1:
            return act()
        from uwaga.sequence_parallel.exchange import Group, known_to_all

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
        """Until the first process gets here, without a limit, and then until all do. Raises ProcessGroupError."""
        from uwaga.sequence_parallel.exchange import Group, Messages

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
    """This process's `World`: of a new process group under torchrun, of an existing process group, or of one process.

    Args:
        device: "cpu", "cuda", or "auto": CUDA where it is available.
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


def replicate(objective: nn.Module, world: World) -> nn.Module:
    """DistributedDataParallel: gradients are averaged over the processes during the backward pass."""
    if world.size == 1:
        return objective
    ids = [world.device.index] if world.device.type == "cuda" else None
    # No broadcast of weights: every process has drawn or read the same ones.
    return DistributedDataParallel(
        objective,
        device_ids=ids,
        process_group=world.step_group,
        gradient_as_bucket_view=True,
        init_sync=False,
        broadcast_buffers=False,
    )


def shard(objective: nn.Module, world: World) -> nn.Module:
    """FSDP2: each process keeps a shard of the weights, and a layer is gathered only while it computes.

    Raises ConfigError: there is no process group.
    """
    if not dist.is_initialized():
        raise ConfigError("--fsdp shards the weights over several processes: start the command by torchrun")
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard

    # One dimension: weights are sharded over all processes, those that share a sequence too.
    group = dist.group.WORLD if world.step_group is None else world.step_group
    assert group is not None
    mesh = DeviceMesh.from_group(group, world.device.type)
    for module in objective.modules():
        if isinstance(module, nn.ModuleList):
            for layer in module:
                fully_shard(layer, mesh=mesh)
                _register_ragged_hooks(layer)
    fully_shard(objective, mesh=mesh)
    return objective


def set_gradient_sync(module: nn.Module, is_last: bool) -> None:
    """Whether the next backward pass averages gradients over the processes: only the last one of a step does."""
    if isinstance(module, DistributedDataParallel):
        module.require_backward_grad_sync = is_last
    elif hasattr(module, "set_requires_gradient_sync"):
        cast(Any, module).set_requires_gradient_sync(is_last)


def full_tensor(x: Tensor) -> Tensor:
    """A tensor gathered from all processes; where it is distributed, every process must call this."""
    return x if is_plain_tensor(x) else _distributed(x).full_tensor()


def local_tensor(x: Tensor) -> Tensor:
    """The part of a tensor that this process holds, sharing its storage."""
    return x if is_plain_tensor(x) else _distributed(x).to_local()


def distribute_like(x: Tensor, like: Tensor) -> Tensor:
    """A full tensor, which every process has, moved to the device of another and distributed as that is."""
    moved = x.to(like.device)
    if is_plain_tensor(like):
        return moved
    from torch.distributed.tensor import distribute_tensor

    where = _distributed(like)
    return distribute_tensor(moved, where.device_mesh, where.placements, src_data_rank=None)


def _distributed(x: Tensor) -> "DTensor":
    from torch.distributed.tensor import DTensor  # the import takes two seconds

    assert isinstance(x, DTensor)
    return x


class _FlatRagged(NamedTuple):
    """A Ragged as a tuple, which PyTorch's tree functions look into."""

    values: Tensor
    offsets: Tensor
    longest: int
    first: int | None


def _register_ragged_hooks(layer: nn.Module) -> None:
    """FSDP2's hooks look for tensors in arguments and results, and do not know Ragged: around them it is a tuple."""
    layer.register_forward_pre_hook(
        lambda _, x, more: (_flatten_ragged(x), _flatten_ragged(more)), prepend=True, with_kwargs=True
    )
    layer.register_forward_pre_hook(
        lambda _, x, more: (_unflatten_ragged(x), _unflatten_ragged(more)), with_kwargs=True
    )
    layer.register_forward_hook(lambda _, x, y: _flatten_ragged(y), prepend=True)
    layer.register_forward_hook(lambda _, x, y: _unflatten_ragged(y))


def _flatten_ragged(x: Any) -> Any:
    if isinstance(x, Ragged):
        return _FlatRagged(x.values, x.offsets, x.max_length, x.first)
    return _map_nested(_flatten_ragged, x)


def _unflatten_ragged(x: Any) -> Any:
    if isinstance(x, _FlatRagged):
        # Offsets were checked when the batch was made.
        made = Ragged.__new__(Ragged)
        made._set(*x)
        return made
    return _map_nested(_unflatten_ragged, x)


def _map_nested(act: Callable[[Any], Any], x: Any) -> Any:
    """The same tuple or dict with a function applied to its items; anything else as it is."""
    if type(x) is tuple:
        return tuple(map(act, x))
    return {name: act(value) for name, value in x.items()} if type(x) is dict else x
