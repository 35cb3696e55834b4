"""Rows of what passes have kept, and texts put together of them.

Letters: R rows, H query heads, G key/value heads, Q queries, K keys, D query/key width, T tokens, N packed tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from uwaga.maps.recorded.lineage import Piece
from uwaga.ops.mask_program import Start
from uwaga.ops.ragged import Operand, Ragged


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """Where the queries of one pass of self-attention stand: per row, keys before the first of them, and how many."""

    starts: list[int]
    queries: list[int]

    @staticmethod
    def of(query: Operand, key: Operand, start: Start) -> "Pass":
        """start: what the mask says; None: the last query meets the last key."""
        queries, keys = lengths(query), lengths(key)
        if isinstance(start, Tensor):
            starts = start.broadcast_to(len(queries)).tolist()
        elif start is not None:
            starts = [start] * len(queries)
        else:
            starts = [max(k - q, 0) for q, k in zip(queries, keys, strict=True)]
        return Pass(starts=starts, queries=queries)


def lengths(x: Operand) -> list[int]:
    """Tokens per row."""
    return x.lengths.tolist() if isinstance(x, Ragged) else [x.shape[2]] * x.shape[0]


def rows(x: Operand) -> list[Tensor]:
    """(T, H, D) each."""
    return x.to_list() if isinstance(x, Ragged) else [row.transpose(0, 1) for row in x]


def new_tokens(key: Operand, this: Pass) -> Operand:
    """The keys of the queries' own tokens."""
    if isinstance(key, Ragged):
        stretches = zip(key.offsets.tolist(), this.starts, this.queries, strict=False)
        device = key.values.device
        places = [torch.arange(at + start, at + start + more, device=device) for at, start, more in stretches]
        total = torch.tensor([0, *this.queries], device=key.offsets.device).cumsum(0)
        return Ragged(key.values[torch.cat(places)], total)
    count = this.queries[0] if this.queries else 0
    if len(set(this.starts)) == 1:
        return key[:, :, this.starts[0] : this.starts[0] + count]
    return torch.stack([row[:, start : start + count] for row, start in zip(key, this.starts, strict=True)])


def join(passes: Sequence[Operand], paths: Sequence[Sequence[Piece]]) -> list[Tensor]:
    """(T, H, D) of each path."""
    listed = [rows(x) for x in passes]
    return [torch.cat([listed[p.step][p.row][: p.tokens] for p in path]) for path in paths]


def join_ids(passes: Sequence[Tensor | None], path: Sequence[Piece], device: torch.device) -> Tensor:
    """(T,) of a path, from ids (R, T) of each pass; None is 1 everywhere."""
    ones = torch.ones((), dtype=torch.int64, device=device)
    parts = [(passes[p.step], p) for p in path]
    return torch.cat([ones.expand(p.tokens) if ids is None else ids[p.row, : p.tokens] for ids, p in parts])


def of_queries(path: Sequence[Piece], old: list[int]) -> list[Piece]:
    """The path less the keys, `old` in each row, that stood before the first pass's queries."""
    first, *others = path
    return [first._replace(tokens=max(first.tokens - old[first.row], 0)), *others]
