"""Computes the lesson's numbers with `uwaga.attention`, `uwaga.attend` and `uwaga.nn`, as the models do.

Letters: N tokens, M width of a token's vector, D width of queries and keys, E of values, H heads.
"""

from typing import Any

import torch
from torch import Tensor

from uwaga.lessons.example import Example, weight
from uwaga.maps.attended import attend
from uwaga.maps.map import AttentionMap
from uwaga.nn import MultiHeadAttention, SinusoidalPositions
from uwaga.ops.attention import api
from uwaga.ops.linear.api import linear
from uwaga.ops.masks import Mask

ROUNDING = 1e-5  # numbers that differ by less, relative to the largest, are equal
CLEAR = 0.02  # an answer that rests on a smaller difference is a near tie: nothing is asked about it


def layer_of(example: Example, heads: int) -> MultiHeadAttention:
    """Return a layer of heads that have the sizes of the example's matrices. The first head has these matrices.
    torch.nn.Linear stores weights transposed."""
    (width, inner), values = example.wq_MD.shape, example.wv_ME.shape[1]
    layer = MultiHeadAttention(width, heads, d_k=inner, d_v=values, bias=False, scale=None if example.scaled else 1.0)
    for projection, name, first in (
        (layer.query, "wq", example.wq_MD),
        (layer.key, "wk", example.wk_MD),
        (layer.value, "wv", example.wv_ME),
    ):
        others = [weight(f"{name} of head {head + 1}", *first.shape) for head in range(1, heads)]
        projection.weight.data = torch.cat((first, *others), dim=1).T.contiguous()
    layer.output.weight.data = example.wo_EM[: heads * values].T.contiguous()
    return layer.eval()


def projected(
    layer: MultiHeadAttention, x_NM: Tensor, memory_KM: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries (N, D), keys (K, D) and values (K, E) of a layer's first head. Keys and values come from the
    memory if there is one."""
    memory_KM = x_NM if memory_KM is None else memory_KM
    q_ND, k_KD, v_KE = (part[0] for part in layer.project(x_NM, memory_KM, memory_KM) if isinstance(part, Tensor))
    return q_ND, k_KD, v_KE


def leads(numbers_NK: Tensor) -> Tensor:
    """Return how far the largest number of each row is above the next one, (N,).

    Numbers that equal the largest up to rounding are not the next one; if all numbers do, the result is infinity.
    """
    most_N1 = numbers_NK.amax(-1, keepdim=True)
    others_NK = numbers_NK.masked_fill(numbers_NK >= most_N1 - ROUNDING * most_N1.abs().clamp(min=1.0), -torch.inf)
    return most_N1[:, 0] - others_NK.amax(-1)


def clearest(worth_N: Tensor, clear_N: Tensor) -> int:
    """Return the row of the largest worth among the clear ones, or among all if none is clear."""
    return int((worth_N.masked_fill(~clear_N, -torch.inf) if clear_N.any() else worth_N).argmax())


def dense(weights: AttentionMap) -> Tensor:
    """Return all weights of a small map, (..., Q, K)."""
    result = weights.to_dense()
    assert isinstance(result, Tensor)
    return result


def at_largest(numbers: Tensor) -> tuple[int, int]:
    """Return row and column of the largest number of a matrix, the first of equal ones."""
    return divmod(int(numbers.argmax()), numbers.shape[1])


def apart(one: Tensor, other: Tensor) -> float:
    """Return the largest difference between two matrices."""
    return float((one - other).abs().max())


def attention(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Compute `uwaga.attention` of tensors, whose result is a tensor."""
    output = api.attention(q, k, v, **options)
    assert isinstance(output, Tensor)
    return output


def scores(q_ND: Tensor, k_ND: Tensor) -> Tensor:
    """Return Q K^T, (N, N), as the operation without scale and softmax computes it if the values are the identity."""
    return unnormalised(q_ND, k_ND, torch.eye(len(k_ND)))


def unnormalised(q_ND: Tensor, k_ND: Tensor, v_NE: Tensor) -> Tensor:
    """Return (Q K^T) V, (N, E), without scale and softmax."""
    return attention(q_ND, k_ND, v_NE, scale=1.0, normalize=None)


def mapped(x_NM: Tensor, weight_DM: Tensor) -> Tensor:
    """Return x W^T, (N, D), as a layer computes it."""
    result = linear(x_NM, weight_DM)
    assert isinstance(result, Tensor)
    return result


def attended(q_ND: Tensor, k_KD: Tensor, v_KE: Tensor, scale: float, mask: Mask | None = None) -> tuple[Tensor, Tensor]:
    """Return the output (N, E) of attention and all its weights (N, K)."""
    output_NE, _, weights = attend(q_ND, k_KD, v_KE, mask=mask, scale=scale)
    assert isinstance(output_NE, Tensor)
    return output_NE, dense(weights)


def reordered(example: Example, *, with_codes: bool) -> tuple[Tensor, Tensor]:
    """Return the layer's outputs over X and over the shuffled tokens, its rows moved back. with_codes: whether position
    codes are added to X."""
    layer, order = layer_of(example, example.heads), list(example.order)
    outputs = []
    for x_NM in (example.x_NM, example.x_NM[order]):
        output = layer(SinusoidalPositions(x_NM.shape[1])(x_NM) if with_codes else x_NM)
        assert isinstance(output, Tensor)
        outputs.append(output)
    return outputs[0], outputs[1][[order.index(place) for place in range(len(order))]]
