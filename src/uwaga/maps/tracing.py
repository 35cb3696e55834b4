"""What Python may ask of tensors under a tracer or a transform of torch.func: neither may change a number silently."""

from torch import Tensor

from uwaga._base.tracing import is_plain_tensor, is_tracing, is_transformed


def need_lengths() -> None:
    """Raise NotImplementedError where a tracer would write down the lengths of ragged sequences as it saw them."""
    if is_tracing():
        raise NotImplementedError(
            "AttentionMap: no tracer can write down a ragged map, whose lengths are numbers for Python; trace dense maps, "
            "or the output of attend alone"
        )


def may_branch_on(tensor: Tensor) -> bool:
    """Whether Python may decide by the values: they are there, and are those of one call alone."""
    return is_plain_tensor(tensor) and not tensor.is_meta and not is_transformed() and not is_tracing()
