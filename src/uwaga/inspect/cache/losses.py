"""What is lost when a query reads some of its keys only, exactly, for a block of queries of one head.

Letters: C queries of a block, K keys up to the last of them, n keys that are read, E value width.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from uwaga.inspect.cache.kept import KeptKeys
from uwaga.inspect.cache.layer import CacheLayer, softmax
from uwaga.ops.attention.reference import mix


class Losses(NamedTuple):
    """(C,) float64 each; NaN where a query sees no key.

    kept       how many keys were read, of those that the model's own mask shows
    forgotten  sum a_ij over the keys that were not read
    limit      the least that can be forgotten with as many keys: that of the largest weights
    error      |o' - o| / |o|: o is the head's output for the query, o' that of a softmax over the keys that were read, and zeros
               without any
    overlap    the part of the keys read that are among the query's largest weights, of as many; of equal weights any
    """

    kept: Tensor
    forgotten: Tensor
    limit: Tensor
    error: Tensor
    overlap: Tensor


class Block:
    """The exact rows of some queries of one head, sorted once for all policies.

    Args:
        layer: the layer.
        head: which.
        rows: (C,) ascending.
        value: (N, E) the head's values, in the dtype of the weights.
    """

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
            # A query that sees a value that is not finite has an error that is NaN, whatever it keeps; the others must not meet that value.
            self.value = self.value.nan_to_num(0.0, 0.0, 0.0)
        self.output = _scaled(output, self.total + self.sink)
        self.ascending = _sorted(self.weights)
        self.smallest = self.ascending.cumsum(-1, dtype=torch.float64)

    def losses(self, kept: KeptKeys) -> Losses:
        """Of the queries, each of which reads these keys."""
        keys, is_kept = kept.keys, kept.is_kept & self.visible.gather(1, kept.keys)
        weights = self.weights.gather(1, keys).masked_fill(~is_kept, 0.0)
        count = is_kept.sum(-1)
        mass = weights.sum(-1, dtype=torch.float64)
        is_whole = count == self.seen
        output = _scaled(self._weighted(keys, weights), mass + self.sink)
        lost = (mass == 0) & (
            count > 0
        )  # the weights are below the smallest number: compared with each other they are not
        if bool(lost.any()):
            output[lost] = self._output_from_scores(keys[lost], is_kept[lost], lost)
        difference, size = (torch.linalg.vector_norm(x.double(), dim=-1) for x in (output - self.output, self.output))
        error = torch.where(difference == 0, 0.0, difference / size)
        forgotten = (self.total - mass).clamp(min=0)
        none = self.seen == 0
        results = (
            count.double(),
            torch.where(is_whole, 0.0, forgotten),
            self._of_smallest(count),
            torch.where(is_whole, 0.0, error),
            self._overlap(weights, is_kept, count),
        )
        return Losses(*(x.masked_fill(none, torch.nan) for x in results))

    def _weighted(self, keys: Tensor, weights: Tensor) -> Tensor:
        """(C, E): the sums of the values of keys (C, n) by their weights."""
        if keys.shape[1] == 0:
            return torch.zeros_like(self.output)
        return functional.embedding_bag(keys, self.value, mode="sum", per_sample_weights=weights)

    def _of_smallest(self, count: Tensor) -> Tensor:
        """(C,): the sum of all weights of a row but the largest `count`."""
        others = self.weights.shape[1] - count
        sums = self.smallest.gather(1, (others - 1).clamp(min=0)[:, None])[:, 0]
        return torch.where(others == 0, 0.0, sums)

    def _overlap(self, weights: Tensor, is_kept: Tensor, count: Tensor) -> Tensor:
        keys = self.weights.shape[1]
        bound = self.ascending.gather(
            1, (keys - count).clamp(max=keys - 1)[:, None]
        )  # the smallest of the largest `count`
        larger = keys - torch.searchsorted(self.ascending, bound, right=True)[:, 0]
        is_larger, is_equal = is_kept & (weights > bound), is_kept & (weights == bound)
        common = is_larger.sum(-1) + torch.minimum(is_equal.sum(-1), count - larger)
        return torch.where(count == 0, 0.0, common.double() / count.clamp(min=1))

    def _output_from_scores(self, keys: Tensor, is_kept: Tensor, lost: Tensor) -> Tensor:
        """The outputs of some rows from scores, whose softmax is taken over the kept keys alone."""
        outputs = []
        for row, own, mine in zip(self.rows[lost], keys, is_kept, strict=True):
            some = own[mine].sort().values
            scores = self.layer.scores(self.head, row[None], some).double()
            sinks = None if self.layer.sinks is None else self.layer.sinks[self.head].double()
            outputs.append((softmax(scores, sinks) @ self.value[some].double())[0])
        return torch.stack(outputs).to(self.output.dtype)


def _scaled(output: Tensor, total: Tensor) -> Tensor:
    """(C, E): a sum of weighted values over the sum of the weights; zeros where that is 0."""
    return output / torch.where(total == 0, 1.0, total)[:, None].to(output.dtype)


def _sorted(x: Tensor) -> Tensor:
    """(C, K) ascending. NumPy's sort is twenty times as fast as PyTorch's on a CPU."""
    return torch.from_numpy(np.sort(x.numpy(), axis=-1)) if x.device.type == "cpu" else x.sort(-1).values
