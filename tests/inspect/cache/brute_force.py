"""Policies and losses again as they are defined, over whole matrices in float64, by loops over keys and queries.

Letters: H query heads, G key/value heads, N tokens, P tokens of the prompt, E value width.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

import uwaga
from uwaga.inspect.cache import CacheLayer


@dataclass
class Text:
    """The matrices of one layer over one text."""

    query: Tensor  # (H, N, D)
    key: Tensor  # (G, N, D)
    scores: Tensor  # (H, N, N) before softmax, -inf where hidden
    prompt: int
    sinks: Tensor | None = None  # (H,)
    number: int = 0
    layers: int = 1
    scale: float = 1.0

    @cached_property
    def score_lists(self) -> list[list[list[float]]]:
        """The scores as Python's numbers."""
        return self.scores.tolist()

    @cached_property
    def weights(self) -> list[list[list[float]]]:
        """(H, N, N) of whole attention."""
        sinks = [None] * len(self.score_lists) if self.sinks is None else self.sinks.tolist()
        return [[softmax(row, sink) for row in rows] for rows, sink in zip(self.score_lists, sinks, strict=True)]

    @property
    def sizes(self) -> tuple[int, int, int]:
        return self.query.shape[0], self.key.shape[0], self.query.shape[1]


def text_of(layer: CacheLayer) -> Text:
    """Scores by the map's own array of them, which is not what policies and losses read."""
    scores = layer.map.scores[:]
    assert isinstance(scores, Tensor)
    sinks = layer.sinks
    return Text(layer.query, layer.key, scores.double(), layer.prompt, sinks, layer.number, layer.layers, layer.scale)


def plain_layer(heads: int, key_heads: int, tokens: int, prompt: int, seed: int = 0) -> CacheLayer:
    generator = torch.Generator().manual_seed(seed)
    query, key = (torch.randn(n, tokens, 8, generator=generator, dtype=torch.float64) for n in (heads, key_heads))
    return CacheLayer(uwaga.AttentionMap(2 * query, key, mask=uwaga.Causal()), prompt, number=1, layers=3)


def softmax(scores: list[float], sink: float | None = None) -> list[float]:
    terms = scores if sink is None else [*scores, sink]
    top = max(terms)
    if top == -math.inf:
        return [0.0] * len(scores)
    whole = sum(math.exp(x - top) for x in terms)
    return [math.exp(x - top) / whole for x in scores]


def weights(text: Text, head: int, row: int, keys: list[int]) -> dict[int, float]:
    sink = None if text.sinks is None else float(text.sinks[head])
    return dict(zip(keys, softmax([text.score_lists[head][row][j] for j in keys], sink), strict=True))


def matrix(text: Text, keeps: Callable[[int, int], set[int]]) -> Tensor:
    """(H, N, N) bool from the keys that a head's query reads; those of the prompt read all before them."""
    heads, _, tokens = text.sizes
    bits = torch.zeros((heads, tokens, tokens), dtype=torch.bool)
    for head in range(heads):
        for row in range(tokens):
            kept = set(range(row + 1)) if row < text.prompt else keeps(head, row)
            bits[head, row, list(kept)] = True
    return bits


def window(text: Text, budget: int) -> Tensor:
    return matrix(text, lambda head, row: set(range(max(row - budget + 1, 0), row + 1)))


def streaming_llm(text: Text, budget: int, sinks: int = 4) -> Tensor:
    recent = budget - sinks
    return matrix(
        text, lambda head, row: set(range(min(sinks, row + 1))) | set(range(max(row - recent + 1, 0), row + 1))
    )


def best(score: dict[int, float], count: int) -> set[int]:
    return set(sorted(score, key=lambda j: -score[j])[: max(count, 0)])


def one_by_one(
    text: Text, budget: int, heads_of_set: list[list[int]], start: list[dict[int, float]], recent: int, adds_up: bool
) -> Tensor:
    _, _, tokens = text.sizes
    reads: dict[tuple[int, int], set[int]] = {}
    for heads, first in zip(heads_of_set, start, strict=True):
        score = dict(first)
        last = set(range(max(text.prompt - recent + 1, 0), text.prompt)) if recent else set()
        kept = set(range(text.prompt))
        if text.prompt > budget - 1:
            kept = last | best({j: score[j] for j in range(text.prompt) if j not in last}, budget - 1 - len(last))
        for row in range(text.prompt, tokens):
            kept = kept | {row}
            of_heads = [weights(text, head, row, sorted(kept)) for head in heads]
            received = {j: sum(of_head[j] for of_head in of_heads) / len(of_heads) for j in kept}
            score = {j: (score.get(j, 0.0) if adds_up else 0.0) + received[j] for j in kept}
            for head in heads:
                reads[head, row] = set(kept)
            if len(kept) == budget:
                may_go = [j for j in sorted(kept) if j < row + 2 - recent]
                kept = kept - {min(may_go, key=lambda j: score[j])}
    return matrix(text, lambda head, row: reads[head, row])


def groups(text: Text) -> list[list[int]]:
    heads, key_heads, _ = text.sizes
    group_size = heads // key_heads
    return [list(range(g * group_size, (g + 1) * group_size)) for g in range(key_heads)]


def full_weights(text: Text) -> Tensor:
    return torch.tensor(text.weights, dtype=torch.float64)


def h2o(text: Text, budget: int) -> Tensor:
    received = full_weights(text)[:, : text.prompt].sum(1)
    start = [{j: float(received[heads, j].mean()) for j in range(text.prompt)} for heads in groups(text)]
    return one_by_one(text, budget, groups(text), start, budget - budget // 2, adds_up=True)


def tova(text: Text, budget: int) -> Tensor:
    heads = list(range(text.sizes[0]))
    start: dict[int, float] = {}
    if text.prompt:
        start = {j: float(full_weights(text)[:, text.prompt - 1, j].mean()) for j in range(text.prompt)}
    return one_by_one(text, budget, [heads], [start], 0, adds_up=False)


def snap_kv(text: Text, budget: int, observed: int = 4, kernel: int = 3) -> Tensor:
    before = max(text.prompt - observed, 0)
    half, kept = kernel // 2, {}
    for heads in groups(text):
        votes = full_weights(text)[heads, before : text.prompt, :before].sum(1).mean(0).tolist()
        pooled = {j: max(votes[max(j - half, 0) : j + half + 1]) for j in range(before)}
        chosen = best(pooled, budget - observed) | set(range(before, text.prompt))
        kept |= dict.fromkeys(heads, chosen)
    return matrix(text, lambda head, row: kept[head] | set(range(text.prompt, row + 1)))


def pyramid_kv(text: Text, budget: int, observed: int = 4, kernel: int = 3) -> Tensor:
    mean = budget - observed
    first, last = 2 * mean - mean / 20, mean / 20
    if first > text.prompt - observed:
        first = max(text.prompt - observed, mean)
        last = 2 * mean - first
    of_layer = round(first + (last - first) * text.number / (text.layers - 1))
    return snap_kv(text, max(of_layer, 1) + observed, observed, kernel)


def quest(text: Text, budget: int, page: int = 4) -> Tensor:
    heads, key_heads, tokens = text.sizes

    def keeps(head: int, row: int) -> set[int]:
        key = text.key[head * key_heads // heads]
        query = text.query[head, row] * text.scale
        current = row // page
        bound = {}
        for p in range(current):
            some = key[p * page : (p + 1) * page]
            if (
                text.scores[head, row, p * page : (p + 1) * page].amax() > -math.inf
            ):  # a key that the layer's own mask shows
                bound[p] = float(torch.maximum(query * some.amin(0), query * some.amax(0)).sum())
        pages = current + 1 if budget >= tokens else budget // page
        chosen = best(bound, pages - 1) | {current}
        return {j for p in chosen for j in range(p * page, (p + 1) * page) if j <= row}

    return matrix(text, keeps)


def vertical_slash(text: Text, budget: int, last: int | None = None) -> Tensor:
    heads, _, tokens = text.sizes
    rows = range(0 if last is None else tokens - last, tokens)
    full = text.weights
    count = round(budget / 2) if budget < tokens else tokens
    lines = []
    for head in range(heads):
        columns = {j: sum(full[head][i][j] for i in rows) for j in range(tokens)}
        slashes = {d: sum(full[head][i][i - d] for i in rows if i >= d) for d in range(tokens)}
        lines.append((best(columns, count), best(slashes, budget - count)))
    return matrix(
        text,
        lambda head, row: {j for j in lines[head][0] if j <= row} | {row - d for d in lines[head][1] if d <= row},
    )


def oracle(text: Text, budget: int) -> Tensor:
    return matrix(text, lambda head, row: best(dict(enumerate(text.weights[head][row][: row + 1])), budget))


def losses(text: Text, value: Tensor, bits: Tensor) -> dict[str, Tensor]:
    """(H, N - P) of each statistic; the value is (G, N, E) float64."""
    heads, key_heads, tokens = text.sizes
    results: dict[str, list[float]] = {name: [] for name in ("kept", "forgotten", "limit", "error", "overlap")}
    for head in range(heads):
        v = value[head * key_heads // heads]
        whole = full_weights(text)[head] @ v
        for row, full in enumerate(text.weights[head]):
            if row < text.prompt:
                continue
            visible = [j for j in range(tokens) if text.score_lists[head][row][j] > -math.inf]
            kept = [j for j in visible if bits[head, row, j]]
            kept_weights = weights(text, head, row, kept) if kept else {}
            part = torch.tensor([kept_weights.get(j, 0.0) for j in range(tokens)], dtype=torch.float64) @ v
            top = sorted((full[j] for j in visible), reverse=True)
            results["kept"].append(len(kept))
            results["forgotten"].append(sum(full[j] for j in visible if j not in kept_weights))
            results["limit"].append(sum(top[len(kept) :]))
            results["error"].append(float((part - whole[row]).norm() / whole[row].norm()))
            largest = best({j: full[j] for j in visible}, len(kept))
            results["overlap"].append(len(largest & set(kept)) / max(len(kept), 1))
    return {name: torch.tensor(x, dtype=torch.float64).view(heads, -1) for name, x in results.items()}
