"""Statistics of every head of a layer, as `uwaga.inspect.head_table` defines them; for long texts from a sample of the queries.

Letters: H heads, n sampled queries, K keys.
"""

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Unpack

import numpy as np
import torch
from numpy.typing import NDArray

from uwaga.inspect.heads.table import head_table
from uwaga.maps.map import AttentionMap
from uwaga.viewer.messages import Reply
from uwaga.viewer.queries.heads import DIFFERENCE, HeadResolver, HeadView, LayerSelection
from uwaga.viewer.request_table import Layer, request
from uwaga.viewer.shown import axes_of

if TYPE_CHECKING:
    from uwaga.viewer.queries.result import ViewResult

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
_OF_CROSS = ("entropy", "normalized_entropy", "peak", "effective_count", "sink", "learned_sink")
_MAX_EXACT = 1 << 24  # weights of a head (4096 x 4096) that is computed exactly, in one step; a larger one is sampled
_SAMPLED_QUERIES = 256
_BLOCK = 1 << 20  # weights of a block; several float64 arrays of this size are in memory


def titles() -> list[dict[str, str]]:
    """Name, title and meaning of each column."""
    return [{"name": name, "title": name.replace("_", " "), "meaning": text} for name, text in MEANINGS.items()]


class Statistics:
    """The table of one layer, computed head by head.

    Args:
        head_view: gives the matrix of each of its H heads, over tokens; called when the head is next.
        heads: H.
        tokens: (K,) ids of the keys' tokens: equal for equal tokens.
        is_cross: queries and keys are tokens of different texts, so that distances and earlier tokens are undefined.
    """

    def __init__(
        self, head_view: Callable[[int], HeadView], heads: int, tokens: NDArray[np.int64], *, is_cross: bool
    ) -> None:
        self._head_view, self._heads, self._tokens, self._is_cross = head_view, heads, tokens, is_cross
        first = head_view(0)
        self._queries, keys = first.sizes
        self._samples = self._queries * keys > _MAX_EXACT or first.attention is None
        self._rows = min(self._queries, _SAMPLED_QUERIES) if self._samples else self._queries
        self._found: list[dict[str, float]] = []
        self._steps = self._work()
        self.complete = 0.0  # the completed fraction

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self._tokens.nbytes

    def advance(self, until: float) -> None:
        """Compute until `time.monotonic()` reaches `until`, at least one step."""
        for complete in self._steps:
            self.complete = complete
            if time.monotonic() >= until:
                return
        self.complete = 1.0

    def reply(self) -> Reply:
        """Columns of H numbers; None where a head is not computed yet, and where a mean is over no query."""
        missing: list[float | None] = [None] * (self._heads - len(self._found))
        names = [name for name in MEANINGS if any(name in head for head in self._found)]
        columns = {name: [_number(head.get(name, np.nan)) for head in self._found] + missing for name in names}
        is_part = self._rows < self._queries
        meta = {"columns": columns, "complete": self.complete, "sampled": self._rows if is_part else None}
        return Reply(meta=meta)

    def _work(self) -> Iterator[float]:
        for number in range(self._heads):
            head_view = self._head_view(number)
            if self._samples:
                sums: dict[str, list[NDArray[np.float64]]] = {}
                for part in self._sample(head_view, sums):
                    yield (number + part) / self._heads
                by_name = {name: _mean(values) for name, values in sums.items()}
            else:
                assert head_view.attention is not None
                by_name = self._exact(head_view.attention)
            self._found.append({name: by_name[name] for name in by_name if not self._is_cross or name in _OF_CROSS})
            yield (number + 1) / self._heads

    def _exact(self, m: AttentionMap) -> dict[str, float]:
        tokens = None if self._is_cross or m.shape[-2] > m.shape[-1] else torch.from_numpy(self._tokens)
        columns = head_table(m, tokens).columns
        return {name: float(column[0]) for name, column in columns.items() if name in MEANINGS}

    def _sample(self, head_view: HeadView, sums: dict[str, list[NDArray[np.float64]]]) -> Iterator[float]:
        """Append every statistic of sampled queries to `sums`, block by block; yields the completed fraction."""
        queries, keys = head_view.sizes
        chosen = ((np.arange(self._rows) + 0.5) * queries / self._rows).astype(np.int64)
        height = max(_BLOCK // max(keys, 1), 1)
        for at in range(0, len(chosen), height):
            if at:
                yield at / len(chosen)
            rows = chosen[at : at + height]
            weights = head_view.read(rows.tolist(), slice(None)).double().numpy()
            for name, values in of_rows(weights, rows + keys - queries, self._tokens).items():
                sums.setdefault(name, []).append(values)


class StatisticsDifference:
    """The table of a layer on one side, minus that on the other."""

    def __init__(self, first: Statistics, second: Statistics) -> None:
        self._sides = (first, second)

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return sum(side.nbytes for side in self._sides)

    def advance(self, until: float) -> None:
        """Compute until `time.monotonic()` reaches `until`, at least one step."""
        for side in self._sides:
            if side.complete < 1.0:
                side.advance(until)
                if time.monotonic() >= until:
                    return

    def reply(self) -> Reply:
        """Columns of H numbers that both sides have; None where one of them is not computed yet, or a mean over no query."""
        metas = [dict(side.reply().meta) for side in self._sides]
        columns = {
            name: [None if None in pair else pair[0] - pair[1] for pair in zip(column, other, strict=True)]
            for name, column in metas[0]["columns"].items()
            if (other := metas[1]["columns"].get(name)) is not None
        }
        sampled = [meta["sampled"] for meta in metas if meta["sampled"] is not None]
        complete = sum(meta["complete"] for meta in metas) / 2
        return Reply(meta={"columns": columns, "complete": complete, "sampled": min(sampled, default=None)})


@request(saved=True)
def statistics(result: "ViewResult", **layer: Unpack[Layer]) -> Statistics | StatisticsDifference:
    """The statistics of a layer's heads; of the difference, those of the first side minus those of the second."""
    selection = result.resolver.selection(**layer)
    if selection.side == DIFFERENCE:
        first, second = (_of_side(result.resolver, selection._replace(side=str(number))) for number in range(2))
        return StatisticsDifference(first, second)
    return _of_side(result.resolver, selection)


def _of_side(resolver: HeadResolver, selection: LayerSelection) -> Statistics:
    side, name = selection.side, selection.name
    stack, shown = axes_of(name[0])[1], resolver.side(side)
    labels = shown.tokens.get(stack)
    # Without token strings, every token differs from all others.
    names = range(shown.sizes[stack]) if labels is None else labels
    known = {label: number for number, label in enumerate(dict.fromkeys(names))}
    tokens = np.array([known[label] for label in names], np.int64)
    return Statistics(
        lambda head: resolver.head_view(selection, head),
        resolver.heads(side, name),
        tokens,
        is_cross=name[0] == "cross",
    )


def of_rows(
    weights: NDArray[np.float64], positions: NDArray[np.int64], tokens: NDArray[np.int64]
) -> dict[str, NDArray[np.float64]]:
    """Every statistic of the rows (n, K) of queries at the given positions among the keys; (n,) each, NaN where undefined.

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


def _number(value: float) -> float | None:
    return value if np.isfinite(value) else None
