"""One call of attention over several processes: what they agree on before anything is computed.

Letters as in sequence.py.
"""

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor

from uwaga._base.arguments import check, is_int
from uwaga._base.tracing import has_tangent, is_intercepted, is_recorded, is_transformed
from uwaga.ops.attention.arguments import AttentionOptions, make_call
from uwaga.ops.attention.call import Call
from uwaga.ops.attention.engines import cpu
from uwaga.ops.attention.native_structs import DTYPES
from uwaga.ops.ragged import Ragged
from uwaga.sequence_parallel.division import Division, Rows
from uwaga.sequence_parallel.exchange import Group, ProcessGroupError, known_to_all

# What processes agree on: a header has its number.
_SUBJECTS = (
    "its operands",
    "its mask and options",
    "its backward pass",
    "the tokens of a model",
    "the rows of its map",
    "the mass of its map",
    "the received weights of its map",
    "the diagonals of its map",
    "the cells of its map",
    "the entries of its map",
    "the arguments of its map",
)
_AT = "uwaga.sequence_parallel:"
_KINDS = ("attention", "attend", "attention_map")
SIZES = ("batch size B", "query heads H", "key heads G", "head width D", "value width E", "dtype", "kind of operands")
_BLOCK = 1 << 20  # bytes of a tensor that are copied at a time if it is not contiguous
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by their bytes
_NAMES = {"dtype": list(map(str, DTYPES)), "kind of operands": ["tensors", "Ragged"]}


def call_of_part(
    query: Any, key: Any, value: Any, options: AttentionOptions, impl: str | None, dropout: float = 0.0
) -> Call:
    """Return the validated call of this process's operands, without what is over the whole sequence (mask, bias and sinks), and with this dropout."""
    check(impl in (None, "cpu"), f"{_AT} impl must be None or 'cpu', not {impl!r}")
    if is_intercepted() or is_transformed():
        raise _no_transforms()
    part = options._replace(mask=None, bias=None, sinks=None, dropout=dropout)
    return _made_call((query, key, value), part, {})


class Divided(NamedTuple):
    """A validated call of this process's operands with the mask of the whole, and how the whole is divided."""

    call: Call
    records: bool  # whether gradients are recorded
    how: Division | Rows


def divide(
    group: Group,
    operands: tuple[Any, Any, Any],
    options: AttentionOptions,
    impl: str | None,
    request: object = None,
    refusal: "Refusal | None" = None,
) -> Divided:
    """Return how a call is divided. Without a value it is a map of weights, E = 0. `request`: of `uwaga.attend`, else None. `refusal`: of arguments that
    the caller has checked. All processes of the group call this together; errors as in `attention`."""
    number, refusal = group.next_call(), refusal or Refusal()
    is_ragged = any(isinstance(x, Ragged) for x in operands)
    header = [0] * (len(SIZES) + 2 + 3 * is_ragged)  # as sizes_of and _rows_of
    with refusal:
        header = sizes_of(call_of_part(*operands, options, impl))
        if is_ragged:
            header += _rows_of(*operands)
    by_rank = agree_on_sizes(group, number, header, refusal)
    if is_ragged:
        rows = Rows.of(group, number, *operands[:2], by_rank)
        call, records = agree_on_options(group, number, operands, options, rows.score_shape(), request)
        return Divided(call, records, rows)
    query_starts, key_starts = ([0, *accumulate(sizes)] for sizes in zip(*by_rank, strict=True))
    whole = {"queries": query_starts[-1], "keys": key_starts[-1]}
    call, records = agree_on_options(group, number, operands, options, whole, request)
    return Divided(call, records, Division(group, number, query_starts, key_starts, call.options))


def agree_on_sizes(group: Group, number: int, header: Sequence[int], refusal: "Refusal") -> list[list[int]]:
    """Return what follows SIZES in the headers of all processes, which have the same sizes."""
    result = agree(group, "its operands", number, header, refusal.error)
    for name, sizes in zip(SIZES, zip(*result, strict=True), strict=False):
        check_equal(name, [_NAMES[name][n] for n in sizes] if name in _NAMES else sizes)
    return [x[len(SIZES) : len(header)] for x in result]


def agree_on_options(
    group: Group,
    number: int,
    operands: tuple[Any, Any, Any],
    options: AttentionOptions,
    whole: Mapping[str, Any],
    request: object,
) -> tuple[Call, bool]:
    """Return the call of this process's operands with the mask and the options of the whole, which all processes have, and whether gradients are
    recorded. Dropout has the first process's seed."""
    refusal = Refusal()
    checksum, seed, records = 0, 0, False
    with refusal:
        call = _made_call(operands, options, whole)
        checksum = _checksum(call)
        seed = 0 if call.seed is None else int(call.seed)
        records = is_recorded(*call.operands)
    kind = 2 if operands[2] is None else int(request is not None)
    header = [checksum, int(records), seed, kind, zlib.crc32(repr(request).encode())]
    result = agree(group, "its mask and options", number, header, refusal.error)
    check_equal("the kind of call", [_KINDS[x[3]] for x in result])
    check_equal("entropy or topk of attend (checksums)", [x[4] for x in result])
    check_equal("mask, bias, scale, softcap, sinks, normalize or dropout (checksums)", [x[0] for x in result])
    check_equal("gradients (1: query, key, value, bias or sinks require them)", [x[1] for x in result])
    if call.seed is not None:  # of dropout: that of the first process
        call = replace(call, seed=torch.tensor(result[0][2]))
    return call, records


def _made_call(operands: tuple[Any, Any, Any], options: AttentionOptions, whole: Mapping[str, Any]) -> Call:
    """Return the validated call. Raises ValueError if the native kernels cannot serve it, NotImplementedError for forward-mode derivatives."""
    call = make_call(*operands, options, wants_lse=True, whole=whole)
    if has_tangent(*call.operands):
        raise _no_transforms()
    # A map has a value of width 0: the key stands in for it.
    if (reason := cpu.refusal(call if call.value.shape[3] else replace(call, value=call.key))) is not None:
        raise ValueError(f"{_AT} the native kernels cannot serve this call: {reason}")
    return call


def _no_transforms() -> NotImplementedError:
    return NotImplementedError(
        f"{_AT} torch.compile, other tracers, torch.func and forward-mode derivatives are not supported"
    )


def sizes_of(call: Call) -> list[int]:
    """Return what the processes send one another about their operands: SIZES, and the lengths of their parts."""
    batch, heads, queries, width = call.query.shape
    kinds = list(DTYPES).index(call.query.dtype), int(call.query_offsets is not None)
    return [batch, heads, call.key.shape[1], width, call.value.shape[3], *kinds, queries, call.key.shape[2]]


def _rows_of(query: Any, key: Any, value: Any) -> list[int]:
    """Return what a header says of rows: their number, and for query and key 1 + the position where the first row goes on, or 0 if it begins here."""
    value = key if value is None else value
    if key.first != value.first or (query.first is None) != (key.first is None):
        raise ValueError(
            "uwaga.sequence_parallel: query, key and value must be parts of the same rows: their first rows begin here, or in another "
            f"process, but first is {query.first}, {key.first} and {value.first}"
        )
    return [len(query), *(0 if x.first is None else 1 + x.first for x in (query, key))]


class Refusal:
    """A context whose error, of this process's arguments, is kept for the header that reports it to the others."""

    error: Exception | None = None

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        if isinstance(error, Exception):
            self.error = error
        return isinstance(error, Exception)


def agree(group: Group, subject: str, number: int, header: Sequence[int], failure: Exception | None) -> list[list[int]]:
    """Return the headers of all processes, which are at the same call; an error of one process is one in all of them. subject: of _SUBJECTS."""
    place = _SUBJECTS.index(subject)
    result = group.headers(f"call {number}, {subject}", [place, number, failure is not None, *header])
    if failure is not None:
        raise known_to_all(failure)
    for rank, (their_place, their_number, failed, *_) in enumerate(result):
        if failed:
            raise ProcessGroupError(
                f"uwaga.sequence_parallel: rank {rank} rejected its arguments; the error of that rank says why"
            )
        if (their_place, their_number) != (place, number):
            raise ProcessGroupError(
                f"uwaga.sequence_parallel: rank {rank} is at {_SUBJECTS[their_place]} of call {their_number}, and rank {group.rank} at "
                f"{subject} of call {number}: all processes must make the same calls in the same order"
            )
    return [x[3:] for x in result]


def check_equal(name: str, by_rank: Sequence[object]) -> None:
    """Raise ValueError, with the first two ranks that differ, unless all processes have the same."""
    for rank, value in enumerate(by_rank):
        if value != by_rank[0]:
            raise known_to_all(
                ValueError(
                    f"uwaga.sequence_parallel: the processes disagree on {name}: rank 0 has {by_rank[0]}, rank {rank} has {value}"
                )
            )


def _checksum(call: Call) -> int:
    """Return the checksum of what must be the same in all processes: the options, and the mask, from which each process finds what to send and
    which keys its queries see."""
    options = replace(call.options, max_queries=0, max_keys=0)
    result = zlib.crc32(repr(options).encode())
    for tensor in (call.relative, call.relative_starts, call.bias, call.sinks, *call.mask_tensors):
        if tensor is not None:
            result = checksum_of(tensor, result)
    return result


def checksum_of_argument(x: object, checksum: int) -> int:
    """Return `checksum` continued by an argument of any type."""
    if isinstance(x, Tensor) and not is_int(x):
        return checksum_of(x, checksum)
    return zlib.crc32(repr(int(x) if is_int(x) else x).encode(), checksum)


def checksum_of(tensor: Tensor, checksum: int) -> int:
    """Return `checksum` continued by the shape, the dtype and the values of a tensor, whatever its strides."""
    bits = _without_repeats(tensor.detach())
    described = zlib.crc32(repr((tuple(tensor.shape), tuple(bits.shape), tensor.dtype)).encode(), checksum)
    return _checksum_of_values(bits, described)


def _without_repeats(tensor: Tensor) -> Tensor:
    """Return the tensor with one entry in each dimension whose entries are all equal: a mask of padded keys may be one row, or a row that is repeated
    for every query, by a stride of 0 or in memory."""
    bits = tensor.view(_INTEGERS[tensor.itemsize])  # NaN does not equal itself
    bits = bits[tuple(slice(1) if stride == 0 else slice(None) for stride in bits.stride())]
    for dimension, size in enumerate(bits.shape):
        first = bits.narrow(dimension, 0, min(1, size))
        if torch.equal(bits, first.expand_as(bits)):  # which ends at the first difference
            bits = first
    return bits


def _checksum_of_values(bits: Tensor, checksum: int) -> int:
    """Return `checksum` continued row by row; no more than a block is copied."""
    if bits.nbytes <= _BLOCK or bits.is_contiguous():
        return zlib.crc32(bits.contiguous().numpy().data, checksum)
    for part in bits.split(max(_BLOCK // bits[0].nbytes, 1)) if len(bits) > 1 else bits:
        checksum = _checksum_of_values(part, checksum)
    return checksum
