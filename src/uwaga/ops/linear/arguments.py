"""Validates the operands of a linear map. Letters: M width of the input, W width of the output."""

import torch
from torch import Tensor

from uwaga._base.shapes import NamedShape, bind
from uwaga._base.tracing import is_autocast
from uwaga.ops.activations import ACTIVATIONS
from uwaga.ops.linear.choose import Operands
from uwaga.ops.validation import invalid


def check(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None, residual: Tensor | None) -> Operands:
    """The operands; ValueError or ShapeError unless they fit together. Under autocast, which converts them, dtypes may differ."""
    if activation is not None and not (isinstance(activation, str) and activation in ACTIVATIONS):
        listed = ", ".join(map(repr, ACTIVATIONS))
        raise invalid("linear", "activation", f"one of {listed} or None", repr(activation))
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
