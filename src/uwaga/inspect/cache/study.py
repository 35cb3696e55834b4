"""Losses of every policy at every budget, for every head of a recorded model: the ground truth for KV-cache eviction.

Letters: P policies, B budgets, L layers times heads, H query heads, G key/value heads, N tokens, C queries of a block, Q queries of all
texts, E value width.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from uwaga._base.arguments import check, choice, integer
from uwaga.inspect.cache.kept import Kept, KeptKeys
from uwaga.inspect.cache.layer import CacheLayer, height, softmax
from uwaga.inspect.cache.policies import POLICIES, Policy
from uwaga.inspect.heads.table import HeadTable
from uwaga.inspect.recordings.recording import Recording
from uwaga.maps.map import AttentionMap
from uwaga.nn.attention_id import AttentionId
from uwaga.ops.attention.reference import mix
from uwaga.ops.ragged import Ragged

_KIND = "decoder"


# The exact losses of a block of queries of one head that read some of their keys only.


class Losses(NamedTuple):
    """Hold the losses of queries, (C,) float64 each; NaN if a query sees no key. `cache_study` defines them.

    `kept` counts only keys that the model's own mask shows. In `error`, a softmax over no key gives zeros. In `overlap`, equal weights are
    interchangeable.
    """

    kept: Tensor
    forgotten: Tensor
    limit: Tensor
    error: Tensor
    overlap: Tensor


class ExactRows:
    """Hold the exact rows of ascending queries (C,) of one head, sorted once for all policies; values (N, E)."""

    def __init__(self, layer: CacheLayer, head: int, rows: Tensor, value: Tensor) -> None:
        self.layer, self.head, self.rows = layer, head, rows
        end = int(rows[-1]) + 1
        self.weights = layer.weights(head, rows, end)  # (C, K)
        self.visible = layer.visible(head, rows, end)
        self.seen = self.visible.sum(-1)
        self.total = self.weights.sum(-1, dtype=torch.float64)
        self.sink = layer.learned_sink(head, rows).double()
        self.value = value[:end]
        output = self.weights @ self.value
        if not bool(output.isfinite().all()):
            output = mix(*(x[None, None] for x in (self.weights, self.value, self.visible)))[0, 0]
            # The error of a query that sees a value that is not finite is NaN; other queries must not read that value.
            self.value = self.value.nan_to_num(0.0, 0.0, 0.0)
        self.output = _scaled(output, self.total + self.sink)
        # NumPy's sort is twenty times as fast as PyTorch's on a CPU.
        is_cpu = self.weights.device.type == "cpu"
        self.ascending = (
            torch.from_numpy(np.sort(self.weights.numpy(), axis=-1)) if is_cpu else self.weights.sort(-1).values
        )
        self.smallest = self.ascending.cumsum(-1, dtype=torch.float64)

    def losses(self, kept: KeptKeys) -> Losses:
        """Compute the losses if each query reads these keys."""
        keys, is_kept = kept.keys, kept.is_kept & self.visible.gather(1, kept.keys)
        weights = self.weights.gather(1, keys).masked_fill(~is_kept, 0.0)
        count = is_kept.sum(-1)
        mass = weights.sum(-1, dtype=torch.float64)
        is_whole = count == self.seen
        output = _scaled(self._weighted(keys, weights), mass + self.sink)
        # The kept weights are all below the smallest float, and their scores are not.
        lost = (mass == 0) & (count > 0)
        if bool(lost.any()):
            output[lost] = self._output_from_scores(keys[lost], is_kept[lost], lost)
        difference, size = (torch.linalg.vector_norm(x.double(), dim=-1) for x in (output - self.output, self.output))
        error = torch.where(difference == 0, 0.0, difference / size)
        forgotten = (self.total - mass).clamp(min=0)
        sees_none = self.seen == 0
        results = (
            count.double(),
            torch.where(is_whole, 0.0, forgotten),
            self._of_smallest(count),
            torch.where(is_whole, 0.0, error),
            self._overlap(weights, is_kept, count),
        )
        return Losses(*(x.masked_fill(sees_none, torch.nan) for x in results))

    def _weighted(self, keys: Tensor, weights: Tensor) -> Tensor:
        """Return the values of keys (C, n), summed by their weights, (C, E)."""
        if keys.shape[1] == 0:
            return torch.zeros_like(self.output)
        return functional.embedding_bag(keys, self.value, mode="sum", per_sample_weights=weights)

    def _of_smallest(self, count: Tensor) -> Tensor:
        """Return the sum (C,) of all weights of a row except the largest `count`."""
        others = self.weights.shape[1] - count
        sums = self.smallest.gather(1, (others - 1).clamp(min=0)[:, None])[:, 0]
        return torch.where(others == 0, 0.0, sums)

    def _overlap(self, weights: Tensor, is_kept: Tensor, count: Tensor) -> Tensor:
        keys = self.weights.shape[1]
        # The smallest of the largest `count` weights.
        bound = self.ascending.gather(1, (keys - count).clamp(max=keys - 1)[:, None])
        larger = keys - torch.searchsorted(self.ascending, bound, right=True)[:, 0]
        is_larger, is_equal = is_kept & (weights > bound), is_kept & (weights == bound)
        common = is_larger.sum(-1) + torch.minimum(is_equal.sum(-1), count - larger)
        return torch.where(count == 0, 0.0, common.double() / count.clamp(min=1))

    def _output_from_scores(self, keys: Tensor, is_kept: Tensor, lost: Tensor) -> Tensor:
        """Compute the outputs of some rows from scores, with a softmax over the kept keys."""
        outputs = []
        for row, of_row, kept in zip(self.rows[lost], keys, is_kept, strict=True):
            some = of_row[kept].sort().values
            scores = self.layer.scores(self.head, row[None], some).double()
            sinks = None if self.layer.sinks is None else self.layer.sinks[self.head].double()
            outputs.append((softmax(scores, sinks) @ self.value[some].double())[0])
        return torch.stack(outputs).to(self.output.dtype)


def _scaled(output: Tensor, total: Tensor) -> Tensor:
    """Divide sums of weighted values (C, E) by the sums of the weights; zeros if a sum is 0."""
    return output / torch.where(total == 0, 1.0, total)[:, None].to(output.dtype)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CacheStudy:
    """Hold the losses of every policy, budget and head, over the queries after the prompt.

    Statistics are "kept", "forgotten", "limit", "error" and "overlap", as in `cache_study`.
    """

    policies: list[str]
    budgets: list[int]
    heads: list[tuple[int, int]]  # (layer, head), by their numbers in the model
    prompts: list[int]  # the tokens of each text that are read before anything is forgotten
    queries: int  # Q, over all texts
    levels: tuple[float, ...]
    means: dict[str, Tensor]  # (P, B, L) float64 of each statistic
    quantiles: dict[str, Tensor]  # (P, B, L, levels) float64
    per_query: dict[str, Tensor] = field(default_factory=dict)  # (P, B, L, Q) float64, or empty

    def mean(self, statistic: str, policy: str) -> Tensor:
        """Return a statistic's mean over the queries, (B, L). Raises ValueError: no such statistic or policy."""
        choice(statistic, "CacheStudy: statistic", self.means)
        choice(policy, "CacheStudy: policy", self.policies)
        return self.means[statistic][self.policies.index(policy)]

    def table(self, policy: str | None = None, budget: int | None = None) -> HeadTable:
        """Return a table with a row for each policy, budget and head, or only for one policy or budget.

        Next to the means, "forgotten" and "error" have a column for each quantile, such as "error 0.9".

        Raises:
            ValueError: no such policy or budget.
        """
        choice(policy, "CacheStudy: policy", (*self.policies, None))
        choice(budget, "CacheStudy: budget", (*self.budgets, None))
        statistics = dict(self.means)
        for name, values in self.quantiles.items():
            statistics |= {f"{name} {level:g}": values[..., at] for at, level in enumerate(self.levels)}
        names = ("policy", "budget", "layer", "head", *statistics)
        rows = [
            (name, size, layer, head, *values)
            for p, name in enumerate(self.policies)
            for b, size in enumerate(self.budgets)
            if policy in (None, name) and budget in (None, size)
            for (layer, head), *values in zip(self.heads, *(x[p, b].tolist() for x in statistics.values()), strict=True)
        ]
        return HeadTable(columns={name: [row[at] for row in rows] for at, name in enumerate(names)})

    def __repr__(self) -> str:
        sizes = f"budgets {', '.join(map(str, self.budgets))}; {len(self.heads)} heads, {self.queries} queries"
        return f"CacheStudy({', '.join(self.policies)}; {sizes})"


@torch.no_grad()
def cache_study(
    recording: Recording,
    policies: Sequence[Policy] | Mapping[str, Policy] | None = None,
    *,
    budgets: Sequence[int],
    prompt: int | None = None,
    layers: int | None = None,
    every: int = 1,
    quantiles: Sequence[float] = (0.5, 0.9, 0.99),
    per_query: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> CacheStudy:
    """Compute the exact losses of each policy in every head of a decoder, at each budget of keys.

    Each text is read whole up to `prompt`; then each query reads the keys that the policy keeps. The losses are those of the head by
    itself, with the queries, keys and values of the unchanged model (`cache_edit` runs a model whose layers all forget):

        kept       the number of keys that the query read
        forgotten  sum a_ij over the keys that it did not read
        limit      the least weight that can be forgotten with as many keys: all but the largest weights
        error      |o' - o| / |o|, with the head's output o before W_O; o' has the weights of the kept keys only, normalised again
        overlap    the part of the keys read that are among as many largest weights

    A query that reads all keys that it sees loses exactly 0. Nothing of size N x N is stored: memory is O(N) for each head, policy and
    budget, and some 100 MB for a block of queries. The time is O(N^2) for each head, once for all policies, and the time of the policies.

    Args:
        recording: one pass of a causal model, from `uwaga.watch(model, values=True)`. The losses are over the queries of all texts. Padding
            counts as queries, so use Ragged instead of a padded batch.
        policies: functions (layer, budget) -> Kept, or a dict of them by name; None for all of `uwaga.inspect.cache.policies`.
        budgets: the numbers of keys that a query may read.
        prompt: the number of tokens of each text that are read before anything is forgotten; None for half of them.
        layers: the number of layers of the model, for `pyramid_kv`; None for the layers that ran under `uwaga.watch`, or up to the last layer
            of a recording from a file.
        every: compute the losses of every N-th query; caches are simulated over all queries.
        quantiles: the quantiles of "forgotten" and "error" over the queries of a head.
        per_query: keep the losses of each query, 40 bytes for each policy, budget, head and query.
        progress: called as progress(done, total) after each policy, budget and layer, and after each head.

    Raises:
        ValueError: a recording without values, texts or self-attention of a decoder, or one that sees later tokens; budgets, a prompt,
            `layers`, `every` or quantiles out of range; no policy, or two with one name; as the policies.
    """
    named = _named(policies)
    prompt = None if prompt is None else integer(prompt, "cache_study: prompt", 0)
    every = integer(every, "cache_study: every", 1)
    budgets = [integer(budget, "cache_study: a budget", 1) for budget in budgets]
    check(
        budgets and sorted(set(budgets)) == budgets,
        f"cache_study: budgets must be ascending, and at least one, not {budgets!r}",
    )
    check(
        all(0 <= level <= 1 for level in quantiles),
        f"cache_study: quantiles must be between 0 and 1, not {list(quantiles)!r}",
    )
    numbers = [number for kind, number in recording.maps if kind == _KIND]
    check(numbers, "cache_study: the recording has no self-attention of a decoder")
    ran = recording._stacks[_KIND]._called  # also layers that were not recorded; empty for a file
    least = 1 + max(*numbers, *(where.layer for where in ran if where.kind == _KIND), 0)
    layers = least if layers is None else integer(layers, "cache_study: layers", least)
    sets = [(policy, budget) for policy in named.values() for budget in budgets]
    prompts: list[int] = []
    heads: dict[tuple[int, int], tuple[dict[str, Tensor], ...]] = {}
    done = total = 0

    def count() -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(done, total)

    for number in numbers:
        texts = list(_texts(recording, number, prompt, layers))
        check(texts, "cache_study: the recording has no texts")
        prompts = [layer.prompt for layer, _ in texts]
        total = total or len(numbers) * (len(sets) * len(texts) + texts[0][0].heads)
        kept: list[list[Kept]] = []
        for layer, _ in texts:
            kept.append([])
            for policy, budget in sets:
                kept[-1].append(policy(layer, budget))
                count()
        for head in range(texts[0][0].heads):
            parts = [
                _losses(layer, head, value, of_text, every) for (layer, value), of_text in zip(texts, kept, strict=True)
            ]
            losses = Losses(*(torch.cat(x, -1).unflatten(0, (len(named), -1)) for x in zip(*parts, strict=True)))
            name = head if (chosen := texts[0][0].head_numbers) is None else chosen[head]
            heads[number, name] = _of_head(losses, tuple(quantiles), per_query)
            count()
    means, quantiles_of, of_queries = map(_stacked, zip(*heads.values(), strict=True))
    return CacheStudy(
        policies=list(named), budgets=list(budgets), heads=list(heads), prompts=prompts, levels=tuple(quantiles),
        queries=sum(len(_queries(layer, every)) for layer, _ in texts),
        means=means, quantiles=quantiles_of, per_query=of_queries,
    )  # fmt: skip


def causal_layer(
    name: str,
    weights: AttentionMap,
    prompt: int | None,
    *,
    number: int,
    layers: int,
    head_numbers: list[int] | None = None,
) -> CacheLayer:
    """Make the layer of a map (H, N, N) of one text; a prompt None is half of the text. `name` begins messages.

    Raises:
        ValueError: not as many queries as keys, queries that see later keys, or a prompt longer than the text.
    """
    queries, keys = weights.shape[-2:]
    where = f"{_KIND} {number}"
    check(
        queries == keys, f"{name}: {where} has {queries} queries and {keys} keys; record one pass over the whole text"
    )
    prompt = keys // 2 if prompt is None else prompt
    check(prompt < keys, f"{name}: the prompt of {prompt} tokens leaves no query in a text of {keys}")
    layer = CacheLayer(weights, prompt, number=number, layers=layers, head_numbers=head_numbers)
    if (row := layer.sees_later()) is not None:
        raise ValueError(f"{name}: {where} is not causal: query {row} sees later keys")
    return layer


def _texts(recording: Recording, number: int, prompt: int | None, layers: int) -> Iterator[tuple[CacheLayer, Tensor]]:
    """Yield the layer over each text, and its values (G, N, E)."""
    where = (_KIND, number)
    check(
        where in recording.values,
        f"cache_study: the recording has no values of {_KIND} {number}; uwaga.watch(model, values=True) keeps them",
    )
    m, value = recording.maps[where], recording.values[where]
    if isinstance(value, Ragged):
        values = [x.movedim(0, 1) for x in value.to_list()]
        maps = [m.select(row) for row in range(len(values))]
    else:
        values = list(value.reshape(value.shape[:-3].numel(), *value.shape[-3:]))
        maps = [m.select(row) for row in range(len(values))] if len(m.shape) == 4 else [m]
    chosen = recording.picked_heads(AttentionId(*where))
    for of_text, v_GNE in zip(maps, values, strict=True):
        layer = causal_layer("cache_study", of_text, prompt, number=number, layers=layers, head_numbers=chosen)
        of_text.prepare()  # the sums of all rows, in one pass
        yield layer, v_GNE.to(of_text.dtype)


def _losses(layer: CacheLayer, head: int, value: Tensor, kept: Sequence[Kept], every: int) -> Losses:
    """Compute the losses of one head in one text, (P * B, Q) each."""
    v_NE = value[head * value.shape[0] // layer.heads].contiguous()
    queries = _queries(layer, every)
    results = Losses(*(torch.empty((len(kept), len(queries)), dtype=torch.float64) for _ in Losses._fields))
    size = height(layer.tokens)
    for start in range(0, len(queries), size):
        rows = queries[start : start + size]
        block = ExactRows(layer, head, rows, v_NE)
        for at, by_policy in enumerate(kept):
            for result, values in zip(results, block.losses(by_policy.read(head, rows, block.weights)), strict=True):
                result[at, start : start + len(rows)] = values
    return results


def _queries(layer: CacheLayer, every: int) -> Tensor:
    """Return the queries (Q,) whose losses are computed."""
    return torch.arange(layer.prompt, layer.tokens, every, device=layer.device)


def _of_head(losses: Losses, levels: tuple[float, ...], per_query: bool) -> tuple[dict[str, Tensor], ...]:
    """Summarise the losses of one head by statistic: means (P, B), quantiles (P, B, levels), and optionally all queries (P, B, Q)."""
    named = losses._asdict()
    at = torch.tensor(levels, dtype=torch.float64)
    quantiles = {name: named[name].nanquantile(at, -1).movedim(0, -1) for name in ("forgotten", "error")}
    return {name: x.nanmean(-1) for name, x in named.items()}, quantiles, named if per_query else {}


def _stacked(of_heads: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {name: torch.stack([x[name] for x in of_heads], 2) for name in of_heads[0]}


def _named(policies: Sequence[Policy] | Mapping[str, Policy] | None) -> dict[str, Policy]:
    if isinstance(policies, Mapping):
        named = dict(policies)
    else:
        functions = list(POLICIES if policies is None else policies)
        nameless = [policy for policy in functions if not hasattr(policy, "__name__")]
        if nameless:
            raise ValueError(f"cache_study: {nameless[0]!r} has no name; pass policies as a dict by name")
        named = {policy.__name__: policy for policy in functions}
        check(
            len(named) >= len(functions),
            "cache_study: two policies have the same name; pass policies as a dict by name",
        )
    check(named, "cache_study: there is no policy")
    return named
