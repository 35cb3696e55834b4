"""A GPU that is not there: tensors in the host's memory that say they are on "cuda", and errors where a program mixes them with others.

It finds what would fail on a GPU before a kernel runs: tensors that were made on the CPU, `.numpy()` of results, engines that
look at the wrong device. The numbers are right, and can be compared with those of the CPU.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

import pytest
import torch
from processors import pretend_cuda
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from uwaga.ops.attention.engines import flex, torch_fused

DEVICE = torch.device("cuda", 0)
_MOVES = {Tensor.to, Tensor.cpu, Tensor.cuda}
_MAY_MIX = {
    Tensor.__getitem__, Tensor.__setitem__, Tensor.copy_, Tensor.data.__set__,
}  # fmt: skip
_READS = {Tensor.numpy, Tensor.__array__, Tensor.__dlpack__}
_DEVICE = Tensor.device.__get__
_IS_CUDA = Tensor.is_cuda.__get__
_IS_CPU = Tensor.is_cpu.__get__


class PretendedGpu(TorchFunctionMode):
    """While it is entered, `device="cuda"` makes tensors that count as there."""

    is_real = False

    def __init__(self) -> None:
        super().__init__()
        self.there: dict[int, StorageWeakRef] = {}  # held, so that no other storage gets the address

    def has(self, x: Tensor) -> bool:
        """Whether a tensor counts as on the GPU."""
        return x.layout is torch.strided and _address(x) in self.there

    def put(self, x: object) -> object:
        if isinstance(x, Tensor) and x.layout is torch.strided:
            self.there[_address(x)] = StorageWeakRef(x.untyped_storage())
        return x

    def __torch_function__(self, function, types, arguments=(), options=None):
        options = dict(options or {})
        if function is torch.device or _name(function) == "_parse_to":
            return function(*arguments, **options)
        tensors = [x for x in tree_leaves((arguments, options)) if isinstance(x, Tensor)]
        there = [x for x in tensors if self.has(x)]
        if function in (_DEVICE, _IS_CUDA, _IS_CPU):
            if not there:
                return function(*arguments)
            return {_DEVICE: DEVICE, _IS_CUDA: True, _IS_CPU: False}[function]
        if function in _READS and there:
            raise TypeError(f"{_name(function)}: the tensor is on {DEVICE}")
        if function is Tensor.pin_memory:
            return arguments[0].clone()
        if function in _MOVES:
            return self.move(function, arguments, options)
        gpu_arguments = [x for x in (*arguments, *options.values()) if _names_gpu(x)]
        if gpu_arguments:
            arguments, options = tree_map(lambda x: torch.device("cpu") if _names_gpu(x) else x, (arguments, options))
            return tree_map(self.put, function(*arguments, **options))
        mixed = [x for x in tensors if not self.has(x) and x.ndim]
        may_mix = function in _MAY_MIX or _name(function) == "_has_compatible_shallow_copy_type"
        if there and mixed and not may_mix:
            shapes = [tuple(x.shape) for x in mixed]
            raise RuntimeError(f"{function}: tensors {shapes} are on the CPU, others on {DEVICE}")
        result = function(*arguments, **options)
        stays = not there or str(options.get("device", "")) == "cpu" or isinstance(result, torch.Size)
        if may_mix and tensors:  # the result is what the first tensor is
            stays = not self.has(tensors[0])
        return result if stays else tree_map(self.put, result)

    def move(self, function, arguments, options):
        x, *others = arguments
        places = [
            y
            for y in (*others, *options.values())
            if isinstance(y, str | torch.device | int) and not isinstance(y, bool)
        ]
        others_there = [y for y in others if isinstance(y, Tensor)]
        stays = self.has(x)
        goes = stays
        if function is Tensor.cpu:
            goes = False
        elif function is Tensor.cuda or any(map(_names_gpu, places)):
            goes = True
        elif places:
            goes = False
        elif others_there:
            goes = self.has(others_there[0])
        arguments, options = tree_map(
            lambda y: torch.device("cpu") if _names_gpu(y) else y, (tuple(arguments), options)
        )
        if function is Tensor.cuda:
            moved = x.clone()
        else:
            moved = function(*arguments, **options)
            if goes != stays and _address(moved) == _address(x):
                moved = moved.clone()
        return self.put(moved) if goes else moved


def _address(x: Tensor) -> int:
    """Of the object that is a tensor's storage."""
    return StorageWeakRef(x.untyped_storage()).cdata


def _name(function: object) -> str:
    return getattr(function, "__name__", str(function))


def _names_gpu(x: object) -> bool:
    return (isinstance(x, torch.device) and x.type == "cuda") or (isinstance(x, str) and x.startswith("cuda"))


def _kernel(form, node, _kind):
    return lambda *x: flex.unfused(form, node, *x)


@contextmanager
def pretended_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[PretendedGpu]:
    """A GPU on which FlexAttention computes in its form that is not fused, and varlen_attn is not there."""
    monkeypatch.setattr(flex, "why_not_on_cuda", lambda: None)
    monkeypatch.setattr(flex, "compiled", lru_cache(256)(_kernel))  # one for each form of call, as there
    pretend_cuda(
        monkeypatch,
        get_device_capability=lambda _: (7, 5),
        current_stream=lambda _: 0,
        is_current_stream_capturing=lambda: False,
    )
    flex.cached_masks.clear()  # of another pretended GPU
    torch_fused.varlen_kernels.cache_clear()
    with PretendedGpu() as gpu:
        yield gpu
    torch_fused.varlen_kernels.cache_clear()
