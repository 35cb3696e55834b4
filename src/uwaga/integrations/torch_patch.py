"""PyTorch's own doors to attention, opened onto this engine for tensors on the CPU.

Covered: every call that looks the name up when it runs, torch.nn.functional.scaled_dot_product_attention or
torch.nn.attention.varlen.varlen_attn, and so nn.MultiheadAttention, nn.Transformer* and the models of transformers.
Not covered: modules that took the function by `from torch.nn.functional import ...` before the patch; and the fused
inference path of nn.TransformerEncoderLayer in eval mode, which never calls the function
(torch.backends.mha.set_fastpath_enabled(False) turns it off).
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType

import torch
from torch.jit import _builtins

from uwaga.integrations import sdpa, varlen


@dataclass(slots=True, kw_only=True)
class _Door:
    """One function of PyTorch: where it lives, what replaces it while patches are open, and the original."""

    module: ModuleType
    name: str
    ours: Callable
    original: Callable


_LOCK = threading.RLock()
_DOORS: list[_Door] = []  # open while _OPEN > 0
_OPEN = 0


@dataclass(slots=True, kw_only=True)
class Patch:
    """An open patch. `undo()` closes it, and so does leaving its `with` block; closing twice does nothing.

    Patches nest, in any order and over threads: PyTorch's own functions are back when the last one is closed.
    """

    _is_open: bool = field(default=True, repr=False)

    def undo(self) -> None:
        """Close this patch. Raises RuntimeError where someone else has replaced the functions since."""
        with _LOCK:
            if self._is_open:
                _close()
                self._is_open = False

    def __enter__(self) -> "Patch":
        return self

    def __exit__(self, *_: object) -> None:
        self.undo()


def patch_torch() -> Patch:
    """From now on scaled_dot_product_attention and varlen_attn on CPU tensors run through this engine.

    What it does not serve goes to PyTorch's own function: other devices, float64, a kernel chosen by
    torch.nn.attention.sdpa_kernel, forward-mode derivatives, second ones by torch.func, dropout under vmap,
    torch.func.functionalize, calls that PyTorch refuses, and everything where there is no native library. So do tensor
    subclasses and TorchFunctionModes, whose `__torch_function__` comes first, and what torch.jit.script compiles.

    >>> with patch_torch():
    ...     x = torch.nn.functional.scaled_dot_product_attention(*torch.zeros(3, 1, 2, 4, 8))
    """
    with _LOCK:
        _open()
        return Patch()


def _open() -> None:
    global _OPEN
    if _OPEN == 0:
        _DOORS.extend(_find_doors())
        for door in _DOORS:
            setattr(door.module, door.name, door.ours)
    _OPEN += 1


def _close() -> None:
    global _OPEN
    if _OPEN == 1:
        for door in _DOORS:
            if getattr(door.module, door.name) is not door.ours:
                where = f"{door.module.__name__}.{door.name}"
                raise RuntimeError(f"patch_torch: {where} was replaced by someone else since; undo that first")
        for door in _DOORS:
            setattr(door.module, door.name, door.original)
        _DOORS.clear()
    _OPEN -= 1


def _find_doors() -> list[_Door]:
    import torch.nn.attention.varlen as torch_varlen  # here, since importing it registers operators

    plain, packed = torch.nn.functional.scaled_dot_product_attention, torch_varlen.varlen_attn
    doors = [
        _Door(module=torch.nn.functional, name="scaled_dot_product_attention", ours=sdpa.door(plain), original=plain),
        _Door(module=torch_varlen, name="varlen_attn", ours=varlen.door(packed), original=packed),
    ]
    for door in doors:
        builtin = _builtins._find_builtin(door.original)
        if builtin is not None:  # torch.jit.script does not compile the door, but calls PyTorch's own operator
            _builtins._register_builtin(door.ours, builtin)
    return doors
