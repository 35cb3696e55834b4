"""Logit lens, direct logit attribution, activation patching and gradients of heads, on models of this package and of transformers.

Letters: B batch, H query heads, Q tokens, E value width, N tokens of a text.
"""

import copy
import json
import re
import threading

import pytest
import torch
from test_watch import WRITERS, gpt2, ragged
from tiny_models import DECODERS, make
from tiny_transformer import tiny
from torch import Tensor, nn

import uwaga
from uwaga.inspect import (
    PatchingResult,
    activation_patching,
    activations,
    logit_attribution,
    logit_lens,
)
from uwaga.plots import patching_effects

IDS = torch.tensor([[4, 5, 6, 7, 8], [9, 10, 11, 12, 13]])
CLEAN, CORRUPTED = IDS[:1], torch.tensor([[4, 14, 6, 15, 8]])


def pre_norm() -> nn.Module:
    sizes = {"vocab_size": 20, "d_model": 8, "num_heads": 2, "d_ff": 16, "num_decoder_layers": 2}
    return tiny("uwaga-transformer", seed=0, **sizes, norm="pre", lm_head_bias=True)


def huggingface(family: str) -> nn.Module:
    import transformers

    return make(family, DECODERS[family], transformers.AutoModelForCausalLM)


PACKAGE = {"gpt2": gpt2, "t5": WRITERS["t5"], "pre-norm": pre_norm}
MODELS = PACKAGE | {
    f"transformers {name}": lambda name=name: huggingface(name) for name in ("gpt2", "llama", "mistral")
}


def tolerance(name: str) -> dict[str, float]:
    """In float64; the RMSNorm of transformers' Llama computes in float32 whatever it is given."""
    size = 3e-6 if name in ("transformers llama", "transformers mistral") else 1e-10
    return {"rtol": size, "atol": size}


def inputs(model: nn.Module) -> tuple[Tensor, ...]:
    return (IDS, IDS[:, :4]) if getattr(model.config, "has_both", False) else (IDS,)


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_shares_of_all_parts_sum_to_the_logit_difference(name: str) -> None:
    model = MODELS[name]().double()
    given = inputs(model)
    logits = model(*given).logits
    answer, other = torch.tensor([3, 17]), 5
    result = logit_attribution(model, *given, answer=answer, other=other)
    difference = logits.gather(-1, answer[:, None, None].expand(-1, logits.shape[1], 1))[..., 0] - logits[..., other]
    exactly = tolerance(name)
    torch.testing.assert_close(result.logits, difference, **exactly)
    torch.testing.assert_close(result.total(), difference, **exactly)
    assert len({where for where, _ in result.heads}) == (2 if len(given) == 2 else 1)
    one = logit_attribution(model, *given, answer=5)
    torch.testing.assert_close(one.total(), logits[..., 5], **exactly)
    assert one.of_heads("decoder", 1, 2).shape == (len(one.feed_forward), one.heads["decoder", 0].shape[1])


@pytest.mark.parametrize(
    "name", [name for name in MODELS if name not in ("t5", "pre-norm")]
)  # their cross-attention reads the head too
@torch.no_grad()
def test_the_share_of_a_head_of_the_last_layer_is_what_its_ablation_takes_from_the_stream(name: str) -> None:
    """With the final norm held at the whole stream, removing the head's own output removes its share exactly."""
    model = MODELS[name]().double()
    given = inputs(model)
    result = logit_attribution(model, *given, answer=3, other=5)
    layer = max(n for kind, n in result.heads if kind == "decoder")
    from uwaga.inspect.logits import ResidualStream, _residuals

    stream = ResidualStream.of(model)
    with _residuals(stream) as before:
        model(*given)
    direction = (stream.weight_VM[3] - stream.weight_VM[5]).expand(len(IDS), -1)
    share, _ = stream.share(before.blocks[-1], direction)
    # The block's own feed-forward reads the head too: its change is subtracted.
    with uwaga.edit(model, heads={("decoder", layer, 1): 0.0}), _residuals(stream) as after:
        model(*given)
    lost = before.blocks[-1] - after.blocks[-1] - (before.feed_forward[layer] - after.feed_forward[layer])
    torch.testing.assert_close((lost * share).sum(-1), result.heads["decoder", layer][:, 1], **tolerance(name))


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_the_lens_ends_with_the_models_own_prediction(name: str) -> None:
    model = MODELS[name]()
    given = inputs(model)
    logits = model(*given).logits
    result = logit_lens(model, *given, top=3, ids=given[-1])
    probabilities = logits.softmax(-1)
    most = probabilities.topk(3)
    torch.testing.assert_close(result.probabilities[-1], most.values)
    assert torch.equal(result.tokens[-1], most.indices)
    torch.testing.assert_close(result.chosen[-1], probabilities.gather(-1, given[-1][..., None])[..., 0])
    torch.testing.assert_close(result.entropy[-1], torch.distributions.Categorical(probabilities).entropy())
    assert len(result.tokens) == len(result.entropy) > 2
    assert (result.probabilities.sum(-1) <= 1.00001).all()


@torch.no_grad()
def test_the_lens_is_the_norm_and_the_head_of_every_hidden_state() -> None:
    model = gpt2()
    states = model(IDS, output_hidden_states=True).hidden_states
    result = logit_lens(model, IDS, top=20)
    for layer, state in enumerate(states):
        right = model.logits(model.decoder.norm(state)).softmax(-1)
        torch.testing.assert_close(result.probabilities[layer], right.topk(20).values)


def metric(output: object) -> Tensor:
    return output.logits[0, -1, 3] - output.logits[0, -1, 5]


def output_by_hook(
    model: nn.Module, layer: int, head: int | None, source: Tensor | None, at: list[int] | None
) -> Tensor:
    """The metric of the corrupted text with the inputs of W_O replaced by a hook; or, without a source, those inputs."""
    linear, seen = model.decoder.layers[layer].attention.output, []

    def hook(_: nn.Module, given: tuple[Tensor]) -> tuple[Tensor]:
        heads = given[0].clone().unflatten(-1, (2, -1))
        seen.append(given[0])
        if source is not None:
            chosen = slice(None) if head is None else head
            positions = slice(0, CLEAN.shape[1]) if at is None else torch.tensor(at)
            flat, new = heads.flatten(0, -3), source.unflatten(-1, (2, -1)).flatten(0, -3)
            flat[positions, chosen] = new[positions, chosen]
            heads = flat.reshape(heads.shape)
        return (heads.flatten(-2),)

    remove = linear.register_forward_pre_hook(hook).remove
    result = metric(model(CORRUPTED if source is not None else CLEAN))
    remove()
    return result if source is not None else seen[0]


@pytest.mark.parametrize(
    ("heads", "positions"), [(True, None), (False, [1, 3, 4]), (True, [1, [2, 3]]), ([1], None)],
    ids=["heads", "positions", "heads and positions", "one head"],
)  # fmt: skip
@torch.no_grad()
def test_each_patch_is_that_of_a_hook(heads: object, positions: object) -> None:
    model = gpt2()
    calls: list[tuple[int, int]] = []
    result = activation_patching(
        model, CLEAN, CORRUPTED, metric, kind="decoder", heads=heads, positions=positions,
        progress=lambda *at: calls.append(at),
    )  # fmt: skip
    assert result.is_complete
    assert calls == [(n + 1, result.values.numel()) for n in range(result.values.numel())]
    head_list = [None] if result.heads is None else result.heads
    spans = [None] if result.spans is None else result.spans
    for n, layer in enumerate(result.layers):
        source = output_by_hook(model, layer, None, None, None)
        for h, head in enumerate(head_list):
            for p, span in enumerate(spans):
                right = output_by_hook(model, layer, head, source, span)
                torch.testing.assert_close(result.values[n, h, p].float(), right, rtol=1e-5, atol=1e-5)
    assert result.clean == float(metric(model(CLEAN)))
    assert result.corrupted == float(metric(model(CORRUPTED)))


@torch.no_grad()
def test_patching_everything_that_differs_restores_the_clean_metric() -> None:
    """All heads of the first layer and the same token before it: only position 1 differs, and attention alone moves it."""
    model = gpt2().double()
    with activations(model) as kept:
        model(CLEAN)
    patch = {
        ("decoder", n, h): uwaga.Patch("output", kept["decoder", n].output[:, h]) for n in range(3) for h in range(2)
    }
    other = CLEAN.clone()
    other[0, 1] = 14
    with uwaga.edit(model, patch=patch):
        result = metric(model(other))
    torch.testing.assert_close(result, metric(model(CLEAN)))


@torch.no_grad()
def test_a_result_that_stopped_goes_on_and_is_plain_data() -> None:
    model = gpt2()
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
    with pytest.raises(
        ValueError, match=re.escape("activation_patching: resume has spans [[1], [3]], and this call [[1]]")
    ):
        activation_patching(model, CLEAN, CORRUPTED, metric, kind="decoder", positions=[1], resume=read)


@torch.no_grad()
def test_a_picture_names_layers_and_heads_or_positions() -> None:
    pytest.importorskip("matplotlib")
    model = gpt2()
    heads = patching_effects(activation_patching(model, CLEAN, CORRUPTED, metric, kind="decoder"))
    assert heads.axes[0].get_xlabel() == "head"
    assert heads.axes[0].get_ylabel() == "decoder layer"
    assert heads.axes[1].get_ylabel() == "restored part of the metric"
    both = activation_patching(model, CLEAN, CORRUPTED, metric, kind="decoder", positions=[1, [2, 3]])
    assert patching_effects(both, head=1).axes[0].get_xlabel() == "position"
    rule = "patching_effects: heads and positions were patched: head must be 0 to 1, not None"
    with pytest.raises(ValueError, match=re.escape(rule)):
        patching_effects(both)


def dense_gradient(model: nn.Module, given: tuple[Tensor, ...], layer: int) -> Tensor:
    """a * grad_a of a decoder layer by autograd on the dense weights, in a copy of the model."""
    replaced = copy.deepcopy(model)
    attention, kept = replaced.decoder.layers[layer].attention, []

    class Dense(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.query = attention.query

        def forward(self, x: Tensor, **options: object) -> Tensor:
            qkv = attention.project(x, x, x)
            m = uwaga.AttentionMap(qkv.query, qkv.key, mask=options.get("mask"), scale=attention.scale)
            kept.append(m.to_dense().detach().requires_grad_())
            return attention.output((kept[0] @ qkv.value).transpose(-3, -2).flatten(-2))

    replaced.decoder.layers[layer].attention = Dense()
    replaced(*given).logits[:, -1, 3].sum().backward()
    return kept[0].detach() * kept[0].grad


def test_gradient_maps_of_a_model_are_those_of_autograd_on_dense_weights() -> None:
    model = gpt2().double()
    with activations(model, gradients=True) as result:
        model(IDS).logits[:, -1, 3].sum().backward()
    for layer in range(3):
        right = dense_gradient(model, (IDS,), layer)
        exactly = {"rtol": 1e-10, "atol": 1e-12}
        torch.testing.assert_close(result["decoder", layer].gradient_map(positive=False).to_dense(), right, **exactly)
        torch.testing.assert_close(result["decoder", layer].gradient_map().to_dense(), right.clamp(min=0), **exactly)
    relevance = torch.eye(5, dtype=torch.float64).expand(2, 5, 5)
    for layer in range(3):
        bar = dense_gradient(model, (IDS,), layer).clamp(min=0).mean(1)
        relevance = relevance + bar @ relevance
    torch.testing.assert_close(result.gradient_rollout("decoder"), relevance[:, -1], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", ["transformers gpt2", "transformers llama"])
def test_gradient_maps_of_transformers_are_those_of_eager_attention(name: str) -> None:
    model = MODELS[name]().double()
    # Llama's eager attention takes its softmax in float32.
    close = {"rtol": 1e-4, "atol": 1e-6} if "llama" in name else {"rtol": 1e-10, "atol": 1e-12}
    out = model(IDS, output_attentions=True)
    for weights in out.attentions:
        weights.retain_grad()
    out.logits[:, -1, 3].sum().backward()
    with activations(model, gradients=True) as result:
        model(IDS).logits[:, -1, 3].sum().backward()
    for layer, weights in enumerate(out.attentions):
        right = (weights * weights.grad).detach()
        torch.testing.assert_close(result["decoder", layer].gradient_map(positive=False).to_dense(), right, **close)


def test_activations_are_those_of_the_edited_pass_and_of_ragged_texts() -> None:
    model = gpt2()
    with torch.no_grad(), uwaga.edit(model, heads={("decoder", 0, 0): 0.0}), activations(model, layers=[1]) as result:
        model(IDS)
    with torch.no_grad(), activations(model, layers=[1]) as plain:
        model(IDS)
    assert list(result) == [("decoder", 1)]
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


@torch.no_grad()
def test_what_another_thread_runs_meanwhile_is_no_part_of_a_logit() -> None:
    model, threads = gpt2(), []
    right = logit_attribution(model, IDS, answer=3).total()

    def run_elsewhere(*_: object) -> None:
        if not threads:  # in this thread's first layer alone
            threads.append(threading.Thread(target=torch.no_grad()(lambda: model(IDS[:, :4]))))
            threads[0].start()
            threads[0].join()

    hook = model.decoder.layers[1].register_forward_pre_hook(run_elsewhere)
    result = logit_attribution(model, IDS, answer=3).total()
    hook.remove()
    assert len(threads) == 1
    assert torch.equal(result, right)
