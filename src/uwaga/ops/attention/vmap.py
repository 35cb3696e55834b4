"""torch.func.vmap of a call: the mapped dimension is folded into the batch.

Letters as in call.py; V is the size of the mapped dimension.
"""

from collections.abc import Sequence

from torch import Tensor

from uwaga.ops.attention.call import Gradients, Options

# Those of `Call.tensors` that have no batch dimension to fold into.
_SHARED = {3: "a vector of biases", 5: "sinks", 6: "offsets", 7: "offsets", 9: "a dropout seed"}
_BIAS, _OFFSETS = 4, 6

Tensors = Sequence[Tensor | None]


def fold(
    size: int, dims: Sequence[int | None], tensors: Tensors, options: Options, needs: Sequence[bool] = (False,) * 6
) -> list[Tensor | None]:
    """`Call.tensors` of one call with a batch of V * B. Raises ValueError where they cannot be folded."""
    if tensors[_OFFSETS] is not None:
        raise ValueError("attention: vmap over a ragged batch is not supported; a Ragged has a batch of its own")
    if options.dropout:
        raise ValueError(
            "attention: vmap with dropout is not supported: its pattern depends on the position in the batch"
        )
    for at, name in _SHARED.items():
        if dims[at] is not None:
            raise ValueError(f"attention: vmap over {name} is not supported; loop over the mapped dimension")
        if at < len(needs) and needs[at]:
            raise ValueError(
                f"attention: vmap over the gradient of {name} is not supported; loop over the mapped dimension"
            )
    folded = lead_all(size, batch_of(dims, tensors), dims, tensors)
    return [x if at in _SHARED else y for at, (x, y) in enumerate(zip(tensors, folded, strict=True))]


def batch_of(dims: Sequence[int | None], tensors: Tensors) -> int:
    """B of the query, which comes first, without the mapped dimension."""
    assert tensors[0] is not None
    return tensors[0].shape[_batch_dimension(dims[0])]


def lead_all(size: int, batch: int, dims: Sequence[int | None], tensors: Tensors) -> list[Tensor | None]:
    """(V * B, ...) of each (B, ...) or (1, ...) whose mapped dimension is anywhere; a tensor without one is
    repeated."""
    return [None if x is None else _lead(size, batch, dim, x) for x, dim in zip(tensors, dims, strict=True)]


def _lead(size: int, batch: int, dim: int | None, x: Tensor) -> Tensor:
    x = x.expand(size, *x.shape) if dim is None else x.movedim(dim, 0)
    return x.expand(size, batch, *x.shape[2:]).flatten(0, 1)


def unfold(size: int, batch: int, results: Tensors) -> tuple[Gradients, tuple[int | None, ...]]:
    """(V, B, ...) of each (V * B, ...), and the index of the mapped dimension; None for an absent result, None or empty."""
    unfolded = [x if x is None or x.dim() == 1 else x.unflatten(0, (size, batch)) for x in results]
    return tuple(unfolded), tuple(None if x is None or x.dim() == 1 else 0 for x in results)


def unfold_gradients(
    size: int, batch: int, dims: Sequence[int | None], tensors: Tensors, gradients: Tensors
) -> tuple[Gradients, tuple[int | None, ...]]:
    """`unfold` for gradients of the first of `Call.tensors`; one that was broadcast over the batch is summed over it."""
    unfolded, unfolded_dims = unfold(size, batch, gradients)
    bias, of_bias = tensors[_BIAS], unfolded[_BIAS]
    if bias is not None and of_bias is not None and bias.shape[_batch_dimension(dims[_BIAS])] != batch:
        unfolded = (*unfolded[:_BIAS], of_bias.sum(1, keepdim=True), *unfolded[_BIAS + 1 :])
    return unfolded, unfolded_dims


def _batch_dimension(dim: int | None) -> int:
    """The index of the batch dimension, which is first apart from the mapped dimension."""
    return 1 if dim == 0 else 0
