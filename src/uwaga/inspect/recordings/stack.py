"""One stack of layers: the passes through it, and the queries and keys of each of its attentions.

Letters: R rows, B batch, H query heads, G key/value heads, Q queries, K keys, D query/key width, T tokens, N packed tokens.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from uwaga.inspect.recordings.copies import Budget, Copier, HeadSelection, Storage, VectorBias
from uwaga.inspect.recordings.passes import (
    Pass,
    PassSlice,
    SequenceTree,
    first_tokens,
    join,
    join_ids,
    lengths,
    new_tokens,
    of_queries,
    rows,
)
from uwaga.maps.map import AttentionMap, MapOptions
from uwaga.nn.attention_id import AttentionId
from uwaga.ops.biases import AlibiBias, DistanceBias, RelativeBias
from uwaga.ops.mask_program import Start
from uwaga.ops.masks import Both, Causal, Documents, Either, KeyLengths, Mask, Window
from uwaga.ops.ragged import Operand, Ragged

_NO_BIAS = "a bias is not a function of the distance between tokens alone"

KINDS = ("encoder", "decoder", "cross")  # of attentions


class PassMask(NamedTuple):
    """The mask of one pass: a query sees the keys with its own id, at the distances that all bands allow."""

    bands: frozenset[Mask]  # Causal and Window, and combinations of these, without a start
    key_ids: Tensor | None = None  # (B, K); None: all are 1
    query_ids: Tensor | None = None  # (B, Q)


def start_of(mask: Mask | Tensor | None) -> Start:
    """The `start` of the mask; None if it has none."""
    if isinstance(mask, Both | Either):
        left = start_of(mask.left)
        return start_of(mask.right) if left is None else left
    return mask.start if isinstance(mask, Causal | Window) else None


def padded_pass_mask(mask: Mask | Tensor | None, batch: int, queries: int, keys: int) -> PassMask | None:
    """The mask of a padded pass as a PassMask, or None if that is impossible."""
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
    # Key lengths and documents at once cannot be expressed by one id per token.
    if len(tokens) > 1:
        return None
    key_ids, query_ids = (x.long().expand(batch, -1) for x in tokens[0])
    return PassMask(frozenset(bands), key_ids, query_ids)


def ragged_pass_mask(mask: Mask | Tensor | None) -> PassMask | None:
    """The same for a ragged pass, which has no ids of tokens."""
    atoms = _atoms(mask)
    bands = frozenset(band for atom in atoms if (band := _without_start(atom)) is not None)
    return PassMask(bands) if all(_without_start(atom) is not None for atom in atoms) else None


def joined_mask(bands: frozenset[Mask], key_ids: Tensor | None, query_ids: Tensor | None) -> Mask | None:
    """The mask of the joined passes, whose last query is at the last key; ids (B, K) and (B, Q), or packed (N,) each."""
    results: list[Mask] = sorted(bands, key=repr)
    if key_ids is not None and query_ids is not None and not (bool((key_ids == 1).all() & (query_ids == 1).all())):
        results.append(Documents(key_ids, query_ids=query_ids))
    if not results:
        return None
    mask = results[0]
    for other in results[1:]:
        mask = mask & other
    return mask


def _atoms(mask: Mask | Tensor | None) -> list[Mask | Tensor]:
    """The masks that & combines."""
    if isinstance(mask, Both):
        return _atoms(mask.left) + _atoms(mask.right)
    return [] if mask is None else [mask]


def _without_start(mask: Mask | Tensor) -> Mask | None:
    """The mask without its start if it depends on distances only, else None."""
    if isinstance(mask, Causal | Window):
        return replace(mask, start=None)
    if isinstance(mask, Both | Either):
        left, right = _without_start(mask.left), _without_start(mask.right)
        return None if left is None or right is None else replace(mask, left=left, right=right)
    return None


class Joined(NamedTuple):
    """The operands of one attention over whole texts, and the options of its map."""

    query: Operand  # (R, H, Q, D), or Ragged (N, H, D)
    key: Operand  # (R, G, K, D), or Ragged (N, G, D), of the key heads that are kept
    value: Operand | None  # (R, G, K, E), or Ragged (N, G, E)
    options: MapOptions


class RecordedAttention:
    """Copies of one attention's operands: the queries, new keys and, if wanted, new values of each pass; of cross-attention the
    keys and values of the first pass only. The masks and biases of later passes take O(T) memory."""

    def __init__(self, name: str, is_cross: bool, heads: HeadSelection, storage: Storage | None = None) -> None:
        self.name, self.is_cross, self.heads = name, is_cross, heads
        self._storage = Storage(None) if storage is None else storage  # of the copies, which it may still be making
        self.queries: list[Operand] = []
        self.keys: list[Operand] = []
        self.values: list[Operand] = []  # as the keys, or none
        self.options: MapOptions  # of the first pass
        self.seen: list[PassMask] = []  # the masks of all passes, once there are several; likewise `bias`
        self.bias: DistanceBias | None = None
        self.starts: list[int] = []  # per row, the number of keys before the queries of the first pass

    def store(
        self, query: Operand, key: Operand, options: MapOptions, copier: Copier, value: Operand | None = None
    ) -> None:
        """Copy the operands of a pass; the value is None where none is wanted.

        Raises:
            ValueError: its mask or bias cannot be joined with those of earlier passes, or the copies would be too large.
        """
        count = query.values.shape[1] if isinstance(query, Ragged) else query.shape[-3]
        kept = copier.options(options, self.heads.query, count)
        # Caches of layers may hold different numbers of tokens, so that positions differ between layers.
        this = Pass.of(query, key, 0 if self.is_cross else start_of(options["mask"]))
        if not self.queries:
            self.options, self.starts = kept, this.starts
            copier.count(kept)
            self._append(key, value, copier)
        else:
            self._extend(kept, query, key, this)
            if not self.is_cross:
                self._append(new_tokens(key, this), None if value is None else new_tokens(value, this), copier)
        self.queries.append(copier.operand(query, self.heads.query))

    def _append(self, key: Operand, value: Operand | None, copier: Copier) -> None:
        self.keys.append(copier.operand(key, self.heads.key))
        if value is not None:
            self.values.append(copier.operand(value, self.heads.key))

    @property
    def kept(self) -> list[object]:
        """All stored objects."""
        return [self.queries, self.keys, self.values, self.options, self.bias, self.seen]

    def joined(self, paths: Sequence[Sequence[PassSlice]] | None, old: list[int]) -> Joined:
        """The operands of all rows, ragged where their lengths differ.

        Args:
            paths: per row, the segments of its text; None if there is one pass.
            old: per row of the first pass, the number of keys before its first query, which the paths include.

        Raises:
            ValueError: layers with different numbers of keys from before the first pass.
        """
        self._storage.wait()
        if paths is None:
            return Joined(self.queries[0], self.keys[0], self.values[0] if self.values else None, self.options)
        if not self.is_cross and self.starts != old:
            raise self._cannot_join("layers have different numbers of keys from before the first pass")
        query_paths = [of_queries(path, old) for path in paths]
        asked = join(self.queries, query_paths)
        if self.is_cross:
            first_pass_keys = rows(self.keys[0])
            key_paths = [[PassSlice(0, path[0].row, len(first_pass_keys[path[0].row]))] for path in paths]
        else:
            key_paths = [list(path) for path in paths]
        keys = join(self.keys, key_paths)
        sizes = {(len(q), len(k)) for q, k in zip(asked, keys, strict=True)}
        is_padded = isinstance(self.queries[0], Tensor) and len(sizes) == 1
        self._prepare_join()
        mask = self._mask(query_paths, key_paths, is_padded, keys[0].device)
        values = join(self.values, key_paths) if self.values else None
        query, key, value = (
            None if x is None else torch.stack(x).transpose(1, 2) if is_padded else Ragged.from_list(x)
            for x in (asked, keys, values)
        )
        assert query is not None
        assert key is not None
        return Joined(query, key, value, MapOptions(**self.options | {"mask": mask, "bias": self.bias}))

    def map(self, paths: Sequence[Sequence[PassSlice]] | None, old: list[int]) -> AttentionMap:
        """The map (R, H, Q, K) of all rows, or a ragged one where their lengths differ; arguments and errors as of `joined`."""
        query, key, _, options = self.joined(paths, old)
        return AttentionMap(query, self._of_pairs(key), **options)

    def value(self, paths: Sequence[Sequence[PassSlice]] | None, old: list[int]) -> Operand | None:
        """The values (R, G, K, E), or Ragged (N, G, E), with the G of the map's keys; None where none were kept."""
        value = self.joined(paths, old).value
        return None if value is None else self._of_pairs(value)

    def _of_pairs(self, x: Operand) -> Operand:
        """The heads of a key or value that the map has."""
        if self.heads.pairs is None:
            return x
        if isinstance(x, Ragged):
            return x.with_values(x.values.index_select(1, torch.tensor(self.heads.pairs, device=x.values.device)))
        return x.index_select(-3, torch.tensor(self.heads.pairs, device=x.device))

    def _mask(
        self,
        query_paths: Sequence[Sequence[PassSlice]],
        key_paths: Sequence[Sequence[PassSlice]],
        is_padded: bool,
        device: torch.device,
    ) -> Mask | None:
        if all(each.key_ids is None for each in self.seen):
            return joined_mask(self.seen[0].bands, None, None)
        put = torch.stack if is_padded else torch.cat
        query_ids = put([join_ids([x.query_ids for x in self.seen], path, device) for path in query_paths])
        key_ids = put([join_ids([x.key_ids for x in self.seen], path, device) for path in key_paths])
        return joined_mask(self.seen[0].bands, key_ids, query_ids)

    def _extend(self, options: MapOptions, query: Operand, key: Operand, this: Pass) -> None:
        """Join the mask and bias of one more pass."""
        self._prepare_join()
        result, bands = self._pass_mask(options, query, key), self.seen[0].bands
        # transformers may pass no mask with a single query.
        may_lack_mask = bands <= {Causal()} and max(lengths(query), default=0) == 1
        if result.bands != bands and not (may_lack_mask and not result.bands):
            raise self._cannot_join("their masks differ")
        self.bias = self._joined(_placed(options["bias"], query, key, max(this.starts, default=0)))
        if result.key_ids is not None and not self.is_cross:
            ids = zip(result.key_ids, this.starts, this.queries, strict=True)
            result = result._replace(key_ids=torch.stack([row[start : start + more] for row, start, more in ids]))
        self.seen.append(result)

    def _pass_mask(self, options: MapOptions, query: Operand, key: Operand) -> PassMask:
        if isinstance(query, Tensor) and isinstance(key, Tensor):
            mask = padded_pass_mask(options["mask"], query.shape[0], query.shape[2], key.shape[2])
        else:
            mask = ragged_pass_mask(options["mask"])
        if mask is None:
            raise self._cannot_join("a mask is not made of Causal, Window, KeyLengths and Documents combined by &")
        return mask

    def _prepare_join(self) -> None:
        """Convert the mask and bias of the first pass to the form that later ones are joined with."""
        if not self.seen:
            self.seen = [self._pass_mask(self.options, self.queries[0], self.keys[0])]
            start = max(self.starts, default=0)
            bias = _placed(self.options["bias"], self.queries[0], self.keys[0], start)
            if isinstance(bias, Tensor) or (self.is_cross and bias is not None):
                raise self._cannot_join(_NO_BIAS)
            self.bias = bias

    def _joined(self, more: DistanceBias | Tensor | None) -> DistanceBias | None:
        """The bias of all passes so far with that of one more pass."""
        bias: DistanceBias | None = self.bias
        if isinstance(bias, VectorBias) and isinstance(more, VectorBias):
            bias = bias.joined(more)
            if bias is not None:
                return bias
        elif type(bias) is type(more):
            return bias
        raise self._cannot_join(_NO_BIAS)

    def _cannot_join(self, why: str) -> ValueError:
        advice = "watch one forward pass over the whole text instead"
        return ValueError(f"watch: {self.name}: the passes of a text cannot be joined into one map: {why}; {advice}")


def _placed(
    bias: DistanceBias | Tensor | None, query: Operand, key: Operand, start: int
) -> DistanceBias | Tensor | None:
    """A bias by distance whose last query is at the last key, with `start` keys before the first query of the text."""
    if isinstance(bias, VectorBias):
        return replace(bias, lowest=bias.lowest + max(lengths(key)) - max(lengths(query)) - start)
    return replace(bias, start=None) if isinstance(bias, AlibiBias | RelativeBias) else bias


class Stack:
    """The forward passes over one batch of texts: one, or those of a generation.

    A pass begins with a call of an attention that was already called in the present pass. It continues the texts if its
    queries follow keys that were recorded; else it starts new texts, and what was recorded is dropped.
    """

    def __init__(
        self, dtype: torch.dtype | None, budget: Budget | None = None, device: torch.device | None = None
    ) -> None:
        self.dtype, self._storage = dtype, Storage(device)
        self._budget, self._taken = Budget(None) if budget is None else budget, 0
        self.forget()

    def forget(self) -> None:
        """Drop everything that was recorded."""
        self._budget.used -= self._taken
        self._taken = 0
        self.attentions: dict[AttentionId, RecordedAttention] = {}
        self.tree: SequenceTree | None = None
        self.passes: list[Pass] = []
        self.ids: list[Operand | None] = []  # per pass, (R, Q) or Ragged (N,)
        self._called: set[AttentionId] = set()
        self.close()

    def close(self) -> None:
        """Release the model's own tensors at the end of a pass."""
        self._copier = Copier(self.dtype, self._storage, self._take)

    def _take(self, size: int) -> None:
        """Count bytes that are about to be kept. If they are too many, everything is dropped, so that no part of a pass is left."""
        try:
            self._budget.take(size)
        except ValueError:
            self.forget()
            raise
        self._taken += size

    def begins(self, where: AttentionId) -> bool:
        """Whether a call of this attention begins a pass."""
        return not self.passes or where in self._called

    def begin(self, where: AttentionId, query: Operand, key: Operand, options: MapOptions, ids: Tensor | None) -> bool:
        """Begin a pass. Returns whether it starts new texts."""
        start = 0 if where.is_cross else start_of(options["mask"])
        this = Pass.of(query, key, start)
        goes_on = any(this.starts) and self.tree is not None and self.tree.extend(key, this.starts, this.queries)
        if goes_on:
            self._called = set()
            self.close()
        else:
            self.forget()
            tokens = [start + more for start, more in zip(this.starts, this.queries, strict=True)]
            self.tree = SequenceTree(query if where.is_cross else key, tokens)
        self.passes.append(this)
        self.ids.append(_as_rows(ids, query))
        return not goes_on

    def note_call(self, where: AttentionId, key: Operand) -> None:
        """Note a call of this attention in the present pass."""
        if where.is_cross and self.tree is not None and not any(other.is_cross for other in self._called):
            self.tree.match_memory(key, lengths(key))
        self._called.add(where)

    def store(
        self,
        where: AttentionId,
        query: Operand,
        key: Operand,
        options: MapOptions,
        heads: HeadSelection,
        value: Operand | None,
    ) -> None:
        """Copy the operands of a call; the value is None where none is wanted.

        Raises:
            ValueError: the passes cannot be joined, or the copies would be too large.
        """
        attention = self.attentions.setdefault(
            where, RecordedAttention(str(where), where.is_cross, heads, self._storage)
        )
        attention.store(query, key, options, self._copier, value)

    def starts_and_lengths(self, paths: list[list[PassSlice]] | None) -> tuple[list[int], list[int]]:
        """Per row of `tokens(paths)`, the number of keys from before the first pass, and of tokens."""
        old = self.old_lengths()
        return old if paths is None else [old[path[0].row] for path in paths], self.tokens(paths)

    @classmethod
    def of_one_pass(
        cls, starts: list[int], lengths: list[int], attentions: "dict[AttentionId, RecordedAttention]"
    ) -> "Stack":
        """A stack whose texts were read in one pass, from their `starts_and_lengths`."""
        made = cls(None)
        made.attentions = attentions
        made.passes = [Pass(starts=starts, queries=[n - start for n, start in zip(lengths, starts, strict=True)])]
        made.ids = [None]
        return made

    def ends(self) -> list[list[PassSlice]] | None:
        """Per row of the first pass, the segments of its text; None if several rows continue one, as in beam search."""
        assert self.tree is not None
        ends = self.tree.ends()
        return None if ends is None else [self.tree.path(*end) for end in ends]

    def old_lengths(self) -> list[int]:
        """Per row, the number of keys from before the first pass."""
        return self.passes[0].starts

    def ids_of_paths(self, paths: list[list[PassSlice]] | None) -> list[list[int]] | None:
        """The token ids of each path, or for None of each row of the one pass; None if they are unknown."""
        if any(ids is None for ids in self.ids) or any(self.old_lengths()):
            return None
        listed = self._listed()
        if paths is None:
            return listed[0]
        return [[x for p in path for x in listed[p.step][p.row][: p.tokens]] for path in paths]

    def tokens(self, paths: list[list[PassSlice]] | None) -> list[int]:
        """The number of tokens of each path, or for None of each row of the one pass."""
        if paths is not None:
            return [sum(p.tokens for p in path) for path in paths]
        return [start + more for start, more in zip(self.passes[0].starts, self.passes[0].queries, strict=True)]

    def state(self) -> object:
        """A value that changes when something is recorded."""
        return (id(self.tree), len(self.passes), len(self._called))

    def follow(self, text: list[int], first_rows: range) -> tuple[list[PassSlice], int]:
        """The path from one of these rows of the first pass with the longest common prefix with a text, and its length."""
        assert self.tree is not None
        best, where, before = 0, (0, 0), [0 if row in first_rows else -1 for row in range(len(self.old_lengths()))]
        for number, (step, ids) in enumerate(zip(self.tree.steps, self._listed(), strict=True)):
            same = [
                min(before[parent], kept)
                for parent, kept in zip(step.parents or range(len(before)), step.kept, strict=True)
            ]
            for row, kept in enumerate(step.kept):
                if same[row] == kept:
                    same[row] += _common_prefix(ids[row], text[kept:])
                if same[row] > best:
                    best, where = same[row], (number, row)
            before = same
        return first_tokens(self.tree.path(*where), best), best

    def _listed(self) -> list[list[list[int]]]:
        """The token ids of each row of each pass whose ids are known."""
        known = [ids for ids in self.ids if ids is not None]
        return [[row.tolist() for row in x.to_list()] if isinstance(x, Ragged) else x.tolist() for x in known]


def _common_prefix(ids: list[int], others: list[int]) -> int:
    """The length of the common prefix."""
    differs = (n for n, (one, other) in enumerate(zip(ids, others, strict=False)) if one != other)
    return next(differs, min(len(ids), len(others)))


def _as_rows(ids: Tensor | None, query: Operand) -> Operand | None:
    """A copy of the ids in the shape of the query's rows; None unless there is one per query token."""
    if ids is None:
        return None
    if isinstance(query, Ragged):
        return query.with_values(ids.flatten().clone()) if ids.numel() == query.values.shape[0] else None
    batch, queries = query.shape[:-3].numel(), query.shape[-2]
    return ids.reshape(batch, queries).clone() if ids.numel() == batch * queries else None
