"""The layers of a Transformer, over padded tensors (..., Q, M) and Ragged batches (N, M) alike.

    layer = uwaga.nn.EncoderLayer(uwaga.nn.LayerSpec(d_model=512, num_heads=8, d_ff=2048))
    layer(batch)                                   # a Ragged batch: no padding is ever computed
    layer(padded, mask=uwaga.KeyLengths(lengths))  # the same numbers

Norms are torch.nn's own, and Gemma's ZeroCenteredRMSNorm. Each name is imported when first used.
"""

from typing import TYPE_CHECKING

from uwaga._base.lazy import names

if TYPE_CHECKING:
    from uwaga.nn.attention import MultiHeadAttention
    from uwaga.nn.feed_forward import FeedForward
    from uwaga.nn.kv_cache import KeyValueCache
    from uwaga.nn.layers import Decoder, DecoderLayer, Encoder, EncoderLayer, LayerSpec
    from uwaga.nn.memory_attention import MemoryAttention
    from uwaga.nn.norms import ZeroCenteredRMSNorm
    from uwaga.nn.positions import (
        AlibiPositions,
        LearnedPositions,
        RelativePositions,
        RotaryPositions,
        SinusoidalPositions,
    )
    from uwaga.nn.rotary_scaling import RotaryScaling

__all__ = [
    "AlibiPositions",
    "Decoder",
    "DecoderLayer",
    "Encoder",
    "EncoderLayer",
    "FeedForward",
    "KeyValueCache",
    "LayerSpec",
    "LearnedPositions",
    "MemoryAttention",
    "MultiHeadAttention",
    "RelativePositions",
    "RotaryPositions",
    "RotaryScaling",
    "SinusoidalPositions",
    "ZeroCenteredRMSNorm",
]

_HOME = {
    "AlibiPositions": "uwaga.nn.positions",
    "Decoder": "uwaga.nn.layers",
    "DecoderLayer": "uwaga.nn.layers",
    "Encoder": "uwaga.nn.layers",
    "EncoderLayer": "uwaga.nn.layers",
    "FeedForward": "uwaga.nn.feed_forward",
    "KeyValueCache": "uwaga.nn.kv_cache",
    "LayerSpec": "uwaga.nn.layers",
    "LearnedPositions": "uwaga.nn.positions",
    "MemoryAttention": "uwaga.nn.memory_attention",
    "MultiHeadAttention": "uwaga.nn.attention",
    "RelativePositions": "uwaga.nn.positions",
    "RotaryPositions": "uwaga.nn.positions",
    "RotaryScaling": "uwaga.nn.rotary_scaling",
    "SinusoidalPositions": "uwaga.nn.positions",
    "ZeroCenteredRMSNorm": "uwaga.nn.norms",
}

__getattr__, __dir__ = names(__name__, _HOME)
