"""Which engine serves a call, and why: the first in the order of preference that does not refuse it.

On the CPU the native kernels come first for every call that they serve, since they give a row the same bits in any batch.
"""

from collections.abc import Callable, Mapping
from typing import Protocol

from torch import Tensor

from uwaga._base import native
from uwaga.ops import engine_table
from uwaga.ops.attention import native_structs, reference
from uwaga.ops.attention.call import Call
from uwaga.ops.attention.engines import cpu, flex, linear, torch_fused
from uwaga.ops.engine_choice import NAMED, Choice, named, refusals

# The order in which engines are preferred; the first that does not refuse serves.
_ORDER = ("cpu", "torch", "reference")
# On another device: SDPA and varlen_attn where they serve a call by their own options, FlexAttention where it fuses what would
# be a matrix or a loop for them.
_ORDER_ON_DEVICE = ("torch", "flex", "reference")
_ORDER_ON_DEVICE_COSTLY = ("flex", "torch", "reference")
# Without softmax the product can be reassociated, O(N * D * E) in place of O(N * N * (D + E)).
_ORDER_WITHOUT_SOFTMAX = ("linear", *_ORDER)
# No fast kernel computes in float64; the reference does, and it is the specification.
_ORDER_FLOAT64 = ("linear", "reference")


class AnyEngine(Protocol):
    """A module of one way to compute a call; call.py specifies its functions."""

    def refusal(self, call: Call) -> str | None: ...


class DifferentiableEngine(AnyEngine, Protocol):
    """One that is made of differentiable PyTorch operations: all but "cpu"."""

    def attend(self, call: Call) -> tuple[Tensor, Tensor | None]: ...


DIFFERENTIABLE: Mapping[str, DifferentiableEngine] = {
    "flex": flex, "linear": linear, "reference": reference, "torch": torch_fused
}  # fmt: skip
_ENGINES: Mapping[str, AnyEngine] = {"cpu": cpu, **DIFFERENTIABLE}
NAMES = tuple(_ENGINES)

# torch.compile takes the answer as a constant and does not trace into the loading of a library. This is what
# torch.compiler.assume_constant_result does, without the second that its import of the compiler costs.
vars(native.reason_unavailable)["_dynamo_marked_constant"] = True

_WHY = {
    "cpu": "native kernels on the CPU",
    "flex": "PyTorch's FlexAttention",
    "linear": "without softmax, Q (K^T V) costs O(N D E)",
    "reference": "no faster engine serves this call",
    "torch": "PyTorch's own fused kernels",
}


# Engines that serve some calls at a cost that a user would not expect.
_COSTS: Mapping[str, Callable[[Call], str | None]] = {
    "flex": flex.cost, "reference": reference.cost, "torch": torch_fused.cost
}  # fmt: skip


def engine_name(call: Call, impl: str | None) -> str:
    """Return the engine of `choice`, calling `refusal` of no more engines than it must, since every call comes here."""
    if impl is not None:
        return named(impl, NAMES, lambda name: _ENGINES[name].refusal(call), function="attention")
    return next(name for name in _order(call) if _ENGINES[name].refusal(call) is None)


def choice(call: Call, impl: str | None) -> Choice:
    """Return the choice with every engine's refusal, and the cost of a call without a kernel. Raises ValueError as `named`."""
    engine = engine_name(call, impl)
    refused = refusals(NAMES, lambda name: _ENGINES[name].refusal(call))
    if impl is not None:
        reason = NAMED
    elif engine == "reference" and _is_float64(call):
        reason = "float64 is computed by the reference"
    else:
        reason = _WHY[engine]
    if engine in _COSTS and (cost := _COSTS[engine](call)) is not None:
        reason += f"; {cost}"
    result = Choice(engine, reason, refused)
    return result._replace(reason=reason + _other_bits(call, result))


def _order(call: Call) -> tuple[str, ...]:
    """Return the engines in order of preference; the last one serves every call."""
    if _is_float64(call):
        return _ORDER_FLOAT64
    if not call.options.softmax:
        return _ORDER_WITHOUT_SOFTMAX
    if call.query.device.type != "cpu":
        return _ORDER_ON_DEVICE if torch_fused.is_one_kernel(call) else _ORDER_ON_DEVICE_COSTLY
    return _ORDER


def _other_bits(call: Call, choice: Choice) -> str:
    """Return what the reason adds if another engine computes a call on the CPU in a dtype of the native kernels."""
    if choice.engine == "cpu" or call.query.device.type != "cpu" or call.query.dtype not in native_structs.DTYPES:
        return ""
    if choice.engine == "linear" and linear.has_batch_invariant_rows(call):
        return ""
    return engine_table.other_bits(None if "cpu" in choice.refused else 'impl="cpu" keeps them')


def _is_float64(call: Call) -> bool:
    return call.query.dtype.itemsize == 8
