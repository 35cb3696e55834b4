"""Changes of attention in models of transformers. Letters: B batch, H query heads, Q queries, K keys, E value width."""

import copy
import itertools
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from functools import partial

import pytest
import torch
import transformers
from tiny_models import DECODERS, ENCODERS, PAIRS, VOCABULARY, make
from tolerance import assert_as_exact
from torch import Tensor, nn

import uwaga
from uwaga._base import threads
from uwaga.integrations import register_with_transformers
from uwaga.models.attention_layers import attention_layers

register_with_transformers()
FAMILIES = ("bert", "gpt2", "llama", "t5")
HEAD = 2
# The linear map after the heads, by the path of the attention layer.
_OUTPUTS = {"bert": "output.dense", "gpt2": "c_proj", "llama": "o_proj", "t5": "o"}


def model_of(family: str, implementation: str = "uwaga") -> nn.Module:
    maker = {"bert": transformers.AutoModel, "t5": transformers.AutoModelForSeq2SeqLM}.get(
        family, transformers.AutoModelForCausalLM
    )
    model = make(family, (ENCODERS | DECODERS | PAIRS)[family], maker)
    model.set_attn_implementation(implementation)
    return model


def inputs_of(family: str, *, padded: bool = False) -> dict[str, Tensor]:
    ids = torch.randint(3, VOCABULARY, (2, 7), generator=torch.Generator().manual_seed(3))
    given = {"input_ids": ids}
    if padded:
        mask = torch.ones_like(ids)
        mask[1, :3] = 0
        given["attention_mask"] = mask if family in ("gpt2", "llama") else mask.flip(1)
    return given | ({"decoder_input_ids": ids[:, :5]} if family == "t5" else {})


def run(model: nn.Module, given: dict[str, Tensor]) -> Tensor:
    result = model(**given)
    return getattr(result, "logits", result[0])


def last_layers(model: nn.Module) -> list[tuple[tuple[str, int], nn.Module, str]]:
    """Of each kind: (kind, layer), the module and its path."""
    paths = {module: path for path, module in model.named_modules()}
    results = {where.kind: (tuple(where), module, paths[module]) for module, where in attention_layers(model).items()}
    return list(results.values())


def output_map(family: str, model: nn.Module, path: str) -> nn.Module:
    base = path.rsplit(".", 1)[0] if family == "bert" else path
    return model.get_submodule(f"{base}.{_OUTPUTS[family]}")


@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_a_scaled_head_is_that_of_a_hook_bit_for_bit(family: str, padded: bool) -> None:
    model, given = model_of(family), inputs_of(family, padded=padded)
    for where, _, path in last_layers(model):
        for factor in (0.0, -0.7):

            def hook(_: nn.Module, into: tuple[Tensor], factor: float = factor) -> tuple[Tensor]:
                heads = into[0].unflatten(-1, (4, -1)).clone()
                heads[..., HEAD, :] *= factor
                return (heads.flatten(-2),)

            before, linear = run(model, given), output_map(family, model, path)
            remove = linear.register_forward_pre_hook(hook).remove
            expected = run(model, given)
            remove()
            # With a hook, a packed batch is unpacked before the map, whose product may have other last bits.
            none = linear.register_forward_pre_hook(lambda _, into: (into[0].unflatten(-1, (4, -1)).flatten(-2),))
            with uwaga.edit(model, heads={(*where, HEAD): factor}):
                result = run(model, given)
            none.remove()
            assert torch.equal(result, expected)
            assert not torch.equal(result, before)
            assert torch.equal(run(model, given), before)


@pytest.mark.parametrize("cached", [True, False], ids=["cache", "no cache"])
@pytest.mark.parametrize("family", ["gpt2", "llama", "t5"])
@torch.no_grad()
def test_a_generation_is_that_with_a_hook(family: str, cached: bool) -> None:
    model, given = model_of(family), inputs_of(family, padded=True)
    given.pop("decoder_input_ids", None)
    options = {"max_new_tokens": 6, "do_sample": False, "use_cache": cached, "output_logits": True,
               "return_dict_in_generate": True}  # fmt: skip
    for where, _, path in last_layers(model):

        def hook(_: nn.Module, into: tuple[Tensor]) -> tuple[Tensor]:
            heads = into[0].unflatten(-1, (4, -1)).clone()
            heads[..., HEAD, :] *= -3.0
            return (heads.flatten(-2),)

        linear = output_map(family, model, path)
        before = model.generate(**given, **options)
        remove = linear.register_forward_pre_hook(hook).remove
        expected = model.generate(**given, **options)
        beams = model.generate(**given, max_new_tokens=4, num_beams=3)
        remove()
        none = linear.register_forward_pre_hook(lambda _, into: (into[0].unflatten(-1, (4, -1)).flatten(-2),))
        with uwaga.edit(model, heads={(*where, HEAD): -3.0}):
            result = model.generate(**given, **options)
            assert torch.equal(model.generate(**given, max_new_tokens=4, num_beams=3), beams)
        none.remove()
        assert torch.equal(result.sequences, expected.sequences)
        assert all(torch.equal(one, other) for one, other in zip(result.logits, expected.logits, strict=True))
        assert not torch.equal(result.logits[0], before.logits[0])


VECTORS = torch.randn(2, 2, 8, generator=torch.Generator().manual_seed(1))


def blocked(head: int | None, forward: Callable, layer: nn.Module, *operands: Tensor, **options: object) -> tuple:
    query, key, value, mask = operands
    hidden = torch.zeros(1, 4, query.shape[2], key.shape[2], dtype=torch.bool)
    hidden[:, slice(None) if head is None else head, 3:5, [1, 2, 4]] = True
    return forward(layer, query, key, value, torch.where(hidden, torch.finfo(mask.dtype).min, mask), **options)


def patched(forward: Callable, layer: nn.Module, *operands: Tensor, **options: object) -> tuple:
    query, key, value, mask = (None if x is None else x.clone() for x in operands)
    query[:, 1, [3, 0]] = key[:, 0, [2, 0]] = value[:, 1, [1, 4]] = VECTORS.to(query)
    output, weights = forward(layer, query, key, value, mask, **options)
    output = output.clone()
    output[:, [2, 4], HEAD] = VECTORS.to(output)
    return output, weights


def weakened(forward: Callable, layer: nn.Module, *operands: Tensor, **options: object) -> tuple:
    _, weights = forward(layer, *operands, **options)
    cut = weights.clone()
    cut[:, HEAD, 3:5, [1, 2, 4]] *= 0.25
    value = operands[2].repeat_interleave(4 // operands[2].shape[1], 1)
    return torch.matmul(cut, value).transpose(1, 2).contiguous(), weights


# What is changed in a layer (kind, number), and the same in eager attention.
CHANGES: dict[str, tuple[Callable[..., dict], Callable[..., tuple]]] = {
    "a head's links": (lambda *where: {"scores": {(*where, HEAD): uwaga.Links([3, 4], [1, 2, 4])}}, partial(blocked, HEAD)),
    "links": (lambda *where: {"scores": {(*where, None): uwaga.Links([3, 4], [1, 2, 4])}}, partial(blocked, None)),
    "weights": (
        lambda *where: {"weights": {(*where, HEAD): uwaga.Links([3, 4], [1, 2, 4], factor=0.25)}}, weakened
    ),
    "patches": (
        lambda *where: {
            "patch": {
                (*where, 0): uwaga.Patch("key", VECTORS, [2, 0]),
                (*where, 1): [uwaga.Patch("query", VECTORS, [3, 0]), uwaga.Patch("value", VECTORS, [1, 4])],
                (*where, HEAD): uwaga.Patch("output", VECTORS, [2, 4]),
            }
        },
        patched,
    ),
}  # fmt: skip


def in_float64(
    layer: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scaling: float | None = None, **options
) -> tuple:
    """Eager attention, which takes its softmax in float32 whatever the dtype."""
    key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], 1) for x in (key, value))
    scores = query @ key.mT * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    bias = options.get("position_bias")
    weights = (scores + mask if bias is None else scores + bias + mask).softmax(-1)
    return (weights @ value).transpose(1, 2).contiguous(), weights


def run_changed(model: nn.Module, path: str, change: Callable[..., tuple], given: dict[str, Tensor]) -> Tensor:
    """What an eager model gives with changed attention in the layer of this path."""
    module = model.get_submodule(path)

    def hooked(layer: nn.Module, *operands: Tensor, **options: object) -> tuple:
        forward = __import__(type(layer).__module__, fromlist=["x"]).eager_attention_forward
        forward = in_float64 if operands[0].dtype == torch.float64 else forward
        return (partial(change, forward) if layer is module else forward)(layer, *operands, **options)

    transformers.AttentionInterface.register("test_changed", hooked)
    transformers.AttentionMaskInterface.register("test_changed", transformers.AttentionMaskInterface()["eager"])
    model.set_attn_implementation("test_changed")
    result = run(model, given)
    model.set_attn_implementation("eager")
    return result


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_a_change_is_that_of_eager_attention(family: str, change: str) -> None:
    model, given = model_of(family, "eager"), inputs_of(family, padded=True)
    exact = copy.deepcopy(model).double()
    tokens = given["attention_mask"].bool() if family != "t5" else torch.ones(2, 5, dtype=torch.bool)
    before = run(model, given)[tokens]
    edits, changed = CHANGES[change]
    for where, _, path in last_layers(model):
        with uwaga.edit(model, **edits(*where)):
            result = run(model, given)[tokens]
        peer = run_changed(model, path, changed, given)[tokens]
        assert_as_exact(result, peer, lambda path=path: run_changed(exact, path, changed, given)[tokens])
        assert float((result - before).abs().max()) > 1e-4


@pytest.mark.parametrize("implementation", ["eager", "sdpa", "flex_attention"])
@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_whatever_its_own_attention_is_an_edited_model_computes_with_uwaga(family: str, implementation: str) -> None:
    other, model, given = model_of(family), model_of(family), inputs_of(family, padded=True)
    model.config._attn_implementation = implementation
    for where, _, _ in last_layers(model):
        changes = {name: value for edits, _ in CHANGES.values() for name, value in edits(*where).items()}
        with (
            uwaga.edit(other, **changes, heads={(*where, HEAD): -0.7}),
            uwaga.edit(model, **changes, heads={(*where, HEAD): -0.7}),
        ):
            assert model.config._attn_implementation == "uwaga"
            assert torch.equal(run(model, given), run(other, given))
        assert model.config._attn_implementation == implementation


@torch.no_grad()
def test_attention_that_the_model_would_compute_by_itself_is_edited_too() -> None:
    options = {"vocab_size": 32, "n_embd": 8, "n_layer": 1, "n_head": 2, "bos_token_id": 1, "eos_token_id": 1}
    model = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(**options, reorder_and_upcast_attn=True, attn_implementation="eager")
    ).eval()
    before = run(model, {"input_ids": torch.arange(5)[None]})
    with uwaga.edit(model, heads={("decoder", 0, 0): 1.0}):
        torch.testing.assert_close(run(model, {"input_ids": torch.arange(5)[None]}), before)
    with uwaga.edit(model, heads={("decoder", 0, 0): 0.0}):
        assert not torch.allclose(run(model, {"input_ids": torch.arange(5)[None]}), before)


def every(where: tuple[str, int], head: int, keys: int) -> dict:
    """One change of each sort; `keys` is a number of key heads."""
    place = (*where, head)
    return {
        "scores": {place: uwaga.Links([4, 8], [3, 5] if where[0] != "cross" else [3, 4])},
        "weights": {place: uwaga.Links([5, 9], 4, factor=0.25)},
        "patch": {
            place: uwaga.Patch("output", torch.ones(1, 8), 9),
            (*where, head * keys // 4): [uwaga.Patch("key", torch.ones(1, 8), 4)]
            + ([uwaga.Patch("output", torch.ones(1, 8), 9)] if head * keys // 4 == head else []),
        },
        "heads": {place: -2.0},
    }


@pytest.mark.parametrize("family", ["gpt2", "llama", "t5"])
@torch.no_grad()
def test_positions_are_those_of_the_text_in_every_step_whatever_the_cache(family: str) -> None:
    """The logits of generations agree to rounding."""
    given = inputs_of(family, padded=True)
    given.pop("decoder_input_ids", None)
    model = model_of(family, "sdpa")
    for where, _, _ in last_layers(model):
        changes = every(where, HEAD, 2 if family == "llama" else 4)
        if where[0] == "encoder":
            changes = {"heads": changes["heads"], "scores": {(*where, HEAD): uwaga.Links([4], [3, 5])}}
        results = []
        for cache in ({"use_cache": False}, {"use_cache": True}, {"cache_implementation": "static"}):
            with uwaga.edit(model, **changes):
                results.append(model.generate(
                    **given, max_new_tokens=12, min_new_tokens=12, do_sample=False, output_logits=True,
                    return_dict_in_generate=True, disable_compile=True, **cache,
                ))  # fmt: skip
        for other in results[1:]:
            assert torch.equal(other.sequences, results[0].sequences)
            torch.testing.assert_close(torch.stack(other.logits), torch.stack(results[0].logits), atol=2e-5, rtol=1e-4)


@torch.no_grad()
def test_a_recording_in_the_block_shows_the_edited_computation() -> None:
    model, given = model_of("gpt2", "sdpa"), inputs_of("gpt2", padded=True)
    with uwaga.edit(model, scores={("decoder", 1, HEAD): uwaga.Links([5, 6], 3)}, heads={("decoder", 0, 0): 0.0}):
        with uwaga.watch(model) as recording:
            inside = run(model, given)
        plain = run(model, given)
    weights = recording.maps[("decoder", 1)].to_dense()
    assert torch.equal(weights[:, HEAD, 5:7, 3], torch.zeros(2, 2))
    assert (weights[:, 0, 5:7, 3] > 0).all()
    tokens = given["attention_mask"].bool()
    torch.testing.assert_close(inside[tokens], plain[tokens], atol=1e-5, rtol=1e-5)
    with uwaga.watch(model) as recording, uwaga.edit(model, heads={("decoder", 0, 0): 0.0}):
        edited = run(model, given)
    with uwaga.edit(model, heads={("decoder", 0, 0): 0.0}):
        assert torch.equal(run(model, given), edited)


def test_attentions_that_the_model_returns_are_edited() -> None:
    """A map of what was computed has the gradient of its weights; one whose heads are changed afterwards has none."""
    model, given = model_of("bert"), inputs_of("bert")
    with uwaga.edit(model, scores={("encoder", 1, 0): uwaga.Links(2, [0, 1])}, heads={("encoder", 0, 0): 0.5}):
        first, second, _ = model(**given, output_attentions=True).attentions
    assert torch.equal(second.to_dense()[:, 0, 2, :2], torch.zeros(2, 2))
    assert not hasattr(first, "retain_grad")
    assert second.requires_grad


@torch.no_grad()
def test_a_query_that_sees_nothing_gives_zeros() -> None:
    model, given = model_of("llama"), inputs_of("llama")

    def hook(_: nn.Module, into: tuple[Tensor]) -> tuple[Tensor]:
        heads = into[0].unflatten(-1, (4, -1)).clone()
        heads[:, 0, HEAD] = 0
        return (heads.flatten(-2),)

    with uwaga.edit(model, scores={("decoder", 2, HEAD): uwaga.Links(0, 0)}):
        result = run(model, given)
    remove = model.get_submodule("model.layers.2.self_attn.o_proj").register_forward_pre_hook(hook).remove
    expected = run(model, given)
    remove()
    torch.testing.assert_close(result, expected, atol=1e-6, rtol=1e-5)


@torch.no_grad()
def test_nothing_remains_whatever_happens_inside() -> None:
    model, given = model_of("gpt2", "sdpa"), inputs_of("gpt2")
    before = run(model, given)
    with pytest.raises(RuntimeError, match="inside"), uwaga.edit(model, heads={("decoder", 0, 0): 0.0}):
        raise RuntimeError("inside")
    assert model.config._attn_implementation == "sdpa"
    with uwaga.edit(model, heads={("decoder", 0, 0): 0.0}):
        once = run(model, given)
        with uwaga.edit(model, heads={("decoder", 0, 1): 0.0}):
            run(model, given)
        assert torch.equal(run(model, given), once)
        model.set_attn_implementation("eager")  # the choice of the user stays
    assert model.config._attn_implementation == "eager"
    model.set_attn_implementation("sdpa")
    assert torch.equal(run(model, given), before)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_the_mean_leaves_padding_out(family: str, side: str) -> None:
    model, given = model_of(family), inputs_of(family, padded=True)
    if (side == "left") == (family in ("bert", "t5")):
        given["attention_mask"] = given["attention_mask"].flip(1)
    where, _, path = last_layers(model)[0]
    seen: list[Tensor] = []
    remove = (
        output_map(family, model, path)
        .register_forward_pre_hook(lambda _, into: seen.append(into[0].unflatten(-1, (4, -1))[:, :, HEAD]))
        .remove
    )
    run(model, given)
    remove()
    assert where[0] == ("encoder" if family in ("bert", "t5") else "decoder")
    results = []
    for value in ("mean", seen[0][given["attention_mask"].bool()].mean(0)):
        with uwaga.edit(model, heads={(*where, HEAD): value}):
            states = run(model, given)
            results.append(states if family == "t5" else states[given["attention_mask"].bool()])
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_the_mean_of_a_step_is_that_of_its_tokens_whatever_the_cache() -> None:
    model, given, results = model_of("llama"), inputs_of("llama", padded=True), []
    for cache in (None, "static"):
        with uwaga.edit(model, heads={("decoder", 1, HEAD): "mean"}):
            out = model.generate(**given, max_new_tokens=4, min_new_tokens=4, do_sample=False, output_logits=True,
                                 return_dict_in_generate=True, disable_compile=True, cache_implementation=cache)  # fmt: skip
        results.append(torch.stack(out.logits))
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-5)


def _orders(contexts: int) -> list[tuple[int, ...]]:
    """All orders in which contexts begin and end: each number twice, the first time where it begins."""
    return sorted(set(itertools.permutations([*range(contexts), *range(contexts)])))


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("kinds", [("edit", "watch"), ("edit", "edit"), ("watch", "watch"), ("edit", "edit", "watch")])
@torch.no_grad()
def test_contexts_begin_and_end_in_any_order(kinds: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """At every moment those are in effect that have begun and not ended, and nothing remains."""
    monkeypatch.setattr(torch.compiler, "disable", lambda function: function)  # its import takes seconds
    model, given = model_of("gpt2", "sdpa"), inputs_of("gpt2")
    of_edits = {n for n, kind in enumerate(kinds) if kind == "edit"}

    def edit(*heads: int) -> AbstractContextManager[object]:
        return uwaga.edit(model, heads={("decoder", 0, head): 0.0 for head in heads})

    before = run(model, given)
    expected = {(): before}
    for heads in [*((n,) for n in of_edits), (0, 1)]:
        with edit(*heads):
            expected[heads] = run(model, given)
    for order in _orders(len(kinds))[:: 7 if len(kinds) > 2 else 1]:
        begun: dict[int, ExitStack] = {}
        for n in order:
            if n in begun:
                begun.pop(n).close()
            else:
                begun[n] = ExitStack()
                begun[n].enter_context(edit(n) if n in of_edits else uwaga.watch(model))
            result = run(model, given)
            torch.testing.assert_close(result, expected[tuple(sorted(of_edits & begun.keys()))], atol=1e-5, rtol=1e-4)
            assert model.config._attn_implementation == ("uwaga" if begun else "sdpa")
        assert model.config._attn_implementation == "sdpa"
    assert torch.equal(run(model, given), before)
    assert not threads.any_open


@torch.no_grad()
def test_the_users_choice_inside_stays_whichever_context_ends_last() -> None:
    for order in ("watch", "edit"):
        model, given = model_of("gpt2", "sdpa"), inputs_of("gpt2")
        watch, edit = ExitStack(), ExitStack()
        watch.enter_context(uwaga.watch(model))
        edit.enter_context(uwaga.edit(model, heads={("decoder", 0, 0): 0.0}))
        run(model, given)
        model.set_attn_implementation("eager")
        for stack in (watch, edit) if order == "edit" else (edit, watch):
            stack.close()
        assert model.config._attn_implementation == "eager"
