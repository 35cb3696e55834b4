"""torch.func.vmap over the registered operators: the mapped dimension is folded into the batch.

Letters as in spec.py; V is the size of the mapped dimension.
"""

import math

import torch
from torch import Tensor

# Of the operators' list CALL: operands with a leading batch dimension, and those without one.
_BATCHED = (0, 1, 2, 4, 8)  # query, key, value, bias, relative_starts
_SHARED = {3: "bias vector", 5: "sinks", 6: "query offsets", 7: "key offsets", 9: "dropout seed"}
_MASKS = 10
_OFFSETS, _DROPOUT = 6, 20


def forward(info, in_dims, *arguments):
    """The batched forward: output (V, B, H, Q, E), lse (V, B, H, Q)."""
    folded = _fold(info.batch_size, in_dims, arguments)
    output, lse = torch.ops.uwaga.forward(*folded)
    return (_unfold(output, info.batch_size), _unfold(lse, info.batch_size)), (0, _place(lse))


def backward(info, in_dims, grad_output, grad_lse, output, lse, needs, *arguments):
    """The batched backward; the gradients of operands without a batch dimension cannot be told apart."""
    size = info.batch_size
    tensors = (grad_output, grad_lse, output, lse)
    batched = [_lead(x, dim, size) for x, dim in zip(tensors, in_dims[:4], strict=True)]
    for name, at in (("a bias vector", 3), ("sinks", 5)):
        if needs[at]:
            raise ValueError(f"attention: vmap over a gradient of {name} is not supported; loop over the mapped dimension")
    folded = _fold(size, in_dims[5:], arguments)
    found = torch.ops.uwaga.backward(*batched, needs, *folded)
    unfolded = tuple(_unfold(x, size) for x in found)
    if needs[4]:  # the folded bias has a row per sequence only where the bias has
        unfolded = (*unfolded[:4], found[4].unflatten(0, (size, -1)), unfolded[5])
    return unfolded, tuple(_place(x) for x in found)


def _fold(size: int, in_dims, arguments) -> list:
    folded = list(arguments)
    if arguments[_OFFSETS] is not None:
        raise ValueError("attention: vmap over a ragged batch is not supported; a Ragged has a batch of its own")
    if arguments[_DROPOUT]:
        raise ValueError("attention: vmap with dropout is not supported; loop over the mapped dimension")
    for at, name in _SHARED.items():
        if in_dims[at] is not None:
            raise ValueError(f"attention: vmap over the {name} is not supported; loop over the mapped dimension")
    for at in _BATCHED:
        folded[at] = _lead(arguments[at], in_dims[at], size)
    dims = in_dims[_MASKS] if in_dims[_MASKS] is not None else [None] * len(arguments[_MASKS])
    folded[_MASKS] = [_lead(x, dim, size) for x, dim in zip(arguments[_MASKS], dims, strict=True)]
    return folded


def _lead(x: Tensor | None, dim: int | None, size: int) -> Tensor | None:
    """(V * B, ...) from (B, ...) with the mapped dimension somewhere, or none: then each map sees the same."""
    if x is None:
        return None
    mapped = x.expand(size, *x.shape) if dim is None else x.movedim(dim, 0)
    return mapped.flatten(0, 1)


def _unfold(x: Tensor, size: int) -> Tensor:
    return x if _place(x) is None else x.unflatten(0, (size, math.prod(x.shape[:1]) // size if size else 0))


def _place(x: Tensor) -> int | None:
    """Where the mapped dimension of a result is: absent results are empty vectors and have none."""
    return None if x.dim() == 1 else 0
