"""One stack of layers: the passes through it, and what each of its attentions was asked.

Letters: R rows, H query heads, G key/value heads, Q queries, K keys, D query/key width, N packed tokens.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from uwaga.maps.recorded.keeping import Heads, Keeper, Options
from uwaga.maps.recorded.lineage import Lineage, Piece, first_tokens
from uwaga.maps.recorded.rows import Pass, lengths
from uwaga.maps.recorded.trail import Trail
from uwaga.maps.recorded.visible import start_of
from uwaga.ops.ragged import Operand, Ragged


class Where(NamedTuple):
    """Which attention: ("encoder", 3)."""

    kind: str
    layer: int

    @property
    def is_cross(self) -> bool:
        return self.kind == "cross"

    def __str__(self) -> str:
        return f"{self.kind} {self.layer}"


class Stack:
    """The passes over one batch of texts: one, or those of a generation.

    A pass begins with an attention that was asked in the pass before already. It goes on with the texts where its queries
    stand behind keys, and these are the keys that were recorded; else it begins anew, and what was there is forgotten.
    """

    def __init__(self, dtype: torch.dtype | None) -> None:
        self.dtype = dtype
        self.forget()

    def forget(self) -> None:
        """Begin with nothing."""
        self.trails: dict[Where, Trail] = {}
        self.lineage: Lineage | None = None
        self.passes: list[Pass] = []
        self.ids: list[Operand | None] = []  # per pass, (R, Q) or Ragged (N,)
        self._asked: set[Where] = set()
        self.close()

    def close(self) -> None:
        """The pass is over: tensors of the model are let go."""
        self._keeper = Keeper(self.dtype)

    def begins(self, where: Where) -> bool:
        """Whether a call of this attention begins a pass."""
        return not self.passes or where in self._asked

    def begin(self, where: Where, query: Operand, key: Operand, options: Options, ids: Tensor | None) -> bool:
        """Begin a pass; whether it is a first one."""
        start = 0 if where.is_cross else start_of(options["mask"])
        this = Pass.of(query, key, start)
        goes_on = any(this.starts) and self.lineage is not None and self.lineage.extend(key, this.starts, this.queries)
        if goes_on:
            self._asked = set()
            self.close()
        else:
            self.forget()
            tokens = [start + more for start, more in zip(this.starts, this.queries, strict=True)]
            self.lineage = Lineage(query if where.is_cross else key, tokens)
        self.passes.append(this)
        self.ids.append(_as_rows(ids, query))
        return not goes_on

    def ask(self, where: Where, key: Operand) -> None:
        """Note that this attention was asked in this pass."""
        if where.is_cross and self.lineage is not None and not any(other.is_cross for other in self._asked):
            self.lineage.remember(key, lengths(key))
        self._asked.add(where)

    def keep(self, where: Where, query: Operand, key: Operand, options: Options, heads: Heads) -> None:
        """Copy what it was asked."""
        trail = self.trails.setdefault(where, Trail(str(where), where.is_cross, heads))
        trail.keep(query, key, options, self._keeper)

    def ends(self) -> list[list[Piece]] | None:
        """Per row of the first pass, where its tokens are; None where one row became several, as beams do."""
        assert self.lineage is not None
        ends = self.lineage.ends()
        return None if ends is None else [self.lineage.path(*end) for end in ends]

    def old(self) -> list[int]:
        """Per row, the keys from before the first pass."""
        return self.passes[0].starts

    def words(self, paths: list[list[Piece]] | None) -> list[list[int]] | None:
        """The ids of each path, None: of each row of the one pass; None where they are not known."""
        if any(ids is None for ids in self.ids) or any(self.old()):
            return None
        listed = self._listed()
        if paths is None:
            return listed[0]
        return [[x for p in path for x in listed[p.step][p.row][: p.tokens]] for path in paths]

    def tokens(self, paths: list[list[Piece]] | None) -> list[int]:
        """Tokens per row of the paths, None: of the rows of the one pass."""
        if paths is not None:
            return [sum(p.tokens for p in path) for path in paths]
        return [start + more for start, more in zip(self.passes[0].starts, self.passes[0].queries, strict=True)]

    def state(self) -> object:
        """Equal as long as nothing is recorded."""
        return (id(self.lineage), len(self.passes), len(self._asked))

    def follow(self, text: list[int], roots: range) -> tuple[list[Piece], int]:
        """The path from one of these rows of the first pass that has most of a text's first tokens, and how many."""
        assert self.lineage is not None
        best, where, before = 0, (0, 0), [0 if row in roots else -1 for row in range(len(self.old()))]
        for number, (step, ids) in enumerate(zip(self.lineage.steps, self._listed(), strict=True)):
            same = [
                min(before[parent], kept)
                for parent, kept in zip(step.parents or range(len(before)), step.kept, strict=True)
            ]
            for row, kept in enumerate(step.kept):
                if same[row] == kept:
                    same[row] += _alike(ids[row], text[kept:])
                if same[row] > best:
                    best, where = same[row], (number, row)
            before = same
        return first_tokens(self.lineage.path(*where), best), best

    def _listed(self) -> list[list[list[int]]]:
        """The ids of each row of each pass that has them."""
        known = [ids for ids in self.ids if ids is not None]
        return [[row.tolist() for row in x.to_list()] if isinstance(x, Ragged) else x.tolist() for x in known]


def _alike(ids: list[int], others: list[int]) -> int:
    """How many first ones are equal."""
    differs = (n for n, (one, other) in enumerate(zip(ids, others, strict=False)) if one != other)
    return next(differs, min(len(ids), len(others)))


def _as_rows(ids: Tensor | None, query: Operand) -> Operand | None:
    """A copy of the ids as the query's rows are, where they are those of its tokens."""
    if ids is None:
        return None
    if isinstance(query, Ragged):
        return query.with_values(ids.flatten().clone()) if ids.numel() == query.values.shape[0] else None
    fits = ids.numel() == query.shape[:-3].numel() * query.shape[-2]
    return ids.reshape(-1, query.shape[-2]).clone() if fits else None
