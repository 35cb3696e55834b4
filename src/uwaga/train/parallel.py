"""The processes of a training run: one, or as many as torchrun started, with gloo between CPUs and NCCL between GPUs."""

import datetime
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from uwaga._base.tracing import is_plain_tensor
from uwaga.ops.ragged import Ragged
from uwaga.train.errors import ConfigError, DataError, TrainingError
from uwaga.train.objective import Objective

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

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

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def all_reduce_sum(self, numbers: Tensor) -> Tensor:
        """In place, the sum over all processes of a tensor that has the same shape in each."""
        if self.size > 1:
            dist.all_reduce(numbers)
        return numbers

    def all_gather(self, own: _T) -> list[_T]:
        """The objects of all processes, by rank."""
        if self.size == 1:
            return [own]
        gathered: list[Any] = [None] * self.size
        dist.all_gather_object(gathered, own)
        return gathered

    def on_first(self, act: Callable[[], _T]) -> _T:
        """Call a function in the first process and return its result in all of them; its errors are raised in all of them."""
        if self.size == 1:
            return act()
        outcome: list[Any] = [None, None]  # result, error
        if self.is_first:
            try:
                outcome[0] = act()
            except _SHARED_ERRORS as error:
                outcome[1] = error
        dist.broadcast_object_list(outcome, src=0)
        if outcome[1] is not None:
            raise outcome[1]
        return cast(_T, outcome[0])

    def shard(self, items: list[_T]) -> list[_T]:
        """The items of this process: every size-th, from its rank on."""
        return items[self.rank :: self.size]


@contextmanager
def process_group(device: str) -> Iterator[World]:
    """This process's `World`: of a new process group under torchrun, of an existing process group, or of one process.

    Args:
        device: "cpu", "cuda", or "auto": CUDA where it is available.

    Raises:
        ConfigError: CUDA is asked for and not available.
    """
    is_cuda = device == "cuda" or (device == "auto" and torch.cuda.is_available())
    if is_cuda and not torch.cuda.is_available():
        raise ConfigError("run.device is 'cuda', and CUDA is not available")
    began = not dist.is_initialized() and dist.is_torchelastic_launched()
    if began:
        dist.init_process_group("cpu:gloo,cuda:nccl" if is_cuda else "gloo", timeout=_TIMEOUT)
    try:
        yield _world(is_cuda)
    finally:
        if began:
            dist.destroy_process_group()


def _world(is_cuda: bool) -> World:
    if not dist.is_initialized():
        return World(
            rank=0, size=1, device=torch.device("cuda", torch.cuda.current_device()) if is_cuda else torch.device("cpu")
        )
    device = torch.device("cpu")
    if is_cuda:
        device = torch.device("cuda", dist.get_node_local_rank() % torch.cuda.device_count())
        torch.cuda.set_device(device)
    return World(rank=dist.get_rank(), size=dist.get_world_size(), device=device)


def replicate(objective: Objective, world: World) -> nn.Module:
    """DistributedDataParallel: gradients are averaged over the processes during the backward pass."""
    if world.size == 1:
        return objective
    ids = [world.device.index] if world.device.type == "cuda" else None
    # No broadcast of weights: every process has drawn or read the same ones.
    return DistributedDataParallel(
        objective, device_ids=ids, gradient_as_bucket_view=True, init_sync=False, broadcast_buffers=False
    )


def shard(objective: Objective, world: World) -> nn.Module:
    """FSDP2: each process keeps a shard of the weights, and a layer is gathered only while it computes.

    Raises ConfigError: there is no process group.
    """
    if not dist.is_initialized():
        raise ConfigError("--fsdp shards the weights over several processes: start the command by torchrun")
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(world.device.type, (world.size,))
    for module in objective.modules():
        if isinstance(module, nn.ModuleList):
            for layer in module:
                fully_shard(layer, mesh=mesh)
                _register_ragged_hooks(layer)
    fully_shard(objective, mesh=mesh)
    return objective


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
        return _FlatRagged(x.values, x.offsets, x.max_length)
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
