"""The layers of a Transformer, over padded tensors (..., Q, M) and Ragged batches (N, M) alike.

    layer = uwaga.nn.EncoderLayer(uwaga.nn.LayerSpec(d_model=512, num_heads=8, d_ff=2048))
    layer(batch)                                   # a Ragged batch: no padding is ever computed
    layer(padded, mask=uwaga.KeyLengths(lengths))  # the same numbers

Norms are torch.nn's own, and Gemma's ZeroCenteredRMSNorm. Each name is imported when first used.
"""

from typing import TYPE_CHECKING

from uwaga._base.lazy import names

if TYPE_CHECKING:
    from uwaga.nn.attention import MultiHeadAttention as MultiHeadAttention
    from uwaga.nn.kv_cache import KeyValueCache as KeyValueCache
    from uwaga.nn.layers import Decoder as Decoder
    from uwaga.nn.layers import DecoderLayer as DecoderLayer
    from uwaga.nn.layers import Encoder as Encoder
    from uwaga.nn.layers import EncoderLayer as EncoderLayer
    from uwaga.nn.layers import FeedForward as FeedForward
    from uwaga.nn.layers import LayerSpec as LayerSpec
    from uwaga.nn.plain_modules import ZeroCenteredRMSNorm as ZeroCenteredRMSNorm
    from uwaga.nn.positions import AlibiPositions as AlibiPositions
    from uwaga.nn.positions import LearnedPositions as LearnedPositions
    from uwaga.nn.positions import RelativePositions as RelativePositions
    from uwaga.nn.positions import RotaryPositions as RotaryPositions
    from uwaga.nn.positions import SinusoidalPositions as SinusoidalPositions
    from uwaga.nn.rotary_scaling import RotaryScaling as RotaryScaling
else:
    __all__, __getattr__, __dir__ = names(__name__)
