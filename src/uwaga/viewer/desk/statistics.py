"""Statistics of every head of a layer: those of `uwaga.maps.head_table`, of long texts from a sample of the queries.

Letters: H heads, n sampled queries, K keys.
"""

import time
from collections.abc import Callable, Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from uwaga.maps.interpretability.head_table import head_table
from uwaga.maps.map import AttentionMap
from uwaga.viewer.desk.hall import Hall, Place
from uwaga.viewer.desk.lens import Lens
from uwaga.viewer.desk.reply import Reply
from uwaga.viewer.exhibit import Name, axes_of

MEANINGS = {
    "entropy": "how far the weights of a query spread, in nats",
    "normalized_entropy": "entropy over the most that is possible: 0 looks at one key, 1 at all alike",
    "peak": "the largest weight of a query",
    "distance": "how far a query looks, in tokens",
    "support": "the effective number of keys, 1 / sum of squared weights",
    "sink": "weight on the first key",
    "learned_sink": "weight that a learned sink takes",
    "previous_token": "weight on the token before",
    "duplicate_token": "weight on earlier keys of the same token",
    "induction": "weight on what came after an earlier occurrence of the token",
}
_OF_CROSS = ("entropy", "normalized_entropy", "peak", "support", "sink", "learned_sink")
_EXACT = 1 << 24  # weights of a head: 4096 x 4096; one head is one step
_SAMPLED = 256
_BLOCK = 1 << 20  # weights that are held at once, in float64 and several times


def titles() -> list[dict[str, str]]:
    """What the columns are called and what they mean."""
    return [{"name": name, "title": name.replace("_", " "), "meaning": text} for name, text in MEANINGS.items()]


class Statistics:
    """The table of one layer, head by head.

    Args:
        lens: of each of its H heads, tokens as they are; a thousand heads are not begun at once.
        heads: H.
        tokens: the keys' tokens as integers that are equal where the tokens are, (K,).
        is_cross: queries and keys are of different texts: distances and earlier tokens have no meaning.
    """

    def __init__(self, lens: Callable[[int], Lens], heads: int, tokens: NDArray[np.int64], *, is_cross: bool) -> None:
        self._lens, self._heads, self._tokens, self._is_cross = lens, heads, tokens, is_cross
        first = lens(0)
        self._queries, keys = first.sizes
        self._samples = self._queries * keys > _EXACT or first.plain is None
        self._rows = min(self._queries, _SAMPLED) if self._samples else self._queries
        self._found: list[dict[str, float]] = []
        self._steps = self._work()
        self._complete = 0.0

    @property
    def nbytes(self) -> int:
        """Of what is held."""
        return self._tokens.nbytes

    def go_on(self, until: float) -> None:
        """Work until a moment of `time.monotonic`, one step at least."""
        for complete in self._steps:
            self._complete = complete
            if time.monotonic() >= until:
                return
        self._complete = 1.0

    def reply(self) -> Reply:
        """Columns of H numbers; None where a head is not known yet, and where a mean is over nothing."""
        missing: list[float | None] = [None] * (self._heads - len(self._found))
        names = [name for name in MEANINGS if any(name in head for head in self._found)]
        columns = {name: [_number(head.get(name, np.nan)) for head in self._found] + missing for name in names}
        is_part = self._rows < self._queries
        meta = {"columns": columns, "complete": self._complete, "sampled": self._rows if is_part else None}
        return Reply(meta=meta)

    def _work(self) -> Iterator[float]:
        for number in range(self._heads):
            lens = self._lens(number)
            if self._samples:
                sums: dict[str, list[NDArray[np.float64]]] = {}
                for part in self._sample(lens, sums):
                    yield (number + part) / self._heads
                found = {name: _mean(values) for name, values in sums.items()}
            else:
                assert lens.plain is not None
                found = self._exact(lens.plain)
            self._found.append({name: found[name] for name in found if not self._is_cross or name in _OF_CROSS})
            yield (number + 1) / self._heads

    def _exact(self, m: AttentionMap) -> dict[str, float]:
        tokens = None if self._is_cross or m.shape[-2] > m.shape[-1] else torch.from_numpy(self._tokens)
        columns = head_table(m, tokens).columns
        return {name: float(column[0]) for name, column in columns.items() if name in MEANINGS}

    def _sample(self, lens: Lens, sums: dict[str, list[NDArray[np.float64]]]) -> Iterator[float]:
        """Every statistic of sampled queries, some at a time."""
        queries, keys = lens.sizes
        chosen = ((np.arange(self._rows) + 0.5) * queries / self._rows).astype(np.int64)
        height = max(_BLOCK // max(keys, 1), 1)
        for at in range(0, len(chosen), height):
            if at:
                yield at / len(chosen)
            rows = chosen[at : at + height]
            weights = lens.read(rows.tolist(), slice(None)).double().numpy()
            for name, values in of_rows(weights, rows + keys - queries, self._tokens).items():
                sums.setdefault(name, []).append(values)


def of_layer(hall: Hall, side: str, name: Name) -> Statistics:
    """The statistics of a layer of an exhibit."""
    place = Place(side, name, "tokens", "show")
    stack, shown = axes_of(name[0])[1], hall.side(side)
    labels = shown.tokens.get(stack)
    # Without names, every token is one of its own.
    names = range(shown.sizes[stack]) if labels is None else labels
    known = {label: number for number, label in enumerate(dict.fromkeys(names))}
    tokens = np.array([known[label] for label in names], np.int64)
    return Statistics(lambda head: hall.lens(place, head), hall.heads(side, name), tokens, is_cross=name[0] == "cross")


def of_rows(
    weights: NDArray[np.float64], places: NDArray[np.int64], tokens: NDArray[np.int64]
) -> dict[str, NDArray[np.float64]]:
    """Every statistic of rows (n, K) whose queries stand at these places among the keys; nan where it has no meaning.

    Signed weights, as differences are, have no entropy: their sizes are taken.
    """
    sizes = np.abs(weights)
    seen = (sizes > 0).sum(1)
    logs = np.log(np.where(sizes > 0, sizes, 1.0))
    entropy = -(sizes * logs).sum(1)
    most = np.log(np.maximum(seen, 2))
    j = np.arange(weights.shape[1])
    earlier = j < places[:, None]
    same = (tokens == tokens[places][:, None]) & earlier
    after = np.zeros_like(same)
    after[:, 1:] = same[:, :-1]
    occurred = same.any(1)
    squares = (sizes**2).sum(1)
    has_previous = places >= 1
    found = {
        "entropy": entropy,
        "normalized_entropy": np.where(seen > 1, entropy / most, 0.0),
        "peak": sizes.max(1),
        "distance": (sizes * np.abs(j - places[:, None])).sum(1),
        "support": 1.0 / np.where(squares > 0, squares, 1.0),
        "sink": weights[:, 0],
        "previous_token": np.where(has_previous, weights[np.arange(len(weights)), np.maximum(places - 1, 0)], np.nan),
        "duplicate_token": np.where(occurred, (weights * same).sum(1), np.nan),
        "induction": np.where(occurred, (weights * after).sum(1), np.nan),
    }
    return {name: np.where(seen > 0, values, np.nan) for name, values in found.items()}


def _mean(parts: list[NDArray[np.float64]]) -> float:
    values = np.concatenate(parts)
    values = values[~np.isnan(values)]
    return float(values.mean()) if len(values) else float("nan")


def _number(value: float) -> float | None:
    return value if np.isfinite(value) else None
