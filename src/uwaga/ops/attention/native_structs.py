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

_NO_TENSOR = (0, 0, 0, 0, 0, 0, 0)
_TENSOR = "Q4q2i"
_START = "2iqQ"
_OPERATION = struct.Struct("=2i" + _START + "2q 2Q 2q Q 4q")
_RULE = struct.Struct("=Qq 2f Q2q" + _START + _TENSOR + "Qi")
_PROBLEM = struct.Struct("=7q 2Q" + _TENSOR * 3 + f"{_RULE.size}s i fI Q Qq")
TENSOR = struct.Struct("=" + _TENSOR)
FORWARD_RESULT = struct.Struct("=" + _TENSOR * 2)
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
    if tensor is None:
        return _NO_TENSOR
    strides = tensor.stride()
    if len(strides) == 2:
        row, head = strides
        strides = 0, head, row
    return tensor.data_ptr(), *strides, 1, 0, 0


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
    sizes = (options.max_queries, options.max_keys, query.shape[3], value.shape[3])
    heads = (query.shape[1], key.shape[1])
    offsets = (call.query_offsets, call.key_offsets)
    found = rule(call)
    seed = 0 if call.seed is None else int(call.seed)
    packed = pack_problem(found, (call.sequences, *heads, *sizes), offsets, query, key, value, options.dropout, seed)
    return packed, found.mask


def pack_problem(
    rule: Rule,
    sizes: tuple[int, ...],
    offsets: tuple[Tensor | None, Tensor | None],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout: float,
    seed: int,
) -> bytes:
    """A uwaga_problem. `sizes` are sequences, H, G, Q, K, D and E; of a ragged batch Q and K are the longest."""
    query_offsets, key_offsets = offsets
    query_steps, key_steps, value_steps = query.stride(), key.stride(), value.stride()
    if query_offsets is not None:
        query_steps, key_steps, value_steps = _steps(query_steps), _steps(key_steps), _steps(value_steps)
    dtype = DTYPES[query.dtype]
    return _PROBLEM.pack(
        *sizes,
        0 if query_offsets is None else query_offsets.data_ptr(),
        0 if key_offsets is None else key_offsets.data_ptr(),
        query.data_ptr(),
        *query_steps,
        dtype,
        0,
        key.data_ptr(),
        *key_steps,
        dtype,
        0,
        value.data_ptr(),
        *value_steps,
        dtype,
        0,
        rule.packed,
        native.threads(),
        dropout,
        0,
        seed & 0xFFFFFFFFFFFFFFFF,
        0,
        0,
    )


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
