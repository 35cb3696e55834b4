"""The weights and their statistics as they are defined, in plain PyTorch: any dtype, any device, O(rows * K) memory.

maps/definition.py has the dense calls; here are the sequences of a ragged one. Letters as in spec.py.
"""

from dataclasses import replace

import torch
from torch import Tensor

from uwaga.maps import definition
from uwaga.maps.definition import weights as weights
from uwaga.maps.spec import Normalizer, Rows, RowsWanted
from uwaga.maps.surroundings import need_lengths
from uwaga.ops.attention.call import START_VALUE, Call
from uwaga.ops.attention.sequences import split


def refusal(call: Call) -> None:
    """It serves every call."""
    return


def rows(call: Call, wanted: RowsWanted) -> Rows:
    if call.query_offsets is None:
        return definition.rows(call, wanted)
    need_lengths()
    parts = [definition.rows(part, _of_sequence(wanted, at)) for at, part in enumerate(split(call))]
    return definition.join([definition.rows(*_nothing(call, wanted)), *parts])


def mass(call: Call, normalizer: Normalizer, program: tuple[int, ...], tensors: tuple[Tensor, ...]) -> Tensor:
    if call.query_offsets is None:
        return definition.mass(call, normalizer, program, tensors)
    second = replace(call, mask_tensors=tensors, options=replace(call.options, mask_program=program))
    parts = zip(_split(call, normalizer), split(second), strict=True)
    found = [definition.mass(part, known, program, other.mask_tensors) for (part, known), other in parts]
    return torch.cat([normalizer.sum[:, :, :0], *found], dim=2)


def received(call: Call, normalizer: Normalizer, row_weights: Tensor | None) -> Tensor:
    if call.query_offsets is None:
        return definition.received(call, normalizer, row_weights)
    given = [None] * call.sequences
    if row_weights is not None:
        given = row_weights.split(call.query_offsets.diff().tolist(), dim=2)
    found = [definition.received(*part, weights) for part, weights in zip(_split(call, normalizer), given, strict=True)]
    return torch.cat([normalizer.sum[:, :, :0], *found], dim=2)


def pool(
    call: Call, normalizer: Normalizer, how: str, query_edges: Tensor, key_edges: Tensor
) -> tuple[Tensor, Tensor | None]:
    if call.query_offsets is None:
        return definition.pool(call, normalizer, how, query_edges, key_edges)
    parts = enumerate(_split(call, normalizer))
    found = [definition.pool(*part, how, query_edges[at, None], key_edges[at, None]) for at, part in parts]
    sizes = (call.query.shape[1], query_edges.shape[1] - 1, key_edges.shape[1] - 1)
    cells = torch.cat([normalizer.sum.new_zeros((0, *sizes)), *(cells for cells, _ in found)])
    if how == "mass":
        return cells, None
    return cells, torch.cat([query_edges.new_zeros((0, *sizes, 2)), *(positions for _, positions in found)])


def _of_sequence(wanted: RowsWanted, at: int) -> RowsWanted:
    if wanted.distance is None or wanted.distance[2] is None:
        return wanted
    mode, value, starts = wanted.distance
    return replace(wanted, distance=(mode, value, starts[at : at + 1]))


def _nothing(call: Call, wanted: RowsWanted) -> tuple[Call, RowsWanted]:
    """A sequence of no queries and no keys: what a batch of no sequences has its shapes and dtypes from."""
    plain = replace(call.options, mask_program=())
    call = replace(call, query=call.query[:, :, :0], key=call.key[:, :, :0], value=call.value[:, :, :0], options=plain)
    call = replace(call, relative=None, bias=None, query_offsets=None, key_offsets=None, mask_tensors=())
    return call, wanted if wanted.distance is None else replace(wanted, distance=(START_VALUE, 0, None))


def _split(call: Call, normalizer: Normalizer) -> list[tuple[Call, Normalizer]]:
    """The sequences of a ragged call, each with its part of the normalizer."""
    need_lengths()
    lengths = call.query_offsets.diff().tolist()
    known = zip(*(x.split(lengths, dim=2) for x in normalizer), strict=True)
    return [(part, Normalizer(*x)) for part, x in zip(split(call), known, strict=True)]
