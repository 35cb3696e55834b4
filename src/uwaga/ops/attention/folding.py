"""torch.func.vmap: the mapped dimension is folded into the batch.

Letters as in spec.py; V is the size of the mapped dimension.
"""

from collections.abc import Sequence

from torch import Tensor

from uwaga.ops.attention.spec import Options

# Those of `Call.tensors` that have no batch dimension to fold into.
_SHARED = {3: "a vector of biases", 5: "sinks", 6: "offsets", 7: "offsets", 9: "a dropout seed"}
_OFFSETS = 6

Tensors = Sequence[Tensor | None]


def fold(
    size: int, dims: Sequence[int | None], tensors: Tensors, options: Options, needs: Sequence[bool] = (False,) * 6
) -> list[Tensor | None]:
    """`Call.tensors` of one call with a batch of V * B. Raises ValueError where they cannot be folded."""
    if tensors[_OFFSETS] is not None:
        raise ValueError("attention: vmap over a ragged batch is not supported; a Ragged has a batch of its own")
    if options.dropout:
        raise ValueError("attention: vmap with dropout is not supported: its pattern depends on the place in the batch")
    for at, name in _SHARED.items():
        if dims[at] is not None:
            raise ValueError(f"attention: vmap over {name} is not supported; loop over the mapped dimension")
        if at < len(needs) and needs[at]:
            raise ValueError(
                f"attention: vmap over the gradient of {name} is not supported; loop over the mapped dimension"
            )
    folded = lead_all(size, dims, tensors)
    return [x if at in _SHARED else y for at, (x, y) in enumerate(zip(tensors, folded, strict=True))]


def lead_all(size: int, dims: Sequence[int | None], tensors: Tensors) -> list[Tensor | None]:
    """(V * B, ...) of each (B, ...) with the mapped dimension somewhere, or nowhere: then all maps see the same."""
    return [
        None if x is None else (x.expand(size, *x.shape) if dim is None else x.movedim(dim, 0)).flatten(0, 1)
        for x, dim in zip(tensors, dims, strict=True)
    ]


def unfold(size: int, results: Tensors) -> tuple[tuple, tuple]:
    """(V, B, ...) of each (V * B, ...), and where the mapped dimension is; an absent result, None or empty, has none."""
    absent = [x is None or x.dim() == 1 for x in results]
    unfolded = (x if gone else x.unflatten(0, (size, -1)) for x, gone in zip(results, absent, strict=True))
    return tuple(unfolded), tuple(None if gone else 0 for gone in absent)
