"""Logit lens, direct logit attribution, activation patching and gradients of heads, on models of this package and of transformers.

Letters: B batch, H query heads, Q tokens, E value width, N tokens of a text.
"""

import itertools
import json

import pytest
import torch
from small_models import Small, with_dense_matrices
from tiny_transformer import made, ragged
from torch import Tensor, nn

import uwaga
from uwaga.inspect import (
    PatchingResult,
    activation_patching,
    activations,
    gradient_rollout,
    logit_attribution,
    logit_lens,
)
from uwaga.inspect.logits import ResidualStream, _residuals
from uwaga.plots import patching_effects

IDS = torch.tensor([[4, 5, 6, 7, 8], [9, 10, 11, 12, 13]])
CLEAN, CORRUPTED = IDS[:1], torch.tensor([[4, 14, 6, 15, 8]])
MODELS = ["gpt2", "t5", "pre-norm", "mistral", "transformers gpt2", "transformers llama"]
# A head of the last layer is read by its feed-forward alone.
ONE_STACK = ["mistral", "transformers gpt2", "transformers llama"]


def tolerance(name: str) -> dict[str, float]:
    """In float64; the RMSNorm of transformers' Llama computes in float32 whatever it is given."""
    size = 3e-6 if name == "transformers llama" else 1e-10
    return {"rtol": size, "atol": size}


def inputs(model: nn.Module) -> tuple[Tensor, ...]:
    return (IDS, IDS[:, :4]) if getattr(model.config, "has_both", False) else (IDS,)


@pytest.mark.parametrize("model", MODELS, indirect=True)
@torch.no_grad()
def test_shares_of_all_parts_sum_to_the_logit_difference(model: Small) -> None:
    name, model = model.name, model.module.double()
    arguments = inputs(model)
    logits = model(*arguments).logits
    answer, other = torch.tensor([3, 17]), 5
    result = logit_attribution(model, *arguments, answer=answer, other=other)
    difference = logits.gather(-1, answer[:, None, None].expand(-1, logits.shape[1], 1))[..., 0] - logits[..., other]
    exactly = tolerance(name)
    torch.testing.assert_close(result.logits, difference, **exactly)
    torch.testing.assert_close(result.total(), difference, **exactly)
    assert len({where for where, _ in result.heads}) == (2 if len(arguments) == 2 else 1)
    one = logit_attribution(model, *arguments, answer=5)
    torch.testing.assert_close(one.total(), logits[..., 5], **exactly)
    assert one.of_heads("decoder", 1, 2).shape == (len(one.feed_forward), one.heads["decoder", 0].shape[1])


@pytest.mark.parametrize("model", ONE_STACK, indirect=True)
@torch.no_grad()
def test_the_share_of_a_head_of_the_last_layer_is_what_its_ablation_takes_from_the_stream(model: Small) -> None:
    """With the final norm held at the whole stream, removing the head's own output removes its share exactly."""
    name, model = model.name, model.module.double()
    arguments = inputs(model)
    result = logit_attribution(model, *arguments, answer=3, other=5)
    layer = max(n for kind, n in result.heads if kind == "decoder")
    stream = ResidualStream.of(model)
    with _residuals(stream) as (before, before_ffn):
        model(*arguments)
    direction = (stream.weight_VM[3] - stream.weight_VM[5]).expand(len(IDS), -1)
    share, _ = stream.share(before[-1], direction)
    # The block's own feed-forward reads the head too: its change is subtracted.
    with uwaga.edit(model, heads={("decoder", layer, 1): 0.0}), _residuals(stream) as (after, after_ffn):
        model(*arguments)
    lost = before[-1] - after[-1] - (before_ffn[layer] - after_ffn[layer])
    torch.testing.assert_close((lost * share).sum(-1), result.heads["decoder", layer][:, 1], **tolerance(name))


@pytest.mark.parametrize("model", ["gpt2", "t5", "transformers gpt2"], indirect=True)
@torch.no_grad()
def test_the_lens_is_the_head_of_every_hidden_state_up_to_the_models_own_prediction(model: Small) -> None:
    module = model.module
    arguments = inputs(module)
    logits = module(*arguments).logits
    result = logit_lens(module, *arguments, top=3, ids=arguments[-1])
    probabilities = logits.softmax(-1)
    most = probabilities.topk(3)
    torch.testing.assert_close(result.probabilities[-1], most.values)
    assert torch.equal(result.tokens[-1], most.indices)
    torch.testing.assert_close(result.chosen[-1], probabilities.gather(-1, arguments[-1][..., None])[..., 0])
    torch.testing.assert_close(result.entropy[-1], torch.distributions.Categorical(probabilities).entropy())
    assert len(result.tokens) == len(result.entropy) > 2
    if model.is_ours and not model.has_both:
        for layer, state in enumerate(module(*arguments, output_hidden_states=True).hidden_states):
            right = module.logits(module.decoder.norm(state)).softmax(-1)
            torch.testing.assert_close(result.probabilities[layer], right.topk(3).values)


def metric(output: object) -> Tensor:
    return output.logits[0, -1, 3] - output.logits[0, -1, 5]


@pytest.mark.parametrize(
    ("heads", "positions"), [(True, None), (False, [1, 3, 4]), (True, [1, [2, 3]]), ([1], None)],
    ids=["heads", "positions", "heads and positions", "one head"],
)  # fmt: skip
@torch.no_grad()
def test_each_patch_is_that_of_a_hook(model: Small, heads: object, positions: object) -> None:
    calls: list[tuple[int, int]] = []
    result = activation_patching(
        model.module, CLEAN, CORRUPTED, metric, kind="decoder", heads=heads, positions=positions,
        progress=lambda *at: calls.append(at),
    )  # fmt: skip
    assert result.is_complete
    assert calls == [(n + 1, result.values.numel()) for n in range(result.values.numel())]
    for n, h, p in itertools.product(*map(range, result.values.shape)):
        where, clean = ("decoder", result.layers[n]), []
        with model.heads_by_a_hook(where, clean.append):
            assert result.clean == pytest.approx(float(metric(model.module(CLEAN))), rel=1e-4)
        span = slice(None) if result.spans is None else torch.tensor(result.spans[p])
        head = slice(None) if result.heads is None else result.heads[h]

        def put(heads: Tensor, span: object = span, head: object = head, clean: list[Tensor] = clean) -> None:
            heads[0][span, head] = clean[0][0][span, head]

        with model.heads_by_a_hook(where, put):
            right = metric(model.module(CORRUPTED))
        torch.testing.assert_close(result.values[n, h, p].float(), right, rtol=1e-4, atol=1e-5)
    assert result.corrupted == pytest.approx(float(metric(model.module(CORRUPTED))), rel=1e-4)


@torch.no_grad()
def test_a_result_that_stopped_goes_on_and_is_plain_data() -> None:
    model = made("gpt2")
    options = {"kind": "decoder", "positions": [1, 3]}
    whole = activation_patching(model, CLEAN, CORRUPTED, metric, **options)
    part = activation_patching(model, CLEAN, CORRUPTED, metric, **options, limit=5)
    assert repr(part) == "PatchingResult(decoder, (3, 2, 2), 5 of 12 patched)"
    read = PatchingResult.from_dict(json.loads(json.dumps(part.to_dict())))
    assert not read.is_complete
    done: list[int] = []
    resumed = activation_patching(
        model, CLEAN, CORRUPTED, metric, **options, resume=read, progress=lambda n, _: done.append(n)
    )
    assert done == list(range(6, 13))
    assert torch.equal(resumed.values, whole.values)
    assert torch.equal(resumed.effects(), (whole.values - whole.corrupted) / (whole.clean - whole.corrupted))


@torch.no_grad()
def test_a_figure_names_layers_and_heads_or_positions() -> None:
    pytest.importorskip("matplotlib")
    model = made("gpt2")
    heads = patching_effects(activation_patching(model, CLEAN, CORRUPTED, metric, kind="decoder"))
    assert heads.axes[0].get_xlabel() == "head"
    assert heads.axes[0].get_ylabel() == "decoder layer"
    assert heads.axes[1].get_ylabel() == "restored part of the metric"
    both = activation_patching(model, CLEAN, CORRUPTED, metric, kind="decoder", positions=[1, [2, 3]])
    assert patching_effects(both, head=1).axes[0].get_xlabel() == "position"


@pytest.mark.parametrize("model", ["gpt2", "transformers gpt2", "transformers llama"], indirect=True)
def test_gradient_maps_are_those_of_autograd_on_dense_weights(model: Small) -> None:
    model.module.double()
    # Llama's RMSNorm computes in float32.
    close = {"rtol": 1e-4, "atol": 1e-6} if "llama" in model.name else {"rtol": 1e-10, "atol": 1e-12}
    with activations(model.module, gradients=True) as result:
        model.run(model.form)[:, 3].sum().backward()
    for where in result:
        kept: list[Tensor] = []

        def keep(weights_BHQK: Tensor, kept: list[Tensor] = kept) -> None:
            weights_BHQK.requires_grad_().retain_grad()
            kept.append(weights_BHQK)

        with_dense_matrices(model, where, {"weights": keep})[:, 3].sum().backward()
        right = (kept[0] * kept[0].grad).detach()
        torch.testing.assert_close(result[where].gradient_map(positive=False).to_dense(), right, **close)
        torch.testing.assert_close(result[where].gradient_map().to_dense(), right.clamp(min=0), **close)
    maps = [result[where].gradient_map() for where in result]
    torch.testing.assert_close(result.gradient_rollout("decoder"), gradient_rollout(maps))


def test_activations_are_those_of_the_edited_pass_and_of_ragged_texts() -> None:
    model = made("gpt2")
    with torch.no_grad(), uwaga.edit(model, heads={("decoder", 0, 0): 0.0}), activations(model, layers=[1]) as result:
        model(IDS)
    with torch.no_grad(), activations(model, layers=[1]) as plain:
        model(IDS)
    assert list(result) == [("decoder", 1)]
    assert repr(result) == "Activations(decoder 1)"
    assert not torch.equal(result["decoder", 1].query, plain["decoder", 1].query)
    one = plain["decoder", 1]
    torch.testing.assert_close(one.map().to_dense() @ one.value, one.output)
    texts = ragged([[4, 5, 6], [7, 8, 9, 10]])
    with activations(model, gradients=True) as packed:
        model(texts).logits.values[[2, 6], 3].sum().backward()
    rollout = packed.gradient_rollout("decoder").to_list()
    for n, ids in enumerate(([[4, 5, 6]], [[7, 8, 9, 10]])):
        with activations(model, gradients=True) as alone:
            model(torch.tensor(ids)).logits[0, -1, 3].backward()
        torch.testing.assert_close(rollout[n], alone.gradient_rollout("decoder")[0])
