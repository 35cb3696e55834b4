"""Policies of KV-cache eviction and sparse attention: the keys that each keeps with a budget.

A policy is a function (layer, budget) -> Kept. It can have options by keyword; functools.partial makes a policy with other options.
The budget is the number of keys that a query reads, including its own. Weights and sums over the text are exact here;
implementations estimate or sample them.

    permanent         window, streaming_llm, h2o, tova: a key that is forgotten does not come back
    of the prompt     snap_kv, pyramid_kv: the budget counts the prompt's keys, and all later keys are kept
    by the query      quest, oracle: nothing is forgotten, and each query chooses the keys that it reads
    a fixed pattern   vertical_slash: the same columns and distances for all queries

If query heads share keys, the permanent policies and the policies of the prompt choose keys for each key head, by the mean of its query
heads, since a cache has one list of keys for them. No policy computes rotary positions again: positions are those of the text.

Letters: H query heads, G key/value heads, S sets of keys, N tokens, P tokens of the prompt, C queries of a block, U keys of a block, D width.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from uwaga._base.arguments import check, choice, integer
from uwaga.inspect.cache.kept import Chosen, Evicted, Kept, KeptKeys, Lines, largest
from uwaga.inspect.cache.layer import MOST_ROWS, CacheLayer, height, softmax

Policy = Callable[[CacheLayer, int], Kept]


def window(layer: CacheLayer, budget: int) -> Kept:
    """Keep the last `budget` keys (Beltagy et al., "Longformer: The Long-Document Transformer", 2020, section 3.1)."""
    return _last(layer, budget, 0)


def streaming_llm(layer: CacheLayer, budget: int, *, sinks: int = 4) -> Kept:
    """Keep the first keys, attention sinks, and the last `budget - sinks` keys.

    Xiao et al., "Efficient Streaming Language Models with Attention Sinks", 2023, section 3.2. Raises ValueError: `sinks` below 0, or
    not less than the budget.
    """
    sinks = integer(sinks, f"streaming_llm: with a budget of {budget}, sinks", 0, budget - 1)
    return _last(layer, budget - sinks, sinks)


def h2o(layer: CacheLayer, budget: int, *, recent: int | None = None) -> Kept:
    """Keep the last `recent` keys, and of the earlier keys those that have received the most weight so far.

    Zhang et al., "H2O: Heavy-Hitter Oracle for Efficient Generative Inference of Large Language Models", 2023, algorithm 1. As in the
    algorithm, queries add the weights that they gave in the cache; the prompt's queries add the weights of whole attention. The cache is
    simulated query by query: see `simulate`. If the layer has a window of its own, a key with a large sum stays in the cache after the
    window has passed it, and counts in the budget.

    Args:
        recent: at least 1, a query's own key; None for half of the budget, as in the paper.

    Raises:
        ValueError: `recent` out of range; a layer without some of its heads.
    """
    recent = max(budget - budget // 2, 1) if recent is None else recent
    recent = integer(recent, f"h2o: with a budget of {budget}, recent", 1, budget)
    received = _of_key_heads("h2o", layer, layer.received_from_prompt)
    return simulate(layer, budget, received, recent=recent, adds_up=True)


def tova(layer: CacheLayer, budget: int) -> Kept:
    """Keep the keys with the largest weight of the last query, the mean over all heads of the layer, which share one list.

    Oren et al., "Transformers are Multi-State RNNs", 2024, TOVA. Any key may be dropped, also the newest. The cache is simulated query by
    query: see `simulate`. Raises ValueError: a layer without some of its heads.
    """
    _check_all_heads("tova", layer)
    scores = torch.zeros((1, layer.prompt), dtype=layer.dtype, device=layer.device)
    if layer.prompt:
        last = torch.tensor([layer.prompt - 1], device=layer.device)
        for head in range(layer.heads):
            scores += layer.weights(head, last, layer.prompt) / layer.heads
    return simulate(layer, budget, scores, recent=0, adds_up=False)


def snap_kv(layer: CacheLayer, budget: int, *, observed: int = 32, kernel_size: int = 7, pooling: str = "max") -> Kept:
    """Keep the prompt's last `observed` keys, the earlier keys with the most weight from these queries, and all later keys.

    Weights are pooled over neighbouring keys (Li et al., "SnapKV: LLM Knows What You are Looking for Before Generation", 2024, section 4
    and listing 1).

    Args:
        budget: the number of keys of the prompt, more than `observed`.
        observed: the number of queries at the end of the prompt that vote.
        kernel_size: the odd number of keys that are pooled; 1 for no pooling.
        pooling: "max" or "mean".

    Raises:
        ValueError: a budget that is not larger than `observed`, an even kernel_size, another pooling; a layer without some of its heads.
    """
    votes = _votes("snap_kv", layer, budget, observed, kernel_size, pooling)
    return _of_prompt(layer, budget, observed, votes)


def pyramid_kv(
    layer: CacheLayer,
    budget: int,
    *,
    beta: float = 20.0,
    observed: int = 32,
    kernel_size: int = 7,
    pooling: str = "max",
) -> Kept:
    """Keep keys as `snap_kv` does, with more keys in lower layers.

    Without the last `observed` keys, the numbers of keys fall in equal steps from layer to layer, to 1 / beta of their mean in the last
    layer (Cai et al., "PyramidKV: Dynamic KV Cache Compression based on Pyramidal Information Funneling", 2024, section 4). `budget` is
    the mean over the layers. If the first layer would keep more keys than the prompt has, it keeps all of them, and the last layer keeps
    more, as in the authors' code.

    Raises:
        ValueError: as `snap_kv`; a beta below 1.
    """
    votes = _votes("pyramid_kv", layer, budget, observed, kernel_size, pooling)
    check(beta >= 1, f"pyramid_kv: beta must be at least 1, not {beta}")
    mean = budget - observed
    least = mean / beta
    most = 2 * mean - least
    if most > (available := layer.prompt - observed):
        most = max(available, mean)
        least = 2 * mean - most
    step = (most - least) / max(layer.layers - 1, 1)
    count = mean if layer.layers == 1 else round(most - layer.number * step)
    return _of_prompt(layer, max(count, 1) + observed, observed, votes)


def quest(layer: CacheLayer, budget: int, *, page: int = 16) -> Kept:
    """Keep the pages of keys with the largest upper bounds of q . k, and the query's own page.

    The bound of a page comes from the smallest and largest number in each dimension of its keys (Tang et al., "Quest: Query-Aware Sparsity
    for Efficient Long-Context LLM Inference", 2024, section 3 and algorithm 1). Each query head chooses for itself. The bound ignores
    biases. Pages without a key that the layer's own mask shows are not read, and do not count. The paper leaves the first two layers
    whole; this function does not.

    Args:
        budget: at least `page`; budget // page pages are read, or all pages if the budget is at least the length of the text.
        page: the number of keys of a page.

    Raises:
        ValueError: a budget below `page`.
    """
    check(page >= 1 and budget >= page, f"quest: a budget of {budget} is less than a page of {page} keys")
    whole = layer.tokens // page
    key_GPpD = layer.key[:, : whole * page].to(layer.dtype).nan_to_num(0.0, 0.0, 0.0).unflatten(1, (whole, page))
    least_GPD, most_GPD = key_GPpD.amin(2), key_GPpD.amax(2)
    read = whole + 1 if budget >= layer.tokens else budget // page
    inside = torch.arange(page, device=layer.device)

    def choose(head: int, rows: Tensor, weights: Tensor) -> KeptKeys:
        page_C = rows // page  # the query's own page
        pages = int(page_C[-1])
        query_CD = layer.query[head, rows].to(layer.dtype) * layer.scale
        group = head * layer.key_heads // layer.heads
        bound_CP = (
            query_CD.clamp(min=0) @ most_GPD[group, :pages].mT + query_CD.clamp(max=0) @ least_GPD[group, :pages].mT
        )
        seen_CN = layer.visible(head, rows, weights.shape[1])[:, : pages * page]
        is_open = seen_CN.unflatten(1, (pages, page)).any(-1) & (
            torch.arange(pages, device=layer.device) < page_C[:, None]
        )
        best = largest(bound_CP.masked_fill(~is_open, -torch.inf), read - 1)
        chosen = torch.cat((best, page_C[:, None]), 1)
        is_chosen = functional.pad(is_open.gather(1, best), (0, 1), value=True)
        keys = (chosen[..., None] * page + inside).flatten(1)
        is_kept = is_chosen.repeat_interleave(page, 1) & (keys <= rows[:, None])
        return KeptKeys(keys.clamp(max=weights.shape[1] - 1), is_kept)

    return Chosen(choose)


def vertical_slash(layer: CacheLayer, budget: int, *, columns: float = 0.5, last: int | None = None) -> Kept:
    """Keep the columns and the slashes of the map with the largest sums: fixed keys, and fixed distances, for all queries.

    Jiang et al., "MInference 1.0: Accelerating Pre-filling for Long-Context LLMs via Dynamic Sparse Attention", 2024, section 3 and
    algorithm 2. Each head has its own pattern. It is a pattern for reading a prompt: unlike a cache, it knows the queries after `prompt`,
    since the sums are over the whole text. If the layer has a window of its own, a query reads only the columns inside the window, so
    fewer keys than the budget.

    Args:
        columns: the part of the budget for columns; the paper searches it for each head.
        last: the number of queries at the end of the text whose weights are summed, 64 in the paper; None: all queries, exactly, which the
            paper estimates.

    Raises:
        ValueError: a part outside 0 to 1, or `last` below 1.
    """
    check(0 <= columns <= 1, f"vertical_slash: columns must be a part of the budget, 0 to 1, not {columns}")
    last = None if last is None else integer(last, "vertical_slash: last", 1)
    of_keys, of_distances = (layer.received, layer.by_distance) if last is None else _sums_of_last(layer, last)
    count = layer.tokens if budget >= layer.tokens else round(budget * columns)
    vertical, slashes = largest(of_keys, count), largest(of_distances, max(budget - count, 0))
    return Lines(list(vertical), list(slashes), layer.tokens)


def oracle(layer: CacheLayer, budget: int) -> Kept:
    """Keep the keys of the query's largest weights: no other choice of as many keys forgets less weight.

    Each query head chooses for itself. Another choice can have a smaller error of the output: in a head that spreads its weight, the
    largest weights are a biased sample of the values.
    """

    def choose(head: int, rows: Tensor, weights: Tensor) -> KeptKeys:
        # A hidden key is never chosen before a visible one whose weight is 0.
        ranked = weights.masked_fill(~layer.visible(head, rows, weights.shape[1]), -1.0)
        keys = largest(ranked, budget)
        return KeptKeys(keys, keys <= rows[:, None])

    return Chosen(choose)


POLICIES: tuple[Policy, ...] = (window, streaming_llm, h2o, tova, snap_kv, pyramid_kv, quest, vertical_slash, oracle)


def _last(layer: CacheLayer, count: int, sinks: int) -> Evicted:
    """Keep the first `sinks` keys and the last `count` keys."""
    until = torch.arange(layer.tokens, device=layer.device) + count
    until[: layer.prompt].clamp_(min=layer.prompt)
    until[:sinks] = layer.tokens
    return Evicted(until[None], layer.heads)


def _check_all_heads(name: str, layer: CacheLayer) -> None:
    if layer.head_numbers is not None:
        numbers = ", ".join(map(str, layer.head_numbers))
        raise ValueError(
            f"{name}: needs all heads of the layer, and only {numbers} were recorded; call watch without heads="
        )


def _of_key_heads(name: str, layer: CacheLayer, x: Tensor) -> Tensor:
    """Return the mean (G, n) of (H, n) over the query heads of each key head. Raises ValueError: heads are missing."""
    _check_all_heads(name, layer)
    return x.unflatten(0, (layer.key_heads, -1)).mean(1)


def _votes(name: str, layer: CacheLayer, budget: int, observed: int, kernel_size: int, pooling: str) -> Tensor:
    """Return the pooled weights (G, P - observed) of the prompt's last queries on earlier keys. Raises ValueError: as `snap_kv`."""
    check(
        budget > observed and observed >= 1,
        f"{name}: a budget of {budget} leaves no key next to the last {observed} keys of the prompt",
    )
    check(kernel_size >= 1 and kernel_size % 2 != 0, f"{name}: kernel_size must be an odd number, not {kernel_size}")
    choice(pooling, f"{name}: pooling", ("max", "mean"))
    prompt = layer.prompt
    before = max(prompt - observed, 0)
    rows = torch.arange(before, prompt, device=layer.device)
    votes = [layer.weights(head, rows, prompt)[:, :before].sum(0) for head in range(layer.heads)]
    votes_G1P = _of_key_heads(name, layer, torch.stack(votes))[:, None]
    if not before:
        return votes_G1P[:, 0]
    pool = functional.max_pool1d if pooling == "max" else functional.avg_pool1d
    pooled: Tensor = pool(votes_G1P, kernel_size, 1, kernel_size // 2)
    return pooled[:, 0]


def _of_prompt(layer: CacheLayer, budget: int, observed: int, votes: Tensor) -> Evicted:
    """Keep `budget` keys of the prompt, the last `observed` and those with the most votes, and all later keys."""
    until = torch.full((layer.key_heads, layer.tokens), layer.tokens, dtype=torch.int64, device=layer.device)
    until[:, : votes.shape[1]] = layer.prompt
    until.scatter_(1, largest(votes, budget - observed), layer.tokens)
    return Evicted(until, layer.heads)


def _sums_of_last(layer: CacheLayer, count: int) -> tuple[Tensor, Tensor]:
    """Return the sums of columns and of distances over the last queries, (H, N) each."""
    tokens = layer.tokens
    sums = torch.zeros((2, layer.heads, tokens), dtype=layer.dtype, device=layer.device)
    keys = torch.arange(tokens, device=layer.device)
    for row in range(max(tokens - count, 0), tokens):
        at = torch.tensor([row], device=layer.device)
        for head in range(layer.heads):
            weights = layer.weights(head, at, tokens)[0]
            sums[0, head] += weights
            sums[1, head, (row - keys[: row + 1])] += weights[: row + 1]
    return sums[0], sums[1]


# Simulated caches that drop one key at a time while a text is written.


def simulate(layer: CacheLayer, budget: int, prompt_scores: Tensor, *, recent: int, adds_up: bool) -> Evicted:
    """Run a cache of `budget` keys over the text after the prompt.

    Query i reads the keys of the cache and its own key, `budget` in all. Its weights are the softmax over these keys, as in a cache that
    has dropped the others. Their mean over the heads of a set is added to the scores of the keys (`adds_up`), or replaces them. If the
    next query's key would exceed the budget, the key with the smallest score is dropped; equal scores are dropped by position. So each
    drop depends on the drops before, and nothing is approximated.

    The scores of a block of queries are computed at once, for its keys and the keys of the cache at its beginning: O(budget D) time for
    each query and head at any length of the text, and memory for one block.

    Args:
        layer: the layer.
        budget: the number of keys, at least 1.
        prompt_scores: (S, P), the scores of the prompt's keys after the prompt.
        recent: the number of last keys that are never dropped, including a query's own key.
        adds_up: True: scores are sums over all queries so far; False: scores of the last query.
    """
    sets, prompt, tokens = prompt_scores.shape[0], layer.prompt, layer.tokens
    until_SN = torch.full((sets, tokens), tokens, dtype=torch.int64, device=layer.device)
    keys_SU, score_SU = _after_prompt(prompt_scores, budget - 1, recent - 1)
    if prompt:
        until_SN[:, :prompt] = prompt
        until_SN.scatter_(1, keys_SU, tokens)
    sinks_SH = None if layer.sinks is None else layer.sinks.reshape(sets, -1, 1)
    first = prompt
    while first < tokens:
        rows_at_once = height(layer.heads * (keys_SU.shape[1] + MOST_ROWS))
        rows = torch.arange(first, min(first + rows_at_once, tokens), device=layer.device)
        keys_SU = torch.cat((keys_SU, rows.expand(sets, -1)), 1)
        score_SU = torch.cat((score_SU, score_SU.new_zeros(sets, len(rows))), 1)
        scores_SHCU = _scores(layer, rows, keys_SU)
        is_kept_SU = keys_SU < first
        count = keys_SU.shape[1] - len(rows)
        for c, i in enumerate(rows.tolist()):
            is_kept_SU[:, c - len(rows)] = True
            count += 1
            given_SHU = softmax(scores_SHCU[:, :, c].masked_fill(~is_kept_SU[:, None], -torch.inf), sinks_SH)
            given_SU = given_SHU.mean(1)
            score_SU = score_SU + given_SU if adds_up else given_SU
            if count == budget and i + 1 < tokens:
                may_go_SU = is_kept_SU & (keys_SU < i + 2 - recent)
                place_S1 = score_SU.masked_fill(~may_go_SU, torch.inf).argmin(-1, keepdim=True)
                is_kept_SU.scatter_(1, place_S1, False)
                until_SN.scatter_(1, keys_SU.gather(1, place_S1), i + 1)
                count -= 1
        keys_SU, score_SU = (x[is_kept_SU].reshape(sets, -1) for x in (keys_SU, score_SU))
        first += len(rows)
    return Evicted(until_SN, layer.heads)


def _after_prompt(score_SP: Tensor, count: int, recent: int) -> tuple[Tensor, Tensor]:
    """Return the ascending keys (S, n) that remain of the prompt and their scores: the last keys, then the largest scores."""
    sets, prompt = score_SP.shape
    keys_SP = torch.arange(prompt, device=score_SP.device).expand(sets, -1)
    if prompt <= count:
        return keys_SP, score_SP
    last = min(max(recent, 0), count)
    best = largest(score_SP[:, : prompt - last], count - last)
    keys_SU = torch.cat((best, keys_SP[:, prompt - last :]), 1).sort(-1).values
    return keys_SU, score_SP.gather(1, keys_SU)


def _scores(layer: CacheLayer, rows: Tensor, keys_SU: Tensor) -> Tensor:
    """Compute the scores (S, H / S, C, U) of every head on the keys of its set."""
    sets = len(keys_SU)
    scores = [layer.scores(head, rows, keys_SU[head * sets // layer.heads]) for head in range(layer.heads)]
    return torch.stack(scores).unflatten(0, (sets, -1))
