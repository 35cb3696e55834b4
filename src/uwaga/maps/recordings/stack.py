"""One stack of layers: the passes through it, and the queries and keys of each of its attentions.

Letters: R rows, B batch, H query heads, G key/value heads, Q queries, K keys, D query/key width, T tokens, N packed tokens.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from uwaga.maps.map import AttentionMap
from uwaga.maps.recordings.copies import Copier, HeadSelection, MapOptions, VectorBias
from uwaga.maps.recordings.passes import (
    Pass,
    Segment,
    SequenceTree,
    first_tokens,
    join,
    join_ids,
    lengths,
    new_tokens,
    of_queries,
    rows,
)
from uwaga.ops.biases import AlibiBias, DistanceBias, RelativeBias
from uwaga.ops.mask_program import Start
from uwaga.ops.masks import Both, Causal, Documents, Either, KeyLengths, Mask, Window
from uwaga.ops.ragged import Operand, Ragged

_NO_BIAS = "a bias is more than a function of the distance between tokens of one text"


class AttentionId(NamedTuple):
    """Which attention: ("encoder", 3)."""

    kind: str
    layer: int

    @property
    def is_cross(self) -> bool:
        return self.kind == "cross"

    def __str__(self) -> str:
        return f"{self.kind} {self.layer}"


class PassMask(NamedTuple):
    """What the queries of one pass see: keys of their own id, at the distances of all bands."""

    bands: frozenset[Mask]  # without a start
    key_ids: Tensor | None = None  # (B, K); None: all 1
    query_ids: Tensor | None = None  # (B, Q)


def start_of(mask: Mask | Tensor | None) -> Start:
    """AttentionId the mask says that the first query stands; None: it says nothing."""
    if isinstance(mask, Both | Either):
        left = start_of(mask.left)
        return start_of(mask.right) if left is None else left
    return mask.start if isinstance(mask, Causal | Window) else None


def visible(mask: Mask | Tensor | None, batch: int, queries: int, keys: int) -> PassMask | None:
    """The mask of a padded pass, or None where it can not be said so."""
    bands, tokens = set(), []
    for atom in _atoms(mask):
        band = _without_start(atom)
        if band is not None:
            bands.add(band)
        elif isinstance(atom, KeyLengths) and atom.lengths.numel() == batch:
            j_K = torch.arange(keys, device=atom.lengths.device)
            tokens.append((j_K < atom.lengths.reshape(-1, 1), atom.lengths.new_ones(batch, queries)))
        elif isinstance(atom, Documents):
            asked = atom.ids[..., keys - queries :] if atom.query_ids is None else atom.query_ids
            tokens.append((atom.ids, asked))
        else:
            return None
    if not tokens:
        return PassMask(frozenset(bands))
    # Two rules at once: lengths of what a cache holds beside documents cannot be, and others are not told apart here.
    if len(tokens) > 1:
        return None
    key_ids, query_ids = (x.long().expand(batch, -1) for x in tokens[0])
    return PassMask(frozenset(bands), key_ids, query_ids)


def only_bands(mask: Mask | Tensor | None) -> PassMask | None:
    """The same of a ragged pass, where ids of tokens have no place."""
    atoms = _atoms(mask)
    bands = frozenset(band for atom in atoms if (band := _without_start(atom)) is not None)
    return PassMask(bands) if all(_without_start(atom) is not None for atom in atoms) else None


def whole(bands: frozenset[Mask], key_ids: Tensor | None, query_ids: Tensor | None) -> Mask | None:
    """The mask of all passes, whose last query meets the last key; ids (B, K) and (B, Q), or packed (N,) each."""
    found: list[Mask] = sorted(bands, key=repr)
    if key_ids is not None and query_ids is not None and not (bool((key_ids == 1).all() & (query_ids == 1).all())):
        found.append(Documents(key_ids, query_ids=query_ids))
    if not found:
        return None
    mask = found[0]
    for other in found[1:]:
        mask = mask & other
    return mask


def _atoms(mask: Mask | Tensor | None) -> list[Mask | Tensor]:
    """The masks that are joined by `and`."""
    if isinstance(mask, Both):
        return _atoms(mask.left) + _atoms(mask.right)
    return [] if mask is None else [mask]


def _without_start(mask: Mask | Tensor) -> Mask | None:
    """The mask where it speaks of distances alone, else None."""
    if isinstance(mask, Causal | Window):
        return replace(mask, start=None)
    if isinstance(mask, Both | Either):
        left, right = _without_start(mask.left), _without_start(mask.right)
        return None if left is None or right is None else replace(mask, left=left, right=right)
    return None


class RecordedAttention:
    """The copies of one attention's queries and keys: of each pass its queries and its new keys, of cross-attention the
    keys of the first pass alone. What masks and biases of later passes add to those of the first is O(T)."""

    def __init__(self, name: str, is_cross: bool, heads: HeadSelection) -> None:
        self.name, self.is_cross, self.heads = name, is_cross, heads
        self.queries: list[Operand] = []
        self.keys: list[Operand] = []
        self.options: MapOptions  # of the first pass
        self.seen: list[PassMask] = []  # of all passes, once they are to be joined; so is
        self.bias: DistanceBias | None = None
        self.starts: list[int] = []  # per row, the keys before the first pass's queries

    def keep(self, query: Operand, key: Operand, options: MapOptions, keeper: Copier) -> None:
        """Copy what a pass asks.

        Raises:
            ValueError: it continues earlier passes in a way that has no map of the whole.
        """
        count = query.values.shape[1] if isinstance(query, Ragged) else query.shape[-3]
        kept = keeper.options(options, self.heads.query, count)
        # Layers may remember different numbers of tokens, so that a pass looks different to each.
        this = Pass.of(query, key, 0 if self.is_cross else start_of(options["mask"]))
        if not self.queries:
            self.options, self.starts = kept, this.starts
            self.keys.append(keeper.operand(key, self.heads.key))
        else:
            self._extend(kept, query, key, this)
            if not self.is_cross:
                self.keys.append(keeper.operand(new_tokens(key, this), self.heads.key))
        self.queries.append(keeper.operand(query, self.heads.query))

    @property
    def kept(self) -> list[object]:
        """All that is stored."""
        return [self.queries, self.keys, self.options, self.bias, self.seen]

    def map(self, paths: Sequence[Sequence[Segment]] | None, old: list[int]) -> AttentionMap:
        """The map (R, H, Q, K) of all rows, or a ragged one where their lengths differ.

        Args:
            paths: per row, where its tokens are; None where there is one pass, which is taken as it was.
            old: per row of the first pass, the keys before its first query that the paths count.

        Raises:
            ValueError: keys from before the first pass, of which layers have different numbers.
        """
        if paths is None:
            return self._map(self.queries[0], self.keys[0], self.options)
        if not self.is_cross and self.starts != old:
            raise self._apart("layers remember different numbers of tokens from before the first pass")
        asking = [of_queries(path, old) for path in paths]
        asked = join(self.queries, asking)
        if self.is_cross:
            of_roots = rows(self.keys[0])
            looked_at = [[Segment(0, path[0].row, len(of_roots[path[0].row]))] for path in paths]
        else:
            looked_at = [list(path) for path in paths]
        keys = join(self.keys, looked_at)
        sizes = {(len(q), len(k)) for q, k in zip(asked, keys, strict=True)}
        is_padded = isinstance(self.queries[0], Tensor) and len(sizes) == 1
        self._settle()
        mask = self._mask(asking, looked_at, is_padded, keys[0].device)
        query, key = (torch.stack(x).transpose(1, 2) if is_padded else Ragged.from_list(x) for x in (asked, keys))
        return self._map(query, key, MapOptions(**self.options | {"mask": mask, "bias": self.bias}))

    def _map(self, query: Operand, key: Operand, options: MapOptions) -> AttentionMap:
        pairs = self.heads.pairs
        if pairs is not None:
            picked = torch.tensor(pairs, device=key.values.device if isinstance(key, Ragged) else key.device)
            if isinstance(key, Ragged):
                key = key.with_values(key.values.index_select(1, picked))
            else:
                key = key.index_select(-3, picked)
        return AttentionMap(query, key, **options)

    def _mask(
        self,
        asking: Sequence[Sequence[Segment]],
        looked_at: Sequence[Sequence[Segment]],
        is_padded: bool,
        device: torch.device,
    ) -> Mask | None:
        if all(each.key_ids is None for each in self.seen):
            return whole(self.seen[0].bands, None, None)
        put = torch.stack if is_padded else torch.cat
        query_ids = put([join_ids([x.query_ids for x in self.seen], path, device) for path in asking])
        key_ids = put([join_ids([x.key_ids for x in self.seen], path, device) for path in looked_at])
        return whole(self.seen[0].bands, key_ids, query_ids)

    def _extend(self, options: MapOptions, query: Operand, key: Operand, this: Pass) -> None:
        """What one more pass says by its mask and bias."""
        self._settle()
        found, bands = self._visible(options, query, key), self.seen[0].bands
        # With one query transformers may do without a mask.
        may_be_silent = bands <= {Causal()} and max(lengths(query), default=0) == 1
        if found.bands != bands and not (may_be_silent and not found.bands):
            raise self._apart("their masks differ")
        self.bias = self._joined(_placed(options["bias"], query, key, max(this.starts, default=0)))
        if found.key_ids is not None and not self.is_cross:
            ids = zip(found.key_ids, this.starts, this.queries, strict=True)
            found = found._replace(key_ids=torch.stack([row[start : start + more] for row, start, more in ids]))
        self.seen.append(found)

    def _visible(self, options: MapOptions, query: Operand, key: Operand) -> PassMask:
        if isinstance(query, Tensor) and isinstance(key, Tensor):
            found = visible(options["mask"], query.shape[0], query.shape[2], key.shape[2])
        else:
            found = only_bands(options["mask"])
        if found is None:
            raise self._apart("a mask is more than Causal, Window, KeyLengths or Documents, joined by &")
        return found

    def _settle(self) -> None:
        """The mask and the bias of the first pass as those of the first part of a text."""
        if not self.seen:
            self.seen = [self._visible(self.options, self.queries[0], self.keys[0])]
            start = max(self.starts, default=0)
            bias = _placed(self.options["bias"], self.queries[0], self.keys[0], start)
            if isinstance(bias, Tensor) or (self.is_cross and bias is not None):
                raise self._apart(_NO_BIAS)
            self.bias = bias

    def _joined(self, more: DistanceBias | Tensor | None) -> DistanceBias | None:
        """The bias so far with that of one more pass."""
        bias: DistanceBias | None = self.bias
        if isinstance(bias, VectorBias) and isinstance(more, VectorBias):
            bias = bias.joined(more)
            if bias is not None:
                return bias
        elif type(bias) is type(more):
            return bias
        raise self._apart(_NO_BIAS)

    def _apart(self, why: str) -> ValueError:
        way_out = "watch one forward pass over the whole text instead"
        return ValueError(f"watch: {self.name}: the passes of a text cannot be joined into one map: {why}; {way_out}")


def _placed(
    bias: DistanceBias | Tensor | None, query: Operand, key: Operand, start: int
) -> DistanceBias | Tensor | None:
    """A bias that counts from the text's last token, where `start` keys stand before the queries."""
    if isinstance(bias, VectorBias):
        return replace(bias, lowest=bias.lowest + max(lengths(key)) - max(lengths(query)) - start)
    return replace(bias, start=None) if isinstance(bias, AlibiBias | RelativeBias) else bias


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
        self.trails: dict[AttentionId, RecordedAttention] = {}
        self.lineage: SequenceTree | None = None
        self.passes: list[Pass] = []
        self.ids: list[Operand | None] = []  # per pass, (R, Q) or Ragged (N,)
        self._asked: set[AttentionId] = set()
        self.close()

    def close(self) -> None:
        """The pass is over: tensors of the model are let go."""
        self._keeper = Copier(self.dtype)

    def begins(self, where: AttentionId) -> bool:
        """Whether a call of this attention begins a pass."""
        return not self.passes or where in self._asked

    def begin(self, where: AttentionId, query: Operand, key: Operand, options: MapOptions, ids: Tensor | None) -> bool:
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
            self.lineage = SequenceTree(query if where.is_cross else key, tokens)
        self.passes.append(this)
        self.ids.append(_as_rows(ids, query))
        return not goes_on

    def ask(self, where: AttentionId, key: Operand) -> None:
        """Note that this attention was asked in this pass."""
        if where.is_cross and self.lineage is not None and not any(other.is_cross for other in self._asked):
            self.lineage.remember(key, lengths(key))
        self._asked.add(where)

    def keep(self, where: AttentionId, query: Operand, key: Operand, options: MapOptions, heads: HeadSelection) -> None:
        """Copy what it was asked."""
        trail = self.trails.setdefault(where, RecordedAttention(str(where), where.is_cross, heads))
        trail.keep(query, key, options, self._keeper)

    def ends(self) -> list[list[Segment]] | None:
        """Per row of the first pass, where its tokens are; None where one row became several, as beams do."""
        assert self.lineage is not None
        ends = self.lineage.ends()
        return None if ends is None else [self.lineage.path(*end) for end in ends]

    def old(self) -> list[int]:
        """Per row, the keys from before the first pass."""
        return self.passes[0].starts

    def words(self, paths: list[list[Segment]] | None) -> list[list[int]] | None:
        """The ids of each path, None: of each row of the one pass; None where they are not known."""
        if any(ids is None for ids in self.ids) or any(self.old()):
            return None
        listed = self._listed()
        if paths is None:
            return listed[0]
        return [[x for p in path for x in listed[p.step][p.row][: p.tokens]] for path in paths]

    def tokens(self, paths: list[list[Segment]] | None) -> list[int]:
        """Tokens per row of the paths, None: of the rows of the one pass."""
        if paths is not None:
            return [sum(p.tokens for p in path) for path in paths]
        return [start + more for start, more in zip(self.passes[0].starts, self.passes[0].queries, strict=True)]

    def state(self) -> object:
        """Equal as long as nothing is recorded."""
        return (id(self.lineage), len(self.passes), len(self._asked))

    def follow(self, text: list[int], roots: range) -> tuple[list[Segment], int]:
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
