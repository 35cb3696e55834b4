"""What each policy keeps, compared with its definition over whole matrices.

Letters: H query heads, G key/value heads, N tokens.
"""

from collections.abc import Callable
from functools import partial

import brute_force
import pytest
import torch
from torch import Tensor

import uwaga
from uwaga.inspect import cache
from uwaga.inspect.cache import CacheLayer
from uwaga.inspect.cache.kept import largest
from uwaga.inspect.cache.running import fill

SMALL = {"observed": 4, "kernel_size": 3}
POLICIES: dict[str, cache.policies.Policy] = {policy.__name__: policy for policy in cache.POLICIES} | {
    "snap_kv": partial(cache.snap_kv, **SMALL),
    "pyramid_kv": partial(cache.pyramid_kv, **SMALL),
    "quest": partial(cache.quest, page=4),
}
BUDGETS = (8, 21, 41)  # 41: one more than the text has
SIZES = {"each head its keys": (3, 3), "grouped": (4, 2), "one key head": (3, 1)}


def kept(layer: CacheLayer, policy: cache.policies.Policy, budget: int) -> Tensor:
    """(H, N, N) bool."""
    bits = torch.tril(torch.ones((layer.tokens, layer.tokens), dtype=torch.bool)).repeat(layer.heads, 1, 1)
    result = policy(layer, budget)
    for head in range(layer.heads):
        fill(bits[head], layer, head, result)
    return bits


@pytest.mark.parametrize(
    ("sizes", "prompt"), [("each head its keys", 0), ("one key head", 1), ("grouped", 17), ("each head its keys", 39)]
)
@pytest.mark.parametrize("name", POLICIES)
def test_keeps_what_its_definition_says(name: str, sizes: str, prompt: int) -> None:
    layer = brute_force.plain_layer(*SIZES[sizes], 40, prompt)
    define: Callable[..., Tensor] = getattr(brute_force, name)
    for budget in BUDGETS:
        assert torch.equal(kept(layer, POLICIES[name], budget), define(brute_force.text_of(layer), budget)), budget


@pytest.mark.parametrize("name", ["h2o", "tova", "window"])
def test_a_budget_of_one_is_the_query_itself(name: str) -> None:
    layer = brute_force.plain_layer(2, 2, 12, 3)
    assert torch.equal(kept(layer, POLICIES[name], 1)[:, 3:], torch.eye(12, dtype=torch.bool)[3:].expand(2, -1, -1))


@pytest.mark.parametrize(
    "options",
    [
        {
            "sinks": torch.tensor([0.5, -1.0, 2.0, 0.0], dtype=torch.float64),
            "bias": uwaga.AlibiBias(torch.tensor([0.5, 0.2, 0.1, 0.05], dtype=torch.float64)),
        },
        {"softcap": 1.5, "mask": uwaga.Causal() & uwaga.Window(left=12, right=0)},
    ],
    ids=lambda options: next(iter(options)),
)
@pytest.mark.parametrize("name", ["h2o", "tova", "snap_kv", "quest", "vertical_slash", "oracle"])
def test_weights_are_those_of_the_models_own_attention(name: str, options: dict) -> None:
    generator = torch.Generator().manual_seed(3)
    query, key = (torch.randn(n, 40, 8, generator=generator, dtype=torch.float64) for n in (4, 2))
    layer = CacheLayer(uwaga.AttentionMap(query, key, **{"mask": uwaga.Causal()} | options), 17)
    seen = layer.map.scores[:] > -float("inf")
    for budget in (8, 11):  # less than the window, so that hidden keys are never needed
        define = getattr(brute_force, name)(brute_force.text_of(layer), budget)
        assert torch.equal(kept(layer, POLICIES[name], budget) & seen, define & seen)


def test_the_largest_are_found_with_equal_ones_by_position_and_nan_last() -> None:
    x = torch.tensor([[3.0, 1.0, 3.0, 3.0], [torch.nan, 2.0, torch.nan, -1.0], [0.0, -torch.inf, 5.0, -torch.inf]])
    assert largest(x, 2).tolist() == [[0, 2], [1, 3], [0, 2]]
    assert largest(x, 3).tolist() == [[0, 2, 3], [0, 1, 3], [0, 1, 2]]
    assert largest(x, 9).tolist() == [[0, 1, 2, 3]] * 3
    assert largest(x, 0).shape == (3, 0)


def test_vertical_slash_of_the_last_queries() -> None:
    layer = brute_force.plain_layer(3, 3, 40, 10)
    result = kept(layer, partial(cache.vertical_slash, last=6), 13)
    assert torch.equal(result, brute_force.vertical_slash(brute_force.text_of(layer), 13, last=6))


def test_vertical_slash_finds_a_head_made_of_one_column_and_one_slash() -> None:
    """Weights on key 0 and on the key 5 before: what MInference calls a vertical and a slash line."""
    positions = torch.arange(64)
    query = torch.zeros(1, 64, 66, dtype=torch.float64)
    key = torch.zeros(1, 64, 66, dtype=torch.float64)
    key[0, positions, positions] = 30.0
    query[0, positions[5:], positions[:-5]] = 1.0
    query[0, :, 65], key[0, 0, 65] = 1.0, 30.0
    layer = CacheLayer(uwaga.AttentionMap(query, key, mask=uwaga.Causal(), scale=1.0), 8)
    lines = cache.vertical_slash(layer, 2)
    assert isinstance(lines, cache.Lines)
    assert (lines.columns[0].tolist(), lines.distances[0].tolist()) == ([0], [5])


def test_pyramid_gives_lower_layers_more_and_the_budget_on_average() -> None:
    counts = []
    for number in range(5):
        layer = brute_force.plain_layer(1, 1, 400, 300)
        layer = CacheLayer(layer.map, 300, number=number, layers=5)
        counts.append(int(kept(layer, POLICIES["pyramid_kv"], 44)[0, 300, :300].sum()))
    assert counts == [82, 63, 44, 25, 6]  # 40 beside the last 4: 78 to 40 / 20
    assert sum(counts) / 5 == 44


@pytest.mark.parametrize("name", ["window", "streaming_llm", "quest", "vertical_slash", "oracle"])
def test_other_policies_read_the_heads_that_there_are(name: str) -> None:
    whole = brute_force.plain_layer(2, 2, 40, 10)
    some = CacheLayer(whole.map, 10, head_numbers=[1, 3])
    assert torch.equal(kept(some, POLICIES[name], 8), kept(whole, POLICIES[name], 8))


def test_quest_ranks_pages_with_hidden_keys_that_are_no_numbers() -> None:
    plain = brute_force.plain_layer(2, 2, 40, 10)
    query, key = plain.map.query, plain.map.key
    assert isinstance(query, Tensor)
    assert isinstance(key, Tensor)
    hides = uwaga.Causal() & torch.arange(40).ne(5)
    results = []
    for hidden in (0.0, torch.nan, torch.inf):
        key = key.clone()
        key[:, 5] = hidden
        results.append(kept(CacheLayer(uwaga.AttentionMap(query, key, mask=hides), 10), POLICIES["quest"], 12))
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])
