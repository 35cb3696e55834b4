"""What masks and biases may be made of, and the words for what they may not."""

from numbers import Integral

import torch
from torch import Tensor

MAX_DISTANCE = 1 << 59  # beyond any sequence; the native library takes starts to 1 << 60, and lengths are added to them


def is_integer(x: object) -> bool:
    """An integer of Python or NumPy, or one that torch.compile does not know yet; a bool is none."""
    return isinstance(x, Integral | torch.SymInt) and not isinstance(x, bool)


def plain_integer(x: int) -> int:
    """An integer of NumPy as one of Python: NumPy's overflow in the arithmetic of offsets, and unsigned ones in a minus."""
    return int(x) if isinstance(x, Integral) else x


def need_start(name: str, start: object) -> None:
    """ValueError unless this says where query 0 stands: None, an integer, or a tensor with one per batch row."""
    if isinstance(start, Tensor):
        need_strided(name, "start", start)
    if start is None or isinstance(start, Tensor):
        return
    if not is_integer(start):
        raise ValueError(f"{name}: start must be an integer, a tensor of them or None, not {start!r}")
    need_distance(name, "start", start)


def need_distance(name: str, what: str, distance: object) -> None:
    """ValueError where an integer is larger than MAX_DISTANCE."""
    if isinstance(distance, Integral) and abs(int(distance)) > MAX_DISTANCE:
        raise ValueError(f"{name}: {what} {distance} is further away than any sequence is long")


def need_tensor(name: str, what: str, tensor: object) -> None:
    """ValueError unless this is a strided tensor."""
    if not isinstance(tensor, Tensor):
        raise ValueError(f"{name}: {what} must be a tensor, not {type(tensor).__name__}")
    need_strided(name, what, tensor)


def need_strided(name: str, what: str, tensor: Tensor) -> None:
    """ValueError where a tensor is sparse or of another layout that no engine reads."""
    if tensor.layout is not torch.strided:
        raise ValueError(f"{name}: {what} must be a strided tensor, not {tensor.layout}")


def need_real(name: str, what: str, tensor: object) -> None:
    """ValueError unless this is a tensor of real numbers."""
    need_tensor(name, what, tensor)
    assert isinstance(tensor, Tensor)
    if tensor.is_complex():
        raise ValueError(f"{name}: {what} must be real, not {tensor.dtype}")
