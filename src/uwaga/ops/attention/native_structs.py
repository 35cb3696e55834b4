"""A Call as the C structs of native/include/uwaga/c_api.h.

Nothing is copied: tensors go as pointers and strides. Structs are packed with `struct` rather than ctypes fields,
which would cost more than a small call's arithmetic.
"""

import ctypes
import struct
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from uwaga._base import native
from uwaga.ops.attention.spec import START_PER_ROW, Call
from uwaga.ops.mask_program import BAND, DENSE, DOCUMENTS, LENGTHS, RECORD

DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}  # UWAGA_FLOAT32, ...
MAX_OPERATIONS = 32  # UWAGA_MASK_MAX_OPERATIONS
MAX_WIDTH = 65536  # as native/drivers/problem.cc has it

_NO_TENSOR = (0, 0, 0, 0, 0, 0, 0)
_TENSOR = "Q4q2i"
_START = "2iqQ"
_OPERATION = struct.Struct("=2i" + _START + "2q 2Q 2q Q 4q")
_RULE = struct.Struct("=Qq 2f Q2q" + _START + _TENSOR + "Qi")
_SIZES = struct.Struct("=7q 2Q")
_PLACE = struct.Struct("=4q2i")  # a uwaga_tensor without its address
_PLACED = f"Q{_PLACE.size}s"
_PROBLEM = struct.Struct(f"={_SIZES.size}s" + _PLACED * 3 + f"{_RULE.size}s i fI Q Qq")
TENSOR = struct.Struct("=" + _TENSOR)
FORWARD_RESULT = struct.Struct("=" + _TENSOR * 2)
_PLACED_RESULT = struct.Struct("=" + _PLACED * 2)
BACKWARD_ARGUMENTS = struct.Struct("=" + _TENSOR * 7 + "2Q" + _TENSOR)
SOFTMAX = struct.Struct("=" + _TENSOR * 2)
ROW_STATISTICS = struct.Struct("=" + _TENSOR * 5 + _START + "q" + _TENSOR * 2)
SELECTION = struct.Struct("=" + "Qq" * 3)
POOL_ARGUMENTS = struct.Struct("=2i 2Q 2q 2Q")


def tensor_fields(tensor: Tensor | None) -> tuple[int, ...]:
    """A uwaga_tensor of four dimensions, (batch, head, row, column), or of packed tokens, (row, head, column)."""
    return _NO_TENSOR if tensor is None else (tensor.data_ptr(), *_steps(tensor.stride()), DTYPES[tensor.dtype], 0)


def _steps(strides: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of (batch, head, row, column)."""
    if len(strides) == 4:
        return strides
    row, head, column = strides
    return 0, head, row, column


def row_fields(tensor: Tensor | None) -> tuple[int, ...]:
    """A uwaga_tensor of one number per (batch, head, row), or per (row, head) of packed tokens."""
    return _NO_TENSOR if tensor is None else (tensor.data_ptr(), *_row_steps(tensor.stride()), 0, 0)


def _row_steps(strides: tuple[int, ...]) -> tuple[int, ...]:
    if len(strides) == 3:
        return *strides, 1
    row, head = strides
    return 0, head, row, 1


def entry_fields(tensor: Tensor | None) -> tuple[int, ...]:
    """A uwaga_tensor of four dimensions whose dtype goes without saying."""
    return _NO_TENSOR if tensor is None else (tensor.data_ptr(), *tensor.stride(), 0, 0)


def _pointer(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


class Rule(NamedTuple):
    """How a problem turns products into weights: all of it but sizes, operands, threads and dropout."""

    packed: bytes
    mask: ctypes.Array | None  # memory that `packed` points into, beside the call's own tensors


def rule(call: Call) -> Rule:
    options, relative = call.options, call.relative
    mask = mask_operations(options.mask_program, call.mask_tensors)
    packed = _RULE.pack(
        0 if mask is None else ctypes.addressof(mask),
        len(options.mask_program) // RECORD,
        options.scale,
        options.softcap,
        _pointer(relative),
        0 if relative is None else relative.shape[1],
        options.relative_zero,
        *start_fields(options.relative_start_mode, options.relative_start, call.relative_starts),
        *_broadcast_fields(call.bias),
        _pointer(call.sinks),
        options.softmax,
    )
    return Rule(packed, mask)


def problem(call: Call) -> tuple[bytes, ctypes.Array | None]:
    """A uwaga_problem, and the memory that it points into beside the call's own tensors."""
    query, key, value, options = call.query, call.key, call.value, call.options
    heads, widths = (query.shape[1], key.shape[1]), (query.shape[3], value.shape[3])
    found = rule(call)
    frame = Frame.of(
        found,
        (call.sequences, *heads, options.max_queries, options.max_keys, *widths),
        (call.query_offsets, call.key_offsets),
        DTYPES[query.dtype],
        (query.stride(), key.stride(), value.stride()),
    )
    seed = 0 if call.seed is None else int(call.seed)
    return frame.problem(query, key, value, options.dropout, seed), found.mask


class Frame(NamedTuple):
    """A uwaga_problem but for the addresses of its operands, its threads and its dropout."""

    sizes: bytes
    query: bytes
    key: bytes
    value: bytes
    rule: bytes

    @staticmethod
    def of(
        rule: Rule,
        sizes: tuple[int, ...],
        offsets: tuple[Tensor | None, Tensor | None],
        dtype: int,
        strides: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]],
    ) -> "Frame":
        """`sizes` are sequences, H, G, Q, K, D and E, where Q and K of a ragged batch are the longest; `strides` those of
        query, key and value."""
        places = [_PLACE.pack(*_steps(x), dtype, 0) for x in strides]
        return Frame(_SIZES.pack(*sizes, *map(_pointer, offsets)), *places, rule.packed)

    def problem(self, query: Tensor, key: Tensor, value: Tensor, dropout: float, seed: int) -> bytes:
        return _PROBLEM.pack(
            self.sizes,
            query.data_ptr(),
            self.query,
            key.data_ptr(),
            self.key,
            value.data_ptr(),
            self.value,
            self.rule,
            native.threads(),
            dropout,
            0,
            seed & 0xFFFFFFFFFFFFFFFF,
            0,
            0,
        )


class ResultFrame(NamedTuple):
    """A uwaga_forward_result but for the addresses of output and lse."""

    output: bytes
    lse: bytes

    @staticmethod
    def of(dtype: int, output: tuple[int, ...], lse: tuple[int, ...]) -> "ResultFrame":
        """From the strides of both."""
        return ResultFrame(_PLACE.pack(*_steps(output), dtype, 0), _PLACE.pack(*_row_steps(lse), 0, 0))

    def result(self, output: Tensor, lse: Tensor | None) -> bytes:
        return _PLACED_RESULT.pack(output.data_ptr(), self.output, 0 if lse is None else lse.data_ptr(), self.lse)


def start_fields(mode: int, value: int, starts: Tensor | None) -> tuple[int, int, int, int]:
    """A uwaga_start."""
    return mode, 0, value, _pointer(starts)


def mask_operations(program: tuple[int, ...], tensors: tuple[Tensor, ...]) -> ctypes.Array | None:
    """An array of uwaga_mask_operation; None where there are none."""
    if not program:
        return None
    return _packed_operations(program, tensors) if tensors else _operations_alone(program)


@lru_cache(maxsize=64)
def _operations_alone(program: tuple[int, ...]) -> ctypes.Array:
    """Of a mask without tensors, such as a causal one: the same for every call, and only read."""
    return _packed_operations(program, ())


def _packed_operations(program: tuple[int, ...], tensors: tuple[Tensor, ...]) -> ctypes.Array:
    records = (program[at : at + RECORD] for at in range(0, len(program), RECORD))
    packed = b"".join(_operation(*record, tensors) for record in records)
    return ctypes.create_string_buffer(packed, len(packed))


def _operation(
    operation: int, mode: int, start: int, low: int, high: int, index: int, tensors: tuple[Tensor, ...]
) -> bytes:
    band = strides = (0, 0, 0, 0)
    ids = query_ids = id_batch = query_batch = bits = 0
    if operation == BAND:
        band = start_fields(mode, start, tensors[index] if mode == START_PER_ROW else None)
    elif operation == LENGTHS:
        ids = tensors[index].data_ptr()
    elif operation == DOCUMENTS:
        ids, id_batch = tensors[index].data_ptr(), _batch_stride(tensors[index])
        if start != -1:
            query_ids, query_batch = tensors[start].data_ptr(), _batch_stride(tensors[start])
    elif operation == DENSE:
        bits, strides = tensors[index].data_ptr(), _broadcast_strides(tensors[index])
    return _OPERATION.pack(operation, 0, *band, low, high, ids, query_ids, id_batch, query_batch, bits, *strides)


def _broadcast_strides(tensor: Tensor) -> tuple[int, ...]:
    """Strides with zero for dimensions of one, which stand for every index."""
    return tuple(0 if size == 1 else step for size, step in zip(tensor.shape, tensor.stride(), strict=True))


def _batch_stride(tensor: Tensor) -> int:
    """Of ids: (B, K), (1, K), or packed (N,)."""
    return 0 if tensor.dim() == 1 else _broadcast_strides(tensor)[0]


def _broadcast_fields(tensor: Tensor | None) -> tuple[int, ...]:
    """A uwaga_tensor that broadcasts to (B, H, Q, K)."""
    if tensor is None:
        return _NO_TENSOR
    return tensor.data_ptr(), *_broadcast_strides(tensor), DTYPES[tensor.dtype], 0
