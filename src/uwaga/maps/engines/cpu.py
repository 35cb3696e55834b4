"""The native kernels: a call and its arguments are packed as C structs and passed to the library.

Letters as in maps/spec.py.
"""

import ctypes
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from uwaga._base.tracing import has_tangent, is_plain_tensor, is_tracing, is_transformed
from uwaga.maps.spec import Normalizer, RowStatistics, RowStatisticsRequest, Selection
from uwaga.ops.attention.call import Call, new_output
from uwaga.ops.attention.engines import cpu
from uwaga.ops.attention.native_structs import (
    FORWARD_RESULT,
    INTEGERS,
    MAX_OPERATIONS,
    POOL_ARGUMENTS,
    ROW_STATISTICS,
    SELECTION,
    SOFTMAX,
    TENSOR,
    entry_fields,
    mask_operations,
    numbers_fields,
    row_fields,
    run,
    start_fields,
    tensor_fields,
)
from uwaga.ops.mask_program import START_LAST, MaskProgram

_POOLING = {"sum": 0, "max": 1}  # UWAGA_POOL_MASS, UWAGA_POOL_MAX
_is_wrapped = torch._C._functorch.is_functorch_wrapped_tensor


def refusal(call: Call) -> str | None:
    """Why this engine cannot serve the call, or None."""
    if is_transformed() or has_tangent(*call.operands):
        return "it supports neither torch.func nor forward-mode derivatives"
    if is_tracing():
        return "tracers cannot record its kernels"
    if not all(map(_has_memory, call.tensors)):
        return "it reads memory, and not every tensor is a plain one with memory"
    # A map has a value of width 0: the key stands in for it.
    return cpu.refusal(call if call.value.shape[3] else replace(call, value=call.key))


def rows(call: Call, request: RowStatisticsRequest) -> RowStatistics:
    """Statistics of the rows, and the output where it is wanted, in one pass."""
    _check()
    selection, alive = _selection(request.selection)
    rows = new_rows(call, request)
    statistics = packed_statistics(rows, request)
    run("uwaga_rows", call, FORWARD_RESULT.pack(*tensor_fields(rows.output), *row_fields(None)), statistics, selection)
    del alive
    return rows


def packed_statistics(rows: RowStatistics, request: RowStatisticsRequest) -> bytes:
    """A struct uwaga_row_statistics that points into the results."""
    return ROW_STATISTICS.pack(
        *row_fields(rows.normalizer.maximum),
        *row_fields(rows.normalizer.sum),
        *row_fields(rows.entropy),
        *row_fields(rows.squares),
        *row_fields(rows.distance),
        *start_fields(*(request.distance or (START_LAST, 0, None))),
        request.top,
        *entry_fields(rows.top_weights),
        *entry_fields(rows.top_positions),
    )


def mass(call: Call, normalizer: Normalizer, program: MaskProgram, tensors: tuple[Tensor, ...]) -> Tensor:
    """(B, H, Q): the weight on the keys that a second mask shows too."""
    _check(*tensors)
    out = _empty(*call.query.shape[:3])
    run("uwaga_mass", call, softmax(normalizer), *second_mask(program, tensors), TENSOR.pack(*row_fields(out)))
    return out


def second_mask(program: MaskProgram, tensors: tuple[Tensor, ...]) -> tuple[ctypes.Array[Any] | None, int]:
    """The operations of a mask, and how many there are. Raises ValueError: more than the library takes."""
    if len(program) > MAX_OPERATIONS:
        raise ValueError(f"AttentionMap: a mask has more than {MAX_OPERATIONS} parts")
    return mask_operations(program, tensors), len(program)


def received(call: Call, normalizer: Normalizer, row_weights: Tensor | None) -> Tensor:
    """(B, H, K): sum_i w_i a_ij."""
    _check(row_weights)
    out = _empty(*call.query.shape[:2], call.key.shape[2])
    weights = TENSOR.pack(*row_fields(row_weights))
    run("uwaga_received", call, softmax(normalizer), weights, TENSOR.pack(*row_fields(out)))
    return out


def diagonal_sums(call: Call, normalizer: Normalizer) -> Tensor:
    """(B, H, Q+K-1) of a dense call."""
    _check()
    batch, heads, queries, _ = call.query.shape
    out = _empty(batch, heads, max(queries + call.key.shape[2] - 1, 0))
    run("uwaga_diagonal_sums", call, softmax(normalizer), TENSOR.pack(*row_fields(out)))
    return out


def pool(
    call: Call, normalizer: Normalizer, pooling: str, query_edges: Tensor, key_edges: Tensor
) -> tuple[Tensor, Tensor | None]:
    """Cells (S, H, rows, cols), and for "max" the positions of the largest weights (S, H, rows, cols, 2)."""
    _check(query_edges, key_edges)
    query_edges, key_edges = query_edges.contiguous(), key_edges.contiguous()
    sizes = (call.sequences, call.query.shape[1], query_edges.shape[1] - 1, key_edges.shape[1] - 1)
    cells = _empty(*sizes)
    positions = _empty(*sizes, 2, dtype=torch.int64) if pooling == "max" else None
    arguments = packed_pooling(pooling, query_edges, key_edges, cells, positions)
    run("uwaga_pool", call, softmax(normalizer), arguments)
    return cells, positions


def packed_pooling(
    pooling: str, query_edges: Tensor, key_edges: Tensor, cells: Tensor | None, positions: Tensor | None
) -> bytes:
    """A struct uwaga_pool_args that points into contiguous edges and results."""
    return POOL_ARGUMENTS.pack(
        _POOLING[pooling],
        0,
        *numbers_fields(query_edges),
        *numbers_fields(key_edges),
        query_edges.shape[1] - 1,
        key_edges.shape[1] - 1,
        *numbers_fields(cells, torch.float32),
        *numbers_fields(positions),
    )


def weights(call: Call, normalizer: Normalizer, selection: Selection, keys: Tensor) -> Tensor:
    """(sequences, heads, queries, keys) of the selection."""
    _check(selection.queries, keys)
    chosen, alive = _selection(selection)
    keys = keys.contiguous()
    sizes = (len(selection.sequences), len(selection.heads), selection.queries.shape[0], keys.shape[0])
    out = _empty(*sizes).zero_()  # the kernel does not write entries that the mask hides
    run(
        "uwaga_weights",
        call,
        softmax(normalizer),
        chosen,
        INTEGERS.pack(*numbers_fields(keys)),
        TENSOR.pack(*entry_fields(out)),
    )
    del alive
    return out


def _check(*tensors: Tensor | None) -> None:
    """The conditions of `refusal` again: tracers and transforms may have become active since the map was made.

    Raises:
        RuntimeError: under a tracer, which would record uninitialised results.
        TypeError: an argument is not a plain tensor with memory.
    """
    if is_tracing():
        raise RuntimeError(
            "AttentionMap: tracers cannot record the engine 'cpu', which serves this map; make the map inside the "
            "traced function, or with impl='reference'"
        )
    if not all(map(_has_memory, tensors)):
        raise TypeError(
            "AttentionMap: the engine 'cpu', which serves this map, takes plain tensors only; impl='reference' takes all"
        )


def _empty(*sizes: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Uninitialised, on the CPU whatever torch.set_default_device says."""
    return torch.empty(sizes, dtype=dtype, device="cpu")


def new_rows(call: Call, request: RowStatisticsRequest) -> RowStatistics:
    """Uninitialised results."""
    sizes = call.query.shape[:3]
    top = (*sizes, request.top)
    return RowStatistics(
        normalizer=Normalizer(maximum=_empty(*sizes), sum=_empty(*sizes)),
        output=new_output(call) if request.output else None,
        entropy=_empty(*sizes) if request.entropy else None,
        squares=_empty(*sizes) if request.squares else None,
        distance=_empty(*sizes) if request.distance is not None else None,
        top_weights=_empty(*top) if request.top else None,
        top_positions=_empty(*top, dtype=torch.int64) if request.top else None,
    )


def softmax(normalizer: Normalizer) -> bytes:
    return SOFTMAX.pack(*row_fields(normalizer.maximum), *row_fields(normalizer.sum))


def _selection(selection: Selection | None) -> tuple[bytes | None, tuple[Tensor, ...]]:
    """A struct uwaga_selection, and the tensors that it points into."""
    if selection is None:
        return None, ()
    indices = (torch.tensor(numbers, dtype=torch.int64, device="cpu") for numbers in selection[:2])
    numbers = (*indices, selection.queries.long().contiguous())
    return SELECTION.pack(*(field for x in numbers for field in numbers_fields(x))), numbers


def _has_memory(tensor: Tensor | None) -> bool:
    """Whether a kernel can read the memory of the tensor; None counts as readable."""
    if tensor is None or not is_plain_tensor(tensor) or torch.compiler.is_dynamo_compiling():
        return is_plain_tensor(tensor)
    # PyTorch's zero tensors, which occur as derivatives, have no memory.
    return not tensor._is_zerotensor() and not (is_transformed() and _is_wrapped(tensor))
