"""Norm-weighted attention: weights times the length of the vectors that they scale.

Letters: B batch, H query heads, G value heads, Q queries, K keys, E value width, M model width, N packed tokens.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from uwaga._base.arguments import check
from uwaga._base.shapes import NamedShape, shape_error
from uwaga._base.tracing import without_autocast
from uwaga.maps.base import DerivedMap, WeightMap, check_nesting, count_heads
from uwaga.maps.spec import Selection
from uwaga.nn.operand import values_of
from uwaga.ops.attention.call import compute_dtype
from uwaga.ops.ragged import Ragged

PerKey = Tensor | Ragged  # (..., H, K), (K,) of a matrix; Ragged with values (N, H)


def value_norms(value: Tensor | Ragged, output_projection: Tensor) -> PerKey:
    """Return |v_j W_O^h|, the norm of the vector that head h adds per unit of weight on key j.

    Kobayashi et al., "Attention is Not Only a Weight: Analyzing Transformers with Vector Norms" (2020): the |f(x_j)| of
    their equation 5. `ScaledMap(m, value_norms(value, w_o))` is their norm-weighted attention, |a_ij f(x_j)|.

    The norm is Euclidean, in the units of the model's activations. The value is passed to attention, so it includes the
    bias of the value projection; the bias of the output projection belongs to no head and is left out. Nothing is
    normalised, so rows of norm-weighted attention need not sum to 1.

    Args:
        value: the value of attention, (..., G, K, E), a plain matrix (K, E), or Ragged (N, G, E).
        output_projection: (H * E, M) as in Concat(heads) W_O: the weight of GPT-2's Conv1D, or the transposed weight of
            torch.nn.Linear. H is a multiple of G, and 1 for a plain matrix.

    Returns:
        (..., H, K), (K,) of a plain matrix, or Ragged (N, H), in float32 (float64 for float64).

    Raises:
        ShapeError: an output projection without H * E rows.
    """
    dense = value.values.transpose(0, 1) if isinstance(value, Ragged) else value
    v_GKE = dense if dense.dim() > 2 else dense[None]
    _check(v_GKE, output_projection, is_matrix=dense.dim() == 2)
    compute = compute_dtype(dense.dtype)
    w_HEM = output_projection.to(compute).unflatten(0, (-1, v_GKE.shape[-1]))
    # W_O^h = R^T P with orthonormal rows in P, so |v R^T| = |v W_O^h|, and nothing of size K x M is made.
    v_HKE = v_GKE.to(compute).repeat_interleave(w_HEM.shape[0] // v_GKE.shape[-3], dim=-3)
    with without_autocast(v_HKE.device):
        r_HXE = torch.linalg.qr(w_HEM.mT, mode="r").R
        norms_HK = torch.linalg.vector_norm(v_HKE @ r_HXE.mT, dim=-1)
    if isinstance(value, Ragged):
        return value.with_values(norms_HK.transpose(0, 1))
    return norms_HK if dense.dim() > 2 else norms_HK[0]


def _check(v_GKE: Tensor, output_projection: Tensor, *, is_matrix: bool) -> None:
    groups, _, width = v_GKE.shape[-3:]
    shape = tuple(output_projection.shape)
    heads, rest = divmod(shape[0], width) if len(shape) == 2 else (0, 1)
    if not rest and heads and heads % groups == 0 and (heads == 1 or not is_matrix):
        return
    rule = "output_projection must be (H*E, M), with H a multiple of the value's heads G"
    letters = ("",) * (v_GKE.dim() - 3) + ("G", "K", "E")
    named = (
        NamedShape(name="value", shape=tuple(v_GKE.shape), letters=letters),
        NamedShape(name="output_projection", shape=shape, letters=("",) * len(shape)),
    )
    raise shape_error("value_norms", rule, named, "output_projection", f"is not (H * {width}, M)")


class ScaledMap(DerivedMap):
    """Compute a_ij * scale_j when read: norm-weighted attention if the scale is `value_norms(...)`.

    A weight of 0 gives 0, even if the scale is infinite or NaN: hidden keys stay hidden.

    Args:
        map: a map of any kind.
        scale: a factor per head and key: (..., H, K), (K,) for a plain matrix, Ragged (N, H) for a ragged map.

    Raises:
        ValueError: a scale of another shape, or on another device.
    """

    __slots__ = ("scale",)

    def __init__(self, map: WeightMap, scale: PerKey) -> None:
        shapes = [tuple(part.shape) for part in _per_sequence(scale)]
        expected = [(*shape[:-2], shape[-1]) for shape in map.shapes]
        check(
            shapes == expected,
            f"ScaledMap: scale must have one factor per head and key, shape {expected}, not {shapes}",
        )
        if (device := values_of(scale).device) != map.device:
            raise ValueError(f"ScaledMap: the scale is on {device}, the map on {map.device}")
        self.map, self.scale = check_nesting("ScaledMap", map), scale

    def describe(self) -> str:
        return f"{self.map.describe()}, scaled per key"

    def read(self, selection: Selection, keys: Tensor) -> Tensor:
        weights_BHQK = self.map.read(selection, keys)
        scale_BHK = values_of(self.scale).to(self.dtype).reshape(-1, count_heads(self), self.shape[-1])
        scale_BHK = scale_BHK[list(selection.sequences)][:, list(selection.heads)][..., keys]
        return torch.where(weights_BHQK == 0, 0.0, weights_BHQK * scale_BHK[:, :, None])

    def parts(self) -> Sequence[WeightMap] | None:
        parts = self.map.parts()
        if parts is None:
            return None
        return [ScaledMap(part, scale) for part, scale in zip(parts, _per_sequence(self.scale), strict=True)]


def _per_sequence(scale: PerKey) -> list[Tensor]:
    """Return the scale (..., H, K) of a dense map in a list, or of a ragged map (H, K) per sequence."""
    return [rows.movedim(0, -1) for rows in scale.to_list()] if isinstance(scale, Ragged) else [scale]
