"""cache_edit: a model whose layers forget, compared with masks made of whole matrices, layer after layer.

Letters: H query heads, N tokens.
"""

from contextlib import ExitStack
from itertools import product

import brute_force
import pytest
import torch
from test_policies import POLICIES
from test_study import IDS, MODELS, layer_of
from tiny_models import implementation_of, theirs
from tiny_transformer import made
from torch import Tensor, nn

import uwaga
from uwaga.inspect import cache, cache_edit

BUDGET, PROMPT = 9, 15


@torch.no_grad()
def logits(model: nn.Module, ids: Tensor = IDS) -> Tensor:
    result: Tensor = model(ids).logits
    return result


def weights_kept(text: brute_force.Text, bits: Tensor) -> list[Tensor]:
    """(N, N) of each head: the softmax over the keys that are kept."""
    scores = text.scores.masked_fill(~bits, -torch.inf)
    if text.sinks is not None:
        scores = torch.cat((scores, text.sinks.double()[:, None, None].expand(-1, scores.shape[1], 1)), -1)
    return list(scores.softmax(-1)[..., : bits.shape[-1]])


@torch.no_grad()
def by_matrices(model: nn.Module, policy: str) -> Tensor:
    """The logits of a model with the weights of each layer replaced, from the queries and keys that the changed layers below gave it."""
    layers = len(recorded_inside(model, []).maps)
    edits: list[dict] = []
    for number in range(layers):
        text = brute_force.text_of(layer_of(recorded_inside(model, edits), number, PROMPT))
        bits = getattr(brute_force, policy)(text, BUDGET)
        edits.append({("decoder", number, head): w for head, w in enumerate(weights_kept(text, bits))})
    with ExitStack() as stack:
        for edit in edits:
            stack.enter_context(uwaga.edit(model, weights=edit))
        return logits(model)


@torch.no_grad()
def recorded_inside(model: nn.Module, edits: list[dict]) -> uwaga.Recording:
    with ExitStack() as stack:
        for edit in edits:
            stack.enter_context(uwaga.edit(model, weights=edit))
        with uwaga.watch(model) as recording:
            model(IDS)
    return recording


@pytest.mark.gate(only=lambda name, policy: name == "llama" and policy in ("h2o", "quest", "vertical_slash", "oracle"))
@pytest.mark.parametrize(("name", "policy"), list(product(("gpt2", "llama"), POLICIES)))
def test_layers_read_what_the_policy_keeps_of_what_the_changed_layers_gave(name: str, policy: str) -> None:
    model = MODELS[name]().double()
    with cache_edit(model, POLICIES[policy], BUDGET, prompt=PROMPT):
        actual = logits(model)
    torch.testing.assert_close(actual, by_matrices(model, policy), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize(
    ("policy", "family", "implementation"),
    [("h2o", "llama", "sdpa"), ("quest", "gpt2", "uwaga"), ("tova", "gpt_oss", "eager")],
)
def test_models_of_transformers(policy: str, family: str, implementation: str) -> None:
    uwaga.integrations.register_with_transformers()
    model = theirs(family).double()
    expected = by_matrices(model, policy)
    model.set_attn_implementation(implementation)
    with cache_edit(model, POLICIES[policy], BUDGET, prompt=PROMPT):
        actual = logits(model)
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)  # RMS norms are in float32
    assert implementation_of(model) == implementation


@pytest.mark.gate(only=lambda policy: policy in ("h2o", "snap_kv", "quest"))
@pytest.mark.parametrize("policy", POLICIES)
def test_whole_budgets_and_prompts_change_nothing(policy: str) -> None:
    model = made("gpt2").double()
    before = logits(model)
    with cache_edit(model, POLICIES[policy], 40, prompt=5):
        torch.testing.assert_close(logits(model), before, rtol=1e-12, atol=1e-12)
    with cache_edit(model, POLICIES[policy], BUDGET, prompt=PROMPT):
        changed = logits(model)
    torch.testing.assert_close(changed[:, :PROMPT], before[:, :PROMPT], rtol=1e-12, atol=1e-12)
    assert not torch.allclose(changed[:, PROMPT:], before[:, PROMPT:])
    assert torch.equal(logits(model), before)  # nothing remains


def test_only_the_layers_that_are_named_forget() -> None:
    model = made("gpt2").double()
    with cache_edit(model, cache.window, 4, prompt=5, layers=[2]), uwaga.watch(model) as recording:
        logits(model)
    sees = [int((recording.maps["decoder", layer][0, 0, -1] > 0).sum()) for layer in range(3)]
    assert sees == [40, 40, 4]


def test_each_text_of_a_batch_by_itself() -> None:
    model = made("gpt2").double()
    ids = torch.cat((IDS, IDS.flip(1)))
    with cache_edit(model, cache.h2o, 8, prompt=10):
        both = logits(model, ids)
        apart = torch.cat([logits(model, row[None]) for row in ids])
    torch.testing.assert_close(both, apart, rtol=1e-10, atol=1e-10)


def test_other_changes_of_the_model_remain() -> None:
    model = made("gpt2").double()
    ablated = {("decoder", 1, 0): 0.0, ("decoder", 2, 1): 0.0}
    with uwaga.edit(model, heads=ablated):
        expected = logits(model)
        with cache_edit(model, cache.h2o, 40, prompt=10):
            torch.testing.assert_close(logits(model), expected, rtol=1e-10, atol=1e-10)
        with cache_edit(model, cache.h2o, 8, prompt=10):
            inner = logits(model)
    with cache_edit(model, cache.h2o, 8, prompt=10), uwaga.edit(model, heads=ablated):
        outer = logits(model)
    torch.testing.assert_close(inner, outer, rtol=1e-10, atol=1e-10)
    assert not torch.allclose(inner, expected)
