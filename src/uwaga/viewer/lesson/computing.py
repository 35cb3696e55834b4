"""The numbers, from the package's own operation and layer: what computes the lesson computes the models.

Letters: N tokens, M width of a token's vector, D inner width of queries and keys, E of values, H heads.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from uwaga.maps.attended import attend
from uwaga.maps.map import AttentionMap
from uwaga.nn import MultiHeadAttention
from uwaga.ops.attention.api import attention
from uwaga.viewer.lesson.example import Example


class OneHead(NamedTuple):
    """Attention as one head computes it, all in float32."""

    q_ND: Tensor
    k_ND: Tensor
    v_NE: Tensor
    scale: float  # what scores are multiplied by
    scores_NN: Tensor  # Q K^T, not scaled
    weights_NN: Tensor
    output_NE: Tensor


class Entered(NamedTuple):
    """What entered `uwaga.attention` inside a layer, and what the layer made of it."""

    query_HND: Tensor
    key_HND: Tensor
    value_HNE: Tensor
    output_NM: Tensor


def one_head(example: Example) -> OneHead:
    layer = layer_of(example, heads=1)
    entered = through(layer, example.x_NM)
    q_ND, k_ND, v_NE = entered.query_HND[0], entered.key_HND[0], entered.value_HNE[0]
    output_NE, _, weights = attend(q_ND, k_ND, v_NE, scale=layer.scale)
    assert isinstance(output_NE, Tensor)
    scale = scale_of(layer)
    return OneHead(q_ND, k_ND, v_NE, scale, scores(q_ND, k_ND), dense(weights), output_NE)


def layer_of(example: Example, heads: int) -> MultiHeadAttention:
    """The layer with the example's weights. torch.nn.Linear keeps them transposed."""
    width, inner = example.wq_MD.shape
    values = example.wv_ME.shape[1]
    layer = MultiHeadAttention(
        width,
        heads,
        d_k=inner // heads,
        d_v=values // heads,
        bias=False,
        scale=None if example.scaled else 1.0,
    )
    for linear, weight in (
        (layer.query, example.wq_MD),
        (layer.key, example.wk_MD),
        (layer.value, example.wv_ME),
        (layer.output, example.wo_EM),
    ):
        linear.weight.data = weight.T.contiguous()
    return layer.eval()


def through(layer: MultiHeadAttention, x_NM: Tensor) -> Entered:
    """Run the layer, and watch what it asks of the operation."""
    seen: list[Tensor] = []

    def watch(query: object, key: object, value: object, options: object) -> None:
        seen.extend(each for each in (query, key, value) if isinstance(each, Tensor))

    layer.watcher = watch
    output_NM = layer(x_NM)
    layer.watcher = None
    assert isinstance(output_NM, Tensor)
    query_HND, key_HND, value_HNE = (each.contiguous() for each in seen)
    return Entered(query_HND, key_HND, value_HNE, output_NM)


def dense(weights: AttentionMap) -> Tensor:
    """All weights of a small map."""
    found = weights.to_dense()
    assert isinstance(found, Tensor)
    return found


def scale_of(layer: MultiHeadAttention) -> float:
    return 1.0 / math.sqrt(layer.d_k) if layer.scale is None else layer.scale


def scores(q_ND: Tensor, k_ND: Tensor) -> Tensor:
    """Q K^T (N, N): the operation without scale and softmax, with one-hot values, which leave the scores to be seen."""
    return plain(q_ND, k_ND, torch.eye(len(k_ND)))


def plain(q_ND: Tensor, k_ND: Tensor, v_NE: Tensor) -> Tensor:
    """(Q K^T) V, with no scale and no softmax."""
    found = attention(q_ND, k_ND, v_NE, scale=1.0, normalize=None)
    assert isinstance(found, Tensor)
    return found


def times(left_NM: Tensor, right_MD: Tensor) -> Tensor:
    """The product of two matrices, as the scores of the left one's rows against the right one's columns."""
    return scores(left_NM, right_MD.T.contiguous())
