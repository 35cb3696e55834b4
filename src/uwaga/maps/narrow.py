"""Some sequences and heads of a dense call, as a dense call.

Letters: B sequences, H query heads.
"""

from dataclasses import replace

import torch
from torch import Tensor

from uwaga.ops.attention.call import START_PER_ROW, Call
from uwaga.ops.mask_program import BAND, DENSE, DOCUMENTS, LENGTHS, RECORD, listed


def narrow(call: Call, sequences: tuple[int, ...], heads: tuple[int, ...]) -> Call:
    """The call of these sequences and query heads alone, with a key head for each query head."""
    batch, all_heads = call.query.shape[:2]
    if len(sequences) == batch and len(heads) == all_heads:
        return call
    b, h = (torch.tensor(x, dtype=torch.int64, device=call.query.device) for x in (sequences, heads))
    groups = h // call.heads_per_key_head
    return replace(
        call,
        query=_taken(call.query, b, h),
        key=_taken(call.key, b, groups),
        value=_taken(call.value, b, groups),
        relative=None if call.relative is None else call.relative[h],
        bias=None if call.bias is None else _both(call.bias, b, h),
        sinks=None if call.sinks is None else call.sinks[h],
        relative_starts=None if call.relative_starts is None else call.relative_starts[b],
        mask_tensors=_mask_tensors(call, b, h),
    )


def _taken(x: Tensor, b: Tensor, h: Tensor) -> Tensor:
    """x[b][:, h]; a view where each of them lists neighbours, since keys are long."""
    for dimension, listed_at in enumerate((b, h)):
        first, count = int(listed_at[0]) if len(listed_at) else 0, len(listed_at)
        if bool((listed_at.diff() == 1).all()):
            x = x.narrow(dimension, first, count)
        else:
            x = x.index_select(dimension, listed_at)
    return x


def _both(tensor: Tensor, b: Tensor, h: Tensor) -> Tensor:
    return listed(listed(tensor, 0, b), 1, h)


def _mask_tensors(call: Call, b: Tensor, h: Tensor) -> tuple[Tensor, ...]:
    tensors, program = list(call.mask_tensors), call.options.mask_program
    for at in range(0, len(program), RECORD):
        operation, mode, value, _, _, index = program[at : at + RECORD]
        if operation == LENGTHS or (operation == BAND and mode == START_PER_ROW):
            tensors[index] = tensors[index][b]
        elif operation == DOCUMENTS:
            tensors[index] = listed(tensors[index], 0, b)
            if value != -1:
                tensors[value] = listed(tensors[value], 0, b)
        elif operation == DENSE:
            tensors[index] = _both(tensors[index], b, h)
    return tuple(tensors)
