"""Decoder layers and stacks: packed rows, the keys of a memory kept; torch's numbers are in test_layers.py.

Letters: B batch, R rows, Q tokens, K tokens of the memory, M width, N packed tokens.
"""

import pytest
import torch

from uwaga import Causal, KeyLengths, Ragged
from uwaga.nn import Decoder, DecoderLayer, KeyValueCache, LayerSpec, RotaryPositions
from uwaga.ops.attention.hooks import hooked, looking

SPEC = LayerSpec(d_model=8, num_heads=2, d_ff=12)
MEMORY_LENGTHS = torch.tensor([4, 1, 6])


def _x(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def _decoder(layers: int = 2, **options) -> Decoder:
    torch.manual_seed(0)
    return Decoder(LayerSpec(d_model=8, num_heads=2, d_ff=12, **options), layers, dtype=torch.float64)


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_packed_rows_are_the_padded_rows(norm: str) -> None:
    decoder, lengths = _decoder(norm=norm, memory_dim=10), torch.tensor([5, 2, 3])
    x, memory = _x(3, 5, 8), _x(3, 6, 10, seed=1)
    packed = decoder(Ragged.from_padded(x, lengths), Ragged.from_padded(memory, MEMORY_LENGTHS), mask=Causal())
    expected = decoder(x, memory, mask=Causal(start=0), memory_mask=KeyLengths(MEMORY_LENGTHS))
    torch.testing.assert_close(packed.values, Ragged.from_padded(expected, lengths).values)


def test_a_decoder_is_its_layers_and_a_last_norm_where_norms_stand_before() -> None:
    x, memory = _x(5, 8), _x(6, 8, seed=1)
    post, pre = _decoder(), _decoder(norm="pre")
    assert post.norm is None
    torch.testing.assert_close(post(x, memory), post.layers[1](post.layers[0](x, memory), memory))
    torch.testing.assert_close(pre(x, memory), pre.norm(pre.layers[1](pre.layers[0](x, memory), memory)))


def test_biases_and_masks_reach_the_attention_that_they_are_for() -> None:
    layer, x, memory = _decoder(1).layers[0], _x(5, 8), _x(6, 8, seed=1)
    seen = {}
    names = {layer.attention: "attention", layer.cross_attention: "cross_attention"}
    own, other = _x(2, 5, 5), _x(2, 5, 6)
    with hooked(dict.fromkeys(names, looking(lambda asked, where: seen.update({names[where]: asked.options})))):
        layer(x, memory, mask=Causal(), bias=own, memory_mask=KeyLengths(torch.tensor(4)), memory_bias=other)
    assert seen["attention"]["mask"] == Causal()
    assert seen["attention"]["bias"] is own
    assert isinstance(seen["cross_attention"]["mask"], KeyLengths)
    assert seen["cross_attention"]["bias"] is other


@pytest.mark.parametrize("kind", ["padded", "packed"])
def test_a_memory_is_read_once_and_its_keys_serve_every_token(kind: str) -> None:
    decoder, cache, rotary = _decoder(), KeyValueCache(2), RotaryPositions(4)
    x, memory = _x(3, 5, 8), _x(3, 6, 8, seed=1)
    packed = Ragged.from_padded(memory, MEMORY_LENGTHS)
    hidden = {"memory_mask": KeyLengths(MEMORY_LENGTHS)}
    expected = decoder(x, memory, mask=Causal(), rotary=rotary(x), **hidden)
    calls = []
    decoder.layers[1].cross_attention.key.register_forward_hook(lambda *_: calls.append(1))
    results = []
    with torch.no_grad():
        for at, piece in enumerate(x.split([2, 1, 2], 1)):
            turn = rotary(piece, cache.start)
            if kind == "padded":
                out = decoder(piece, memory if at == 0 else None, mask=Causal(), **hidden, rotary=turn, cache=cache)
            else:
                tokens = Ragged.from_list(list(piece))
                turn = rotary(tokens, cache.start)
                out = decoder(tokens, packed if at == 0 else None, mask=Causal(), rotary=turn, cache=cache).to_padded()
            results.append(out)
    torch.testing.assert_close(torch.cat(results, 1), expected)
    assert len(calls) == 1


@pytest.mark.parametrize("kind", ["padded", "packed"])
def test_beams_are_rows_in_another_order_with_their_memory(kind: str) -> None:
    decoder, cache, order = _decoder(), KeyValueCache(2), torch.tensor([2, 0, 2, 1])
    x, memory, more = _x(3, 3, 8), _x(3, 6, 8, seed=1), _x(4, 1, 8, seed=2)
    expected = decoder(
        torch.cat((x[order], more), 1), memory[order], mask=Causal(), memory_mask=KeyLengths(MEMORY_LENGTHS[order])
    )[:, 3:]
    with torch.no_grad():
        if kind == "padded":
            decoder(x, memory, mask=Causal(), memory_mask=KeyLengths(MEMORY_LENGTHS), cache=cache)
            cache.reorder(order)
            result = decoder(more, mask=Causal(), memory_mask=KeyLengths(MEMORY_LENGTHS[order]), cache=cache)
        else:
            rows = Ragged.from_list(list(x))
            decoder(rows, Ragged.from_padded(memory, MEMORY_LENGTHS), mask=Causal(), cache=cache)
            cache.reorder(order)
            result = decoder(Ragged.from_list(list(more)), mask=Causal(), cache=cache).to_padded()
    torch.testing.assert_close(result, expected)


def test_gradients_reach_inputs_memory_and_weights() -> None:
    layer = DecoderLayer(LayerSpec(d_model=4, num_heads=2, d_ff=3, norm="pre", num_kv_heads=1), dtype=torch.float64)
    x, memory, names = _x(3, 4).requires_grad_(), _x(2, 4, seed=1).requires_grad_(), dict(layer.named_parameters())

    def run(x: torch.Tensor, memory: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        state = dict(zip(names, weights, strict=True))
        return torch.func.functional_call(layer, state, (x, memory), {"mask": Causal()})

    assert torch.autograd.gradcheck(run, (x, memory, *names.values()))
