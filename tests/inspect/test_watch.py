"""Maps of models while they are watched. Letters: B batch, H heads, Q queries, K keys."""

import copy
import sys
import threading
from itertools import product
from types import ModuleType

import pytest
import tiny_models
import torch
import transformers
from small_models import PROMPTS, Small, exactly
from tiny_models import DECODERS, ENCODERS, PAIRS, cached, implementation_of, theirs, tokens
from tiny_transformer import WRITERS, made, ragged
from tolerance import assert_as_exact
from torch import Tensor, nn
from waiting import HANG

import uwaga
from uwaga.nn import Encoder, LayerSpec, MultiHeadAttention

OF_TRANSFORMERS = [f"transformers {family}" for family in (*ENCODERS, *DECODERS, *PAIRS)]


def in_gate(model: str) -> bool:
    return model.removeprefix("transformers ") in ("bert", "modernbert", "gpt2", "llama", "gpt_oss", "t5")


@pytest.mark.gate(only=in_gate)
@pytest.mark.parametrize("model", OF_TRANSFORMERS, indirect=True)
@torch.no_grad()
def test_maps_are_eager_attention(model: Small) -> None:
    """Each map lies no farther from the float64 copy's eager weights than twice what the float32 ones do, and a unit."""
    module = model.module
    module.set_attn_implementation("eager")
    inputs, _ = model.inputs(model.padded)
    eager = module(**inputs, output_attentions=True)
    in_float64 = copy.deepcopy(module).double()
    exact = exactly(lambda: in_float64(**inputs, output_attentions=True))
    with uwaga.watch(module) as recording:
        module(**inputs)
    assert implementation_of(module) == "eager"
    names = {kind: f"{kind}_attentions" if model.has_both else "attentions" for kind, _ in recording.maps}
    assert set(names) == (
        {"encoder", "decoder", "cross"} if model.has_both else {"decoder"} & set(names) or {"encoder"}
    )
    assert len(recording.maps) == sum(len(eager[name]) for name in names.values())
    for (kind, layer), m in recording.maps.items():
        name, peer = names[kind], eager[names[kind]][layer]
        mask = (
            inputs["attention_mask"]
            if kind == "encoder" or not model.has_both
            else torch.ones_like(inputs["decoder_input_ids"])
        )
        is_token = mask.bool()[:, None].expand(peer.shape[:3])

        def right(name: str = name, layer: int = layer, is_token: Tensor = is_token) -> Tensor:
            return exact()[name][layer][is_token]

        assert_as_exact(m.to_dense()[is_token], peer[is_token], right)


# Each way of generating, and each kind of model, once.
GENERATIONS = (
    ("gpt2", "drawn"), ("gpt2 banded", "greedy"), ("t5", "greedy"), ("gemma2", "drawn"), ("pre-norm", "greedy"),
    ("transformers gpt2", "left padding"), ("transformers llama", "drawn"),
    ("transformers gpt_oss", "static cache"), ("transformers t5", "greedy"),
)  # fmt: skip


@pytest.mark.gate(only=lambda model, how: (model, how) in GENERATIONS)
@pytest.mark.parametrize(
    ("model", "how"),
    [
        *product((*WRITERS, *OF_TRANSFORMERS[len(ENCODERS) :]), ("greedy",)),
        *product((*WRITERS, *OF_TRANSFORMERS[len(ENCODERS) : -len(PAIRS)]), ("drawn",)),
        *product(OF_TRANSFORMERS[len(ENCODERS) : -len(PAIRS)], ("left padding", "static cache")),
    ],
    indirect=["model"],
)
@torch.no_grad()
def test_the_maps_of_a_generation_are_those_of_one_pass_over_its_text(model: Small, how: str) -> None:
    """They lie no farther from one pass in float64 than twice what one in float32 does, and a unit."""
    with uwaga.watch(model.module) as recording:
        texts, inputs = model.write(how, most=9 if model.is_ours else 6)
    if (model.name, how) == ("gpt2", "drawn"):
        assert len({len(text) - len(prompt) for text, prompt in zip(texts, PROMPTS, strict=True)}) > 1  # some end early
    exact = copy.deepcopy(model.module).double()

    def flat(of: nn.Module | None = None) -> Tensor:
        """Together: where the texts end early, the map of one layer holds few weights (tolerance.py)."""
        watched = recording
        if of is not None:
            with uwaga.watch(of) as watched:
                of(**inputs)
            assert set(watched.maps) == set(recording.maps)
            assert watched.tokens == recording.tokens
        result = []
        for (kind, _), m in watched.maps.items():
            dense = m.to_dense()
            if kind == "encoder" and not model.is_ours:  # what it computes at padding is undefined
                dense = dense.transpose(1, 2)[inputs["attention_mask"].bool()]
            result += dense if isinstance(dense, list) else [dense]
        return torch.cat([x.flatten() for x in result])

    assert_as_exact(flat(), flat(model.module), lambda: flat(exact))


@pytest.mark.parametrize("model", ["bert", "t5", "gemma2", "transformers llama"], indirect=True)
@torch.no_grad()
def test_a_map_times_the_values_is_what_goes_into_the_output_map(model: Small) -> None:
    for where in model.last_layers():
        seen: list[Tensor] = []
        with uwaga.watch(model.module, values=True) as recording, model.heads_by_a_hook(where, seen.append):
            model.run()
        weights, value = recording.maps[where].to_dense(), recording.values[where]
        heads = weights @ value.repeat_interleave(weights.shape[1] // value.shape[1], 1)
        torch.testing.assert_close(heads.transpose(1, 2), seen[0], rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_documents_of_a_ragged_batch_have_a_map_each() -> None:
    model = made("bert")
    with uwaga.watch(model, tokenizer=lambda ids: [f"<{token_id}>" for token_id in ids]) as recording:
        model(ragged(PROMPTS))
    m = recording.maps[("encoder", 2)]
    assert [part.shape for part in m] == [(2, 4, 4), (2, 1, 1), (2, 3, 3)]
    assert recording.tokens["encoder"] == [["<4>", "<5>", "<6>", "<7>"], ["<8>"], ["<9>", "<10>", "<11>"]]
    alone = torch.tensor([PROMPTS[2]])
    with uwaga.watch(model) as other:
        model(alone)
    torch.testing.assert_close(m[2].to_dense(), other.maps[("encoder", 2)].to_dense()[0])


@torch.no_grad()
def test_another_pass_begins_anew() -> None:
    """What was read of the earlier one remains; the encoder's forgets the decoder."""
    model, pair = made("gpt2"), made("t5")
    first, second = torch.tensor([[4, 5, 6]]), torch.tensor([[7, 8], [9, 10]])
    with uwaga.watch(model) as recording:
        model(first)
        kept = recording.maps[("decoder", 0)]
        before = kept.to_dense()
        model(second)
    assert recording.maps[("decoder", 0)].shape == (2, 2, 2, 2)
    assert recording.tokens["decoder"] == [["7", "8"], ["9", "10"]]
    assert torch.equal(kept.to_dense(), before)
    with uwaga.watch(pair) as recording:
        pair(first, first)
        pair(first)
    assert {kind for kind, _ in recording.maps} == {"encoder"}


@torch.no_grad()
def test_two_caches_that_take_turns_are_not_mixed() -> None:
    model = made("gpt2")
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


def test_what_is_chosen_is_what_is_kept_and_gradients_flow_as_before() -> None:
    model, ids = made("t5"), torch.tensor([[4, 5, 6]])
    with uwaga.watch(model) as whole, uwaga.watch(model, kinds=["cross"], layers=[1], heads=[1]) as recording:
        model(ids, ids).logits.square().sum().backward()
    assert model.encoder.layers[0].attention.query.weight.grad is not None
    assert not whole.maps[("encoder", 0)].lse.requires_grad
    assert list(recording.maps) == [("cross", 1)]
    assert torch.equal(recording.maps[("cross", 1)].to_dense(), whole.maps[("cross", 1)].to_dense()[:, 1:])


def test_any_module_with_attention_inside_is_watched() -> None:
    stack, x = Encoder(LayerSpec(d_model=8, num_heads=2, d_ff=16), num_layers=2), torch.randn(5, 8)
    with uwaga.watch(stack) as recording, uwaga.watch(stack.layers[1], tokens=list("abcde")) as of_part:
        stack(x)
    assert recording.maps[("encoder", 1)].shape == of_part.maps[("encoder", 0)].shape == (2, 5, 5)
    assert (recording.tokens, of_part.tokens) == ({}, {"encoder": [["a", "b", "c", "d", "e"]]})


@pytest.mark.parametrize("family", ["gpt2", "llama"])
@torch.no_grad()
def test_a_generation_with_drafts_has_no_maps(family: str) -> None:
    """In a generation that looks its drafts up in the prompt; watches of it may be nested."""
    model, prompt = theirs(family), tokens(1, 10).repeat(1, 2)
    with uwaga.watch(model) as outer, uwaga.watch(model) as inner:
        model.generate(prompt, max_new_tokens=8, min_new_tokens=8, do_sample=False, prompt_lookup_num_tokens=3)
    assert "_get_candidate_generator" not in vars(model)
    for recording in (outer, inner):
        for read in (
            lambda recording=recording: recording.maps["decoder", 0],
            lambda recording=recording: recording.tokens,
        ):
            with pytest.raises(ValueError, match="candidate tokens"):
                read()


def test_a_part_of_somebody_elses_model_is_watched_too() -> None:
    base = tiny_models.make("bert", ENCODERS["bert"], transformers.AutoModel)
    mine = nn.ModuleList([base])
    with uwaga.watch(mine) as outer, uwaga.watch(base, layers=[1]) as inner:
        base(tokens(2, 5))
    assert len(outer.maps) == 3
    assert list(inner.maps) == [("encoder", 1)]
    assert torch.equal(outer.maps[("encoder", 1)].to_dense(), inner.maps[("encoder", 1)].to_dense())


@pytest.mark.parametrize(("family", "block"), [("gpt2", "watch"), ("llama", "edit")])
@torch.no_grad()
def test_a_thread_inside_a_forward_pass_keeps_its_attention(family: str, block: str) -> None:
    """sdpa has no mask for causal attention: under another name, the attention of the layers that are left would not be causal."""
    model, ids = theirs(family), tokens(2, 7)
    model.set_attn_implementation("sdpa")
    right, inside, entered = model(ids).logits, threading.Event(), threading.Event()
    results: list[Tensor] = []

    @torch.no_grad()
    def other() -> None:
        results.append(model(ids).logits)

    thread = threading.Thread(target=other)

    def wait(*_: object) -> None:
        if threading.current_thread() is thread:
            inside.set()
            assert entered.wait(HANG)

    first = (model.transformer.h if family == "gpt2" else model.model.layers)[0]
    hook = first.register_forward_pre_hook(wait)
    thread.start()
    assert inside.wait(HANG)
    with uwaga.watch(model) if block == "watch" else uwaga.edit(model, heads={("decoder", 0, 0): 0.0}):
        entered.set()
        thread.join()
        model(ids)
    hook.remove()
    assert torch.equal(results[0], right)
    assert torch.equal(model(ids).logits, right)


def test_a_model_of_uwaga_is_watched_while_another_thread_imports_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = "transformers.modeling_utils"  # its import has begun, and has defined nothing yet
    monkeypatch.setitem(sys.modules, begun, ModuleType(begun))
    layer = MultiHeadAttention(16, 2)
    with uwaga.watch(layer) as recording:
        layer(torch.randn(1, 3, 16))
    assert len(recording.maps) == 1


def test_a_config_answers_by_thread_and_gives_its_answer_to_no_other_model() -> None:
    model = theirs("llama")
    model.set_attn_implementation("sdpa")
    seen: list[str] = []
    with uwaga.watch(model):
        thread = threading.Thread(target=lambda: seen.append(implementation_of(model)))
        thread.start()
        thread.join()
        assert implementation_of(model) == "uwaga"
        transformers.LlamaModel(model.config)  # sets the name that it reads in the config
        with uwaga.edit(model, heads={("decoder", 0, 0): 0.0}), torch.no_grad():
            transformers.LlamaModel(model.config)
            model(tokens(1, 5))
    assert seen == ["sdpa"]
    assert implementation_of(model) == "sdpa"
    assert model.config.to_dict() == copy.deepcopy(model.config).to_dict()


@torch.no_grad()
def test_a_cache_without_positions_that_lost_tokens_begins_a_new_recording() -> None:
    """Keys of T5's first layer are those of a token anywhere: whether the first or the last were dropped is not known."""
    model, ids, most = theirs("t5"), tokens(1, 3), torch.full((1, 4), 7)
    with uwaga.watch(model, kinds=["decoder"]) as recording:
        first = model(input_ids=ids, decoder_input_ids=most, use_cache=True)
        first.past_key_values.crop(-2)
        states = (first.encoder_last_hidden_state,)
        more = cached(model, first.past_key_values)
        model(encoder_outputs=states, decoder_input_ids=torch.tensor([[9]]), **more)
    assert recording.maps["decoder", 0].shape[2:] == (1, 3)
