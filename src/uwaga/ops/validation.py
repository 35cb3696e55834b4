"""Checks of the arguments of attention, its masks and its biases, and their error messages.

Messages have the form "{where}: {name} must be {rule}, not {found}".
"""

from numbers import Integral

import torch
from torch import Tensor

from uwaga._base.terminal import short

MAX_DISTANCE = (
    1 << 59
)  # longer than any sequence; the native library takes starts to 1 << 60, and lengths are added to them

_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def invalid(where: str, name: str, rule: str, actual: object) -> ValueError:
    """Return the error to raise; `actual` is shown by str."""
    return ValueError(f"{where}: {name} must be {rule}, not {actual}")


def is_integer(x: object) -> bool:
    """Return whether it is an integer of Python or NumPy, or a symbolic one of torch.compile; a bool is not an integer here."""
    return isinstance(x, Integral | torch.SymInt) and not isinstance(x, bool)


def plain_integer(x: int) -> int:
    """Return an integer of NumPy as one of Python: NumPy's fixed-width integers overflow, and unsigned ones wrap when negated."""
    return int(x) if isinstance(x, Integral) else x


def check_bool(where: str, name: str, value: object) -> None:
    """Raise ValueError unless this is True or False."""
    if not isinstance(value, bool):
        raise invalid(where, name, "True or False", repr(value))


def check_start(where: str, start: object) -> None:
    """Raise ValueError unless this says where query 0 stands: None, an integer, or a tensor with one per batch row."""
    if isinstance(start, Tensor):
        check_strided(where, "start", start)
    elif start is not None:
        if not is_integer(start):
            raise invalid(where, "start", "an integer, a tensor of them or None", repr(start))
        check_distance(where, "start", start)


def check_distance(where: str, name: str, distance: object) -> None:
    """Raise ValueError if an integer is larger than MAX_DISTANCE."""
    if isinstance(distance, Integral) and abs(int(distance)) > MAX_DISTANCE:
        raise ValueError(f"{where}: {name} must lie between -2**59 and 2**59, not {distance}")


def check_tensor(where: str, name: str, tensor: object) -> Tensor:
    """Return `tensor`; ValueError unless it is a strided tensor."""
    if not isinstance(tensor, Tensor):
        raise invalid(where, name, "a tensor", type(tensor).__name__)
    check_strided(where, name, tensor)
    return tensor


def tensor_of(value: object, name: str, instead: str = "") -> Tensor:
    """Return torch.as_tensor(value). Raises ValueError if it is not made of numbers. instead: what to do, for the message."""
    try:
        return torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{name} must be a tensor or an array of numbers, not {short(value)}{instead}") from error


def check_strided(where: str, name: str, tensor: Tensor) -> None:
    """Raise ValueError if a tensor is sparse or has another layout that no engine reads."""
    if tensor.layout is not torch.strided:
        raise invalid(where, name, "a strided tensor", tensor.layout)


def check_real(where: str, name: str, tensor: object) -> None:
    """Raise ValueError unless this is a tensor of real numbers."""
    result = check_tensor(where, name, tensor)
    if result.is_complex():
        raise invalid(where, name, "real", result.dtype)


def check_integers(where: str, name: str, tensor: Tensor) -> None:
    """Raise ValueError unless the elements of the tensor are integers."""
    if tensor.dtype not in _INTEGERS:
        raise invalid(where, name, "integers", tensor.dtype)


def check_same_device(name: str, tensor: Tensor, query: Tensor) -> None:
    """Raise ValueError unless the tensor is on the query's device."""
    if tensor.device != query.device:
        raise ValueError(f"attention: {name} is on {tensor.device}, query on {query.device}")
