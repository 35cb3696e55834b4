"""oneDNN's products, by the private operators of PyTorch behind torch.compile: torch.ops.mkldnn._linear_pointwise.

No copy of a packed weight is kept: oneDNN packs what it reads within the call. Private operators may change, so their schemas
are compared with the ones that this file was written for, at first use.

Letters: M rows, N columns, K depth.
"""

from functools import cache
from typing import Any, cast

import torch
from torch import Tensor

from uwaga._base.tracing import constant
from uwaga.ops.activations import ACTIVATIONS

_SCHEMAS = {
    "default": "mkldnn::_linear_pointwise(Tensor X, Tensor W, Tensor? B, str attr, Scalar?[] scalars, str? algorithm) -> Tensor Y",
    "binary": "mkldnn::_linear_pointwise.binary(Tensor X, Tensor other, Tensor W, Tensor? B, str attr) -> Tensor Y",
}
_DTYPES = (torch.float32, torch.bfloat16)
# f as `attr` and `algorithm`.
_ATTRIBUTES = {
    None: ("none", None),
    "gelu": ("gelu", "none"),
    "gelu_tanh": ("gelu", "tanh"),
    "relu": ("relu", None),
    "silu": ("swish", None),
}


def refusal(*tensors: Tensor | None) -> str | None:
    """Return why oneDNN cannot read these operands (None: an absent operand), or None where it can."""
    for tensor in tensors:
        if tensor is not None and tensor.dtype not in _DTYPES:
            return f"oneDNN's operator is used for float32 and bfloat16, not {str(tensor.dtype).removeprefix('torch.')}"
    if (why := reason_unavailable()) is not None:
        return why
    if any(tensor is not None and tensor.dtype == torch.bfloat16 for tensor in tensors) and not computes_bfloat16():
        return "oneDNN computes bfloat16 on processors with AVX-512 or AVX-NE-CONVERT only"
    return None


@constant
def computes_bfloat16() -> bool:
    """Return whether the operators compute bfloat16 on this processor."""
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


@constant
def reason_unavailable() -> str | None:
    """Return why this PyTorch does not have the operators that this file was written for, or None."""
    if not torch.backends.mkldnn.is_available():
        return "this PyTorch was built without oneDNN"
    for overload, expected in _SCHEMAS.items():
        try:
            result = str(_operator(overload)._schema)
        except AttributeError:
            return f"this PyTorch has no operator mkldnn::_linear_pointwise.{overload}"
        if result != expected:
            return f"the private operator of this PyTorch is {result}, and {expected} was expected"
    return None


def product(
    a: Tensor, b: Tensor, *, bias: Tensor | None = None, activation: str | None = None, residual: Tensor | None = None
) -> Tensor:
    """Compute residual + f(a b^T + bias), (..., N), of a (..., K) and b (N, K).

    One row alone is computed by another kernel with another order of summation: it is computed as two.
    """
    if bias is not None:
        bias = bias.contiguous()  # its stride is not read
    if a.dim() != 2:
        columns, depth = b.shape
        added = None if residual is None else residual.reshape(-1, columns)
        result = product(a.reshape(-1, depth), b, bias=bias, activation=activation, residual=added)
        return cast(Tensor, torch.ops.aten._unsafe_view.default(result, (*a.shape[:-1], columns)))
    if a.shape[0] == 1:
        added = None if residual is None else residual.expand(2, -1)
        return product(a.expand(2, -1), b, bias=bias, activation=activation, residual=added)[:1].clone()
    if residual is not None and activation is None:
        return cast(Tensor, _operator("binary")(a, residual, b, bias, "add"))
    attribute, algorithm = _ATTRIBUTES[activation]
    mapped = cast(Tensor, _operator("default")(a, b, bias, attribute, [], algorithm))
    return mapped if residual is None else mapped.add_(residual)


def product_and_preactivation(
    a: Tensor, b: Tensor, *, bias: Tensor | None, activation: str, residual: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Compute residual + f(h) and h = a b^T + bias."""
    preactivation = product(a, b, bias=bias)
    activated = ACTIVATIONS[activation](preactivation)
    return activated if residual is None else activated.add_(residual), preactivation


@cache
def _operator(overload: str) -> Any:
    return getattr(torch.ops.mkldnn._linear_pointwise, overload)
