"""Positions as a bias of the scores by distance: fixed slopes (ALiBi), learned buckets (T5). Letters: H query heads."""

import torch
from torch import Tensor, nn
from torch.types import Device

from uwaga._base import renamed
from uwaga.ops.biases import AlibiBias, RelativeBias
from uwaga.ops.mask_program import Start


@renamed.parameters(heads="num_heads")
class AlibiPositions(nn.Module):
    """Gives attention's `bias` -slopes[h] * |j - p| (Press, Smith and Lewis, "Train Short, Test Long", 2022, section 3).

    slopes: (H,) float32, not learned and not saved: the geometric sequence from 2 ** (-8 / H) with that ratio where H is
    a power of two; else that of the power of two below, and then every second one of the power of two above, as in the
    authors' code.

        attention(x, bias=AlibiPositions(heads)(), mask=Causal())
    """

    slopes: Tensor

    def __init__(self, num_heads: int, *, device: Device = None) -> None:
        super().__init__()
        self.register_buffer("slopes", torch.tensor(alibi_slopes(num_heads), device=device), persistent=False)

    def forward(self, start: Start = None) -> AlibiBias:
        """The bias; start: where the first query stands among the keys, as in `uwaga.AlibiBias`."""
        return AlibiBias(self.slopes, start=start)


@renamed.parameters(heads="num_heads", buckets="num_buckets")
class RelativePositions(nn.Module):
    """Gives attention's `bias` weight[bucket(j - p), h], learned (Raffel et al., "T5", 2020, section 2.1): one bucket a
    distance up to half of them, then logarithmically wider ones up to `max_distance`. One serves all layers of a stack.

    weight: (buckets, H); starts at zero, where no distance is preferred.

    Args:
        num_heads: H.
        num_buckets: how many; half of them look ahead where `bidirectional`.
        max_distance: from here on all distances share the last bucket.
        bidirectional: True in an encoder; False in a decoder, where keys ahead share the bucket of distance 0.
    """

    def __init__(
        self,
        num_heads: int,
        *,
        num_buckets: int = 32,
        max_distance: int = 128,
        bidirectional: bool = True,
        device: Device = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.max_distance, self.bidirectional = max_distance, bidirectional
        self.weight = nn.Parameter(torch.zeros(num_buckets, num_heads, device=device, dtype=dtype))
        self()  # RelativeBias knows which numbers of buckets and which distances fit together

    def forward(self, start: Start = None) -> RelativeBias:
        """The bias; start: where the first query stands among the keys, as in `uwaga.RelativeBias`."""
        return RelativeBias(self.weight, bidirectional=self.bidirectional, max_distance=self.max_distance, start=start)

    def extra_repr(self) -> str:
        buckets, heads = self.weight.shape
        return f"num_heads={heads}, num_buckets={buckets}, max_distance={self.max_distance}, bidirectional={self.bidirectional}"


def alibi_slopes(heads: int) -> list[float]:
    """As AlibiPositions has them: one for each head."""
    below = 1 << (heads.bit_length() - 1)
    slopes = [2.0 ** (-8.0 * (h + 1) / below) for h in range(below)]
    between = [2.0 ** (-8.0 * (h + 1) / (2 * below)) for h in range(0, 2 * below, 2)]
    return slopes + between[: heads - below]
