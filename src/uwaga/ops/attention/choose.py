"""Which engine serves a call, and why: the first in the order of preference that does not refuse it."""

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from torch import Tensor

from uwaga._base import native
from uwaga.ops.attention import reference
from uwaga.ops.attention.call import Call, Gradients
from uwaga.ops.attention.engines import cpu, linear, torch_fused

# The order in which engines are preferred; the first that does not refuse serves.
_ORDER = ("cpu", "torch", "reference")
# Without softmax the product can be reassociated, O(N * D * E) in place of O(N * N * (D + E)).
_ORDER_WITHOUT_SOFTMAX = ("linear", *_ORDER)
# No fast kernel computes in float64; the reference does, and it is the specification.
_ORDER_FLOAT64 = ("linear", "reference", "cpu", "torch")


class DifferentiableEngine(Protocol):
    """A module of differentiable PyTorch operations; call.py specifies its functions."""

    def refusal(self, call: Call) -> str | None: ...
    def attend(self, call: Call) -> tuple[Tensor, Tensor | None]: ...


class OpaqueEngine(Protocol):
    """A module of kernels that PyTorch cannot differentiate."""

    def refusal(self, call: Call) -> str | None: ...
    def forward(self, call: Call) -> tuple[Tensor, Tensor | None]: ...
    def backward(
        self,
        call: Call,
        output: Tensor,
        lse: Tensor | None,
        grad_output: Tensor,
        grad_lse: Tensor | None,
        needs: tuple[bool, ...],
    ) -> Gradients: ...


OPAQUE: Mapping[str, OpaqueEngine] = {"cpu": cpu}
DIFFERENTIABLE: Mapping[str, DifferentiableEngine] = {"linear": linear, "reference": reference, "torch": torch_fused}
_ENGINES: Mapping[str, DifferentiableEngine | OpaqueEngine] = {
    "cpu": cpu, "linear": linear, "reference": reference, "torch": torch_fused
}  # fmt: skip
NAMES = tuple(_ENGINES)

# torch.compile takes the answer as a constant and does not trace into the loading of a library. This is what
# torch.compiler.assume_constant_result does, without the second that its import of the compiler costs.
vars(native.reason_unavailable)["_dynamo_marked_constant"] = True

_WHY = {
    "cpu": "native kernels on the CPU",
    "linear": "without softmax, Q (K^T V) costs O(N D E)",
    "reference": "no faster engine serves this call",
    "torch": "PyTorch's own fused kernels",
}


class Choice(NamedTuple):
    """The engine that serves a call, why, and why the engines preferred to it do not."""

    engine: str
    reason: str
    refused: dict[str, str]


def order(*, softmax: bool, is_float64: bool) -> tuple[str, ...]:
    """The engines in order of preference."""
    if is_float64:
        return _ORDER_FLOAT64
    return _ORDER if softmax else _ORDER_WITHOUT_SOFTMAX


def choose(*, softmax: bool, is_float64: bool, refusals: Mapping[str, str | None], impl: str | None = None) -> Choice:
    """The first engine in the order of preference that does not refuse, or the named one.

    Args:
        softmax: whether scores are normalised.
        is_float64: whether the query is float64.
        refusals: for each engine why it cannot serve, or None.
        impl: the engine that the caller named, or None.

    Raises:
        ValueError: no engine of this name, or it refuses. A named engine never falls back.

    >>> choose(softmax=True, is_float64=False, refusals={"cpu": None, "linear": "softmax", "torch": None,
    ...     "reference": None}).engine
    'cpu'
    """
    refused = {name: why for name, why in refusals.items() if why is not None}
    if impl is not None:
        _require_name(impl)
        if impl in refused:
            raise ValueError(f"attention: engine {impl!r} cannot serve this call: {refused[impl]}")
        return Choice(impl, "named by the caller", refused)
    for name in order(softmax=softmax, is_float64=is_float64):
        if name not in refused:
            return Choice(
                name, "float64 is computed by the reference" if _is_oracle(name, is_float64) else _WHY[name], refused
            )
    raise AssertionError("the reference serves every call")


def choice(call: Call, impl: str | None) -> Choice:
    """The choice with every engine's refusal. Raises ValueError as `choose`."""
    refusals = {name: module.refusal(call) for name, module in _ENGINES.items()}
    return choose(softmax=call.options.softmax, is_float64=_is_float64(call), refusals=refusals, impl=impl)


def engine_name(call: Call, impl: str | None) -> str:
    """The engine of `choice`, calling `refusal` of no more engines than it must, since every call comes here."""
    if impl is not None:
        _require_name(impl)
        refusals = {impl: _ENGINES[impl].refusal(call)}
        return choose(softmax=call.options.softmax, is_float64=False, refusals=refusals, impl=impl).engine
    for name in order(softmax=call.options.softmax, is_float64=_is_float64(call)):
        if _ENGINES[name].refusal(call) is None:
            return name
    raise AssertionError("the reference serves every call")


def _require_name(impl: str) -> None:
    if impl not in NAMES:
        raise ValueError(f"attention: impl must be one of {', '.join(map(repr, NAMES))} or None, not {impl!r}")


def _is_oracle(name: str, is_float64: bool) -> bool:
    return name == "reference" and is_float64


def _is_float64(call: Call) -> bool:
    return call.query.dtype.itemsize == 8
