"""An RMS norm whose weight is a difference from 1. Letters: M width."""

import torch
from torch import Tensor, nn
from torch.nn import functional


class ZeroCenteredRMSNorm(nn.RMSNorm):
    """x / sqrt(mean of squares + eps) * (1 + weight), as in Gemma: weight (M,) begins at 0, so that weight decay draws the factor
    to 1, and half precision stores it finely there."""

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.weight)

    def factor(self) -> Tensor:
        """(M,) 1 + weight, in float32 (float64 for float64)."""
        return 1.0 + (self.weight.float() if self.weight.dtype != torch.float64 else self.weight)

    def forward(self, x: Tensor) -> Tensor:
        """(..., M), computed in float32 (float64 for float64) and rounded once."""
        factor = self.factor()
        return functional.rms_norm(x.to(factor.dtype), self.normalized_shape, factor, self.eps).to(x.dtype)
