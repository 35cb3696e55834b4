"""The public functions: validate, choose an engine, call it. Letters: M width of the input, W width of the output."""

import torch
from torch import Tensor
from torch.nn import Parameter

from uwaga._base.shapes import NamedShape, bind
from uwaga._base.tracing import is_autocast, is_plain_eager, is_readable
from uwaga.ops.activations import ACTIVATIONS
from uwaga.ops.engine_choice import Choice
from uwaga.ops.linear import autograd, choose
from uwaga.ops.linear.autograd import run, run_eagerly
from uwaga.ops.linear.choose import Operands
from uwaga.ops.linear.engines import torch_linear
from uwaga.ops.ragged import Operand, Ragged
from uwaga.ops.validation import invalid

_PLAIN = (Tensor, Parameter)
_is_any_autocast = torch._C._is_any_autocast_enabled


def linear(
    x: Operand,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    activation: str | None = None,
    residual: Operand | None = None,
    impl: str | None = None,
) -> Operand:
    """Compute a linear map of the last dimension, residual + f(x W^T + b).

    This is torch.nn.functional.linear with an activation and a residual. Sums are float32 for bfloat16 and float16. The native
    kernels ("cpu") give a row the same bits whatever other rows x has, on every processor. They are the default for float32,
    bfloat16 and float16. With another engine the bits may differ, and `explain` says so. No engine keeps a copy of the weight.

    Args:
        x: (..., M), or Ragged with values (N, M).
        weight: (W, M), as torch.nn.Linear stores it.
        bias: (W,).
        activation: f: "gelu", "gelu_tanh" (its approximation by tanh), "relu", "silu", or None for no activation.
        residual: (..., W), added after the activation; Ragged if x is.
        impl: None chooses (see `explain`); "cpu" or "torch" runs that engine or raises.

    Returns:
        (..., W) in the dtype of x (under torch.autocast, in the dtype of F.linear); Ragged if x is.

    Raises:
        ShapeError: shapes that do not fit together.
        ValueError: mixed dtypes or devices, an unknown activation, or a named engine that cannot serve.

    >>> x, weight = torch.tensor([[1.0, -2.0]]), torch.eye(2)
    >>> linear(x, weight, activation="relu", residual=x)
    tensor([[ 2., -2.]])
    """
    added = _values_like(x, residual)
    if type(x) is Ragged:
        return x.with_values(linear_map(x.values, weight, bias, activation, added, impl))
    return linear_map(x, weight, bias, activation, added, impl)


def explain(
    x: Operand,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    activation: str | None = None,
    residual: Operand | None = None,
    impl: str | None = None,
) -> Choice:
    """Return the engine that `linear` would use for these arguments, and the reasons.

    Nothing is computed.

    Args:
        x, weight, bias, activation, residual, impl: as in `linear`.

    Returns:
        The name of the engine, the reason for it, and for each engine that cannot serve the call, the reason against it.

    Raises:
        ShapeError, ValueError: as `linear`.

    >>> x = torch.zeros(4, 8, dtype=torch.float64)
    >>> explain(x, x).engine
    'torch'
    """
    values = x.values if isinstance(x, Ragged) else x
    return choose.choice(autograd.lowered(_check(values, weight, bias, activation, _values_like(x, residual))), impl)


def linear_map(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    residual: Tensor | None = None,
    impl: str | None = None,
) -> Tensor:
    """Compute `linear` of tensors."""
    engine = _plain_engine(x, weight, bias, activation, residual, impl)
    if engine == "torch":
        return torch_linear.linear(x, weight, bias, activation, residual)
    if engine == "cpu":
        return run_eagerly(x, weight, bias, activation, residual)
    _check(x, weight, bias, activation, residual)
    return run(x, weight, bias, activation, residual, impl)


def _plain_engine(
    x: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None, residual: Tensor | None, impl: str | None
) -> str | None:
    """Return the engine of the most frequent call: plain tensors on the CPU that fit together, with nothing but autograd active. None:
    another call, which `check` and `choose.engine_name` look at in full; they take longer than the product of a short batch.
    """
    if _is_any_autocast() or not is_plain_eager():
        return None
    if not (type(x) in _PLAIN and type(weight) in _PLAIN and x.dim() > 0 and weight.dim() == 2):
        return None
    leading, columns, dtype = x.shape[:-1], weight.shape[0], x.dtype
    if not (
        x.shape[-1] == weight.shape[1]
        and _is_readable(x, dtype)
        and _is_readable(weight, dtype)
        and (bias is None or (type(bias) in _PLAIN and bias.shape == (columns,) and _is_readable(bias, dtype)))
        and (activation is None or (type(activation) is str and activation in ACTIVATIONS))
        and (impl is None or type(impl) is str)
    ):
        return None
    if residual is not None and not (
        type(residual) in _PLAIN and residual.shape == (*leading, columns) and _is_readable(residual, dtype)
    ):
        return None
    return choose.eager_engine(dtype, impl)


def _is_readable(x: Tensor, dtype: torch.dtype) -> bool:
    """Return whether native code reads the right numbers at the address of x."""
    return (
        x.dtype is dtype
        and x.is_cpu
        and x.layout is torch.strided
        and not x.is_neg()
        and not x._is_zerotensor()
        and x.numel() != 0
    )


def _values_like(x: Operand, residual: Operand | None) -> Tensor | None:
    """Return the residual as a tensor. If x is Ragged, the residual must be Ragged over the same sequences; its values are returned."""
    if residual is None:
        return None
    if not isinstance(x, Ragged):
        if isinstance(residual, Ragged):
            raise ValueError("linear: residual is Ragged, and x is not")
        return residual
    if not isinstance(residual, Ragged):
        raise ValueError("linear: residual must be Ragged, as x is")
    if residual.offsets is not x.offsets and not (
        is_readable(x.offsets) and is_readable(residual.offsets) and torch.equal(residual.offsets, x.offsets)
    ):
        raise ValueError("linear: residual must be over the same sequences as x, and its offsets are others")
    return residual.values


def _check(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None, residual: Tensor | None) -> Operands:
    """Return the operands. Raises ValueError or ShapeError unless they fit together. Under autocast, which converts them, dtypes may differ."""
    if activation is not None and not (isinstance(activation, str) and activation in ACTIVATIONS):
        choices = ", ".join(map(repr, ACTIVATIONS))
        raise invalid("linear", "activation", f"one of {choices} or None", repr(activation))
    named = {"x": x, "weight": weight, "bias": bias, "residual": residual}
    for name, tensor in named.items():
        if not isinstance(tensor, Tensor) and (tensor is not None or name in ("x", "weight")):
            raise invalid("linear", name, "a tensor", type(tensor).__name__)
    if torch._C._get_tracing_state() is None:  # sizes are tensors under torch.jit.trace: there PyTorch compares them
        _check_shapes(x, weight, bias, residual)
    converts = is_autocast(x.device.type)
    for name, tensor in named.items():
        if tensor is None:
            continue
        if tensor.device != x.device:
            raise ValueError(f"linear: {name} is on {tensor.device}, x on {x.device}")
        if tensor.dtype != x.dtype and not converts:
            raise ValueError(f"linear: {name} is {_name(tensor)}, x is {_name(x)}")
    return Operands(x, weight, bias, residual)


def _check_shapes(x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None) -> None:
    leading = tuple(f"B{n + 1}" for n in range(x.dim() - 1))
    shapes = [
        NamedShape(name="x", shape=tuple(x.shape), letters=(*leading, "M") if x.dim() else ("M",)),
        NamedShape.of("weight", weight.shape, "W M"),
    ]
    if bias is not None:
        shapes.append(NamedShape.of("bias", bias.shape, "W"))
    if residual is not None:
        shapes.append(NamedShape(name="residual", shape=tuple(residual.shape), letters=(*leading, "W")))
    bind("linear", shapes)


def _name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
