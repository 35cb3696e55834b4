"""What masks and biases may be made of, and the words for what they may not."""

from numbers import Integral

import torch
from torch import Tensor

_MOST = 1 << 62  # beyond any sequence, and far from overflowing when a length is added


def is_integer(x: object) -> bool:
    """An integer of Python or NumPy, or one that torch.compile does not know yet."""
    return isinstance(x, Integral | torch.SymInt)


def need_start(name: str, start: object) -> None:
    """ValueError unless this says where query 0 stands: None, an integer, or a tensor with one per batch row."""
    if start is None or isinstance(start, Tensor):
        return
    if not is_integer(start):
        raise ValueError(f"{name}: start must be an integer, a tensor of them or None, not {start!r}")
    if isinstance(start, Integral) and abs(int(start)) >= _MOST:
        raise ValueError(f"{name}: start {start} is further away than any sequence is long")


def need_tensor(name: str, what: str, tensor: object) -> None:
    """ValueError unless this is a tensor."""
    if not isinstance(tensor, Tensor):
        raise ValueError(f"{name}: {what} must be a tensor, not {type(tensor).__name__}")


def need_real(name: str, what: str, tensor: object) -> None:
    """ValueError unless this is a tensor of real numbers."""
    need_tensor(name, what, tensor)
    assert isinstance(tensor, Tensor)
    if tensor.is_complex():
        raise ValueError(f"{name}: {what} must be real, not {tensor.dtype}")
