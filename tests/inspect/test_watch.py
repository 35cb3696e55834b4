"""Maps of this package's models while they are watched. Letters: B batch, Q queries, K keys."""

import copy

import pytest
import torch
from tiny_transformer import tiny
from tolerance import assert_as_exact
from torch import Tensor, nn

import uwaga
from uwaga._base import threads
from uwaga.models import generate
from uwaga.nn import Encoder, LayerSpec, MultiHeadAttention
from uwaga.ops.attention.hooks import hooked, looking

_SIZES = {"vocab_size": 20, "d_model": 8, "num_heads": 2, "d_ff": 16}
_PAIR = _SIZES | {"num_layers": 2, "num_decoder_layers": 2, "eos_token_ids": (3,)}
PROMPTS = [[4, 5, 6, 7], [8], [9, 10, 11]]
KINDS = ("encoder", "decoder", "cross")


def drawn(model: nn.Module) -> nn.Module:
    """With weights that tell layers, heads and tokens apart."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return model.eval()


def bert() -> nn.Module:
    return drawn(tiny("bert", num_layers=3, max_position_embeddings=40, **_SIZES))


def gpt2(**options: object) -> nn.Module:
    return drawn(tiny("gpt2", num_layers=3, max_position_embeddings=40, eos_token_ids=(3,), **_SIZES, **options))


WRITERS = {
    "gpt2": gpt2,
    "gpt2 banded": lambda: gpt2(band=3),
    "t5": lambda: drawn(tiny("t5", d_k=4, **_PAIR)),
    "transformer": lambda: drawn(tiny("uwaga-transformer", **_PAIR)),
    "transformer of one layer": lambda: drawn(tiny("uwaga-transformer", **_PAIR | {"num_decoder_layers": 1})),
    "decoder alone": lambda: drawn(tiny("uwaga-transformer", **_PAIR | {"num_layers": 0})),
}


def matrices(m: uwaga.AttentionMap) -> list[Tensor]:
    dense = m.to_dense()
    return dense if isinstance(dense, list) else [dense]


def ragged(texts: list[list[int]]) -> uwaga.Ragged:
    return uwaga.Ragged.from_list([torch.tensor(text) for text in texts])


@pytest.mark.parametrize(
    "how", [{}, {"do_sample": True, "seed": 1}, {"num_beams": 3}], ids=["greedy", "drawn", "beams"]
)
@pytest.mark.parametrize("name", WRITERS)
@torch.no_grad()
def test_the_maps_of_a_generation_are_those_of_one_pass_over_its_text(name: str, how: dict) -> None:
    model = WRITERS[name]()
    exact = copy.deepcopy(model).double()
    with uwaga.watch(model) as recording:
        new = generate(model, PROMPTS, max_new_tokens=9, **how)
    if model.config.is_causal:
        texts = [prompt + written for prompt, written in zip(PROMPTS, new, strict=True)]
        inputs = (ragged([text[:-1] for text in texts]),)
    else:
        texts = [[model.config.decoder_start_token_id, *written] for written in new]
        inputs = (ragged(PROMPTS), ragged([text[:-1] for text in texts]))
    if "num_beams" in how:
        recording = recording.of(texts)
    with uwaga.watch(model) as whole:
        model(*inputs)
    assert set(recording.maps) == set(whole.maps)
    assert recording.tokens == whole.tokens

    def weights(of: uwaga.Recording) -> list[Tensor]:
        return [x for where in whole.maps for x in matrices(of.maps[where])]

    def right() -> Tensor:
        with uwaga.watch(exact) as watched:
            exact(*inputs)
        return flat(weights(watched))

    def flat(matrices: list[Tensor]) -> Tensor:
        return torch.cat([x.flatten() for x in matrices])

    # Together: where the texts end early, the map of one layer holds few weights (tolerance.py).
    result, peer = weights(recording), weights(whole)
    assert [x.shape for x in result] == [x.shape for x in peer]
    assert_as_exact(flat(result), flat(peer), right)


@torch.no_grad()
def test_rows_that_end_early_keep_their_maps() -> None:
    model = gpt2()
    with uwaga.watch(model) as recording:
        new = generate(model, PROMPTS, max_new_tokens=9, do_sample=True, seed=1)
    lengths = [len(prompt) + len(written) - 1 for prompt, written in zip(PROMPTS, new, strict=True)]
    assert len({len(written) for written in new}) > 1
    assert [shape[-1] for shape in recording.maps[("decoder", 0)].shapes] == lengths


@torch.no_grad()
def test_documents_of_a_ragged_batch_have_a_map_each() -> None:
    model = bert()
    with uwaga.watch(model, tokenizer=lambda ids: [f"<{each}>" for each in ids]) as recording:
        model(ragged(PROMPTS))
    m = recording.maps[("encoder", 2)]
    assert [part.shape for part in m] == [(2, 4, 4), (2, 1, 1), (2, 3, 3)]
    assert recording.tokens["encoder"] == [["<4>", "<5>", "<6>", "<7>"], ["<8>"], ["<9>", "<10>", "<11>"]]
    alone = torch.tensor([PROMPTS[2]])
    with uwaga.watch(model) as other:
        model(alone)
    torch.testing.assert_close(m[2].to_dense(), other.maps[("encoder", 2)].to_dense()[0])


@torch.no_grad()
def test_a_second_pass_begins_anew() -> None:
    model = gpt2()
    first, second = torch.tensor([[4, 5, 6]]), torch.tensor([[7, 8], [9, 10]])
    with uwaga.watch(model) as recording:
        model(first)
        kept = recording.maps[("decoder", 0)]
        before = kept.to_dense()
        model(second)
    assert recording.maps[("decoder", 0)].shape == (2, 2, 2, 2)
    assert recording.tokens["decoder"] == [["7", "8"], ["9", "10"]]
    assert torch.equal(kept.to_dense(), before)


@torch.no_grad()
def test_another_pass_of_the_encoder_forgets_the_decoder() -> None:
    model = WRITERS["t5"]()
    ids = torch.tensor([[4, 5, 6]])
    with uwaga.watch(model) as recording:
        model(ids, ids)
        model(ids)
    assert {kind for kind, _ in recording.maps} == {"encoder"}


@torch.no_grad()
def test_two_caches_that_take_turns_are_not_mixed() -> None:
    model = gpt2()
    caches = [model.new_cache() for _ in range(2)]
    with uwaga.watch(model) as recording:
        model(torch.tensor([[4, 5, 6]]), cache=caches[0])
        model(torch.tensor([[7, 8, 9]]), cache=caches[1])
        model(torch.tensor([[10]]), cache=caches[0])
    # The keys of the first cache were forgotten with the second's first pass: all of them, and the one query.
    assert recording.maps[("decoder", 0)].shape == (1, 2, 1, 4)
    with uwaga.watch(model) as whole:
        model(torch.tensor([[4, 5, 6, 10]]))
    last = whole.maps[("decoder", 1)][..., 3:, :]
    torch.testing.assert_close(recording.maps[("decoder", 1)].to_dense(), last)
    assert recording.tokens == {}


@torch.no_grad()
def test_a_rewound_cache_takes_its_tokens_back() -> None:
    model = gpt2()
    cache = model.new_cache()
    with uwaga.watch(model) as recording:
        model(torch.tensor([[4, 5, 6]]), cache=cache)
        model(torch.tensor([[7, 8]]), cache=cache)
        cache.rewind(4)
        model(torch.tensor([[9]]), cache=cache)
    with uwaga.watch(model) as whole:
        model(torch.tensor([[4, 5, 6, 7, 9]]))
    assert recording.tokens == whole.tokens
    for where in whole.maps:
        torch.testing.assert_close(recording.maps[where].to_dense(), whole.maps[where].to_dense())


@torch.no_grad()
def test_what_is_chosen_is_what_is_kept() -> None:
    model = WRITERS["t5"]()
    ids = torch.tensor([[4, 5, 6]])
    with uwaga.watch(model) as whole:
        model(ids, ids)
    with uwaga.watch(model, kinds=["cross"], layers=[1], heads=[1]) as recording:
        model(ids, ids)
    assert list(recording.maps) == [("cross", 1)]
    assert torch.equal(recording.maps[("cross", 1)].to_dense(), whole.maps[("cross", 1)].to_dense()[:, 1:])


@torch.no_grad()
def test_cross_attention_alone_is_followed_through_a_generation() -> None:
    model = WRITERS["t5"]()
    with uwaga.watch(model, kinds=["cross"], layers=[1], heads=[0]) as recording, uwaga.watch(model) as whole:
        generate(model, PROMPTS, max_new_tokens=9, do_sample=True, seed=1)
    assert list(recording.maps) == [("cross", 1)]
    pairs = zip(recording.maps[("cross", 1)], whole.maps[("cross", 1)], strict=True)
    assert all(torch.equal(value.to_dense(), of_all.to_dense()[:1]) for value, of_all in pairs)


@torch.no_grad()
def test_watches_nest_and_leave_nothing_behind() -> None:
    model, told = bert(), []
    layer = model.encoder.layers[0].attention
    ids = torch.tensor([[4, 5, 6]])
    with hooked({layer: looking(lambda *call: told.append(call))}), uwaga.watch(model) as outer:
        with uwaga.watch(model) as inner:
            model(ids)
        assert len(inner.maps) == 3
        with pytest.raises(ZeroDivisionError), uwaga.watch(model):
            _ = 1 / 0
    assert len(outer.maps) == 3
    assert len(told) == 1
    assert not threads.any_open
    assert not model.embeddings.token_embedding._forward_pre_hooks


def test_gradients_flow_as_before_and_none_is_recorded() -> None:
    model, ids = bert(), torch.tensor([[4, 5, 6]])
    with uwaga.watch(model) as recording:
        hidden = model(ids).last_hidden_state
    hidden.square().sum().backward()
    assert model.encoder.layers[0].attention.query.weight.grad is not None
    assert not recording.maps[("encoder", 0)].lse.requires_grad


def test_any_module_with_attention_inside_is_watched() -> None:
    stack, x = Encoder(LayerSpec(d_model=8, num_heads=2, d_ff=16), num_layers=2), torch.randn(5, 8)
    with uwaga.watch(stack) as recording:
        stack(x)
    assert recording.maps[("encoder", 1)].shape == (2, 5, 5)
    assert recording.tokens == {}
    bare = MultiHeadAttention(8, num_heads=2)
    with uwaga.watch(bare, tokens=list("abcde")) as recording:
        bare(x)
    assert recording.tokens == {"encoder": [["a", "b", "c", "d", "e"]]}
