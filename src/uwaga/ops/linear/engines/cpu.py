"""The native products of matrices: residual + f(a b^T + bias), with float32 sums that are rounded once.

The library packs its operands panel by panel within each call and keeps no copy of them, so a weight may change between any two
calls. A row of the result has the same bits whatever the other rows and the number of threads.

Letters: M rows, N columns, K depth.
"""

from torch import Tensor

from uwaga._base import native
from uwaga._base.native_layout import struct_of
from uwaga.ops import rows
from uwaga.ops.attention.native_structs import DTYPES

_ACTIVATIONS = {None: 0, "gelu": 1, "gelu_tanh": 2, "relu": 3, "silu": 4}  # UWAGA_IDENTITY, ...
_ARGUMENTS = struct_of("uwaga_matmul_args")


def refusal(*tensors: Tensor | None) -> str | None:
    """Return why the kernels cannot read these operands (None: an operand that is not there), or None where they can."""
    if (why := native.reason_unavailable()) is not None:
        return why
    for tensor in tensors:
        if tensor is None:
            continue
        if not tensor.is_cpu:
            return f"an operand is on {tensor.device}, not on the CPU"
        if tensor.dtype not in DTYPES:
            return f"the kernels read float32, bfloat16 and float16, not {tensor.dtype}"
    return None


def product(
    a: Tensor,
    b: Tensor,
    *,
    bias: Tensor | None = None,
    activation: str | None = None,
    residual: Tensor | None = None,
    preactivation: Tensor | None = None,
) -> Tensor:
    """Compute residual + f(a b^T + bias), (..., N).

    Args:
        a, b: (..., K) and (N, K) of one dtype, with any strides: a transposed view costs no copy.
        bias: (N,).
        activation: f: "gelu", "gelu_tanh", "relu", "silu", or None.
        residual: (..., N) of the dtype of the result.
        preactivation: (..., N) of the dtype of the result, with adjacent columns: gets a b^T + bias.

    Raises:
        ValueError: operands that do not fit together.
        MemoryError: there is no memory for the panels.
    """
    columns, depth = b.shape
    written = out = a.new_empty((*a.shape[:-1], columns))
    if a.dim() != 2:
        a, written = a.reshape(-1, depth), out.view(-1, columns)
        preactivation = None if preactivation is None else preactivation.view(-1, columns)
        residual = None if residual is None else residual.reshape(-1, columns)
    if residual is not None and residual.stride(1) != 1:
        residual = residual.contiguous()
    arguments = _ARGUMENTS.pack(
        a.shape[0], columns, depth,
        *_matrix(a), *_matrix(b), *_matrix(bias), *_matrix(residual), *_matrix(preactivation), *_matrix(written),
        _ACTIVATIONS[activation],
        native.threads(),
    )  # fmt: skip
    native.check(native.library().functions.uwaga_matmul(arguments))
    return out


def product_and_preactivation(
    a: Tensor, b: Tensor, *, bias: Tensor | None, activation: str, residual: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Compute residual + f(h) and h = a b^T + bias; arguments as `product`."""
    h = a.new_empty((*a.shape[:-1], b.shape[0]))
    return product(a, b, bias=bias, activation=activation, residual=residual, preactivation=h), h


def _matrix(x: Tensor | None) -> tuple[int, ...]:
    """Return a uwaga_tensor of two dimensions, or of one row."""
    if x is None:
        return rows.NO_TENSOR
    return rows.strided(x, *x.stride()) if x.dim() == 2 else rows.strided(x, 0, x.stride(0))
