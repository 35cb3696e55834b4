"""Which engine computes a linear map, and why: the native kernels, unless UWAGA_LINEAR or the call names PyTorch's operator, or they refuse.

No timing at run time decides, so two runs give the same bits. PyTorch can neither trace nor differentiate the native kernels ("cpu"). PyTorch's
operator ("torch") serves every call.
"""

from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from uwaga._base import env, processor
from uwaga._base.arguments import choice as check_choice
from uwaga._base.tracing import constant, is_in_forward_mode, is_intercepted, is_plain_tensor, is_transformed
from uwaga.ops import engine_table
from uwaga.ops.attention.native_structs import DTYPES
from uwaga.ops.engine_choice import NAMED, Choice, named, refusals
from uwaga.ops.linear.engines import cpu

NAMES = ("cpu", "torch")
_WHY = {
    "cpu": "native kernels on the CPU",
    "torch": "torch.nn.functional.linear",
}


class Operands(NamedTuple):
    """The tensors of a call: x (..., M), weight (W, M), bias (W,) and residual (..., W)."""

    x: Tensor
    weight: Tensor
    bias: Tensor | None
    residual: Tensor | None


def choice(operands: Operands, impl: str | None) -> Choice:
    """Return the choice with every engine's refusal.

    Raises:
        ValueError: no engine of the name `impl` or UWAGA_LINEAR, or the engine named by `impl` refuses.
    """
    name, refused = engine_name(operands, impl), refusals(NAMES, lambda name: refusal(name, operands))
    dtype = operands.x.dtype
    if impl is not None:
        why, keeps = NAMED, 'impl="cpu" keeps them'
    else:
        keeps = "UWAGA_LINEAR=cpu keeps them"
        if name == named_by_environment():
            why = "named by UWAGA_LINEAR"
        else:
            why = _WHY[name]
    if name != "cpu" and operands.x.is_cpu and dtype in DTYPES:
        why += engine_table.other_bits(None if "cpu" in refused else keeps)
    return Choice(name, why, refused)


def has_batch_invariant_rows(name: str, dtype: torch.dtype) -> bool:
    """Return whether the engine of this name gives a row the same bits among any others, in eager calls on this processor's CPU.

    The native kernels do on every processor: sums associate by the depth alone (docs/contributors/kernels.md, "The same bits"). PyTorch's
    operator was shown to do so on AMD's Zen 3 and 4 in float32, where rows are padded, and in bfloat16. On Intel's processors with AMX it does
    not: rows of 1536 -> 384 have other bits among other numbers of rows, in both dtypes.
    """
    if name == "cpu":
        return dtype in DTYPES
    return dtype in (torch.float32, torch.bfloat16) and processor.detect().vendor == "AMD"


def engine_name(operands: Operands, impl: str | None) -> str:
    """Return the engine of `choice`. Raises ValueError as `choice`."""
    if impl is not None:
        return named(impl, NAMES, lambda name: refusal(name, operands), function="linear")
    return next(name for name in order() if refusal(name, operands) is None)


@cache
def eager_engine(dtype: torch.dtype, impl: str | None) -> str | None:
    """Return the engine for operands of this dtype that PyTorch computes with as they are: plain tensors on the CPU, none empty or lazily
    negated, outside tracers and transforms. None: the named one refuses.

    Raises:
        ValueError: no engine of the name `impl` or UWAGA_LINEAR.
    """
    sample = torch.empty(0, dtype=dtype, device="cpu")
    if impl is not None:
        check_choice(impl, "linear: impl", NAMES, " or None")
        return impl if impl == "torch" or cpu.refusal(sample) is None else None
    return next(name for name in order() if name == "torch" or cpu.refusal(sample) is None)


@constant
def order() -> tuple[str, ...]:
    """Return the engines in order of preference: the one that UWAGA_LINEAR names first."""
    return ("torch", "cpu") if named_by_environment() == "torch" else NAMES


@cache
def named_by_environment() -> str | None:
    """Return the engine that UWAGA_LINEAR names, or None. Raises ValueError: there is none of this name."""
    name = env.linear()
    if name is not None:
        check_choice(name, "UWAGA_LINEAR", NAMES)
    return name


def refusal(name: str, operands: Operands) -> str | None:
    """Return why the engine of this name cannot serve, or None."""
    if name == "torch":
        return None
    return _refusal_of_native_code(operands) or cpu.refusal(*operands)


def _refusal_of_native_code(operands: Operands) -> str | None:
    """Return why no engine of native code can serve, whatever it computes; or None."""
    if is_transformed():
        return "a transform of torch.func is active"
    if is_in_forward_mode():
        return "it has no forward-mode derivatives"
    if is_intercepted() and not is_compiled():
        return "a tracer or dispatch mode is active, which records PyTorch's own operators"
    x = operands.x
    for tensor in operands:
        if tensor is None:
            continue
        if not is_plain_tensor(tensor):
            return f"an operand is of the class {type(tensor).__name__}, which may override operators"
        if tensor.device.type != "cpu":
            return f"it computes on the CPU, and an operand is on {tensor.device}"
        if tensor.dtype != x.dtype:
            return "the operands have several dtypes"
        if tensor.layout is not torch.strided:
            return f"it reads strided tensors, not {tensor.layout}"
        if tensor.numel() == 0:
            return "an operand is empty"
        if not torch.compiler.is_compiling() and (tensor.is_neg() or tensor._is_zerotensor()):
            return "an operand is a lazy negation or a lazy zero, which has no such numbers in memory"
    return None


def is_compiled() -> bool:
    """Return whether torch.compile traces this call. Exported programs are not meant: they hold PyTorch's own operators, so that they run
    elsewhere."""
    return torch.compiler.is_dynamo_compiling() and not torch.compiler.is_exporting()
