"""Multi-head attention: torch's numbers, any widths, separate inputs, padded rows and packed ones.

Letters: B batch, H query heads, G key/value heads, Q queries, K keys, D query/key width, E value width, M model width.
"""

from copy import deepcopy

import pytest
import torch
from drawn import draw
from torch import nn

import uwaga
from uwaga import Causal, Ragged
from uwaga.nn import MultiHeadAttention

TORCH = {
    "self": {},
    "without biases": {"bias": False},
    "widths of its own for keys and values": {"kdim": 10, "vdim": 6},
}


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("name", TORCH)
def test_torchs_weights_give_torchs_numbers(name: str, batch_first: bool, assert_as_exact) -> None:
    torch.manual_seed(1)
    peer = nn.MultiheadAttention(12, 3, batch_first=batch_first, **TORCH[name])
    if peer.in_proj_bias is not None:  # torch starts with zeros, which would not show
        nn.init.normal_(peer.in_proj_bias)
        nn.init.normal_(peer.out_proj.bias)
    inputs = [draw(2, 5, 12), draw(2, 7, peer.kdim, seed=1), draw(2, 7, peer.vdim, seed=2)]

    def run(module: nn.MultiheadAttention, *inputs: torch.Tensor) -> torch.Tensor:
        if batch_first:
            return module(*inputs, need_weights=False)[0]
        return module(*(x.transpose(0, 1) for x in inputs), need_weights=False)[0].transpose(0, 1)

    exact = deepcopy(peer).double()
    layer = MultiHeadAttention.from_torch(peer)
    assert_as_exact(layer(*inputs), run(peer, *inputs), lambda: run(exact, *(x.double() for x in inputs)))


def test_torchs_weights_are_copied_with_mode_dtype_and_dropout() -> None:
    peer = nn.MultiheadAttention(8, 2, dropout=0.25, dtype=torch.float64).eval()
    layer = MultiHeadAttention.from_torch(peer)
    assert (layer.dropout, layer.training, layer.query.weight.dtype) == (0.25, False, torch.float64)
    with torch.no_grad():
        peer.in_proj_weight.zero_()
    assert layer.query.weight.count_nonzero() > 0


def test_each_head_is_attention_over_its_own_slice_of_the_weights() -> None:
    layer = MultiHeadAttention(10, 4, num_kv_heads=2, d_k=3, d_v=5, bias=False, dtype=torch.float64)
    x, y = draw(5, 10, dtype=torch.float64), draw(7, 10, seed=1, dtype=torch.float64)
    expected = []
    for head in range(4):
        shared = head // 2  # two query heads read one key head
        q = x @ layer.query.weight[3 * head : 3 * head + 3].T
        k = y @ layer.key.weight[3 * shared : 3 * shared + 3].T
        v = y @ layer.value.weight[5 * shared : 5 * shared + 5].T
        expected.append(torch.softmax(q @ k.T / 3**0.5, -1) @ v)
    torch.testing.assert_close(layer(x, y), torch.cat(expected, -1) @ layer.output.weight.T)


def test_inputs_may_be_three_tensors_of_three_widths_or_fewer() -> None:
    layer = MultiHeadAttention(12, 3, query_dim=5, key_dim=6, value_dim=7, output_dim=2)
    assert layer(draw(2, 4, 5), draw(2, 9, 6), draw(2, 9, 7)).shape == (2, 4, 2)
    layer, x, y = MultiHeadAttention(12, 3), draw(2, 4, 12), draw(2, 6, 12, seed=1)
    assert torch.equal(layer(x), layer(x, x, x))
    assert torch.equal(layer(x, y), layer(x, y, y))


def test_packed_rows_attend_to_packed_rows_of_other_lengths() -> None:
    layer = MultiHeadAttention(12, 4, dtype=torch.float64)
    queries, keys = ([draw(n, 12, seed=n, dtype=torch.float64) for n in lengths] for lengths in ((3, 1), (2, 6)))
    packed = layer(Ragged.from_list(queries), Ragged.from_list(keys)).to_list()
    for value, x, y in zip(packed, queries, keys, strict=True):
        torch.testing.assert_close(value, layer(x, y))


def test_options_reach_the_operation() -> None:
    layer = MultiHeadAttention(12, 3, scale=0.7, softcap=2.0, bias=False)
    x, sinks, scores = draw(5, 12), draw(3, seed=1), draw(3, 5, 5, seed=2)
    heads = layer.project(x, x, x)
    mixed = uwaga.attention(*heads, mask=Causal(), bias=scores, scale=0.7, softcap=2.0, sinks=sinks)
    expected = layer.output(mixed.transpose(0, 1).flatten(1))
    assert torch.equal(layer(x, mask=Causal(), bias=scores, sinks=sinks), expected)


def test_torchs_zero_key_is_a_sink_of_zero(assert_as_exact) -> None:
    """What the error message promises."""
    torch.manual_seed(1)
    peer = nn.MultiheadAttention(8, 2, add_zero_attn=True)
    x = draw(5, 8)
    exact = deepcopy(peer).double()
    without = nn.MultiheadAttention(8, 2)
    without.load_state_dict(peer.state_dict())
    result = MultiHeadAttention.from_torch(without)(x, sinks=torch.zeros(2))
    assert_as_exact(result, peer(x, x, x)[0], lambda: exact(*[x.double()] * 3)[0])
