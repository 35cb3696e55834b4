"""Statistics of every head of a layer, as `uwaga.inspect.head_table` defines them; for long texts from a sample of the queries.

Letters: H heads, n sampled queries, K keys.
"""

from collections.abc import Iterator
from typing import Unpack

import numpy as np
import torch
from numpy.typing import NDArray

from uwaga.inspect.heads.table import head_table
from uwaga.viewer.messages import Reply, finite
from uwaga.viewer.queries.heads import DIFFERENCE, HeadResolver, HeadView, LayerSelection
from uwaga.viewer.queries.result import Computation, ViewResult
from uwaga.viewer.request_table import Layer, request
from uwaga.viewer.shown import AXES

MEANINGS = {
    "entropy": "entropy of the weights of a query, in nats",
    "normalized_entropy": "entropy divided by its maximum: 0 with all weight on one key, 1 with equal weights",
    "peak": "the largest weight of a query",
    "distance": "distance from query to key in tokens, averaged with the weights",
    "effective_count": "the effective number of keys, 1 / sum of squared weights",
    "sink": "weight on the first key",
    "learned_sink": "weight on the learned sink",
    "previous_token": "weight on the token before",
    "duplicate_token": "weight on earlier keys of the same token",
    "induction": "weight on the keys right after earlier occurrences of the token",
}
# Tokens of cross-attention are of different texts, so that distances and earlier tokens are undefined.
_OF_CROSS = ("entropy", "normalized_entropy", "peak", "effective_count", "sink", "learned_sink")
_MAX_EXACT = 1 << 24  # weights of a head (4096 x 4096) that is computed exactly, in one step; a larger one is sampled
_SAMPLED_QUERIES = 256
_BLOCK = 1 << 20  # weights of a block; several float64 arrays of this size are in memory


def titles() -> list[dict[str, str]]:
    """Return name, title and meaning of each column."""
    return [{"name": name, "title": name.replace("_", " "), "meaning": text} for name, text in MEANINGS.items()]


@request(saved=True)
def statistics(result: ViewResult, **layer: Unpack[Layer]) -> Computation:
    """Compute the statistics of a layer's heads; of the difference, the first minus the second."""
    selection = result.resolver.selection(**layer)
    if selection.side != DIFFERENCE:
        return _of_side(result.resolver, selection)
    sides = [_of_side(result.resolver, selection._replace(side=str(number))) for number in range(2)]

    def work() -> Iterator[float]:
        for side in sides:
            while side.complete < 1:
                side.advance(0.0)
                yield sum(one.complete for one in sides) / 2

    def reply(complete: float) -> Reply:
        """Return columns of H numbers that both sides have; None: not computed, or of no query."""
        first, second = (side.reply().meta for side in sides)
        columns = {
            name: [None if None in pair else pair[0] - pair[1] for pair in zip(column, other, strict=True)]
            for name, column in first["columns"].items()
            if (other := second["columns"].get(name)) is not None
        }
        sampled = [meta["sampled"] for meta in (first, second) if meta["sampled"] is not None]
        return Reply(meta={"columns": columns, "complete": complete, "sampled": min(sampled, default=None)})

    return Computation(work(), reply, sum(side.nbytes for side in sides))


def _of_side(resolver: HeadResolver, selection: LayerSelection) -> Computation:
    """Compute the table of one layer, head by head."""
    side, name = selection.side, selection.name
    stack, shown, is_cross = AXES[name[0]][1], resolver.side(side), name[0] == "cross"
    labels = shown.tokens.get(stack)
    # Without token strings, every token differs from all others.
    names = range(shown.sizes[stack]) if labels is None else labels
    numbers = {label: number for number, label in enumerate(dict.fromkeys(names))}
    tokens = np.array([numbers[label] for label in names], np.int64)
    heads, first = resolver.heads(side, name), resolver.head_view(selection, 0)
    queries, keys = first.sizes
    samples = queries * keys > _MAX_EXACT or first.attention is None
    rows = min(queries, _SAMPLED_QUERIES) if samples else queries
    ids = None if is_cross or queries > keys else torch.from_numpy(tokens)
    found: list[dict[str, float]] = []

    def work() -> Iterator[float]:
        for number in range(heads):
            head_view = resolver.head_view(selection, number)
            if samples:
                sums: dict[str, list[NDArray[np.float64]]] = {}
                yield from ((number + part) / heads for part in _sample(head_view, rows, tokens, sums))
                by_name = {statistic: _mean(values) for statistic, values in sums.items()}
            else:
                assert head_view.attention is not None
                table = head_table(head_view.attention, ids).columns
                by_name = {statistic: float(column[0]) for statistic, column in table.items()}
            defined = _OF_CROSS if is_cross else MEANINGS
            found.append({statistic: by_name[statistic] for statistic in defined if statistic in by_name})
            yield (number + 1) / heads

    def reply(complete: float) -> Reply:
        """Return columns of H numbers; None: not computed, or a mean of no query."""
        missing: list[float | None] = [None] * (heads - len(found))
        columns = {
            statistic: [finite(head.get(statistic, np.nan)) for head in found] + missing
            for statistic in MEANINGS
            if any(statistic in head for head in found)
        }
        return Reply(meta={"columns": columns, "complete": complete, "sampled": rows if rows < queries else None})

    return Computation(work(), reply, tokens.nbytes)


def _sample(
    head_view: HeadView, count: int, tokens: NDArray[np.int64], sums: dict[str, list[NDArray[np.float64]]]
) -> Iterator[float]:
    """Append every statistic of sampled queries to `sums`, and yield the completed fraction."""
    queries, keys = head_view.sizes
    chosen = ((np.arange(count) + 0.5) * queries / count).astype(np.int64)
    height = max(_BLOCK // max(keys, 1), 1)
    for at in range(0, len(chosen), height):
        if at:
            yield at / len(chosen)
        rows = chosen[at : at + height]
        weights = head_view.read(rows.tolist(), slice(None)).double().numpy()
        for name, values in of_rows(weights, rows + keys - queries, tokens).items():
            sums.setdefault(name, []).append(values)


def of_rows(
    weights: NDArray[np.float64], positions: NDArray[np.int64], tokens: NDArray[np.int64]
) -> dict[str, NDArray[np.float64]]:
    """Compute every statistic (n,) of rows (n, K) of queries at positions; NaN where undefined.

    Where entries are negative, as those of a DifferenceMap that is shown as a map, entropy, effective count and the like are taken of their
    absolute values.
    """
    sizes = np.abs(weights)
    seen = (sizes > 0).sum(1)
    logs = np.log(np.where(sizes > 0, sizes, 1.0))
    entropy = -(sizes * logs).sum(1)
    most = np.log(np.maximum(seen, 2))
    j = np.arange(weights.shape[1])
    earlier = j < positions[:, None]
    same = (tokens == tokens[positions][:, None]) & earlier
    after = np.zeros_like(same)
    after[:, 1:] = same[:, :-1]
    occurred = same.any(1)
    squares = (sizes**2).sum(1)
    has_previous = positions >= 1
    result = {
        "entropy": entropy,
        "normalized_entropy": np.where(seen > 1, entropy / most, 0.0),
        "peak": sizes.max(1),
        "distance": (sizes * np.abs(j - positions[:, None])).sum(1),
        "effective_count": 1.0 / np.where(squares > 0, squares, 1.0),
        "sink": weights[:, 0],
        "previous_token": np.where(
            has_previous, weights[np.arange(len(weights)), np.maximum(positions - 1, 0)], np.nan
        ),
        "duplicate_token": np.where(occurred, (weights * same).sum(1), np.nan),
        "induction": np.where(occurred, (weights * after).sum(1), np.nan),
    }
    return {name: np.where(seen > 0, values, np.nan) for name, values in result.items()}


def _mean(parts: list[NDArray[np.float64]]) -> float:
    values = np.concatenate(parts)
    values = values[~np.isnan(values)]
    return float(values.mean()) if len(values) else float("nan")
