"""Maps of transformers' models while they are watched, against their own eager attention.

Letters: B batch, H heads, Q queries, K keys.
"""

import copy
import threading

import pytest
import tiny_models as tiny
import torch
from tolerance import assert_as_exact, once
from torch import Tensor, nn
from waiting import HANG

import uwaga

transformers = pytest.importorskip("transformers", reason="transformers is not installed: the extra `test` brings it")


ENCODERS, DECODERS, PAIRS = tiny.ENCODERS, tiny.DECODERS, tiny.PAIRS


@pytest.fixture(autouse=True)
def _exact_softmax(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eager attention casts its softmax to float32, also in the float64 copy that says what is right."""
    softmax = torch.nn.functional.softmax

    def of_its_own_dtype(x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
        return softmax(x, dim=dim, dtype=None if x.dtype == torch.float64 else dtype)

    monkeypatch.setattr(torch.nn.functional, "softmax", of_its_own_dtype)


def padded(ids: Tensor, *, left: bool) -> Tensor:
    """A mask that hides three tokens of the second row."""
    mask = torch.ones_like(ids)
    mask[1, slice(None, 3) if left else slice(-3, None)] = 0
    return mask


@torch.no_grad()
def check(model: nn.Module, kinds: dict[str, str], rows: dict[str, Tensor], **inputs: Tensor) -> None:
    """Each map lies no farther from the float64 copy's eager weights than twice what the float32 ones do, and a unit.

    Args:
        kinds: from kind to the name of the eager weights in the output.
        rows: by kind, (B, Q) the queries that are no padding.
    """
    eager = model(**inputs, output_attentions=True)
    in_float64 = copy.deepcopy(model).double()
    exact = once(lambda: in_float64(**inputs, output_attentions=True))
    with uwaga.watch(model) as recording:
        model(**inputs)
    assert model.config._attn_implementation == "eager"
    assert {kind for kind, _ in recording.maps} == set(kinds)
    for kind, name in kinds.items():
        assert len([other for other, _ in recording.maps if other == kind]) == len(eager[name])
        for layer, peer in enumerate(eager[name]):
            result = recording.maps[(kind, layer)].to_dense()
            assert result.shape == peer.shape
            is_token = rows[kind].bool()[:, None].expand(result.shape[:3])

            def right(name: str = name, layer: int = layer, is_token: Tensor = is_token) -> Tensor:
                return exact()[name][layer][is_token]

            assert_as_exact(result[is_token], peer[is_token], right)


@pytest.mark.parametrize("family", ENCODERS)
def test_maps_of_encoders_are_eager_attention(family: str) -> None:
    model = tiny.make(family, ENCODERS[family], transformers.AutoModel)
    ids = tiny.tokens(2, 9)
    mask = padded(ids, left=False)
    check(model, {"encoder": "attentions"}, {"encoder": mask}, input_ids=ids, attention_mask=mask)


@pytest.mark.parametrize("family", DECODERS)
def test_maps_of_decoders_are_eager_attention(family: str) -> None:
    model = tiny.make(family, DECODERS[family], transformers.AutoModel)
    ids = tiny.tokens(2, 9)
    mask = padded(ids, left=True)
    check(model, {"decoder": "attentions"}, {"decoder": mask}, input_ids=ids, attention_mask=mask)


@pytest.mark.parametrize("family", PAIRS)
def test_maps_of_encoders_with_decoders_are_eager_attention(family: str) -> None:
    model = tiny.make(family, PAIRS[family], transformers.AutoModelForSeq2SeqLM)
    ids, answer = tiny.tokens(2, 9), tiny.tokens(2, 5, seed=1)
    mask, all_of = padded(ids, left=False), torch.ones_like(answer)
    kinds = {kind: f"{kind}_attentions" for kind in ("encoder", "decoder", "cross")}
    rows = {"encoder": mask, "decoder": all_of, "cross": all_of}
    check(model, kinds, rows, input_ids=ids, attention_mask=mask, decoder_input_ids=answer)


@torch.no_grad()
def check_passes(result: uwaga.Recording, model: nn.Module, kinds: tuple[str, ...], **inputs: Tensor) -> None:
    """The maps of several passes lie no farther from one pass in float64 than twice what one in float32 does, and a unit."""
    with uwaga.watch(model) as whole:
        model(**inputs)
    in_float64 = copy.deepcopy(model).double()

    @once
    def right() -> uwaga.Recording:
        with uwaga.watch(in_float64) as watched:
            in_float64(**inputs)
        return watched

    assert result.tokens == whole.tokens
    for where in [where for where in whole.maps if where[0] in kinds]:

        def weights(recording: uwaga.Recording, where: tuple[str, int] = where) -> Tensor:
            dense = recording.maps[where].to_dense()
            # What an encoder computes at padding is undefined, and another number in float64.
            return dense.transpose(1, 2)[inputs["attention_mask"].bool()] if where[0] == "encoder" else dense

        assert_as_exact(weights(result), weights(whole), lambda weights=weights: weights(right()))


@pytest.mark.parametrize("how", ["greedy", "drawn", "left padding", "static cache", "beams"])
@pytest.mark.parametrize("family", DECODERS)
@torch.no_grad()
def test_the_maps_of_a_generation_are_those_of_one_pass_over_its_text(family: str, how: str) -> None:
    model = tiny.make(family, DECODERS[family], transformers.AutoModelForCausalLM)
    ids = tiny.tokens(2, 5)
    mask = padded(ids, left=True) if how == "left padding" else torch.ones_like(ids)
    options = {
        "drawn": {"do_sample": True},
        "static cache": {"cache_implementation": "static"},
        "beams": {"num_beams": 3},
    }
    with uwaga.watch(model) as recording:
        texts = model.generate(ids, attention_mask=mask, max_new_tokens=6, **options.get(how, {}))
    if how == "beams":
        recording = recording.of(texts)
    mask = torch.nn.functional.pad(mask, (0, 5), value=1)
    # As `generate` counts them.
    places = (mask.cumsum(-1) - 1).clamp(min=0)
    check_passes(recording, model, ("decoder",), input_ids=texts[:, :-1], attention_mask=mask, position_ids=places)


@pytest.mark.parametrize("how", ["greedy", "beams"])
@pytest.mark.parametrize("family", PAIRS)
@torch.no_grad()
def test_the_maps_of_an_answer_are_those_of_one_pass_over_it(family: str, how: str) -> None:
    model = tiny.make(family, PAIRS[family], transformers.AutoModelForSeq2SeqLM)
    ids = tiny.tokens(3, 7)
    mask = padded(ids, left=False)
    with uwaga.watch(model) as recording:
        texts = model.generate(ids, attention_mask=mask, max_new_tokens=6, num_beams=3 if how == "beams" else 1)
    if how == "beams":
        recording = recording.of(texts)
    inputs = {"input_ids": ids, "attention_mask": mask, "decoder_input_ids": texts[:, :-1]}
    check_passes(recording, model, ("encoder", "decoder", "cross"), **inputs)


@torch.no_grad()
def drafted(family: str) -> tuple[nn.Module, uwaga.Recording, Tensor]:
    """A model, what was recorded of a generation that looks its drafts up in the prompt, and the text."""
    model = tiny.make(family, DECODERS[family], transformers.AutoModelForCausalLM)
    prompt = tiny.tokens(1, 10).repeat(1, 2)
    with uwaga.watch(model) as recording:
        text = model.generate(prompt, max_new_tokens=8, min_new_tokens=8, do_sample=False, prompt_lookup_num_tokens=3)
    for read in (lambda: recording.maps[("decoder", 0)], lambda: recording.tokens):
        with pytest.raises(ValueError) as raised:
            read()
        assert str(raised.value) == (
            "Recording: speculative decoding (assisted generation) read candidate tokens that may have been rejected; use "
            "recording.of(texts), with all ids that the decoder read and wrote"
        )
    assert "_get_candidate_generator" not in vars(model)
    return model, recording, text


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_drafts_that_were_thrown_away_are_in_no_map(family: str) -> None:
    model, recording, text = drafted(family)
    result = recording.of(text)
    assert result.tokens == {"decoder": [[str(each) for each in text[0, :-1].tolist()]]}
    with torch.no_grad():
        whole = model(text[:, :-1], output_attentions=True, use_cache=False).attentions
    for layer, expected in enumerate(whole):
        torch.testing.assert_close(result.maps[("decoder", layer)].to_dense(), expected, rtol=1e-4, atol=1e-5)


def test_watches_of_one_generation_may_be_nested() -> None:
    model = tiny.make("gpt2", DECODERS["gpt2"], transformers.AutoModelForCausalLM)
    prompt = tiny.tokens(1, 10).repeat(1, 2)
    with uwaga.watch(model) as outer, uwaga.watch(model) as inner:
        text = model.generate(prompt, max_new_tokens=4, do_sample=False, prompt_lookup_num_tokens=3)
    for recording in (outer, inner):
        with pytest.raises(ValueError, match="candidate tokens"):
            _ = recording.tokens
        assert len(recording.of(text).tokens["decoder"][0]) == text.shape[1] - 1


def test_a_bias_by_distance_is_kept_as_a_vector() -> None:
    model = tiny.make("t5", PAIRS["t5"], transformers.AutoModelForSeq2SeqLM)
    sizes = []
    for length in (64, 128, 256):
        with uwaga.watch(model, kinds=["encoder"]) as recording:
            model.encoder(tiny.tokens(1, length))
        sizes.append(recording.nbytes)
    # A matrix would make the second step four times as large as the first.
    assert sizes[2] - sizes[1] == 2 * (sizes[1] - sizes[0])


@torch.no_grad()
def test_a_model_attends_as_before_also_after_an_exception() -> None:
    model = tiny.make("llama", DECODERS["llama"], transformers.AutoModel)
    model.set_attn_implementation("sdpa")
    with pytest.raises(IndexError), uwaga.watch(model):
        model(torch.tensor([[tiny.VOCABULARY]]))
    assert model.config._attn_implementation == "sdpa"


def test_a_part_of_somebody_elses_model_is_watched_too() -> None:
    class Mine(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.base = tiny.make("bert", ENCODERS["bert"], transformers.AutoModel)

        def forward(self, ids: Tensor) -> Tensor:
            return self.base(ids).last_hidden_state

    mine = Mine()
    ids = tiny.tokens(2, 5)
    with uwaga.watch(mine) as outer, uwaga.watch(mine.base, layers=[1]) as inner:
        mine(ids)
    assert len(outer.maps) == 3
    assert list(inner.maps) == [("encoder", 1)]
    assert torch.equal(outer.maps[("encoder", 1)].to_dense(), inner.maps[("encoder", 1)].to_dense())


@pytest.mark.parametrize("block", ["watch", "edit"])
@pytest.mark.parametrize("family", ["gpt2", "llama"])
@torch.no_grad()
def test_a_thread_inside_a_forward_pass_keeps_its_attention(family: str, block: str) -> None:
    """sdpa has no mask for causal attention: under another name, the attention of the layers that are left would not be causal."""
    model, ids = tiny.make(family, DECODERS[family], transformers.AutoModelForCausalLM), tiny.tokens(2, 7)
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


def test_a_config_answers_by_thread_and_gives_its_answer_to_no_other_model() -> None:
    model = tiny.make("llama", DECODERS["llama"], transformers.AutoModel)
    model.set_attn_implementation("sdpa")
    seen: list[str] = []
    with uwaga.watch(model):
        thread = threading.Thread(target=lambda: seen.append(model.config._attn_implementation))
        thread.start()
        thread.join()
        assert model.config._attn_implementation == "uwaga"
        transformers.LlamaModel(model.config)  # sets the name that it reads in the config
        with uwaga.edit(model, heads={("decoder", 0, 0): 0.0}), torch.no_grad():
            transformers.LlamaModel(model.config)
            model(tiny.tokens(1, 5))
    assert seen == ["sdpa"]
    assert model.config._attn_implementation == "sdpa"
    assert model.config.to_dict() == copy.deepcopy(model.config).to_dict()


@torch.no_grad()
def test_what_another_thread_runs_is_neither_recorded_nor_counted() -> None:
    """Its candidate tokens are no reason to refuse this thread's recording."""
    model, ids = tiny.make("llama", DECODERS["llama"], transformers.AutoModelForCausalLM), tiny.tokens(1, 6)

    @torch.no_grad()
    def other() -> None:
        model.generate(ids, max_new_tokens=4, do_sample=False, prompt_lookup_num_tokens=3)

    with uwaga.watch(model) as recording:
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        model(ids)
    assert recording.tokens["decoder"] == [[str(each) for each in ids[0].tolist()]]
