"""What one attention was asked, pass after pass, and the map of it all.

Letters: R rows, H query heads, G key/value heads, Q queries, K keys, D query/key width, T tokens, N packed tokens.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from uwaga.maps.map import AttentionMap
from uwaga.maps.recorded.by_distance import VectorBias
from uwaga.maps.recorded.keeping import Heads, Keeper, Options
from uwaga.maps.recorded.lineage import Piece
from uwaga.maps.recorded.rows import Pass, join, join_ids, lengths, new_tokens, of_queries, rows
from uwaga.maps.recorded.visible import Visible, only_bands, start_of, visible, whole
from uwaga.ops.biases import AlibiBias, DistanceBias, RelativeBias
from uwaga.ops.masks import Causal, Mask
from uwaga.ops.ragged import Operand, Ragged

_NO_BIAS = "a bias is more than a function of the distance between tokens of one text"


class Trail:
    """The copies of one attention's queries and keys: of each pass its queries and its new keys, of cross-attention the
    keys of the first pass alone. What masks and biases of later passes add to those of the first is O(T)."""

    def __init__(self, name: str, is_cross: bool, heads: Heads) -> None:
        self.name, self.is_cross, self.heads = name, is_cross, heads
        self.queries: list[Operand] = []
        self.keys: list[Operand] = []
        self.options: Options  # of the first pass
        self.seen: list[Visible] = []  # of all passes, once they are to be joined; so is
        self.bias: DistanceBias | None = None
        self.starts: list[int] = []  # per row, the keys before the first pass's queries

    def keep(self, query: Operand, key: Operand, options: Options, keeper: Keeper) -> None:
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

    def map(self, paths: Sequence[Sequence[Piece]] | None, old: list[int]) -> AttentionMap:
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
            looked_at = [[Piece(0, path[0].row, len(of_roots[path[0].row]))] for path in paths]
        else:
            looked_at = [list(path) for path in paths]
        keys = join(self.keys, looked_at)
        sizes = {(len(q), len(k)) for q, k in zip(asked, keys, strict=True)}
        is_padded = isinstance(self.queries[0], Tensor) and len(sizes) == 1
        self._settle()
        mask = self._mask(asking, looked_at, is_padded, keys[0].device)
        query, key = (torch.stack(x).transpose(1, 2) if is_padded else Ragged.from_list(x) for x in (asked, keys))
        return self._map(query, key, Options(**self.options | {"mask": mask, "bias": self.bias}))

    def _map(self, query: Operand, key: Operand, options: Options) -> AttentionMap:
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
        asking: Sequence[Sequence[Piece]],
        looked_at: Sequence[Sequence[Piece]],
        is_padded: bool,
        device: torch.device,
    ) -> Mask | None:
        if all(each.key_ids is None for each in self.seen):
            return whole(self.seen[0].bands, None, None)
        put = torch.stack if is_padded else torch.cat
        query_ids = put([join_ids([x.query_ids for x in self.seen], path, device) for path in asking])
        key_ids = put([join_ids([x.key_ids for x in self.seen], path, device) for path in looked_at])
        return whole(self.seen[0].bands, key_ids, query_ids)

    def _extend(self, options: Options, query: Operand, key: Operand, this: Pass) -> None:
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

    def _visible(self, options: Options, query: Operand, key: Operand) -> Visible:
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
