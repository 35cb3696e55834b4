"""cache_study, compared with the losses over whole matrices, and its arguments.

Letters: H query heads, G key/value heads, N tokens, P policies, B budgets.
"""

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import brute_force
import pytest
import torch
from largest import Largest
from small_models import ask
from test_policies import BUDGETS, POLICIES
from tiny_models import theirs
from tiny_transformer import made, ragged
from torch import nn

import uwaga
from uwaga.inspect import cache, cache_study
from uwaga.inspect.cache import CacheLayer, study
from uwaga.nn.attention_id import AttentionId

IDS = torch.randint(3, 20, (1, 40), generator=torch.Generator().manual_seed(0))
EACH_KIND = ("window", "h2o", "snap_kv", "quest", "vertical_slash", "oracle")  # of what a policy keeps


# The last with grouped heads, learned sinks, and a window of 3 tokens in every second layer.
MODELS = {"gpt2": partial(made, "gpt2"), "llama": partial(made, "llama"), "gpt_oss": partial(theirs, "gpt_oss")}


@torch.no_grad()
def recorded(model: nn.Module, ids: Any = IDS, dtype: torch.dtype = torch.float64) -> uwaga.Recording:
    with uwaga.watch(model.to(dtype), values=True) as recording:
        model(ids)
    return recording


def layer_of(recording: uwaga.Recording, number: int, prompt: int, row: int = 0) -> CacheLayer:
    layers = 1 + max(layer for _, layer in recording.maps)
    return CacheLayer(recording.maps["decoder", number].select(row), prompt, number=number, layers=layers)


@pytest.mark.parametrize(
    ("name", "prompt", "policies"),
    [("gpt2", 0, ("window", "oracle")), ("llama", 15, ("quest", "tova")), ("gpt_oss", 15, EACH_KIND)],
)
def test_losses_are_those_of_whole_matrices(name: str, prompt: int, policies: Iterable[str]) -> None:
    recording = recorded(MODELS[name]())
    result = cache_study(
        recording, {policy: POLICIES[policy] for policy in policies}, budgets=BUDGETS[:2], prompt=prompt, per_query=True
    )
    layers = sorted({layer for layer, _ in result.heads})
    assert result.heads == [(n, h) for n in layers for h in range(recording.maps["decoder", n].shape[1])]
    for number in layers:
        layer = layer_of(recording, number, prompt)
        text, value = brute_force.text_of(layer), recording.values["decoder", number][0].double()
        columns = [at for at, (head_layer, _) in enumerate(result.heads) if head_layer == number]
        for p, policy in enumerate(result.policies):
            for b, budget in enumerate(result.budgets):
                bits = getattr(brute_force, policy)(text, budget)
                for statistic, expected in brute_force.losses(text, value, bits).items():
                    actual = result.per_query[statistic][p, b, columns]
                    where = f"{policy}, budget {budget}, layer {number}, {statistic}"
                    # Two orders of a sum of 40 weights in float64; an error is a quotient of differences.
                    assert torch.allclose(actual, expected, rtol=1e-9, atol=1e-12), where


def test_means_and_quantiles_are_those_of_the_queries() -> None:
    result = cache_study(
        recorded(made("gpt2")), POLICIES, budgets=[8, 16], prompt=10, quantiles=[0.5, 0.9], per_query=True
    )
    for name, mean in result.means.items():
        torch.testing.assert_close(mean, result.per_query[name].mean(-1))
    for name in ("forgotten", "error"):
        expected = torch.stack([result.per_query[name].quantile(q, -1) for q in (0.5, 0.9)], -1)
        torch.testing.assert_close(result.quantiles[name], expected)
    assert result.queries == 30


@pytest.mark.parametrize(("name", "dtype"), [("llama", torch.bfloat16), ("gpt_oss", torch.float32)])
def test_a_budget_of_the_text_loses_exactly_nothing(name: str, dtype: torch.dtype) -> None:
    result = cache_study(recorded(MODELS[name](), dtype=dtype), POLICIES, budgets=[40, 500], prompt=8, per_query=True)
    for statistic in ("forgotten", "limit", "error"):
        assert bool((result.per_query[statistic] == 0).all())
    assert bool((result.per_query["overlap"] == 1).all())


@pytest.mark.parametrize("heads", [[0, 3], [0, 1, 2]], ids=str)
def test_recorded_heads_alone(heads: list[int]) -> None:
    """Of a model whose query heads share keys in pairs; head 3 then stands first, and three heads are in no equal groups."""
    model = made("llama").double()
    with uwaga.watch(model, values=True, heads=heads) as recording, torch.no_grad():
        model(IDS)
    policies = [cache.window, cache.oracle]  # which ask no other head
    some = cache_study(recording, policies, budgets=[8], prompt=10)
    whole = cache_study(recorded(model), policies, budgets=[8], prompt=10)
    assert some.heads == [(layer, head) for layer in range(2) for head in heads]
    assert some.table().columns["head"] == [*heads * 2] * 2
    chosen = [4 * layer + head for layer in range(2) for head in heads]
    for name, values in whole.means.items():
        torch.testing.assert_close(some.means[name], values[..., chosen])


def test_every_few_queries_are_the_same_queries() -> None:
    """Of 141 queries, 64 are a block; every fourth of them are one block."""
    recording = recorded(made("llama"), torch.randint(3, 20, (1, 150), generator=torch.Generator().manual_seed(1)))
    policies = {name: POLICIES[name] for name in EACH_KIND}
    whole, some = (cache_study(recording, policies, budgets=[8], prompt=9, every=n, per_query=True) for n in (1, 4))
    for name, values in whole.per_query.items():
        torch.testing.assert_close(some.per_query[name], values[..., ::4])


def test_no_more_than_a_block_is_read_at_once() -> None:
    query, key, value = (torch.randn(1, 1, 1500, 4) for _ in range(3))
    recording = ask(uwaga.Recording(), AttentionId("decoder", 0), query, key, value=value, mask=uwaga.Causal())
    with Largest() as largest:
        cache_study(recording, POLICIES, budgets=[16], prompt=1300)
    assert largest.bytes <= 1500**2  # the matrix of float32 has four times as many


@pytest.mark.parametrize("kind", ["batch", "ragged"])
def test_several_texts_are_their_queries_together(kind: str) -> None:
    model = made("gpt2")
    texts = [IDS[0, :30], IDS[0, 5:35] if kind == "batch" else IDS[0, 5:25]]
    ids = torch.stack(texts) if kind == "batch" else ragged([text.tolist() for text in texts])
    policies = [cache.h2o, cache.oracle]
    both = cache_study(recorded(model, ids), policies, budgets=[8], per_query=True)
    assert both.prompts == [15, len(texts[1]) // 2]
    apart = [cache_study(recorded(model, text[None]), policies, budgets=[8], per_query=True) for text in texts]
    for name, values in both.per_query.items():
        torch.testing.assert_close(values, torch.cat([alone.per_query[name] for alone in apart], -1))
    assert both.queries == sum(alone.queries for alone in apart)


def test_weights_too_small_to_write_are_compared_by_their_scores() -> None:
    """All of a row's weight is on a forgotten key, and the others are below the smallest float32."""
    query, key = torch.ones(1, 6, 1), torch.tensor([[[400.0], [0.0], [1.0], [0.5], [2.0], [0.0]]])
    value = torch.randn(1, 6, 4)
    layer = CacheLayer(uwaga.AttentionMap(query, key, mask=uwaga.Causal(), scale=1.0), 3)
    rows = torch.arange(3, 6)
    block = study.ExactRows(layer, 0, rows, value[0])
    result = block.losses(cache.window(layer, 3).read(0, rows, block.weights))
    text = brute_force.text_of(layer)
    expected = brute_force.losses(text, value.double(), brute_force.window(text, 3))
    torch.testing.assert_close(result.error, expected["error"][0], rtol=1e-5, atol=0)
    assert result.forgotten.tolist() == [1.0, 1.0, 1.0]


def test_queries_that_see_nothing_do_not_count() -> None:
    query = torch.randn(1, 8, 4, dtype=torch.float64)
    layer = CacheLayer(uwaga.AttentionMap(query, query, mask=uwaga.Causal(include_self=False)), 0)
    block = study.ExactRows(layer, 0, torch.arange(8), torch.randn(8, 4, dtype=torch.float64))
    result = block.losses(cache.window(layer, 4).read(0, torch.arange(8), block.weights))
    assert result.kept.isnan().tolist() == [True] + [False] * 7
    assert result.kept[1:].tolist() == [1, 2, 3, 3, 3, 3, 3]  # its own key is hidden


def test_the_table_has_a_row_for_each_policy_budget_and_head() -> None:
    result = cache_study(recorded(made("gpt2")), [cache.window, cache.oracle], budgets=[8, 16], quantiles=[0.9])
    table = result.table()
    columns = ["policy", "budget", "layer", "head", "kept", "forgotten", "limit", "error", "overlap"]
    assert list(table.columns) == [*columns, "forgotten 0.9", "error 0.9"]
    assert len(table) == 2 * 2 * len(result.heads)
    some = result.table("oracle", 16)
    assert set(some.columns["policy"]) == {"oracle"}
    assert some.columns["error"] == result.mean("error", "oracle")[1].tolist()
    assert repr(result) == "CacheStudy(window, oracle; budgets 8, 16; 6 heads, 20 queries)"


@pytest.mark.parametrize(("kind", "head", "row"), [("mask", 0, 1), ("bias", 1, 19), ("documents", 1, 38)])
def test_every_row_and_head_is_causal(kind: str, head: int, row: int) -> None:
    """One query of one head sees the key after it, as in a span of a picture's tokens that all see each other."""
    x = torch.randn(2, 40, 4)
    bits = torch.tril(torch.ones((2, 40, 40), dtype=torch.bool))
    bits[head, row, row + 1] = True
    options: dict[str, Any] = {"mask": bits}
    if kind == "bias":
        options = {"bias": torch.zeros(2, 40, 40).masked_fill(~bits, -torch.inf)}
    if kind == "documents":
        span = torch.arange(40)
        span[row + 1] = row
        options = {"mask": uwaga.Causal() | uwaga.Documents(span)}
    with pytest.raises(ValueError, match=f"query {row} sees later keys"):
        study.causal_layer("cache_study", uwaga.AttentionMap(x, x, **options), 2, number=0, layers=1)
    for mask in (bits.tril(), uwaga.Causal() & uwaga.Documents(torch.arange(40) // 9), uwaga.Window(3, 0)):
        study.causal_layer("cache_study", uwaga.AttentionMap(x, x, mask=mask), 2, number=0, layers=1)


@pytest.mark.parametrize("hidden", [torch.nan, torch.inf])
def test_hidden_values_that_are_no_numbers_do_not_leak(hidden: float) -> None:
    query, key, value = (torch.randn(1, 40, 8, dtype=torch.float64) for _ in range(3))
    mask = uwaga.Causal() & uwaga.Window(left=9, right=0)
    layer = CacheLayer(uwaga.AttentionMap(query, key, mask=mask), 10)
    rows = torch.arange(10, 40)

    def errors(value: torch.Tensor) -> dict[str, torch.Tensor]:
        block = study.ExactRows(layer, 0, rows, value[0])
        return {
            name: block.losses(policy(layer, 8).read(0, rows, block.weights)).error for name, policy in POLICIES.items()
        }

    expected = errors(value)
    value[0, 5, 3] = hidden  # which queries 10 to 14 see, and no later one
    for name, actual in errors(value).items():
        assert torch.equal(actual[5:], expected[name][5:]), name
        assert bool((actual[:5].isnan() | (actual[:5] == 0)).all()), name


@pytest.mark.parametrize("recorded_layers", [[0], [1, 2]], ids=str)
def test_pyramids_of_some_layers_are_those_of_the_model(recorded_layers: list[int], tmp_path: Path) -> None:
    model = made("gpt2").double()
    policies = {"pyramid_kv": POLICIES["pyramid_kv"]}
    whole = cache_study(recorded(model), policies, budgets=[12], prompt=30)
    assert len(set(whole.means["kept"].flatten().tolist())) == 3  # each layer another number
    with uwaga.watch(model, values=True, layers=recorded_layers) as recording, torch.no_grad():
        model(IDS)
    recording.save(tmp_path / "some.safetensors")
    loaded = uwaga.Recording.load(tmp_path / "some.safetensors")
    at = [n for n, (layer, _) in enumerate(whole.heads) if layer in recorded_layers]
    for source, options in ((recording, {}), (recording, {"layers": 3}), (loaded, {"layers": 3})):
        some = cache_study(source, policies, budgets=[12], prompt=30, **options)
        assert some.heads == [whole.heads[n] for n in at]
        assert torch.equal(some.means["kept"], whole.means["kept"][..., at])
