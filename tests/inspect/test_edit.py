"""Changes of attention. Letters: B batch, H query heads, Q queries, K keys, D width, E value width."""

import copy
import json
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from itertools import permutations, product

import numpy as np
import pytest
import torch
from small_models import IDS, OURS, THEIRS, Small, with_dense_matrices
from tiny_models import implementation_of, theirs
from tiny_transformer import WRITERS, made, ragged
from tolerance import assert_as_exact
from torch import Tensor

import uwaga
from uwaga._base import threads
from uwaga.inspect import activations
from uwaga.integrations import register_with_transformers
from uwaga.models import generate

register_with_transformers()
ALL = (*OURS, *THEIRS)
HEAD = 1


def in_gate(model: str) -> bool:
    """Encoders, decoders and pairs, with biases, windows, softcap and grouped heads; others are like these."""
    return model in ("bert", "t5", "gemma2", "transformers bert", "transformers llama", "transformers t5")


@pytest.mark.gate(only=in_gate)
@pytest.mark.parametrize("model", ALL, indirect=True)
@torch.no_grad()
def test_a_scaled_head_is_that_of_a_hook_bit_for_bit(model: Small) -> None:
    form = "whole"
    if not model.is_ours:
        model.module.set_attn_implementation("uwaga")
        form = model.padded
    for where in model.last_layers():
        before = model.run(form)
        for factor in (0.0, -0.7):
            with model.heads_by_a_hook(where, lambda heads, factor=factor: heads[..., HEAD, :].mul_(factor)):
                expected = model.run(form)
            with model.heads_by_a_hook(where, lambda _: None), uwaga.edit(model.module, heads={(*where, HEAD): factor}):
                result = model.run(form)
            assert torch.equal(result, expected)
            assert not torch.equal(result, before)
        assert torch.equal(model.run(form), before)


def vectors(width: int) -> Tensor:
    """(B, P, D): other ones for each text."""
    return torch.randn(2, 2, width, generator=torch.Generator().manual_seed(1))


def put(*places: tuple, value: Tensor | float | None = None, factor: float = 0.0) -> Callable[[Tensor], None]:
    def change(x: Tensor) -> None:
        for place in places:
            x[place] = x[place] * factor if value is None else torch.as_tensor(value).to(x)

    return change


LINKS, CUT = uwaga.Links([3, 4], [1, 2, 4]), np.s_[:, HEAD, 3:5, [1, 2, 4]]
# What is changed in a layer (kind, number) whose heads are so wide, and the same in dense matrices, in place, by where they stand.
CHANGES: dict[str, Callable[..., tuple[dict, dict]]] = {
    "a head's links": lambda where, _: ({"scores": {(*where, HEAD): LINKS}}, {"scores": put(CUT, value=-torch.inf)}),
    "links of all heads": lambda where, _: (
        {"scores": {(*where, None): LINKS}}, {"scores": put(np.s_[:, :, 3:5, [1, 2, 4]], value=-torch.inf)}
    ),
    "weights": lambda where, _: (
        {"weights": {(*where, HEAD): [uwaga.Links([3, 4], [1, 2]), uwaga.Links([2], [0], factor=0.5)]}},
        {"weights": lambda x: (put(np.s_[:, HEAD, 3:5, [1, 2]])(x), put(np.s_[:, HEAD, 2, 0], factor=0.5)(x))},
    ),
    "a matrix": lambda where, _: (
        {"weights": {(*where, HEAD): torch.eye(7) if where[0] != "cross" else torch.eye(5, 7)}},
        {"weights": lambda x: put(np.s_[:, HEAD], value=torch.eye(*x.shape[-2:]))(x)},
    ),
    "patches": lambda where, width: (
        {"patch": {
            (*where, 0): uwaga.Patch("key", vectors(width), [2, 0]),
            (*where, HEAD): [uwaga.Patch("query", vectors(width), [3, 0]), uwaga.Patch("value", vectors(width), [1, 4]),
                             uwaga.Patch("output", vectors(width), [2, 4])],
        }},
        {
            "query": put(np.s_[:, 1, [3, 0]], value=vectors(width)), "key": put(np.s_[:, 0, [2, 0]], value=vectors(width)),
            "value": put(np.s_[:, 1, [1, 4]], value=vectors(width)), "output": put(np.s_[:, HEAD, [2, 4]], value=vectors(width)),
        },
    ),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.gate(only=in_gate)
@pytest.mark.gate(only=lambda model, change: change == "patches" or model in ("t5", "gemma2", "transformers llama"))
@pytest.mark.parametrize("model", ALL, indirect=True)
@torch.no_grad()
def test_a_change_is_that_of_dense_matrices(model: Small, change: str) -> None:
    exact = copy.deepcopy(model)
    exact.module.double()
    before = model.run(model.form)
    for where in model.last_layers():
        edits, steps = CHANGES[change](where, 4 if model.is_ours else 8)
        with uwaga.edit(model.module, **edits):
            result = model.run(model.form)
        peer = with_dense_matrices(model, where, steps)
        assert_as_exact(result, peer, partial(with_dense_matrices, exact, where, steps))
        assert float((result - before).abs().max()) > 1e-5


@pytest.mark.gate(
    only=lambda model, implementation: (
        (model, implementation)
        in (("transformers bert", "eager"), ("transformers llama", "sdpa"), ("transformers t5", "flex_attention"))
    )
)
@pytest.mark.parametrize(
    ("model", "implementation"),
    list(product(THEIRS, ("eager", "sdpa", "flex_attention"))),
    indirect=["model"],
)
@torch.no_grad()
def test_whatever_its_own_attention_is_an_edited_model_computes_with_uwaga(model: Small, implementation: str) -> None:
    for where in model.last_layers():
        changes = {name: value for edits in CHANGES.values() for name, value in edits(where, 8)[0].items()}
        results = []
        for configured in ("uwaga", implementation):
            model.module.config._attn_implementation = configured  # its setter refuses what a model has no code for
            with uwaga.edit(model.module, **changes):
                assert implementation_of(model.module) == "uwaga"
                results.append(model.run(model.padded))
            assert implementation_of(model.module) == configured
        assert torch.equal(*results)


def scattered(tokens: int, count: int, **factor: float) -> list[uwaga.Links]:
    """Links of one query and one key each, no query to itself."""
    return [uwaga.Links(n % tokens, (n + 1 + n // tokens % (tokens - 1)) % tokens, **factor) for n in range(count)]


@pytest.mark.parametrize("kind", ["scores", "weights"])
@torch.no_grad()
def test_a_thousand_links_are_the_same_as_few_that_cover_them(kind: str) -> None:
    """More than Python has frames for, one within another."""
    model, where = made("bert"), ("encoder", 1, None)
    keep = {} if kind == "scores" else {"factor": 1.0}
    many = [*scattered(5, 1000, **keep), uwaga.Links([0, 1], [2], **({} if kind == "scores" else {"factor": 0.5}))]
    few = (
        [uwaga.Links(n, [number for number in range(5) if number != n]) for n in range(5)]
        if kind == "scores"
        else many[-1:]
    )
    with uwaga.edit(model, **{kind: {where: few}}):
        expected = model(IDS[:, :5]).last_hidden_state
    with uwaga.edit(model, **{kind: {where: many}}), uwaga.watch(model) as recording:
        result = model(IDS[:, :5]).last_hidden_state
    assert torch.equal(result, expected)
    if kind == "scores":
        assert torch.equal(recording.maps["encoder", 1].to_dense(), torch.eye(5).expand(2, 2, 5, 5))


def every(where: tuple[str, int], head: int, at: int, width: int, key_head: int) -> dict:
    """One change of each sort, of queries from `at` on."""
    place = (*where, head)
    patches: dict[tuple, list] = {place: [uwaga.Patch("output", torch.ones(1, width), at + 2)]}
    patches.setdefault((*where, key_head), []).append(uwaga.Patch("key", torch.ones(1, width), 1))
    return {
        "scores": {place: uwaga.Links([at, at + 2], [0, 1])},
        "weights": {place: uwaga.Links([at + 1, at + 2], 1, factor=0.25)},
        "patch": patches,
        "heads": {place: -2.0},
    }


@pytest.mark.gate(only=in_gate)
@pytest.mark.parametrize("model", WRITERS, indirect=True)
@torch.no_grad()
def test_positions_of_a_generation_are_those_of_one_pass_over_its_text(model: Small) -> None:
    """With caches, of ragged prompts of different lengths, and in one pass over all that was written, a position is the same token."""
    module = model.module
    prompts = [[4, 5, 6, 7, 8], [9, 10, 11, 14]] if model.has_both else [[4, 5, 6, 7], [8, 9]]
    for where in model.last_layers():
        with uwaga.edit(module, **every(where, HEAD, 1, 4, HEAD)):
            new = generate(module, prompts, max_new_tokens=6, eos_token_ids=())
            for prompt, written in zip(prompts, new, strict=True):
                start = [module.config.decoder_start_token_id] if model.has_both else prompt
                texts = ([prompt] if model.has_both else []) + [[*start, *written[:-1]]]
                logits = module(*[torch.tensor([text]) for text in texts]).logits[0]
                assert logits[len(start) - 1 :].argmax(-1).tolist() == written


@pytest.mark.parametrize("model", THEIRS[1:], indirect=True)
@torch.no_grad()
def test_positions_are_those_of_the_text_in_every_step_whatever_the_cache(model: Small) -> None:
    """The logits of generations agree to rounding."""
    inputs = {
        "input_ids": IDS,
        "attention_mask": model.inputs(model.padded)[0]["attention_mask"].long(),
    }
    for where in model.last_layers():
        changes = every(where, 2, 7, 8, 1 if model.name.endswith("llama") else 2)
        if where[0] == "encoder":
            changes = {"heads": changes["heads"], "scores": {(*where, 2): uwaga.Links([4], [3, 5])}}
        results = []
        for cache in ({"use_cache": False}, {"use_cache": True}, {"cache_implementation": "static"}):
            with uwaga.edit(model.module, **changes):
                results.append(model.module.generate(
                    **inputs, max_new_tokens=12, min_new_tokens=12, do_sample=False, output_logits=True,
                    return_dict_in_generate=True, disable_compile=True, **cache,
                ))  # fmt: skip
        for other in results[1:]:
            assert torch.equal(other.sequences, results[0].sequences)
            torch.testing.assert_close(torch.stack(other.logits), torch.stack(results[0].logits), atol=2e-5, rtol=1e-4)


@torch.no_grad()
def test_ragged_texts_are_edited_as_each_alone() -> None:
    model = made("bert")
    texts = [[4, 5, 6, 7], [8, 9, 10, 11, 12]]
    with uwaga.edit(model, **every(("encoder", 1), HEAD, 1, 4, HEAD)):
        result = model(ragged(texts)).last_hidden_state.to_list()
        alone = [model(torch.tensor([text])).last_hidden_state[0] for text in texts]
    assert all(torch.equal(one, other) for one, other in zip(result, alone, strict=True))


@pytest.mark.parametrize(
    ("model", "form"),
    [
        *product(("bert",), ("ragged", "lengths", "right")),
        *(("transformers bert", "right"), ("transformers llama", "left"), ("transformers t5", "right")),
    ],
    indirect=["model"],
)
@torch.no_grad()
def test_the_mean_is_that_of_the_tokens_without_padding(model: Small, form: str) -> None:
    where = model.last_layers()[0]
    mask = model.inputs("left" if form == "left" else "right")[0]["attention_mask"]
    with activations(model.module) as kept:
        model.run(form)
    heads = kept[where].output
    of_tokens = heads.values[:, HEAD] if isinstance(heads, uwaga.Ragged) else heads[:, HEAD][mask]
    results = []
    for value in ("mean", of_tokens.mean(0)):
        with uwaga.edit(model.module, heads={(*where, HEAD): value}):
            results.append(model.run(form))
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_nothing_remains_after_an_exception_but_what_the_user_chose() -> None:
    model = theirs("gpt2", "sdpa")
    before = model(IDS).logits
    for context in (uwaga.edit(model, heads={("decoder", 0, 0): 2.0}), uwaga.watch(model)):
        with pytest.raises(RuntimeError, match="in the block"), context:
            raise RuntimeError("in the block")
        assert implementation_of(model) == "sdpa"
        assert not threads.any_open
    assert torch.equal(model(IDS).logits, before)
    with uwaga.watch(model), uwaga.edit(model, heads={("decoder", 0, 0): 0.0}):
        model(IDS)
        model.set_attn_implementation("eager")
    assert implementation_of(model) == "eager"


def test_attentions_that_the_model_returns_are_edited() -> None:
    model = theirs("bert", "uwaga")
    with uwaga.edit(model, scores={("encoder", 1, 0): uwaga.Links(2, [0, 1])}, heads={("encoder", 0, 0): 0.5}):
        _, second, _ = model(IDS, output_attentions=True).attentions
    assert torch.equal(second.to_dense()[:, 0, 2, :2], torch.zeros(2, 2))


def _orders(contexts: int) -> list[tuple[int, ...]]:
    """All orders in which contexts begin and end: each number twice, the first time where it begins."""
    return sorted(set(permutations([*range(contexts), *range(contexts)])))


@pytest.mark.parametrize("kinds", [("edit", "watch"), ("edit", "edit", "watch")])
@torch.no_grad()
def test_contexts_begin_and_end_in_any_order(kinds: tuple[str, ...]) -> None:
    """At every moment those are in effect that have begun and not ended, and nothing remains."""
    model = theirs("gpt2", "sdpa")
    of_edits = {n for n, kind in enumerate(kinds) if kind == "edit"}

    def edit(*heads: int) -> AbstractContextManager[object]:
        return uwaga.edit(model, heads={("decoder", 0, head): 0.0 for head in heads})

    before = model(IDS).logits
    expected = {(): before}
    for heads in [*((n,) for n in of_edits), (0, 1)]:
        with edit(*heads):
            expected[heads] = model(IDS).logits
    for order in _orders(len(kinds))[:: 7 if len(kinds) > 2 else 1]:
        begun: dict[int, ExitStack] = {}
        for n in order:
            if n in begun:
                begun.pop(n).close()
            else:
                begun[n] = ExitStack()
                begun[n].enter_context(edit(n) if n in of_edits else uwaga.watch(model))
            result = model(IDS).logits
            torch.testing.assert_close(result, expected[tuple(sorted(of_edits & begun.keys()))], atol=1e-5, rtol=1e-4)
            assert implementation_of(model) == ("uwaga" if begun else "sdpa")
        assert implementation_of(model) == "sdpa"
    assert torch.equal(model(IDS).logits, before)
    assert not threads.any_open


def test_gradients_reach_everything_but_what_was_replaced() -> None:
    small = Small.of("gpt2")
    model, layer = small.module, small.layer(("decoder", 2))
    with uwaga.edit(model, heads={("decoder", 2, HEAD): 0.0}, scores={("decoder", 2, 0): uwaga.Links(None, 0)}):
        model(IDS).last_hidden_state.square().sum().backward()
    values = layer.value.weight.grad.unflatten(0, (2, -1))
    assert torch.equal(values[HEAD], torch.zeros_like(values[HEAD]))
    assert values[1 - HEAD].abs().sum() > 0


@torch.no_grad()
def test_edits_read_from_json_do_the_same() -> None:
    model = made("gpt2")
    run = lambda model: model(IDS).logits  # noqa: E731
    edits = uwaga.Edits(
        heads={("decoder", 0, 1): 0.0, ("decoder", 1, 0): "mean"},
        scores={("decoder", 1, None): [uwaga.Links([3], None), uwaga.Links(None, [1])]},
        weights={("decoder", 2, 0): uwaga.Links([2, 4], 0, factor=0.5)},
    )
    read = uwaga.Edits.from_dict(json.loads(json.dumps(edits.to_dict())))
    assert read.to_dict() == edits.to_dict()
    assert repr(read) == repr(edits)
    results = []
    for changes in (edits, read):
        with uwaga.edit(model, changes) as inside:
            results.append(run(model))
        assert inside is changes
    line = read.as_python("model")
    scope: dict[str, object] = {"uwaga": uwaga, "model": model, "run": run}
    exec(f"{line}\n    found = run(model)", scope)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], scope["found"])


@pytest.mark.parametrize("operand", ["query", "key", "value", "output"])
@pytest.mark.gate(only=in_gate)
@pytest.mark.parametrize("model", [*OURS, "transformers llama"], indirect=True)
@torch.no_grad()
def test_a_patch_puts_the_vectors_of_another_text_there(model: Small, operand: str) -> None:
    chosen, module = [1, 3], model.module
    other = (IDS.flip(-1), IDS.flip(-1)[:, :5])[: 1 + model.has_both]
    with activations(module) as of_other:
        module(*other)
    for where in model.last_layers():
        patch = uwaga.Patch(operand, getattr(of_other[where], operand)[:, HEAD, chosen], chosen)
        edited = uwaga.edit(module, patch={(*where, HEAD): patch})
        # Of two contexts the inner one comes first at the operands and last at the results.
        outer, inner = (edited, nullcontext()) if operand == "output" else (nullcontext(), edited)
        with outer, activations(module) as result, inner:
            model.run()
        assert torch.equal(getattr(result[where], operand)[:, HEAD, chosen], patch.source)
