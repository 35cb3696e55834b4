"""Exact weights of one head: an entry, a row, a column, and a rectangle as .npz.

Letters: Q queries, K keys.
"""

import io
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from uwaga.maps.base import WeightMap
from uwaga.maps.map import AttentionMap
from uwaga.viewer.messages import Reply
from uwaga.viewer.queries.heads import Axis, HeadView

MAX_OF_HEADS = 1 << 24  # weights of a token in every head: 64 MB
_TOKEN_BYTES = 1 << 26  # of an array of token strings in an .npz file, where each takes as much as the longest


def entry(head_view: HeadView, query: int, key: int) -> Reply:
    """One weight, its rank in its row (1 is the largest; equal weights share a rank; None of a weight that is 0, as masked ones are), its score,
    and the row's log-sum-exp."""
    row = head_view.read([query], slice(None))[0]
    weight = row[key]
    score = lse = None
    visible = True
    if head_view.attention is not None:
        result = float(torch.as_tensor(head_view.attention.scores[query, key]))
        visible, score = result != -float("inf"), _number(result)
        lse = _lse(head_view, query, row)
    meta = {
        "weight": _number(float(weight)),
        "score": score,
        "rank": int((row > weight).sum()) + 1 if visible and weight != 0 else None,
        "visible": visible,
        "lse": lse,
    }
    return Reply(meta=meta)


def band(m: WeightMap) -> list[int | None] | None:
    """How many tokens before and after its own each query may look at, None for any number; None where that is no band, or where the map
    has no scores. Read from the first row, the last one, and the one between them."""
    queries, keys = m.shape[-2:]
    if not isinstance(m, AttentionMap) or queries != keys or not keys:
        return None
    rows = sorted({0, keys // 2, keys - 1})
    seen = torch.as_tensor(m.scores[(*[0] * (len(m.shape) - 2), rows, slice(None))]).cpu() > -float("inf")
    if not bool(seen.any(-1).all()):
        return None
    firsts, lasts = (seen.int().argmax(-1)).tolist(), (keys - 1 - seen.flip(-1).int().argmax(-1)).tolist()
    before = None if firsts[-1] == 0 else keys - 1 - firsts[-1]
    after = None if lasts[0] == keys - 1 else lasts[0]
    j = torch.arange(keys) - torch.tensor(rows)[:, None]
    expected = (j >= -(keys if before is None else before)) & (j <= (keys if after is None else after))
    return [before, after] if torch.equal(seen, expected) else None


def hidden(sees: list[int | None] | None, queries: NDArray[np.int32], keys: NDArray[np.int32]) -> NDArray[np.bool_]:
    """(rows, columns): whether no token of a query's item may look at one of a key's. sees: as of `band`; queries, keys: spans of items.
    `seenKeys` of front/weights.js says the same."""
    before, after = sees or (None, None)
    behind = queries[:, None, 0] - (keys[None, :, 1] - 1)
    ahead = keys[None, :, 0] - (queries[:, None, 1] - 1)
    most = np.iinfo(np.int32).max
    return (behind > (most if before is None else before)) | (ahead > (most if after is None else after))


def row(head_view: HeadView, query: int) -> Reply:
    """(K,) the weights of one query."""
    return Reply(meta={}, arrays=(head_view.read([query], slice(None))[0].numpy(),))


class Column:
    """The weights of all queries on one key, read from the first query on; each needs the normalizer of its row."""

    def __init__(self, head_view: HeadView, key: int) -> None:
        self._head_view, self._key, self._next = head_view, key, 0
        self.weights = np.full(head_view.sizes[0], np.nan, np.float32)

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.weights.nbytes

    @property
    def complete(self) -> float:
        """The completed fraction."""
        return self._next / max(len(self.weights), 1)

    def advance(self, until: float) -> None:
        """Read until `time.monotonic()` reaches `until`, at least one step."""
        while self._next < len(self.weights):
            block = slice(self._next, self._head_view.stop(self._next, len(self.weights)))
            self.weights[block] = self._head_view.read(block, [self._key])[:, 0].numpy()
            self._next = block.stop
            if time.monotonic() >= until:
                return

    def reply(self) -> Reply:
        """(Q,); NaN where nothing is known yet."""
        return Reply(meta={"complete": self.complete}, arrays=(self.weights.copy(),))


class Heads:
    """(H, K) or (H, Q): a row or a column of every head, one head after the other."""

    def __init__(self, head_views: Sequence[HeadView], axis: str, item: int) -> None:
        size = head_views[0].sizes[axis == "row"]
        self._weights = np.full((len(head_views), size), np.nan, np.float32)
        self._steps = self._work(head_views, axis, item)
        self._complete = 0.0

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self._weights.nbytes

    def advance(self, until: float) -> None:
        """Read until `time.monotonic()` reaches `until`, at least one step."""
        for complete in self._steps:
            self._complete = complete
            if time.monotonic() >= until:
                return

    def _work(self, head_views: Sequence[HeadView], axis: str, item: int) -> Iterator[float]:
        for head, head_view in enumerate(head_views):
            column = Column(head_view, item)
            if axis == "row":
                self._weights[head] = row(head_view, item).arrays[0]
            while axis == "column" and column.complete < 1:
                column.advance(0.0)
                self._weights[head] = column.weights
                yield (head + column.complete) / len(head_views)
            yield (head + 1) / len(head_views)

    def reply(self) -> Reply:
        """NaN where nothing is known yet."""
        return Reply(meta={"complete": self._complete}, arrays=(self._weights.copy(),))


def npz(
    weights: NDArray[np.float32],
    axes: tuple[Axis, Axis],
    rows: tuple[int, int],
    columns: tuple[int, int],
    names: Mapping[str, str | int],
) -> bytes:
    """A rectangle as an .npz file: weights (NaN where the query may not look at the key), query_tokens, key_tokens, rows, columns, and the names (model, text, layer, ...)."""
    tokens = [_strings(axis.labels[slice(*part)]) for axis, part in zip(axes, (rows, columns), strict=True)]
    arrays: dict[str, Any] = {
        name: _strings([value])[0] if isinstance(value, str) else np.int64(value) for name, value in names.items()
    }
    arrays |= {"weights": weights, "query_tokens": tokens[0], "key_tokens": tokens[1], "rows": rows, "columns": columns}
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()


def _strings(labels: Sequence[str]) -> NDArray[np.str_]:
    """As an array: NumPy pads all strings to the longest, so that long ones are cut; NUL, which it strips, becomes U+2400."""
    most = max(_TOKEN_BYTES // (4 * max(len(labels), 1)), 1)
    return np.array([label[:most].replace("\0", "\u2400") for label in labels], np.str_)


def _lse(head_view: HeadView, query: int, row: torch.Tensor) -> float | None:
    """The row's log-sum-exp, with that of a learned sink: the score less the log of the weight, at the largest weight."""
    assert head_view.attention is not None
    peak = int(row.argmax())
    score = torch.as_tensor(head_view.attention.scores[query, peak]).double()
    return _number(float(score - row[peak].double().log()))


def _number(value: float) -> float | None:
    """NaN and infinity have no JSON; they become null."""
    return value if np.isfinite(value) else None
