"""Match the rows of a pass to the rows of the pass before, and join the operands of all passes over a text.

A KV cache may drop rows that have ended, and reorder rows. The keys that a row reads are the keys of the text that it continues, bit
for bit, so rows are matched by their keys. In the first layer of a decoder, rows with equal tokens have equal keys; there the keys of
cross-attention distinguish them.

Letters: R rows, B batch, H query heads, G key/value heads, Q queries, K keys, D query/key width, T tokens, N packed tokens.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import and_
from typing import Any, NamedTuple

import torch
from torch import Tensor

from uwaga._base.arguments import integer
from uwaga.inspect.recordings.copies import Copier, VectorBias
from uwaga.maps.map import MapOptions
from uwaga.nn.attention_id import AttentionId
from uwaga.nn.operand import map_values, values_of
from uwaga.ops.biases import AlibiBias, DistanceBias, RelativeBias
from uwaga.ops.mask_program import Start
from uwaga.ops.masks import Both, Causal, Documents, Either, KeyLengths, Mask, Window
from uwaga.ops.ragged import Operand, Ragged

_NO_BIAS = "a bias is not a function of the distance between tokens alone"
_COLUMNS = 8  # elements of a key in its fingerprint
_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Describe one forward pass."""

    added: list[int]  # per row, the number of new tokens
    parents: list[int]  # per row, the row of the pass before that it continues; empty in the first pass


class PassSlice(NamedTuple):
    """Select the first `tokens` of the tokens that a row of a pass added."""

    step: int
    row: int
    tokens: int


class SequenceTree:
    """Hold the rows of all passes over one batch of texts: each row continues a row of the pass before."""

    def __init__(self, key: Operand, first: "Pass") -> None:
        """Begin with the keys of the first pass, (R, G, K, D) or Ragged (N, G, D)."""
        lengths = first.tokens
        self.steps = [Step(added=lengths, parents=[])]
        self._fingerprints = _fingerprints(key, lengths)  # per row, (T, columns)
        self._memory: list[Tensor] = []  # per row, (K, columns) of the keys of cross-attention
        self._before: list[Tensor] = []  # fingerprints of the pass before
        self._old: list[Tensor] = []  # per row, the fingerprints of the old keys of this pass

    def extend(self, key: Operand, starts: list[int], added: list[int]) -> bool:
        """Add the next pass; return False, and add nothing, if a row continues no row of the pass before.

        Args:
            key: the old and the new keys.
            starts: per row, the number of old keys.
            added: per row, the number of new keys.
        """
        fingerprints = _fingerprints(key, [start + more for start, more in zip(starts, added, strict=True)])
        old_keys = [mark[:start] for mark, start in zip(fingerprints, starts, strict=True)]
        matches = [_find_parent(row, old, self._fingerprints) for row, old in enumerate(old_keys)]
        parents = [match for match in matches if match is not None]
        if len(parents) < len(old_keys):
            return False
        self._before, self._old = self._fingerprints, old_keys
        self._fingerprints = [
            torch.cat((self._before[parent], mark[start:]))
            for parent, mark, start in zip(parents, fingerprints, starts, strict=True)
        ]
        self.steps.append(Step(added=added, parents=parents))
        return True

    def match_memory(self, key: Operand, lengths: list[int]) -> None:
        """Match rows by their keys of cross-attention: a row continues a row with the same keys."""
        memory = _fingerprints(key, lengths)
        step = self.steps[-1]
        for row, (parent, old) in enumerate(zip(step.parents, self._old, strict=False)):
            if torch.equal(self._memory[parent], memory[row]):
                continue
            candidates = [other for other, kept in enumerate(self._memory) if torch.equal(kept, memory[row])]
            result = _find_parent(row, old, self._before, candidates)
            if result is not None:
                step.parents[row] = result
        self._memory = memory

    def paths(self) -> list[list[PassSlice]] | None:
        """Return the segments of each text of the first pass; None if several rows continue one."""
        paths = [[PassSlice(0, row, tokens)] for row, tokens in enumerate(self.steps[0].added)]
        of_rows = paths
        for number, step in enumerate(self.steps[1:], 1):
            if len(set(step.parents)) < len(step.parents):
                return None
            of_rows = [of_rows[parent] for parent in step.parents]
            for row, path in enumerate(of_rows):
                path.append(PassSlice(number, row, step.added[row]))
        return paths


def _find_parent(row: int, old: Tensor, fingerprints: list[Tensor], among: Sequence[int] | None = None) -> int | None:
    """Find the row that continues with these old keys; prefer the same row number."""
    order = sorted(range(len(fingerprints)) if among is None else among, key=lambda other: other != row)
    for other in order:
        if torch.equal(fingerprints[other], old):
            return other
    for other in order:
        before = fingerprints[other]
        if 0 < len(old) < len(before) and torch.equal(before[-len(old) :], old):
            # The cache dropped the first tokens; or the last ones, where keys without positions are the same at both ends.
            return None if torch.equal(before[: len(old)], old) else other
    return None


def _fingerprints(key: Operand, lengths: list[int]) -> list[Tensor]:
    """Return the bits of some elements of each token's key, (T, columns) per row."""
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
    """Count, per row of a pass of self-attention, the keys before its queries, and the queries."""

    starts: list[int]
    queries: list[int]

    @property
    def tokens(self) -> list[int]:
        """The number of tokens that have been read after the pass, per row."""
        return [start + more for start, more in zip(self.starts, self.queries, strict=True)]

    @staticmethod
    def of(query: Operand, key: Operand, start: Start) -> "Pass":
        """Return the pass of a mask with this `start`; None: the last query is at the last key."""
        queries, keys = lengths(query), lengths(key)
        if isinstance(start, Tensor):
            starts = start.broadcast_to(len(queries)).tolist()
        elif start is not None:
            starts = [start] * len(queries)
        else:
            starts = [max(k - q, 0) for q, k in zip(queries, keys, strict=True)]
        return Pass(starts=starts, queries=queries)


def as_batch(x: Operand) -> Operand:
    """Flatten (..., H, N, D) to (B, H, N, D), also if a size is 0."""
    return x if isinstance(x, Ragged) else x.reshape(x.shape[:-3].numel(), *x.shape[-3:])


def lengths(x: Operand) -> list[int]:
    """Return the number of tokens per row."""
    return x.lengths.tolist() if isinstance(x, Ragged) else [x.shape[2]] * x.shape[0]


def heads_of(x: Operand) -> int:
    """Return the number of heads of (..., H, N, D) or Ragged (N, H, D)."""
    return x.values.shape[1] if isinstance(x, Ragged) else x.shape[-3]


def rows(x: Operand) -> list[Tensor]:
    """Return the rows, each (T, H, D)."""
    return x.to_list() if isinstance(x, Ragged) else [row.transpose(0, 1) for row in x]


def new_tokens(key: Operand, this: Pass) -> Operand:
    """Return the keys of the same tokens as the queries."""
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
    """Join the operands of all passes along each path, (T, H, D) per path."""
    by_pass = [rows(x) for x in passes]
    return [torch.cat([by_pass[p.step][p.row][: p.tokens] for p in path]) for path in paths]


def join_ids(passes: Sequence[Tensor | None], path: Sequence[PassSlice], device: torch.device) -> Tensor:
    """Join ids (R, T) of each pass along a path, (T,); None stands for ones."""
    ones = torch.ones((), dtype=torch.int64, device=device)
    parts = [(passes[p.step], p) for p in path]
    return torch.cat([ones.expand(p.tokens) if ids is None else ids[p.row, : p.tokens] for ids, p in parts])


def of_queries(path: Sequence[PassSlice], old: list[int]) -> list[PassSlice]:
    """Drop the first `old` keys of each row from a path; they precede the queries of the first pass."""
    first, *others = path
    return [first._replace(tokens=max(first.tokens - old[first.row], 0)), *others]


# One attention over all passes.


class PassMask(NamedTuple):
    """Describe the mask of one pass: a query sees keys with its own id, at distances that all bands allow."""

    bands: frozenset[Mask]  # Causal and Window, and combinations of these, without a start
    key_ids: Tensor | None = None  # (B, K); None: all are 1
    query_ids: Tensor | None = None  # (B, Q)


def start_of(mask: Mask | Tensor | None) -> Start:
    """Return the `start` of a mask; None if it has no start."""
    if isinstance(mask, Both | Either):
        left = start_of(mask.left)
        return start_of(mask.right) if left is None else left
    return mask.start if isinstance(mask, Causal | Window) else None


def _pass_mask(mask: Mask | Tensor | None, query: Operand, key: Operand) -> PassMask | None:
    """Return the mask of a pass as a PassMask; None if that is impossible. Ragged passes have no ids of tokens."""
    bands: set[Mask] = set()
    ids: tuple[Tensor, ...] = ()  # of keys and of queries
    for atom in _atoms(mask):
        band = _without_start(atom)
        if band is not None:
            bands.add(band)
            continue
        # Key lengths and documents at once cannot be expressed by one id per token.
        if ids or isinstance(query, Ragged) or isinstance(key, Ragged):
            return None
        batch, queries, keys = query.shape[0], query.shape[2], key.shape[2]
        if isinstance(atom, KeyLengths) and atom.lengths.numel() == batch:
            j_K = torch.arange(keys, device=atom.lengths.device)
            ids = j_K < atom.lengths.reshape(-1, 1), atom.lengths.new_ones(batch, queries)
        elif isinstance(atom, Documents):
            ids = atom.ids, atom.ids[..., keys - queries :] if atom.query_ids is None else atom.query_ids
        else:
            return None
        ids = tuple(x.long().expand(batch, -1) for x in ids)
    return PassMask(frozenset(bands), *ids)


def _atoms(mask: Mask | Tensor | None) -> list[Mask | Tensor]:
    """Return the masks that & combines."""
    if isinstance(mask, Both):
        return _atoms(mask.left) + _atoms(mask.right)
    return [] if mask is None else [mask]


def _without_start(mask: Mask | Tensor) -> Mask | None:
    """Return the mask without its start; None if it depends on more than distances."""
    if isinstance(mask, Causal | Window):
        return replace(mask, start=None)
    if isinstance(mask, Both | Either):
        left, right = _without_start(mask.left), _without_start(mask.right)
        return None if left is None or right is None else replace(mask, left=left, right=right)
    return None


class HeadSelection(NamedTuple):
    """Select the heads of one attention that are recorded."""

    query: list[int] | None  # None: all
    key: list[int] | None
    pairs: list[int] | None  # the index into `key` for each query head, if these are not equal groups in order

    @staticmethod
    def of(where: AttentionId, picked: tuple[int, ...] | None, query_heads: int, key_heads: int) -> "HeadSelection":
        """Select query heads and the key heads that they read. Raises ValueError: a head that does not exist."""
        if picked is None:
            return HeadSelection(None, None, None)
        for head in picked:
            integer(head, f"watch: a head of {where}", 0, query_heads - 1)
        read = [head * key_heads // query_heads for head in picked]
        key = sorted(set(read))
        pairs, size = [key.index(head) for head in read], len(picked) / len(key)
        in_groups = pairs == [int(i // size) for i in range(len(picked))] and size == int(size)
        return HeadSelection(list(picked), key, None if in_groups else pairs)


# The operands of one attention over whole texts, and the options of its map: the query (R, H, Q, D) or Ragged (N, H, D); the key
# (R, G, K, D) or Ragged (N, G, D), of the recorded key heads; the value (R, G, K, E), Ragged (N, G, E), or None.
Joined = tuple[Operand, Operand, Operand | None, MapOptions]


class RecordedAttention:
    """Hold copies of one attention's queries, new keys and optionally new values of each pass.

    In cross-attention, it holds the keys and values of the first pass only. Masks and biases of later passes take O(T) memory.
    """

    def __init__(self, where: AttentionId, heads: HeadSelection) -> None:
        self.where, self.is_cross, self.heads = where, where.kind == "cross", heads
        self.queries: list[Operand] = []
        self.keys: list[Operand] = []
        self.values: list[Operand] = []  # as many as keys, or empty
        self.options: MapOptions  # of the first pass
        self.seen: list[PassMask] = []  # the masks of all passes, once there are several; `bias` too
        self.bias: DistanceBias | None = None
        self.starts: list[int] = []  # per row, the number of keys before the queries of the first pass

    def store(
        self, query: Operand, key: Operand, value: Operand | None, options: Mapping[str, Any], copier: Copier
    ) -> None:
        """Copy the operands of a pass; the value is None if it is not recorded.

        Raises:
            ValueError: its mask or bias cannot be joined with earlier passes, or the copies would be too large.
        """
        kept = copier.options(options, self.heads.query, heads_of(query))
        # Caches of layers may hold different numbers of tokens, so that positions differ between layers.
        this = Pass.of(query, key, 0 if self.is_cross else start_of(options["mask"]))
        new: list[Operand | None] = []
        if not self.queries:
            self.options, self.starts = kept, this.starts
            copier.count(kept)
            new = [key, value]
        else:
            self._extend(kept, query, key, this)
            if not self.is_cross:
                new = [None if x is None else new_tokens(x, this) for x in (key, value)]
        for passes, x in zip((self.keys, self.values), new, strict=False):
            if x is not None:
                passes.append(copier.operand(x, self.heads.key))
        self.queries.append(copier.operand(query, self.heads.query))

    @property
    def kept(self) -> list[object]:
        """The stored operands, options, biases and masks."""
        return [self.queries, self.keys, self.values, self.options, self.bias, self.seen]

    def joined(self, paths: Sequence[Sequence[PassSlice]] | None, old: list[int]) -> Joined:
        """Return the operands of all rows, which are ragged if their lengths differ.

        Args:
            paths: per row, the segments of its text; None if there is one pass.
            old: per row of the first pass, the number of keys before its first query, which the paths include.

        Raises:
            ValueError: layers with different numbers of keys from before the first pass.
        """
        if paths is None:
            return self.queries[0], self.keys[0], self.values[0] if self.values else None, self.options
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
        return query, key, value, MapOptions(**self.options | {"mask": mask, "bias": self.bias})

    def of_pairs(self, x: Operand) -> Operand:
        """Select the heads of a key or value that the map has."""
        if self.heads.pairs is None:
            return x
        pairs = torch.tensor(self.heads.pairs, device=values_of(x).device)
        return map_values(lambda values: values.index_select(1 if isinstance(x, Ragged) else -3, pairs), x)

    def _mask(
        self,
        query_paths: Sequence[Sequence[PassSlice]],
        key_paths: Sequence[Sequence[PassSlice]],
        is_padded: bool,
        device: torch.device,
    ) -> Mask | None:
        """Return the mask of the joined passes, whose last query is at the last key."""
        results: list[Mask] = sorted(self.seen[0].bands, key=repr)
        if any(mask.key_ids is not None for mask in self.seen):
            put = torch.stack if is_padded else torch.cat
            query_ids = put([join_ids([x.query_ids for x in self.seen], path, device) for path in query_paths])
            key_ids = put([join_ids([x.key_ids for x in self.seen], path, device) for path in key_paths])
            if not bool((key_ids == 1).all() & (query_ids == 1).all()):
                results.append(Documents(key_ids, query_ids=query_ids))
        return reduce(and_, results) if results else None

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
        mask = _pass_mask(options["mask"], query, key)
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
        """Return the bias of all passes so far, joined with the bias of one more pass."""
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
        return ValueError(f"watch: {self.where}: the passes of a text cannot be joined into one map: {why}; {advice}")


def _placed(
    bias: DistanceBias | Tensor | None, query: Operand, key: Operand, start: int
) -> DistanceBias | Tensor | None:
    """Return a bias by distance whose last query is at the last key.

    start: the number of keys before the first query of the text.
    """
    if isinstance(bias, VectorBias):
        return replace(bias, lowest=bias.lowest + max(lengths(key)) - max(lengths(query)) - start)
    return replace(bias, start=None) if isinstance(bias, AlibiBias | RelativeBias) else bias
