"""Whether Python code may depend on the values of tensors: not under a tracer or a transform of torch.func."""

from torch import Tensor

from uwaga._base.tracing import is_plain_tensor, is_tracing, is_transformed


def check_lengths() -> None:
    """Raise NotImplementedError where a tracer would record the lengths of ragged sequences as constants."""
    if is_tracing():
        raise NotImplementedError(
            "AttentionMap: tracers cannot record a ragged map, whose lengths are Python numbers; trace dense maps, or the "
            "output of attend alone"
        )


def may_branch_on(tensor: Tensor) -> bool:
    """Whether Python code may branch on the values: the tensor has values, and no tracer or transform is active."""
    return is_plain_tensor(tensor) and not tensor.is_meta and not is_transformed() and not is_tracing()
