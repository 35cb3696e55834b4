"""Exact weights of one head: an entry, a row, and a column.

Letters: Q queries, K keys.
"""

from collections.abc import Iterator
from functools import partial
from typing import Literal, Unpack

import numpy as np
import torch
from numpy.typing import NDArray

from uwaga._base.options import Integer
from uwaga.viewer.messages import Reply, RequestError, finite
from uwaga.viewer.queries.heads import HeadView
from uwaga.viewer.queries.result import Computation, ViewResult
from uwaga.viewer.request_table import Layer, Shown, in_range, request

MAX_OF_HEADS = 1 << 24  # weights of a token in every head: 64 MB


@request(saved=True)
def entry(result: ViewResult, *, head: Integer, query: Integer, key: Integer, **shown: Unpack[Shown]) -> Reply:
    """Return one weight, its rank in its row, and its score.

    The rank of the largest weight is 1, and equal weights share a rank; a weight of 0, as masked ones are, has none.
    """
    _, head_view = result.resolver.select(head, **shown)
    in_range("query", query, 0, head_view.sizes[0])
    in_range("key", key, 0, head_view.sizes[1])
    row = head_view.read([query], slice(None))[0]
    weight = row[key]
    score = None
    visible = True
    if head_view.attention is not None:
        found = float(torch.as_tensor(head_view.attention.scores[query, key]))
        visible, score = found != -float("inf"), finite(found)
    meta = {
        "weight": finite(float(weight)),
        "score": score,
        "rank": int((row > weight).sum()) + 1 if visible and weight != 0 else None,
        "visible": visible,
    }
    return Reply(meta=meta)


@request(saved=True)
def row(result: ViewResult, *, head: Integer, query: Integer, **shown: Unpack[Shown]) -> Reply:
    """Return (K,) the weights of one query."""
    _, head_view = result.resolver.select(head, **shown)
    return Reply(meta={}, arrays=(_row(head_view, in_range("query", query, 0, head_view.sizes[0])),))


def _row(head_view: HeadView, query: int) -> NDArray[np.float32]:
    return head_view.read([query], slice(None))[0].numpy()


def _column(head_view: HeadView, key: int, weights: NDArray[np.float32]) -> Iterator[float]:
    """Fill (Q,) with the weights of all queries on one key, from the first query on."""
    at = 0
    while at < len(weights):
        block = slice(at, head_view.stop(at, len(weights)))
        weights[block] = head_view.read(block, [key])[:, 0].numpy()
        at = block.stop
        yield at / len(weights)


def _partial(weights: NDArray[np.float32], complete: float) -> Reply:
    """Return weights so far; NaN is not known yet."""
    return Reply(meta={"complete": complete}, arrays=(weights.copy(),))


@request(saved=True)
def column(result: ViewResult, *, head: Integer, key: Integer, **shown: Unpack[Shown]) -> Computation:
    """Return (Q,) the weights on one key."""
    _, head_view = result.resolver.select(head, **shown)
    weights = np.full(head_view.sizes[0], np.nan, np.float32)
    work = _column(head_view, in_range("key", key, 0, head_view.sizes[1]), weights)
    return Computation(work, partial(_partial, weights), weights.nbytes)


@request(saved=True)
def heads(result: ViewResult, *, axis: Literal["row", "column"], item: Integer, **layer: Unpack[Layer]) -> Computation:
    """Return a row or a column of every head of a layer, over tokens: (H, K) or (H, Q)."""
    selection = result.resolver.selection(**layer)
    count = result.resolver.heads(selection.side, selection.name)
    sizes = result.resolver.head_view(selection, 0).sizes
    in_range("item", item, 0, sizes[axis == "column"])
    if count * max(sizes) > MAX_OF_HEADS:
        raise RequestError(f"{count} heads of {max(sizes)} tokens are more than one reply holds")
    head_views = [result.resolver.head_view(selection, head) for head in range(count)]
    weights = np.full((count, sizes[axis == "row"]), np.nan, np.float32)

    def work() -> Iterator[float]:
        for head, head_view in enumerate(head_views):
            if axis == "row":
                weights[head] = _row(head_view, item)
                yield (head + 1) / count
            else:
                yield from ((head + part) / count for part in _column(head_view, item, weights[head]))

    return Computation(work(), partial(_partial, weights), weights.nbytes)
