"""Caches that drop a key at a time while a text is written, as they would run: greedy, and query after query.

Letters: H query heads, S sets of keys, N tokens, P tokens of the prompt, C queries of a block, U keys of a block.
"""

import torch
from torch import Tensor

from uwaga.inspect.cache.kept import Evicted, largest
from uwaga.inspect.cache.layer import MOST_ROWS, CacheLayer, height, softmax

_INFINITY = float("inf")


def simulate(layer: CacheLayer, budget: int, prompt_scores: Tensor, *, recent: int, adds_up: bool) -> Evicted:
    """Run a cache of `budget` keys over the text after the prompt.

    Query i reads the keys of the cache and its own, `budget` in all. What it gives to them is its softmax over these alone, as in a
    cache that has dropped the others: averaged over the heads of a set, that is added to the scores of the keys (`adds_up`), or takes their
    place. Then the key of the smallest score is dropped if the next query's would be one too many; equal ones by position. So
    what is dropped depends on what was dropped before, and nothing is approximated.

    The scores of a block of queries are computed at once, of its keys and those that the cache has at its beginning: O(budget D) time
    for each query and head, whatever the length of the text, and memory for one block.

    Args:
        layer: the layer.
        budget: at least 1.
        prompt_scores: (S, P), the scores of the prompt's keys when it has been read.
        recent: how many of the last keys are never dropped, a query's own among them.
        adds_up: whether scores are sums over all queries so far, or those of the last one.
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
            given_SHU = softmax(scores_SHCU[:, :, c].masked_fill(~is_kept_SU[:, None], -_INFINITY), sinks_SH)
            given_SU = given_SHU.mean(1)
            score_SU = score_SU + given_SU if adds_up else given_SU
            if count == budget and i + 1 < tokens:
                may_go_SU = is_kept_SU & (keys_SU < i + 2 - recent)
                place_S1 = score_SU.masked_fill(~may_go_SU, _INFINITY).argmin(-1, keepdim=True)
                is_kept_SU.scatter_(1, place_S1, False)
                until_SN.scatter_(1, keys_SU.gather(1, place_S1), i + 1)
                count -= 1
        keys_SU, score_SU = (x[is_kept_SU].reshape(sets, -1) for x in (keys_SU, score_SU))
        first += len(rows)
    return Evicted(until_SN, layer.heads)


def _after_prompt(score_SP: Tensor, count: int, recent: int) -> tuple[Tensor, Tensor]:
    """The keys (S, n), ascending, that remain of the prompt, and their scores: the last ones, and of the others those of the largest scores."""
    sets, prompt = score_SP.shape
    keys_SP = torch.arange(prompt, device=score_SP.device).expand(sets, -1)
    if prompt <= count:
        return keys_SP, score_SP
    last = min(max(recent, 0), count)
    best = largest(score_SP[:, : prompt - last], count - last)
    keys_SU = torch.cat((best, keys_SP[:, prompt - last :]), 1).sort(-1).values
    return keys_SU, score_SP.gather(1, keys_SU)


def _scores(layer: CacheLayer, rows: Tensor, keys_SU: Tensor) -> Tensor:
    """(S, H / S, C, U): the scores of every head on the keys of its set."""
    sets = len(keys_SU)
    each = layer.heads // sets
    scores = [layer.scores(head, rows, keys_SU[head // each]) for head in range(layer.heads)]
    return torch.stack(scores).unflatten(0, (sets, each))
