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

_COLUMNS = 8  # elements of a key in its fingerprint
_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One forward pass."""

    added: list[int]  # per row, the number of new tokens
    parents: list[int]  # per row, the row of the pass before that it continues; empty in the first pass
    kept: list[int]  # per row, the number of tokens of that row's text before the new ones


class PassSlice(NamedTuple):
    """The first `tokens` of the tokens that a row of a pass added."""

    step: int
    row: int
    tokens: int


class SequenceTree:
    """The rows of all passes over one batch of texts, as trees: each row continues a row of the pass before."""

    def __init__(self, key: Operand, lengths: list[int]) -> None:
        """From the keys of the first pass, (R, G, K, D) or Ragged (N, G, D), and the number of tokens in each row."""
        self.steps = [Step(added=lengths, parents=[], kept=[0] * len(lengths))]
        self._fingerprints = _fingerprints(key, lengths)  # per row, (T, columns)
        self._memory: list[Tensor] = []  # per row, (K, columns) of the keys of cross-attention
        self._before: list[Tensor] = []  # fingerprints of the pass before
        self._old: list[Tensor] = []  # per row, the fingerprints of the old keys of this pass

    def extend(self, key: Operand, starts: list[int], added: list[int]) -> bool:
        """Add the next pass. Returns False, and adds nothing, if a row continues no row of the pass before.

        Args:
            key: the old and the new keys.
            starts: per row, the number of old keys.
            added: per row, the number of new keys.
        """
        fingerprints = _fingerprints(key, [start + more for start, more in zip(starts, added, strict=True)])
        old_keys = [mark[:start] for mark, start in zip(fingerprints, starts, strict=True)]
        parents = [
            parent
            for row, old in enumerate(old_keys)
            if (parent := _find_parent(row, old, self._fingerprints)) is not None
        ]
        if len(parents) < len(old_keys):
            return False
        self._before, self._old = self._fingerprints, old_keys
        self._fingerprints = [
            torch.cat((self._before[parent][:kept], mark[start:]))
            for (parent, kept), mark, start in zip(parents, fingerprints, starts, strict=True)
        ]
        self.steps.append(Step(added=added, parents=[x for x, _ in parents], kept=[x for _, x in parents]))
        return True

    def match_memory(self, key: Operand, lengths: list[int]) -> None:
        """Note the keys of cross-attention in this pass, and match rows by them: a row continues one with the same keys."""
        memory = _fingerprints(key, lengths)
        step = self.steps[-1]
        for row, (parent, old) in enumerate(zip(step.parents, self._old, strict=False)):
            if torch.equal(self._memory[parent], memory[row]):
                continue
            candidates = [other for other, kept in enumerate(self._memory) if torch.equal(kept, memory[row])]
            result = _find_parent(row, old, self._before, candidates)
            if result is not None:
                step.parents[row], step.kept[row] = result
        self._memory = memory

    def path(self, step: int, row: int) -> list[PassSlice]:
        """The segments of the text that ends with a row of a pass."""
        nodes = [(step, row)]
        while step > 0:
            row, step = self.steps[step].parents[row], step - 1
            nodes.append((step, row))
        pieces: list[PassSlice] = []
        for step, row in reversed(nodes):
            pieces = [
                *first_tokens(pieces, self.steps[step].kept[row]),
                PassSlice(step, row, self.steps[step].added[row]),
            ]
        return pieces

    def ends(self) -> list[tuple[int, int]] | None:
        """(step, row) of the end of the text of each row of the first pass; None if several rows continue one."""
        ends: list[tuple[int, int]] = [(0, row) for row in range(len(self.steps[0].added))]
        first_row_of = list(range(len(ends)))
        for number, step in enumerate(self.steps[1:], 1):
            if len(set(step.parents)) < len(step.parents):
                return None
            first_row_of = [first_row_of[parent] for parent in step.parents]
            for row, root in enumerate(first_row_of):
                ends[root] = (number, row)
        return ends

    def nodes(self) -> list[tuple[int, int]]:
        """(step, row) of all rows of all passes, the last pass first."""
        return [(n, row) for n in reversed(range(len(self.steps))) for row in range(len(self.steps[n].added))]


def _find_parent(
    row: int, old: Tensor, fingerprints: list[Tensor], among: Sequence[int] | None = None
) -> tuple[int, int] | None:
    """The row that continues with these old keys, and after how many of its tokens; the same row number if possible."""
    order = sorted(range(len(fingerprints)) if among is None else among, key=lambda other: other != row)
    for other in order:
        if torch.equal(fingerprints[other], old):
            return other, len(old)
    for other in order:
        if torch.equal(fingerprints[other][: len(old)], old):  # the cache dropped the last tokens
            return other, len(old)
        if 0 < len(old) < len(fingerprints[other]) and torch.equal(
            fingerprints[other][-len(old) :], old
        ):  # the cache dropped the first tokens
            return other, len(fingerprints[other])
    return None


def first_tokens(pieces: list[PassSlice], tokens: int) -> list[PassSlice]:
    """The first `tokens` tokens of a path."""
    results = []
    for piece in pieces:
        if tokens <= 0:
            break
        results.append(piece._replace(tokens=min(piece.tokens, tokens)))
        tokens -= piece.tokens
    return results


def _fingerprints(key: Operand, lengths: list[int]) -> list[Tensor]:
    """Per row (T, columns): the bits of some elements of each token's key."""
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
    """The positions of the queries of a pass of self-attention: per row, the number of keys before them, and of queries."""

    starts: list[int]
    queries: list[int]

    @staticmethod
    def of(query: Operand, key: Operand, start: Start) -> "Pass":
        """start: of the mask; None if the last query is at the last key."""
        queries, keys = lengths(query), lengths(key)
        if isinstance(start, Tensor):
            starts = start.broadcast_to(len(queries)).tolist()
        elif start is not None:
            starts = [start] * len(queries)
        else:
            starts = [max(k - q, 0) for q, k in zip(queries, keys, strict=True)]
        return Pass(starts=starts, queries=queries)


def as_batch(x: Operand) -> Operand:
    """(B, H, N, D) from (..., H, N, D); a batch of no tokens, too."""
    return x if isinstance(x, Ragged) else x.reshape(x.shape[:-3].numel(), *x.shape[-3:])


def lengths(x: Operand) -> list[int]:
    """The number of tokens per row."""
    return x.lengths.tolist() if isinstance(x, Ragged) else [x.shape[2]] * x.shape[0]


def rows(x: Operand) -> list[Tensor]:
    """The rows, (T, H, D) each."""
    return x.to_list() if isinstance(x, Ragged) else [row.transpose(0, 1) for row in x]


def new_tokens(key: Operand, this: Pass) -> Operand:
    """The keys of the same tokens as the queries."""
    if isinstance(key, Ragged):
        segments = zip(key.offsets.tolist(), this.starts, this.queries, strict=False)
        device = key.values.device
        places = [torch.arange(at + start, at + start + more, device=device) for at, start, more in segments]
        total = torch.tensor([0, *this.queries], device=key.offsets.device).cumsum(0)
        return Ragged(key.values[torch.cat(places)], total)
    count = this.queries[0] if this.queries else 0
    if len(set(this.starts)) == 1:
        return key[:, :, this.starts[0] : this.starts[0] + count]
    return torch.stack([row[:, start : start + count] for row, start in zip(key, this.starts, strict=True)])


def join(passes: Sequence[Operand], paths: Sequence[Sequence[PassSlice]]) -> list[Tensor]:
    """The operands of all passes joined along each path, (T, H, D) each."""
    listed = [rows(x) for x in passes]
    return [torch.cat([listed[p.step][p.row][: p.tokens] for p in path]) for path in paths]


def join_ids(passes: Sequence[Tensor | None], path: Sequence[PassSlice], device: torch.device) -> Tensor:
    """(T,) along a path, from the ids (R, T) of each pass; None stands for ones."""
    ones = torch.ones((), dtype=torch.int64, device=device)
    parts = [(passes[p.step], p) for p in path]
    return torch.cat([ones.expand(p.tokens) if ids is None else ids[p.row, : p.tokens] for ids, p in parts])


def of_queries(path: Sequence[PassSlice], old: list[int]) -> list[PassSlice]:
    """The path without the first `old` keys of each row, which precede the queries of the first pass."""
    first, *others = path
    return [first._replace(tokens=max(first.tokens - old[first.row], 0)), *others]
