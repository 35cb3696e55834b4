"""Stacks of layers. Letters: B batch, Q tokens, M model width, N packed tokens."""

from torch import Tensor, nn

from uwaga.nn.carry import carry
from uwaga.nn.layers import EncoderLayer
from uwaga.nn.spec import LayerSpec
from uwaga.ops.attention.lower import Operand
from uwaga.ops.biases import DistanceBias
from uwaga.ops.masks import Mask


class Encoder(nn.Module):
    """Encoder layers one after the other (Vaswani et al. 2017, section 3.1).

    Submodules: layers (a ModuleList of EncoderLayer) and norm, after the last layer: where norms stand before, nothing
    else would bring the sum of all residuals to scale. None where they stand after.

    Args:
        spec: of every layer.
        layers: how many.
    """

    def __init__(self, spec: LayerSpec, layers: int, *, device=None, dtype=None) -> None:
        super().__init__()
        made = {"device": device, "dtype": dtype}
        self.layers = nn.ModuleList(EncoderLayer(spec, **made) for _ in range(layers))
        self.norm = spec.new_norm(**made) if spec.norm == "pre" else None

    def forward(
        self,
        x: Operand,
        *,
        mask: Mask | Tensor | None = None,
        bias: DistanceBias | Tensor | None = None,
    ) -> Operand:
        """(..., Q, M), or Ragged with values (N, M), as x is; mask and bias are those of every layer, see EncoderLayer."""
        for layer in self.layers:
            x = layer(x, mask=mask, bias=bias)
        return x if self.norm is None else carry(self.norm, x)
