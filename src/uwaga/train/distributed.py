"""The processes of a training: one, or as many as torchrun started, with gloo between CPUs and NCCL between GPUs."""

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

# While the first process reads data or writes a large checkpoint the others wait; torchrun ends them if it fails.
_PATIENCE = datetime.timedelta(hours=12)
_T = TypeVar("_T")
# What may happen in one process and must stop all of them.
_TOLD = (ConfigError, DataError, TrainingError, OSError, ValueError)


@dataclass(frozen=True, kw_only=True)
class World:
    """This process among all."""

    rank: int
    size: int
    device: torch.device

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def total(self, numbers: Tensor) -> Tensor:
        """The sum of everybody's tensor; all have the same shape."""
        if self.size > 1:
            dist.all_reduce(numbers)
        return numbers

    def all(self, found: _T) -> list[_T]:
        """What everybody found, by rank."""
        if self.size == 1:
            return [found]
        gathered: list[Any] = [None] * self.size
        dist.all_gather_object(gathered, found)
        return gathered

    def first(self, act: Callable[[], _T]) -> _T:
        """What the first process finds, for all; where it fails, all fail with the same words."""
        if self.size == 1:
            return act()
        told: list[Any] = [None, None]
        if self.is_first:
            try:
                told[0] = act()
            except _TOLD as error:
                told[1] = error
        dist.broadcast_object_list(told, src=0)
        if told[1] is not None:
            raise told[1]
        return cast(_T, told[0])

    def share(self, things: list[_T]) -> list[_T]:
        """Those of this process: every size-th."""
        return things[self.rank :: self.size]


@contextmanager
def joined(device: str) -> Iterator[World]:
    """This process's world: that of torchrun, of a process group that there is already, or alone.

    device: "cpu", "cuda", or "auto" for CUDA where there is one.
    """
    is_cuda = device == "cuda" or (device == "auto" and torch.cuda.is_available())
    if is_cuda and not torch.cuda.is_available():
        raise ConfigError("run.device is 'cuda', and PyTorch finds none")
    began = not dist.is_initialized() and dist.is_torchelastic_launched()
    if began:
        dist.init_process_group("cpu:gloo,cuda:nccl" if is_cuda else "gloo", timeout=_PATIENCE)
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


def replicated(objective: Objective, world: World) -> nn.Module:
    """For gradients that are averaged over the processes, while the backward pass goes on."""
    if world.size == 1:
        return objective
    ids = [world.device.index] if world.device.type == "cuda" else None
    # Everybody has drawn or read the same weights.
    return DistributedDataParallel(
        objective, device_ids=ids, gradient_as_bucket_view=True, init_sync=False, broadcast_buffers=False
    )


def sharded(objective: Objective, world: World) -> nn.Module:
    """FSDP2: each process keeps its share of the weights, and a layer is whole only while it computes."""
    if not dist.is_initialized():
        raise ConfigError("--fsdp shares weights among processes, and there is one: start it by torchrun")
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(world.device.type, (world.size,))
    for module in objective.modules():
        if isinstance(module, nn.ModuleList):
            for layer in module:
                fully_shard(layer, mesh=mesh)
                _show_ragged(layer)
    fully_shard(objective, mesh=mesh)
    return objective


def whole(x: Tensor) -> Tensor:
    """All of a tensor; where it is distributed, every process must ask."""
    return x if is_plain_tensor(x) else _distributed(x).full_tensor()


def own(x: Tensor) -> Tensor:
    """What this process has of it, in place."""
    return x if is_plain_tensor(x) else _distributed(x).to_local()


def spread_like(x: Tensor, like: Tensor) -> Tensor:
    """A whole tensor, which every process has, on the device of another and distributed as that is."""
    moved = x.to(like.device)
    if is_plain_tensor(like):
        return moved
    from torch.distributed.tensor import distribute_tensor

    where = _distributed(like)
    return distribute_tensor(moved, where.device_mesh, where.placements, src_data_rank=None)


def _distributed(x: Tensor) -> "DTensor":
    from torch.distributed.tensor import DTensor  # two seconds, which only those pay who use it

    assert isinstance(x, DTensor)
    return x


class _Opened(NamedTuple):
    """A Ragged as a container that PyTorch looks into."""

    values: Tensor
    offsets: Tensor
    longest: int


def _show_ragged(layer: nn.Module) -> None:
    """FSDP2 follows the tensors that a layer takes and gives, and does not know Ragged: around its hooks they are opened."""
    layer.register_forward_pre_hook(lambda _, x, more: (_opened(x), _opened(more)), prepend=True, with_kwargs=True)
    layer.register_forward_pre_hook(lambda _, x, more: (_closed(x), _closed(more)), with_kwargs=True)
    layer.register_forward_hook(lambda _, x, y: _opened(y), prepend=True)
    layer.register_forward_hook(lambda _, x, y: _closed(y))


def _opened(x: Any) -> Any:
    if isinstance(x, Ragged):
        return _Opened(x.values, x.offsets, x.max_length)
    return _each(_opened, x)


def _closed(x: Any) -> Any:
    if isinstance(x, _Opened):
        # Offsets were checked when the batch was made.
        made = Ragged.__new__(Ragged)
        made._set(*x)
        return made
    return _each(_closed, x)


def _each(act: Callable[[Any], Any], x: Any) -> Any:
    """Of the arguments of a call."""
    if type(x) is tuple:
        return tuple(map(act, x))
    return {name: act(value) for name, value in x.items()} if type(x) is dict else x
