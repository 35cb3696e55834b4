"""One call in parts of its queries and keys, by the native kernels: a part continues the sums of the parts before it, so that the whole has
the bits of one call (docs/contributors/kernels.md, "Partial results").

Parts of keys come in order and begin at multiples of PART_KEYS, parts of queries in order and at multiples of PART_QUERIES. How sums lie in
memory is the library's own: they are made here, and only passed on.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from uwaga._base.native_layout import struct_of
from uwaga.ops.attention.call import Call
from uwaga.ops.attention.native_structs import (
    FORWARD_RESULT,
    backward_arguments,
    numbers_fields,
    row_fields,
    run,
    tensor_fields,
)

PART_KEYS, PART_QUERIES = 2048, 192  # UWAGA_PART_KEYS, UWAGA_PART_QUERIES

_FORWARD_SUMS, _BACKWARD_SUMS = struct_of("uwaga_forward_sums"), struct_of("uwaga_backward_sums")


def padded(count: int, step: int) -> int:
    """Return the next multiple of `step`."""
    return -(-count // step) * step


def new_sums(count: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Allocate so many sums, which one part leaves for the next; at least one, since a tensor without elements has no address."""
    return torch.empty(max(count, 1), dtype=dtype, device="cpu")


def row_sums(call: Call) -> int:
    """Return how many float32 numbers the sums of a part of the queries are: outputs, maxima and sums."""
    batch, heads, queries, _ = call.query.shape
    return batch * heads * queries * (padded(call.value.shape[3], 16) + 2)


def query_sums(call: Call) -> int:
    """Return how many float32 numbers the sums of the gradient of a part of the queries are."""
    batch, groups = call.key.shape[:2]
    rows = call.query.shape[2] * call.heads_per_key_head
    return batch * groups * padded(rows, 48) * padded(call.query.shape[3], 16)


def key_sums(x_BGnD: Tensor) -> int:
    """Return how many float32 numbers the sums of the gradient of a part of the keys, or of the values, are."""
    batch, groups, keys, width = x_BGnD.shape
    return batch * groups * padded(keys, 64) * padded(width, 16)


def forward(call: Call, sums: Tensor, continues: bool, output: Tensor | None = None, lse: Tensor | None = None) -> None:
    """Continue the sums of these queries by these keys; fill in `output` and `lse` where they are given, after the last keys."""
    result = FORWARD_RESULT.pack(*tensor_fields(output), *row_fields(lse))
    packed_sums = _FORWARD_SUMS.pack(*numbers_fields(sums, torch.float32), continues, 0)
    run("uwaga_forward_part", call, result, packed_sums)


class Rows(NamedTuple):
    """What the backward pass of a part of the queries reads besides them."""

    output: Tensor
    lse: Tensor
    grad_output: Tensor
    grad_lse: Tensor | None = None


class Sums(NamedTuple):
    """Sums of gradients, None where nobody needs them, and whether earlier parts are in them."""

    query: Tensor | None
    key: Tensor | None
    value: Tensor | None
    continues_queries: bool
    continues_keys: bool


class Results(NamedTuple):
    """Gradients to be filled in after the last part. Those of relative and sinks are added to, of sinks once for each part of the queries."""

    query: Tensor | None = None
    key: Tensor | None = None
    value: Tensor | None = None
    relative: Tensor | None = None
    bias: Tensor | None = None  # (B, H, Q, K) float32 of these queries and keys: only visible pairs are written
    sinks: Tensor | None = None


def backward(call: Call, rows: Rows, sums: Sums, results: Results) -> None:
    """Continue the sums of gradients by these queries and these keys."""
    packed_sums = _BACKWARD_SUMS.pack(
        *numbers_fields(sums.query, torch.float32),
        *numbers_fields(sums.key, torch.float32),
        *numbers_fields(sums.value, torch.float32),
        sums.continues_queries,
        sums.continues_keys,
    )
    arguments = backward_arguments(rows.output, rows.lse, rows.grad_output, rows.grad_lse, *results)
    run("uwaga_backward_part", call, arguments, packed_sums)
