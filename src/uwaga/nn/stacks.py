"""Stacks of layers. Letters: B batch, Q tokens, M model width, N packed tokens."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.types import Device

from uwaga._base import renamed
from uwaga.nn.cache import KeyValueCache, LayerCache
from uwaga.nn.carry import carry
from uwaga.nn.layers import DecoderLayer, EncoderLayer
from uwaga.nn.rotary import Rotation
from uwaga.nn.spec import LayerSpec
from uwaga.ops.biases import DistanceBias
from uwaga.ops.masks import Mask
from uwaga.ops.ragged import Operand


@renamed.parameters(layers="num_layers")
class Encoder(nn.Module):
    """Encoder layers one after the other (Vaswani et al. 2017, section 3.1); with a causal mask a decoder-only model.

    Submodules: layers (a ModuleList of EncoderLayer) and norm, after the last layer: where norms stand before, nothing
    else would bring the sum of all residuals to scale. None where they stand after.

    Args:
        spec: of every layer.
        num_layers: how many.
    """

    def __init__(
        self, spec: LayerSpec, num_layers: int, *, device: Device = None, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__()
        made: dict[str, Any] = {"device": device, "dtype": dtype}
        self.layers = nn.ModuleList(EncoderLayer(spec, **made) for _ in range(num_layers))
        self.norm = spec.new_norm(**made) if spec.norm == "pre" else None

    def forward(
        self,
        x: Operand,
        *,
        mask: Mask | Tensor | None = None,
        bias: DistanceBias | Tensor | None = None,
        rotary: Rotation | None = None,
        cache: KeyValueCache | None = None,
    ) -> Operand:
        """(..., Q, M), or Ragged with values (N, M), as x is; what EncoderLayer takes, for all layers alike.

        Raises:
            ShapeError, ValueError: as EncoderLayer; a cache for another number of layers.
        """
        caches = _caches("Encoder", self.layers, cache)
        for layer, own in zip(self.layers, caches, strict=True):
            x = layer(x, mask=mask, bias=bias, rotary=rotary, cache=own)
        return x if self.norm is None else carry(self.norm, x)


@renamed.parameters(layers="num_layers")
class Decoder(nn.Module):
    """Decoder layers one after the other, all with the same memory (Vaswani et al. 2017, section 3.1).

    Submodules: layers (a ModuleList of DecoderLayer) and norm, after the last layer where norms stand before, else None.

    Args:
        spec: of every layer.
        num_layers: how many.
    """

    def __init__(
        self, spec: LayerSpec, num_layers: int, *, device: Device = None, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__()
        made: dict[str, Any] = {"device": device, "dtype": dtype}
        self.layers = nn.ModuleList(DecoderLayer(spec, **made) for _ in range(num_layers))
        self.norm = spec.new_norm(**made) if spec.norm == "pre" else None

    def forward(
        self,
        x: Operand,
        memory: Operand | None = None,
        *,
        mask: Mask | Tensor | None = None,
        bias: DistanceBias | Tensor | None = None,
        memory_mask: Mask | Tensor | None = None,
        memory_bias: DistanceBias | Tensor | None = None,
        rotary: Rotation | None = None,
        cache: KeyValueCache | None = None,
    ) -> Operand:
        """(..., Q, M), or Ragged with values (N, M), as x is; what DecoderLayer takes, for all layers alike.

        Raises:
            ShapeError, ValueError: as DecoderLayer; a cache for another number of layers.
        """
        options = {"mask": mask, "bias": bias, "memory_mask": memory_mask, "memory_bias": memory_bias, "rotary": rotary}
        caches = _caches("Decoder", self.layers, cache)
        for layer, own in zip(self.layers, caches, strict=True):
            x = layer(x, memory, **options, cache=own)
        return x if self.norm is None else carry(self.norm, x)


def _caches(stack: str, layers: nn.ModuleList, cache: KeyValueCache | None) -> list[LayerCache | None]:
    if cache is None:
        return [None] * len(layers)
    if len(cache) != len(layers):
        raise ValueError(f"{stack}: a cache for {len(cache)} layers, and there are {len(layers)}")
    return list(cache)
