"""Packs a Call into the C structs of native/include/uwaga/c_api.h.

Nothing is copied: a tensor is passed as a pointer, strides and the number of bytes from there to the end of its storage,
with which the library checks that it reads and writes inside it. Structs are packed with `struct` rather than ctypes fields, which would cost
more than a small call's arithmetic; their layouts are compared with the library's when it is loaded (_base/native.py).
"""

import ctypes
import math
import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from uwaga._base import native
from uwaga._base.native_layout import codes, struct_of
from uwaga.ops.attention.call import Call
from uwaga.ops.mask_program import Band, Dense, Lengths, MaskOperation, MaskProgram, SameDocument

ShapeAndStrides = tuple[tuple[int, ...], tuple[int, ...]]

DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}  # UWAGA_FLOAT32, ...
MAX_OPERATIONS = 32  # UWAGA_MASK_MAX_OPERATIONS
MAX_WIDTH = 65536  # as native/drivers/checked_problem.cc has it

_NO_TENSOR = (0, 0, 0, 0, 0, 0, 0, 0)
_NONE = (0, 0)  # a uwaga_integers or uwaga_floats
_NO_PAGES = (*_NONE, 0, 0, 0)  # the library could read keys in the pages of a cache
_OPERATION = struct_of("uwaga_mask_operation")
# A uwaga_problem in parts: what is the same for many calls is packed once.
_SIZES = struct_of("uwaga_problem", "sequences", "key_offsets")
_TENSOR_STRIDES = struct_of("uwaga_tensor", "batch")  # a uwaga_tensor without its address and bytes
_RULE = struct_of("uwaga_problem", "mask", "normalize")
_PROBLEM = struct.Struct(
    f"={_SIZES.size}s" + f"Qq{_TENSOR_STRIDES.size}s" * 3 + f"{_RULE.size}s" + codes("uwaga_problem", "threads")
)
TENSOR = struct_of("uwaga_tensor")
INTEGERS = struct_of("uwaga_integers")
FORWARD_RESULT = struct_of("uwaga_forward_result")
_TENSOR_AFTER_ADDRESS = struct_of("uwaga_tensor", "bytes")  # a uwaga_tensor without its address
_RESULT_IN_PARTS = struct.Struct("=" + f"Q{_TENSOR_AFTER_ADDRESS.size}s" * 2)
_BACKWARD_ARGUMENTS = struct_of("uwaga_backward_args")
SOFTMAX = struct_of("uwaga_softmax")
ROW_STATISTICS = struct_of("uwaga_row_statistics")
SELECTION = struct_of("uwaga_selection")
POOL_ARGUMENTS = struct_of("uwaga_pool_args")


def _bytes(tensor: Tensor) -> int:
    """Return the bytes from a tensor's first element to the end of its storage: too few for the tensor if the storage was resized."""
    return int(tensor.untyped_storage().nbytes()) - int(tensor.storage_offset()) * tensor.element_size()


def _address(tensor: Tensor) -> int:
    """Return the address of a tensor. Raises ValueError if it has elements and no memory, since the library reads 0 as an absent operand."""
    address = tensor.data_ptr()
    if not address and tensor.numel():
        raise ValueError(f"attention: a tensor of {tuple(tensor.shape)} has no memory: its storage is empty")
    return address


def _number(dtype: torch.dtype) -> int:
    """Return the number of a dtype in C."""
    number = DTYPES.get(dtype)
    if number is None:
        raise ValueError(f"attention: the native kernels read float32, bfloat16 and float16, not {dtype}")
    return number


def tensor_fields(tensor: Tensor | None) -> tuple[int, ...]:
    """Return a uwaga_tensor of four dimensions, (batch, head, row, column), or of packed tokens, (row, head, column)."""
    if tensor is None:
        return _NO_TENSOR
    return _address(tensor), _bytes(tensor), *_steps(tensor.stride()), _number(tensor.dtype), 0


def _steps(strides: tuple[int, ...]) -> tuple[int, ...]:
    """Return strides of (batch, head, row, column)."""
    if len(strides) == 4:
        return strides
    row, head, column = strides
    return 0, head, row, column


def row_fields(tensor: Tensor | None) -> tuple[int, ...]:
    """Return a uwaga_tensor of one number per (batch, head, row), or per (row, head) of packed tokens."""
    if tensor is None:
        return _NO_TENSOR
    if tensor.dtype != torch.float32:
        raise ValueError(f"attention: a number per row must be float32 here, not {tensor.dtype}")
    return _address(tensor), _bytes(tensor), *_row_steps(tensor.stride()), 0, 0


def _row_steps(strides: tuple[int, ...]) -> tuple[int, ...]:
    if len(strides) == 3:
        return *strides, 1
    row, head = strides
    return 0, head, row, 1


def entry_fields(tensor: Tensor | None) -> tuple[int, ...]:
    """Return a uwaga_tensor of four dimensions whose dtype the library knows."""
    return _NO_TENSOR if tensor is None else (tensor.data_ptr(), _bytes(tensor), *tensor.stride(), 0, 0)


def numbers_fields(tensor: Tensor | None, dtype: torch.dtype = torch.int64) -> tuple[int, int]:
    """Return a uwaga_integers or uwaga_floats: address and how many there are.

    Raises:
        ValueError: the tensor is not contiguous, has another dtype, or its storage was resized.
    """
    if tensor is None:
        return _NONE
    if tensor.dtype != dtype or not tensor.is_contiguous():
        name = str(dtype).removeprefix("torch.")
        raise ValueError(f"attention: a tensor of {tuple(tensor.shape)} {tensor.dtype} must be contiguous {name} here")
    count = tensor.numel()
    if count and count * tensor.element_size() > _bytes(tensor):
        raise ValueError(
            f"attention: a tensor of {tuple(tensor.shape)} needs {count * tensor.element_size()} bytes, and its storage "
            f"has {max(_bytes(tensor), 0)}"
        )
    return _address(tensor), count


class PackedOptions(NamedTuple):
    """How a problem turns products into weights: all of it but sizes, operands, threads and dropout."""

    packed: bytes
    mask: ctypes.Array[ctypes.c_char] | None  # memory that `packed` points into, besides the call's own tensors


def packed_options(call: Call) -> PackedOptions:
    options, relative = call.options, call.relative
    mask = mask_operations(options.mask_program, call.mask_tensors)
    packed = _RULE.pack(
        0 if mask is None else ctypes.addressof(mask),
        len(options.mask_program),
        options.scale,
        options.softcap,
        *numbers_fields(relative, torch.float32),
        0 if relative is None else relative.shape[1],
        options.relative_zero,
        *start_fields(options.relative_start_mode, options.relative_start, call.relative_starts),
        *_broadcast_fields(call.bias),
        *numbers_fields(call.sinks, torch.float32),
        options.softmax,
    )
    return PackedOptions(packed, mask)


def problem(call: Call) -> tuple[bytes, ctypes.Array[ctypes.c_char] | None]:
    """Return a uwaga_problem, and the memory that it points into besides the call's own tensors."""
    query, key, value, options = call.query, call.key, call.value, call.options
    _check_sizes(call)
    heads, widths = (query.shape[1], key.shape[1]), (query.shape[3], value.shape[3])
    result = packed_options(call)
    template = ProblemTemplate.of(
        result,
        (call.sequences, *heads, options.max_queries, options.max_keys, *widths),
        (query.shape[2], key.shape[2]),
        (call.query_offsets, call.key_offsets),
        query.dtype,
        (query.stride(), key.stride(), value.stride()),
    )
    template.check_dtypes(key, value)
    seed = 0 if call.seed is None else int(call.seed)
    return template.pack(query, key, value, options.dropout, seed, options.dropout_origin), result.mask


def run(name: str, call: Call, *arguments: bytes | int | ctypes.Array[Any] | None) -> None:
    """Call a function of the library, whose first argument is the uwaga_problem of a call.

    Raises:
        ValueError: the library rejects the problem.
        MemoryError: there is no memory for its buffers.
    """
    packed, alive = problem(call)
    native.check(getattr(native.library().functions, name)(packed, *arguments))
    del alive


def _check_sizes(call: Call) -> None:
    """Raise ValueError if the sizes of operands changed after the call was made, by `x.data = y` or a saved-tensor hook."""
    (batch, heads, queries, width), (key_batch, groups, keys, key_width) = call.query.shape, call.key.shape
    is_ragged = call.query_offsets is not None
    fits = (
        call.value.shape[:3] == call.key.shape[:3]
        and (batch, width) == (key_batch, key_width)
        and groups > 0
        and heads % groups == 0
        and (is_ragged or (queries, keys) == (call.options.max_queries, call.options.max_keys))
        and (call.sinks is None or call.sinks.shape == (heads,))
        and (call.relative is None or call.relative.shape[0] == heads)
    )
    if not fits:
        sizes = ", ".join(
            f"{name} {tuple(x.shape)}" for name, x in (("query", call.query), ("key", call.key), ("value", call.value))
        )
        raise ValueError(f"attention: the sizes of the operands changed after the call was made: {sizes}")


class ProblemTemplate(NamedTuple):
    """A uwaga_problem without the addresses of its operands, its threads and its dropout."""

    sizes: bytes
    query: bytes
    key: bytes
    value: bytes
    options: bytes
    dtype: torch.dtype  # of query, key and value
    item: int  # bytes of a number of them

    @staticmethod
    def of(
        options: PackedOptions,
        sizes: tuple[int, ...],
        tokens: tuple[int, int],
        offsets: tuple[Tensor | None, Tensor | None],
        dtype: torch.dtype,
        strides: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]],
    ) -> "ProblemTemplate":
        """Pack what is known before the call.

        `sizes` are sequences, H, G, Q, K, D and E; Q and K of a ragged batch are the longest. `tokens` are its packed rows of query and key,
        and `strides` those of query, key and value."""
        query, key, value = (_TENSOR_STRIDES.pack(*_steps(x), _number(dtype), 0) for x in strides)
        query_offsets, key_offsets = map(numbers_fields, offsets)
        try:
            packed = _SIZES.pack(*sizes, *tokens, *query_offsets, *key_offsets)
        except struct.error as error:  # Ragged.max_length was replaced
            raise ValueError(f"attention: sizes must be integers of 64 bits, not {sizes}") from error
        return ProblemTemplate(packed, query, key, value, options.packed, dtype, dtype.itemsize)

    def check_dtypes(self, *operands: Tensor) -> None:
        """Raise ValueError if one has another dtype than the kernels would read: `x.data = y` can change it between forward and backward."""
        for x in operands:
            if x.dtype != self.dtype:
                raise ValueError(f"attention: an operand was {self.dtype} when the call began, and is {x.dtype}")

    def pack(
        self, query: Tensor, key: Tensor, value: Tensor, dropout: float, seed: int, origin: tuple[int, int] = (0, 0)
    ) -> bytes:
        return _PROBLEM.pack(
            self.sizes,
            query.data_ptr(),
            query.untyped_storage().nbytes() - query.storage_offset() * self.item,  # as _bytes, for a third of its time
            self.query,
            key.data_ptr(),
            key.untyped_storage().nbytes() - key.storage_offset() * self.item,
            self.key,
            value.data_ptr(),
            value.untyped_storage().nbytes() - value.storage_offset() * self.item,
            self.value,
            self.options,
            native.threads(),
            dropout,
            0,
            seed & 0xFFFFFFFFFFFFFFFF,
            *_NONE,
            *origin,
            *_NO_PAGES,
        )


class ResultTemplate(NamedTuple):
    """A uwaga_forward_result without the addresses of output and lse, which the caller allocates with these shapes and strides."""

    output: bytes
    lse: bytes

    @staticmethod
    def of(dtype: torch.dtype, output: ShapeAndStrides, lse: ShapeAndStrides) -> "ResultTemplate":
        """Pack the dtype of the output, and the shapes and strides of both."""
        output_bytes, lse_bytes = math.prod(output[0]) * dtype.itemsize, math.prod(lse[0]) * torch.float32.itemsize
        return ResultTemplate(
            _TENSOR_AFTER_ADDRESS.pack(output_bytes, *_steps(output[1]), DTYPES[dtype], 0),
            _TENSOR_AFTER_ADDRESS.pack(lse_bytes, *_row_steps(lse[1]), 0, 0),
        )

    def pack(self, output: Tensor, lse: Tensor | None) -> bytes:
        return _RESULT_IN_PARTS.pack(output.data_ptr(), self.output, 0 if lse is None else lse.data_ptr(), self.lse)


def run_forward(packed: bytes, result: bytes) -> None:
    """Fill in the uwaga_forward_result of a uwaga_problem. Raises as `run`."""
    native.check(native.library().functions.uwaga_forward(packed, result))


def run_backward(
    packed: bytes,
    output: Tensor,
    lse: Tensor | None,
    grad_output: Tensor,
    grad_lse: Tensor | None,
    *gradients: Tensor | None,
) -> None:
    """Fill in the gradients of a uwaga_problem, those that are not None. Raises as `run`."""
    if grad_output._is_zerotensor():  # PyTorch's zeros without memory
        grad_output = torch.zeros_like(output)
    arguments = backward_arguments(output, lse, grad_output, grad_lse, *gradients)
    native.check(native.library().functions.uwaga_backward(packed, arguments))


def backward_arguments(
    output: Tensor,
    lse: Tensor | None,
    grad_output: Tensor,
    grad_lse: Tensor | None,
    query: Tensor | None,
    key: Tensor | None,
    value: Tensor | None,
    relative: Tensor | None = None,
    bias: Tensor | None = None,
    sinks: Tensor | None = None,
) -> bytes:
    """Return a uwaga_backward_args: which gradients are filled in, and what the backward pass reads besides the problem."""
    return _BACKWARD_ARGUMENTS.pack(
        *tensor_fields(output),
        *tensor_fields(grad_output),
        *row_fields(lse),
        *row_fields(grad_lse),
        *tensor_fields(query),
        *tensor_fields(key),
        *tensor_fields(value),
        *numbers_fields(relative, torch.float32),
        *numbers_fields(sinks, torch.float32),
        *tensor_fields(bias),
    )


def start_fields(mode: int, value: int, starts: Tensor | None) -> tuple[int, ...]:
    """Return a uwaga_start."""
    return mode, 0, value, *numbers_fields(starts)


def mask_operations(program: MaskProgram, tensors: Sequence[Tensor]) -> ctypes.Array[ctypes.c_char] | None:
    """Return an array of uwaga_mask_operation; None where there are none."""
    if not program:
        return None
    return _packed_operations(program, tensors) if tensors else _operations_alone(program)


@lru_cache(maxsize=64)
def _operations_alone(program: MaskProgram) -> ctypes.Array[ctypes.c_char]:
    """Return the operations of a mask without tensors, such as a causal one: shared by all calls, read-only."""
    return _packed_operations(program, ())


def _packed_operations(program: MaskProgram, tensors: Sequence[Tensor]) -> ctypes.Array[ctypes.c_char]:
    packed = b"".join(_operation(operation, tensors) for operation in program)
    return ctypes.create_string_buffer(packed, len(packed))


def _operation(operation: MaskOperation, tensors: Sequence[Tensor]) -> bytes:
    start: tuple[int, ...] = (0, 0, 0, *_NONE)
    strides: tuple[int, ...] = (0, 0, 0, 0)
    ids, query_ids, bits = _NONE, _NONE, _NONE
    low = high = id_batch = query_batch = 0
    if isinstance(operation, Band):
        starts = None if operation.starts is None else tensors[operation.starts]
        start = start_fields(operation.start_mode, operation.start, starts)
        low, high = operation.low, operation.high
    elif isinstance(operation, Lengths):
        ids = numbers_fields(tensors[operation.lengths])
    elif isinstance(operation, SameDocument):
        ids, id_batch = _ids(tensors[operation.ids])
        if operation.query_ids is not None:
            query_ids, query_batch = _ids(tensors[operation.query_ids])
    elif isinstance(operation, Dense):
        dense = tensors[operation.bits]
        bits, strides = (dense.data_ptr(), _bytes(dense)), _broadcast_strides(dense)
    return _OPERATION.pack(
        operation.code, 0, *start, low, high, *ids, *query_ids, id_batch, query_batch, *bits, *strides
    )


def _broadcast_strides(tensor: Tensor) -> tuple[int, ...]:
    """Return strides with zero for dimensions of one, which stand for every index."""
    return tuple(0 if size == 1 else step for size, step in zip(tensor.shape, tensor.stride(), strict=True))


def _ids(tensor: Tensor) -> tuple[tuple[int, int], int]:
    """Return a uwaga_integers of ids (B, K), (1, K), or packed (N,), and the stride of B: the ids of a row are contiguous."""
    if tensor.dim() == 1 or (tensor.shape[-1] > 1 and tensor.stride(-1) != 1):
        return numbers_fields(tensor), 0
    return (tensor.data_ptr(), _bytes(tensor) // 8), _broadcast_strides(tensor)[0]


def _broadcast_fields(tensor: Tensor | None) -> tuple[int, ...]:
    """Return a uwaga_tensor that broadcasts to (B, H, Q, K)."""
    if tensor is None:
        return _NO_TENSOR
    return _address(tensor), _bytes(tensor), *_broadcast_strides(tensor), _number(tensor.dtype), 0
