"""Layers and stacks of them: torch's numbers, packed rows, gradients, the keys of a memory that are kept.

Letters: B batch, R rows, Q tokens, K tokens of the memory, M width, N packed tokens.
"""

from copy import deepcopy

import pytest
import torch
from torch import nn
from torch.nn import functional

from uwaga import AlibiBias, Causal, Documents, KeyLengths, Ragged, RelativeBias, Window
from uwaga.nn import (
    Decoder,
    DecoderLayer,
    Encoder,
    EncoderLayer,
    FeedForward,
    KeyValueCache,
    LayerSpec,
    MultiHeadAttention,
    RotaryPositions,
)
from uwaga.ops.attention.hooks import hooked, looking

LENGTHS = torch.tensor([5, 2, 7])
SPEC = LayerSpec(d_model=8, num_heads=2, d_ff=12)
MEMORY_LENGTHS = torch.tensor([4, 1, 6])


def _x(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


PARTS = {
    "attention": "self_attn", "attention_norm": "norm1", "cross_attention": "multihead_attn", "cross_attention_norm": "norm2",
    "feed_forward.up": "linear1", "feed_forward.down": "linear2",
}  # fmt: skip


def _weights_of(peer: nn.Module) -> dict[str, torch.Tensor]:
    """Those of a layer of torch, by our names."""
    is_decoder = isinstance(peer, nn.TransformerDecoderLayer)
    parts = {ours: getattr(peer, theirs) for ours, theirs in PARTS.items() if is_decoder or "cross" not in ours}
    parts["feed_forward_norm"] = peer.norm3 if is_decoder else peer.norm2
    states = {
        name: (MultiHeadAttention.from_torch(x) if isinstance(x, nn.MultiheadAttention) else x).state_dict()
        for name, x in parts.items()
    }
    return {f"{part}.{name}": x for part, state in states.items() for name, x in state.items()}


@pytest.mark.parametrize(
    ("norm", "activation", "bias"), [("pre", "gelu", True), ("post", "relu", True), ("post", "gelu", False)]
)
@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_a_layer_gives_torchs_numbers(kind: str, norm: str, activation: str, bias: bool, assert_as_exact) -> None:
    torch.manual_seed(2)
    options = {"norm_first": norm == "pre", "activation": activation, "bias": bias}
    ours, theirs = {
        "encoder": (EncoderLayer, nn.TransformerEncoderLayer),
        "decoder": (DecoderLayer, nn.TransformerDecoderLayer),
    }[kind]
    peer = theirs(12, 3, 20, dropout=0.0, batch_first=True, **options)
    for x in peer.parameters():  # other numbers than ones and zeros in norms and biases, which would not show
        nn.init.normal_(x, std=0.5)
    layer = ours(LayerSpec(d_model=12, num_heads=3, d_ff=20, norm=norm, activation=activation, bias=bias))
    layer.load_state_dict(_weights_of(peer))

    x, memory = _x(3, 7, 12, dtype=torch.float32), _x(3, 7, 12, seed=1, dtype=torch.float32)
    hidden, exact = torch.arange(7) >= LENGTHS[:, None], deepcopy(peer).double()
    # The output at padding positions is undefined: in torch it attends to the tokens, and here too.
    inputs, mask, options = (x,), {"mask": KeyLengths(LENGTHS)}, {"src_key_padding_mask": hidden}
    if kind == "decoder":
        inputs, mask = (x, memory), {"mask": Causal(), "memory_mask": KeyLengths(LENGTHS)}
        later = nn.Transformer.generate_square_subsequent_mask(7) < 0
        options = {"tgt_mask": later, "memory_key_padding_mask": hidden}
    right = lambda: exact(*(tensor.double() for tensor in inputs), **options)  # noqa: E731
    assert_as_exact(layer(*inputs, **mask), peer(*inputs, **options), right)


@pytest.mark.parametrize("norm_type", ["layer", "rms"])
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_packed_rows_are_the_padded_rows(norm: str, norm_type: str) -> None:
    spec = LayerSpec(d_model=8, num_heads=2, d_ff=12, norm=norm, norm_type=norm_type, gated=True, num_kv_heads=1)
    encoder = Encoder(spec, 2, dtype=torch.float64)
    padded, bias = _x(3, 7, 8), AlibiBias(_x(2, seed=1), start=0)
    packed = encoder(Ragged.from_padded(padded, LENGTHS), mask=Causal(start=0), bias=bias)
    expected = encoder(padded, mask=Causal(start=0) & KeyLengths(LENGTHS), bias=bias)
    torch.testing.assert_close(packed.values, Ragged.from_padded(expected, LENGTHS).values)


ONLY_MASKS = {
    "none": None,
    "causal": Causal(),
    "from the start": Causal(start=0),
    "window": Window(2, 1),
    "shown keys": KeyLengths(LENGTHS - 1) & Window(3, 3),
    "documents": Documents(torch.tensor([0, 1] * 7)),
}
ONLY_BIASES = {
    "none": None,
    "alibi": AlibiBias(torch.tensor([0.5, 0.1])),
    "relative": RelativeBias(_x(8, 2, dtype=torch.float32), max_distance=4),
}


@pytest.mark.parametrize(
    ("mask", "bias"), [(mask, "alibi") for mask in ONLY_MASKS] + [("causal", bias) for bias in ONLY_BIASES]
)
@pytest.mark.parametrize("norm", ["pre", "post"])
@torch.no_grad()
def test_only_a_token_of_each_row(norm: str, mask: str, bias: str) -> None:
    torch.manual_seed(0)
    spec = LayerSpec(d_model=16, num_heads=2, d_ff=12, norm=norm, output_norms=norm == "pre", qk_norm=True)
    layer, batch = EncoderLayer(spec), Ragged.from_padded(_x(3, 7, 16, dtype=torch.float32), LENGTHS)
    options = {"mask": ONLY_MASKS[mask], "bias": ONLY_BIASES[bias], "rotary": RotaryPositions(4)(batch)}
    whole = layer(batch, **options).to_list()
    for only, place in (("first", 0), ("last", -1)):
        result = layer(batch, **options, only=only)
        assert torch.equal(result.values, torch.stack([row[place] for row in whole]))
        assert result.offsets.tolist() == [0, 1, 2, 3]


@torch.no_grad()
def test_who_watches_a_layer_sees_all_of_its_queries() -> None:
    layer, batch, seen = EncoderLayer(SPEC), Ragged.from_padded(_x(3, 7, 8, dtype=torch.float32), LENGTHS), []
    expected = layer(batch, only="first")
    with hooked({layer.attention: looking(lambda asked, _: seen.append(asked.query.values.shape[0]))}):
        assert torch.equal(layer(batch, only="first").values, expected.values)
    assert seen == [14]


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("kind", [EncoderLayer, DecoderLayer])
def test_gradients_reach_inputs_and_weights(kind: type, norm: str) -> None:
    spec = LayerSpec(
        d_model=4, num_heads=2, d_ff=3, norm=norm, norm_type="rms", gated=True, num_kv_heads=1, d_k=3, d_v=2
    )
    layer = kind(spec, dtype=torch.float64)
    inputs = [_x(5, 4, seed=seed).requires_grad_() for seed in range(2 if kind is DecoderLayer else 1)]
    offsets, names = torch.tensor([0, 2, 5]), dict(layer.named_parameters())

    def run(*tensors: torch.Tensor) -> torch.Tensor:
        rows = tuple(Ragged(x, offsets) for x in tensors[: len(inputs)])
        state = dict(zip(names, tensors[len(inputs) :], strict=True))
        return torch.func.functional_call(layer, state, rows, {"mask": Causal()}).values

    assert torch.autograd.gradcheck(run, (*inputs, *names.values()), fast_mode=True)


@pytest.mark.parametrize("name", ["dropout", "attention_dropout", "activation_dropout"])
def test_numbers_are_dropped_in_training_only(name: str) -> None:
    layer = EncoderLayer(LayerSpec(d_model=8, num_heads=2, d_ff=12, **{name: 0.5}), dtype=torch.float64)
    x = _x(5, 8)
    torch.manual_seed(0)
    assert not torch.equal(layer(x), layer(x))
    layer.eval()
    assert torch.equal(layer(x), layer(x))


# Decoders.


def _decoder(layers: int = 2, **options) -> Decoder:
    torch.manual_seed(0)
    return Decoder(LayerSpec(d_model=8, num_heads=2, d_ff=12, **options), layers, dtype=torch.float64)


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_packed_rows_of_a_decoder_are_the_padded_rows(norm: str) -> None:
    decoder, lengths = _decoder(norm=norm, memory_dim=10), torch.tensor([5, 2, 3])
    x, memory = _x(3, 5, 8), _x(3, 6, 10, seed=1)
    packed = decoder(Ragged.from_padded(x, lengths), Ragged.from_padded(memory, MEMORY_LENGTHS), mask=Causal())
    expected = decoder(x, memory, mask=Causal(start=0), memory_mask=KeyLengths(MEMORY_LENGTHS))
    torch.testing.assert_close(packed.values, Ragged.from_padded(expected, lengths).values)


def test_biases_and_masks_reach_the_attention_that_they_are_for() -> None:
    layer, x, memory = _decoder(1).layers[0], _x(5, 8), _x(6, 8, seed=1)
    seen = {}
    names = {layer.attention: "attention", layer.cross_attention: "cross_attention"}
    self_bias, other = _x(2, 5, 5), _x(2, 5, 6)
    with hooked(dict.fromkeys(names, looking(lambda asked, where: seen.update({names[where]: asked.options})))):
        layer(x, memory, mask=Causal(), bias=self_bias, memory_mask=KeyLengths(torch.tensor(4)), memory_bias=other)
    assert seen["attention"]["mask"] == Causal()
    assert seen["attention"]["bias"] is self_bias
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


FORMULAS = {
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: 0.5 * x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3))),
    "relu": lambda x: x.clamp(min=0),
    "silu": lambda x: x / (1 + torch.exp(-x)),
}


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("activation", FORMULAS)
def test_it_is_its_formula(activation: str, gated: bool) -> None:
    layer = FeedForward(4, 6, activation=activation, gated=gated, dtype=torch.float64)
    x = torch.randn(3, 4, dtype=torch.float64)
    activate = FORMULAS[activation]
    hidden = activate(layer.gate(x)) * layer.up(x) if gated else activate(layer.up(x))
    torch.testing.assert_close(layer(x), hidden @ layer.down.weight.T + layer.down.bias)
