"""Parts of a call as dense calls of their own: some sequences, heads and tokens. A ragged call as one per sequence, for engines without
ragged kernels.

Letters as in call.py.
"""

from dataclasses import replace
from itertools import pairwise

import torch
from torch import Tensor

from uwaga._base.tracing import is_readable
from uwaga.ops.attention.call import Call, compute_dtype
from uwaga.ops.mask_program import CallPart, select


def split(call: Call) -> list[Call]:
    """Return the sequences of a ragged call, each a dense call with B = 1 over views of the packed tokens.

    Raises:
        ValueError: offsets that do not rise from 0 to the number of packed tokens, such as ones changed after the call was made.
    """
    queries = _numbers("query", call.query_offsets, call.query.shape[2])
    keys = _numbers("key", call.key_offsets, call.key.shape[2])
    parts = []
    for row, (of_row, keys_of_row) in enumerate(zip(pairwise(queries), pairwise(keys), strict=True)):
        q, k = slice(*of_row), slice(*keys_of_row)
        part = CallPart(slice(row, row + 1), None, q, k)
        parts.append(part_of(call, part, call.query[:, :, q], call.key[:, :, k], call.value[:, :, k]))
    return parts


def _numbers(name: str, offsets: Tensor | None, tokens: int) -> list[int]:
    assert offsets is not None
    numbers = offsets.tolist()
    if is_readable(offsets) and not (numbers[0] == 0 and numbers[-1] == tokens and numbers == sorted(numbers)):
        raise ValueError(
            f"attention: {name} offsets must rise from 0 to {tokens}, the number of packed rows, not {numbers}"
        )
    return numbers


def join(call: Call, outputs: list[Tensor], lses: list[Tensor] | None) -> tuple[Tensor, Tensor | None]:
    """Return the packed output and lse of a ragged call from those of its sequences."""
    # An empty part of the query, so that a batch without sequences still has a dtype and a gradient.
    none_1H0 = call.query[:, :, :0, 0]
    none_10HE = none_1H0[..., None].expand(-1, -1, -1, call.value.shape[3]).transpose(1, 2)
    output = torch.cat([none_10HE, *(out.transpose(1, 2) for out in outputs)], dim=1).transpose(1, 2)
    if lses is None:
        return output, None
    return output, torch.cat([none_1H0.to(compute_dtype(call.query.dtype)), *lses], dim=2)


def part_of(call: Call, part: CallPart, query: Tensor, key: Tensor, value: Tensor) -> Call:
    """Return the dense call of these operands, with mask, biases and dropout of a part of a call: of a slice of its sequences, and of heads that follow
    one another."""
    assert isinstance(part.sequences, slice)
    heads, starts = part.heads, call.relative_starts
    # The counter of a weight starts at seed + (b * H + h): the first sequence and head become 0 with a larger seed.
    counted = part.sequences.start * call.query.shape[1] + (0 if heads is None else int(heads[0]))
    return replace(
        call,
        query=query,
        key=key,
        value=value,
        relative=call.relative if heads is None or call.relative is None else call.relative[heads],
        bias=None if call.bias is None else part.of_scores(call.bias),
        sinks=call.sinks if heads is None or call.sinks is None else call.sinks[heads],
        query_offsets=None,
        key_offsets=None,
        relative_starts=None if starts is None else starts[part.sequences],
        seed=None if call.seed is None else call.seed + counted,
        mask_tensors=select(call.options.mask_program, call.mask_tensors, part),
        options=replace(call.options, max_queries=query.shape[2], max_keys=key.shape[2]),
    )
