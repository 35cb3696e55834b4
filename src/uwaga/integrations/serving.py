"""What the doors of PyTorch have in common."""

import torch
from torch import Tensor

from uwaga._base import native
from uwaga._base.eager import is_plain

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def serves(*tensors: Tensor) -> bool:
    """Whether the native engine can read these as they are."""
    return native.reason_unavailable() is None and all(
        is_plain(x) and x.device.type == "cpu" and x.dtype in _DTYPES and not x.is_nested for x in tensors
    )
