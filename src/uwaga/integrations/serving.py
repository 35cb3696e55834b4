"""What the doors of PyTorch have in common."""

import torch
from torch import Tensor

from uwaga._base import native
from uwaga._base.eager import is_autocast, is_plain

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def serves(*tensors: Tensor) -> bool:
    """Whether the native engine can read these as they are."""
    return native.reason_unavailable() is None and all(
        is_plain(x) and x.device.type == "cpu" and x.dtype in _DTYPES and not x.is_nested for x in tensors
    )


def autocast(*tensors: Tensor) -> tuple[Tensor, ...]:
    """What autocast does to the arguments of PyTorch's own function."""
    device = tensors[0].device.type
    if not is_autocast(device):
        return tensors
    to = torch.get_autocast_dtype(device)
    return tuple(x.to(to) if x.is_floating_point() and x.dtype != torch.float64 else x for x in tensors)
