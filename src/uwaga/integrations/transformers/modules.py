"""What a layer of transformers tells about itself, and what is asked of the whole model."""

import inspect
from functools import cache

from torch import nn

# The arguments of layers that attend to their own input. A layer that takes any other, such as key_value_states, may
# attend to another sequence, whose padding says nothing about its own.
_OWN = frozenset(
    [
        "self",
        "hidden_states",
        "attention_mask",
        "position_embeddings",
        "position_ids",
        "past_key_values",
        "cache_position",
        "use_cache",
        "output_attentions",
        "is_causal",
        "kwargs",
    ]
)


@cache
def attends_to_itself(layer: type) -> bool:
    """Whether queries and keys of this class of layers are certainly the same tokens."""
    return set(inspect.signature(layer.forward).parameters) <= _OWN  # type: ignore[attr-defined]


def layers_to_come(module: nn.Module) -> int | None:
    """How many layers come behind this one; None where it does not tell.

    Configs of encoder-decoders have one number for two stacks of layers.
    """
    config, index = getattr(module, "config", None), getattr(module, "layer_idx", None)
    count = getattr(config, "num_hidden_layers", None)
    if not isinstance(index, int) or not isinstance(count, int) or getattr(config, "is_encoder_decoder", False):
        return None
    return count - 1 - index


def is_collected(name: str) -> bool:
    """Whether the model collects "attentions", "hidden_states" or the like in this pass. Its layers are not all told."""
    try:
        from transformers.utils.output_capturing import _active_collector
    except ImportError:  # older versions tell their layers
        return False
    return name in (_active_collector.get() or ())
