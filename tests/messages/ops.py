"""Calls of operations that raise: attention, masks, biases, ragged batches, linear maps, norms.

Letters: B batch, H query heads, G key/value heads, Q queries, K keys, D query/key width, E value width.
"""

import json
from collections.abc import Callable
from functools import reduce
from operator import and_, or_
from pathlib import Path

import processors
import pytest
import torch
from torch import Tensor, zeros
from torch.utils.flop_counter import FlopCounterMode

from uwaga import (
    AlibiBias,
    Causal,
    Documents,
    KeyLengths,
    Ragged,
    RelativeBias,
    Window,
    attention,
    linear,
    sequence_parallel,
)
from uwaga.ops import attention_and_lse
from uwaga.ops.activations import gelu
from uwaga.ops.dropout import dropout, rows_from
from uwaga.ops.maxsim import maxsim
from uwaga.ops.norms import Lookup, embedding_norm, residual_norm

Q, K, V = zeros(2, 4, 5, 8), zeros(2, 2, 7, 8), zeros(2, 2, 7, 6)
VALUES, OFFSETS = torch.arange(20.0).reshape(5, 2, 2), torch.tensor([0, 2, 2, 5])
X, W, B, R = zeros(2, 6), zeros(5, 6), zeros(5), zeros(2, 5)  # of a linear map: input, weight, bias, residual
LOOKUP = Lookup(zeros(5, 4), torch.tensor([0, 5]))


class Marked(Tensor):
    """A subclass of torch.Tensor."""


def ragged(*lengths: int, heads: int = 2) -> Ragged:
    return Ragged.from_list([zeros(n, heads, 4) for n in lengths])


def rows(*lengths: int, width: int = 6) -> Ragged:
    return Ragged.from_list([zeros(n, width) for n in lengths])


def replaced_offsets(offsets: list[int]) -> object:
    """A batch of which the offsets are replaced after they were checked."""
    batch = ragged(3, 1)
    batch.offsets = torch.tensor(offsets)
    return attention(batch, batch, batch)


def resized(x: Tensor, size: int) -> Tensor:
    x.untyped_storage().resize_(size)
    return x


def vmapped(call: Callable[[Tensor], object]) -> object:
    return torch.func.vmap(call, randomness="same")(zeros(3, 2, 4, 5, 8))


def counted(call: Callable[[], object]) -> object:
    with FlopCounterMode(display=False):
        return call()


def of_a_part(call: Callable[[], object]) -> object:
    with rows_from(0):
        return call()


def by_environment(patch: pytest.MonkeyPatch, engine: str) -> object:
    """A linear map in a process that was started with UWAGA_LINEAR."""
    try:
        patch.setenv("UWAGA_LINEAR", engine)
        processors.forget()
        return linear(X, W)
    finally:
        patch.undo()
        processors.forget()
