"""Which rows of a forward pass continue which rows of the pass before, and texts joined from several passes.

A KV cache may drop rows that have ended, repeat and reorder those of beams, or forget its last tokens. Whatever it does, the
keys that a row reads are those of the text that it continues, bit for bit; so rows are matched by their keys, and the
model need not say what it did. The first layer of a decoder knows nothing of its encoder yet: there the keys of
cross-attention tell rows apart whose own tokens are equal.

Letters: R rows, H query heads, G key/value heads, Q queries, K keys, D query/key width, T tokens, N packed tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from uwaga.ops.mask_program import Start
from uwaga.ops.ragged import Operand, Ragged

_COLUMNS = 8  # numbers of a key that tell it from others
_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One pass."""

    added: list[int]  # per row, tokens whose keys are new
    parents: list[int]  # per row, the row of the pass before; empty in the first pass
    kept: list[int]  # per row, so many tokens of that row's text stand before these


class Segment(NamedTuple):
    """The first `tokens` of what a row of a pass added."""

    step: int
    row: int
    tokens: int


class SequenceTree:
    """The passes over one batch of texts, from the first."""

    def __init__(self, key: Operand, lengths: list[int]) -> None:
        """key: of the first pass, (R, G, K, D) or Ragged (N, G, D), with so many tokens in each row."""
        self.steps = [Step(added=lengths, parents=[], kept=[0] * len(lengths))]
        self._marks = _marks(key, lengths)  # per row, (T, columns)
        self._memory: list[Tensor] = []  # per row, (K, columns) of what cross-attention looks at
        self._before: list[Tensor] = []  # marks of the pass before
        self._old: list[Tensor] = []  # per row, marks of the old keys of this pass

    def extend(self, key: Operand, starts: list[int], added: list[int]) -> bool:
        """Take the next pass; False, and nothing is taken, where a row continues none of those before.

        Args:
            key: old keys and new ones.
            starts: per row, how many are old.
            added: per row, how many are new.
        """
        marks = _marks(key, [start + more for start, more in zip(starts, added, strict=True)])
        olds = [mark[:start] for mark, start in zip(marks, starts, strict=True)]
        found = [parent for row, old in enumerate(olds) if (parent := _parent(row, old, self._marks)) is not None]
        if len(found) < len(olds):
            return False
        self._before, self._old = self._marks, olds
        self._marks = [
            torch.cat((self._before[parent][:kept], mark[start:]))
            for (parent, kept), mark, start in zip(found, marks, starts, strict=True)
        ]
        self.steps.append(Step(added=added, parents=[x for x, _ in found], kept=[x for _, x in found]))
        return True

    def remember(self, key: Operand, lengths: list[int]) -> None:
        """Tell the keys of cross-attention in this pass: a row continues one that looks at the same ones."""
        memory = _marks(key, lengths)
        step = self.steps[-1]
        for row, (parent, old) in enumerate(zip(step.parents, self._old, strict=False)):
            if torch.equal(self._memory[parent], memory[row]):
                continue
            looking = [other for other, kept in enumerate(self._memory) if torch.equal(kept, memory[row])]
            found = _parent(row, old, self._before, looking)
            if found is not None:
                step.parents[row], step.kept[row] = found
        self._memory = memory

    def path(self, step: int, row: int) -> list[Segment]:
        """The text up to the end of a row of a pass."""
        nodes = [(step, row)]
        while step > 0:
            row, step = self.steps[step].parents[row], step - 1
            nodes.append((step, row))
        pieces: list[Segment] = []
        for step, row in reversed(nodes):
            pieces = [
                *first_tokens(pieces, self.steps[step].kept[row]),
                Segment(step, row, self.steps[step].added[row]),
            ]
        return pieces

    def ends(self) -> list[tuple[int, int]] | None:
        """(step, row) where the text of each row of the first pass ends; None where one became several."""
        ends: list[tuple[int, int]] = [(0, row) for row in range(len(self.steps[0].added))]
        root_of = list(range(len(ends)))
        for number, step in enumerate(self.steps[1:], 1):
            if len(set(step.parents)) < len(step.parents):
                return None
            root_of = [root_of[parent] for parent in step.parents]
            for row, root in enumerate(root_of):
                ends[root] = (number, row)
        return ends

    def nodes(self) -> list[tuple[int, int]]:
        """(step, row) of all rows of all passes, the last pass first."""
        return [(n, row) for n in reversed(range(len(self.steps))) for row in range(len(self.steps[n].added))]


def _parent(row: int, old: Tensor, marks: list[Tensor], among: Sequence[int] | None = None) -> tuple[int, int] | None:
    """The row whose text goes on with these old keys, and after how many of its tokens; its own number where it can be."""
    order = sorted(range(len(marks)) if among is None else among, key=lambda other: other != row)
    for other in order:
        if torch.equal(marks[other], old):
            return other, len(old)
    for other in order:
        if torch.equal(marks[other][: len(old)], old):  # the last tokens were taken back
            return other, len(old)
        if 0 < len(old) < len(marks[other]) and torch.equal(marks[other][-len(old) :], old):  # the first were forgotten
            return other, len(marks[other])
    return None


def first_tokens(pieces: list[Segment], tokens: int) -> list[Segment]:
    """The first so many tokens of a path."""
    found = []
    for piece in pieces:
        if tokens <= 0:
            break
        found.append(piece._replace(tokens=min(piece.tokens, tokens)))
        tokens -= piece.tokens
    return found


def _marks(key: Operand, lengths: list[int]) -> list[Tensor]:
    """Per row (T, columns): some bits of the key of each token."""
    if isinstance(key, Ragged):
        rows = key.with_values(_bits(key.values[:, 0])).to_list()
    else:
        rows = list(_bits(key[:, 0]))
    return [row[:length] for row, length in zip(rows, lengths, strict=True)]


def _bits(x: Tensor) -> Tensor:
    width = x.shape[-1]
    picked = x.detach()[..., :: max(1, width // _COLUMNS)][..., :_COLUMNS]
    return picked.clone(memory_format=torch.contiguous_format).view(_BITS[x.dtype.itemsize])


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """AttentionId the queries of one pass of self-attention stand: per row, keys before the first of them, and how many."""

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


def join(passes: Sequence[Operand], paths: Sequence[Sequence[Segment]]) -> list[Tensor]:
    """(T, H, D) of each path."""
    listed = [rows(x) for x in passes]
    return [torch.cat([listed[p.step][p.row][: p.tokens] for p in path]) for path in paths]


def join_ids(passes: Sequence[Tensor | None], path: Sequence[Segment], device: torch.device) -> Tensor:
    """(T,) of a path, from ids (R, T) of each pass; None is 1 everywhere."""
    ones = torch.ones((), dtype=torch.int64, device=device)
    parts = [(passes[p.step], p) for p in path]
    return torch.cat([ones.expand(p.tokens) if ids is None else ids[p.row, : p.tokens] for ids, p in parts])


def of_queries(path: Sequence[Segment], old: list[int]) -> list[Segment]:
    """The path less the keys, `old` in each row, that stood before the first pass's queries."""
    first, *others = path
    return [first._replace(tokens=max(first.tokens - old[first.row], 0)), *others]
