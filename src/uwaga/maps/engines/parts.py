"""Functions of the weights of one dense call in parts of its queries and keys, by the native kernels, with the bits of one call
(docs/contributors/kernels.md, "Partial results"). Parts are as in ops/attention/parts.py; letters as in maps/spec.py.
"""

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from uwaga._base.native_layout import struct_of
from uwaga.maps.engines import cpu
from uwaga.maps.spec import Normalizer, RowStatistics, RowStatisticsRequest
from uwaga.ops.attention.call import Call
from uwaga.ops.attention.native_structs import FORWARD_RESULT, TENSOR, numbers_fields, row_fields, run, tensor_fields
from uwaga.ops.attention.parts import new_sums, padded
from uwaga.ops.mask_program import MaskProgram

_ROW_SUMS, _WEIGHT_SUMS, _EXACT_SUMS = map(struct_of, ("uwaga_row_sums", "uwaga_weight_sums", "uwaga_exact_sums"))
_WORDS, _DIGIT = 3, 2**32  # words of an exact sum; it has two digits a word
_UNIT = 2.0**-149


class PartSums(NamedTuple):
    """The sums so far of one part, which a call reads and leaves to the next one."""

    memory: Tensor
    continues: bool  # False: the first part, nothing is read

    def fields(self) -> tuple[int, ...]:
        return *numbers_fields(self.memory, self.memory.dtype), self.continues


def rows(call: Call, request: RowStatisticsRequest, result: RowStatistics, sums: PartSums, is_last: bool) -> None:
    """Continue the statistics of these queries by these keys, in order; fill in `result`, which is the same in all calls, by the last one. Positions
    are those of the whole: `call.options.dropout_origin` says where this part is."""
    packed_sums = _ROW_SUMS.pack(*sums.fields(), is_last)
    output = FORWARD_RESULT.pack(*tensor_fields(result.output), *row_fields(None))
    run("uwaga_rows_part", call, output, cpu.packed_statistics(result, request), packed_sums)


def new_row_sums(call: Call, request: RowStatisticsRequest) -> Tensor:
    """The memory that `rows` needs for these queries."""
    batch, heads, queries, _ = call.query.shape
    width = padded(call.value.shape[3], 16) if request.output else 0
    return new_sums(batch * heads * queries * (width + 5 + 2 * request.top))


def mass(
    call: Call,
    normalizer: Normalizer,
    program: MaskProgram,
    tensors: tuple[Tensor, ...],
    sums: PartSums,
    out: Tensor | None,
) -> None:
    """Continue the mass of these queries, (B, H, Q) float64, by these keys, in order; fill in `out` (B, H, Q) where it is given."""
    other = cpu.second_mask(program, tensors)
    packed_sums = _WEIGHT_SUMS.pack(*sums.fields(), 0)
    run("uwaga_mass_part", call, cpu.softmax(normalizer), *other, TENSOR.pack(*row_fields(out)), packed_sums)


def received(
    call: Call, normalizer: Normalizer, row_weights: Tensor | None, sums: PartSums, out: Tensor | None
) -> None:
    """Continue the weights that these keys receive, (B, H, K) float64, by these queries, in order; fill in `out` (B, H, K) where it is given."""
    weights, result = (TENSOR.pack(*row_fields(x)) for x in (row_weights, out))
    packed_sums = _WEIGHT_SUMS.pack(*sums.fields(), 0)
    run("uwaga_received_part", call, cpu.softmax(normalizer), weights, result, packed_sums)


def diagonal_sums(call: Call, normalizer: Normalizer, sums: Tensor, first: int) -> None:
    """Add the sums of the diagonals of these queries and keys to `sums` (B, H, n, 3), as `new_exact_sums` makes them, from the diagonal
    `first` on, in any order."""
    from_first = sums[:, :, first:]
    packed_sums = _EXACT_SUMS.pack(from_first.data_ptr(), sums.numel() - first * _WORDS, sums.shape[2])
    run("uwaga_diagonal_sums_part", call, cpu.softmax(normalizer), packed_sums)


def pool(call: Call, normalizer: Normalizer, query_edges: Tensor, key_edges: Tensor, sums: Tensor) -> None:
    """Add the sums of the cells of these queries and keys to `sums` (B, H, rows * cols, 3), in any order."""
    arguments = cpu.packed_pooling("sum", query_edges, key_edges, None, None)
    packed_sums = _EXACT_SUMS.pack(*numbers_fields(sums), sums.shape[2])
    run("uwaga_pool_part", call, cpu.softmax(normalizer), arguments, packed_sums)


def new_exact_sums(*sizes: int) -> Tensor:
    """Exact sums that are 0."""
    return torch.zeros(*sizes, _WORDS, dtype=torch.int64, device="cpu")


def total(sums: Iterable[Tensor]) -> Tensor:
    """(...) float64: exact sums (..., 3) added up, and rounded as ExactSum::value of native/base/exact_sum.h does it."""
    digits = sum(x.view(torch.int32).long().bitwise_and_(_DIGIT - 1) for x in sums)
    assert isinstance(digits, Tensor)
    value = torch.zeros(digits.shape[:-1], dtype=torch.float64, device="cpu")
    for n in range(2 * _WORDS - 1):
        digits[..., n + 1] += digits[..., n] >> 32
        digits[..., n] &= _DIGIT - 1
    for n in reversed(range(2 * _WORDS)):
        value = value * _DIGIT + digits[..., n].double()
    return torch.where(digits[..., -1] >= _DIGIT // 2, torch.nan, value * _UNIT)
