"""Benchmark cases: one operation computed by uwaga and by PyTorch, for the programs in this folder.

Letters: B batch, H heads, N tokens, D width. Both sides get the same tensors and allocate their own results.
"""

import math
import statistics
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from timing import Side
from torch import Tensor

import uwaga
from uwaga.ops.linear import api as linear_api
from uwaga.ops.linear import choose

OURS, THEIRS = "uwaga", "torch"


def _tensors(_: str, result: Any) -> list[Tensor]:
    return list(result) if isinstance(result, tuple) else [result]


class Case(NamedTuple):
    """The sides by name, and how many floating-point operations the result needs (2 for one multiply-add)."""

    sides: Mapping[str, Side]
    flops: float
    # Converts what a side returned to tensors that can be compared between sides.
    read: Callable[[str, Any], list[Tensor]] = _tensors

    def check(self) -> None:
        """Run every side once. Raises AssertionError if their results differ by more than rounding."""
        expected = self.read(THEIRS, self.sides[THEIRS]())
        for name in self.sides.keys() - {THEIRS}:
            for ours, theirs in zip(self.read(name, self.sides[name]()), expected, strict=True):
                # The tolerance only has to tell a wrong result from another order of the same sums: a score adds up
                # as many products as an operand is wide, and its rounding is the weight's relative error.
                eps = torch.finfo(theirs.dtype).eps
                allowed = (8 + 4 * theirs.shape[-1] ** 0.5) * eps * max(1.0, float(theirs.abs().max()))
                first = (tensor.detach().reshape(-1)[:1_000_000].float() for tensor in (ours, theirs))
                difference = float(torch.sub(*first).abs().max())
                if not difference <= allowed:
                    raise AssertionError(f"{name} differs from {THEIRS} by {difference:.2e}, more than {allowed:.2e}")


def forward(batch: int, heads: int, tokens: int, width: int, dtype: torch.dtype, *, causal: bool = False) -> Case:
    operands = _operands((batch, heads, tokens, width), dtype)
    return Case(_sides(*operands, causal=causal), _pairs(batch * heads, tokens, causal) * 4 * width)


def backward(batch: int, heads: int, tokens: int, width: int, dtype: torch.dtype, *, causal: bool = False) -> Case:
    """Time forward and backward: 2 matrix products forward, 5 backward (the scores are computed again)."""
    operands = [x.requires_grad_() for x in _operands((batch, heads, tokens, width), dtype)]
    grad = torch.randn_like(operands[0])

    def gradients(side: Callable[[], Any]) -> tuple[Tensor, ...]:
        return torch.autograd.grad(side(), operands, grad)

    sides = {name: partial(gradients, side) for name, side in _sides(*operands, causal=causal).items()}
    return Case(sides, _pairs(batch * heads, tokens, causal) * 14 * width)


def _sides(query: Tensor, key: Tensor, value: Tensor, *, causal: bool = False) -> dict[str, Side]:
    mask = uwaga.Causal() if causal else None
    return {
        OURS: lambda: uwaga.attention(query, key, value, mask=mask),
        THEIRS: lambda: F.scaled_dot_product_attention(query, key, value, is_causal=causal),
    }


def ragged(lengths: list[int], heads: int, width: int, dtype: torch.dtype) -> Case:
    """Time documents of different lengths: packed, each alone, and padded to the longest for PyTorch."""
    packed = [uwaga.Ragged.from_list(list(x.split(lengths))) for x in _operands((sum(lengths), heads, width), dtype)]
    alone = [[row.transpose(0, 1) for row in operand.to_list()] for operand in packed]  # (H, N, D) per document
    query, key, value = (operand.to_padded().transpose(1, 2) for operand in packed)  # (B, H, N, D)
    visible = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    sides: dict[str, Side] = {
        OURS: lambda: uwaga.attention(packed[0], packed[1], packed[2]),
        "alone": lambda: [uwaga.attention(*document) for document in zip(*alone, strict=True)],
        THEIRS: lambda: F.scaled_dot_product_attention(query, key, value, visible[:, None, None, :]),
    }

    def read(side: str, result: Any) -> list[Tensor]:
        if side == "alone":
            return [torch.cat([document.transpose(0, 1) for document in result])]
        return [result.values if side == OURS else result.transpose(1, 2)[visible]]

    return Case(sides, 4 * heads * width * sum(length * length for length in lengths), read)


def decode(heads: int, keys: int, width: int, dtype: torch.dtype) -> Case:
    """Time one query against many keys, as when a language model writes its next token."""
    _, key, value = _operands((1, heads, keys, width), dtype)
    query = torch.randn(1, heads, 1, width).to(dtype)
    return Case(_sides(query, key, value), 4 * heads * keys * width)


def linear_engines(rows: int, inputs: int, outputs: int, dtype: torch.dtype) -> Case:
    """Time x W^T + b by each engine of the CPU that can serve it. The sides have the names of the engines."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn((rows, inputs), generator=generator).to(dtype)
    weight = (torch.randn((outputs, inputs), generator=generator) / math.sqrt(inputs)).to(dtype)
    bias = torch.randn(outputs, generator=generator).to(dtype)
    refused = linear_api.explain(x, weight, bias).refused
    sides: dict[str, Side] = {
        name: partial(uwaga.linear, x, weight, bias, impl=name) for name in choose.NAMES if name not in refused
    }
    sides[THEIRS] = partial(F.linear, x, weight, bias)
    return Case(sides, 2 * rows * inputs * outputs)


def document_lengths(count: int, median: int, spread: float = 0.82) -> list[int]:
    """Return document lengths as a real collection has them: log-normal, at even quantiles, shuffled.

    The Python Enhancement Proposals, counted in words, have a spread of 0.80 to 0.84. Padded to the longest, 40
    such documents waste 91 % of the square that attention computes.

    >>> lengths = document_lengths(40, median=160)
    >>> f"{wasted(lengths):.0%}"
    '91%'
    """
    normal = statistics.NormalDist()
    quantiles = [normal.inv_cdf((rank + 0.5) / count) for rank in range(count)]
    lengths = [max(1, round(median * math.exp(spread * quantile))) for quantile in quantiles]
    order = torch.randperm(count, generator=torch.Generator().manual_seed(0)).tolist()
    return [lengths[position] for position in order]


def wasted(lengths: list[int]) -> float:
    """Return the share of the scores that padding to the longest document adds."""
    return 1 - sum(length * length for length in lengths) / (len(lengths) * max(lengths) ** 2)


def _operands(shape: tuple[int, ...], dtype: torch.dtype) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator).to(dtype) for _ in range(3)]


def _pairs(sequences: int, tokens: int, causal: bool) -> float:
    """Return how many (query, key) pairs are visible."""
    return sequences * (tokens * (tokens + 1) / 2 if causal else tokens * tokens)
