"""Floor 3: the layers of a Transformer, over padded tensors (..., Q, M) and Ragged batches (N, M) alike.

    layer = uwaga.nn.EncoderLayer(uwaga.nn.LayerSpec(d_model=512, num_heads=8, d_ff=2048))
    layer(batch)                                   # a Ragged batch: no padding is ever computed
    layer(padded, mask=uwaga.KeyLengths(lengths))  # the same numbers

Norms are torch.nn's own. Each name is imported when first used.
"""

from typing import TYPE_CHECKING

from uwaga._base.lazy import names

if TYPE_CHECKING:
    from uwaga.nn.attention import MultiHeadAttention
    from uwaga.nn.cache import KeyValueCache
    from uwaga.nn.distances import AlibiPositions, RelativePositions
    from uwaga.nn.feed_forward import FeedForward
    from uwaga.nn.layers import DecoderLayer, EncoderLayer
    from uwaga.nn.learned import LearnedPositions
    from uwaga.nn.rotary import RotaryPositions
    from uwaga.nn.sinusoidal import SinusoidalPositions
    from uwaga.nn.spec import LayerSpec
    from uwaga.nn.stacks import Decoder, Encoder

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
    "MultiHeadAttention",
    "RelativePositions",
    "RotaryPositions",
    "SinusoidalPositions",
]

_HOME = {
    "AlibiPositions": "uwaga.nn.distances",
    "Decoder": "uwaga.nn.stacks",
    "DecoderLayer": "uwaga.nn.layers",
    "Encoder": "uwaga.nn.stacks",
    "EncoderLayer": "uwaga.nn.layers",
    "FeedForward": "uwaga.nn.feed_forward",
    "KeyValueCache": "uwaga.nn.cache",
    "LayerSpec": "uwaga.nn.spec",
    "LearnedPositions": "uwaga.nn.learned",
    "MultiHeadAttention": "uwaga.nn.attention",
    "RelativePositions": "uwaga.nn.distances",
    "RotaryPositions": "uwaga.nn.rotary",
    "SinusoidalPositions": "uwaga.nn.sinusoidal",
}

__getattr__, __dir__ = names(__name__, _HOME)
