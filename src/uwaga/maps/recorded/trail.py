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
from uwaga.maps.recorded.rows import Pass, join, new_tokens, rows
from uwaga.maps.recorded.visible import Visible, only_bands, visible, whole
from uwaga.ops.attention.lower import Operand
from uwaga.ops.biases import AlibiBias, RelativeBias
from uwaga.ops.masks import Causal
from uwaga.ops.ragged import Ragged


class Trail:
    """The copies of one attention's queries and keys. Each pass keeps its queries and its new keys; a mask and a bias are
    kept as the first pass had them, and what later ones add to them is O(T)."""

    def __init__(self, name: str, is_cross: bool, heads: Heads) -> None:
        self.name, self.is_cross, self.heads = name, is_cross, heads
        self.queries: list[Operand] = []
        self.keys: list[Operand] = []  # of cross-attention those of the first pass alone
        self.options: Options | None = None  # of the first pass
        self.seen: list[Visible] = []  # per pass; empty while there is one

    def keep(self, query: Operand, key: Operand, options: Options, this: Pass, keeper: Keeper) -> None:
        """Copy what a pass asks.

        Raises:
            ValueError: it continues passes before it in a way that has no map of the whole.
        """
        count = len(self.heads.query or range(_heads(query)))
        kept = keeper.options(options, self.heads.query, _heads(query))
        if self.options is None:
            self.options = kept
            self.keys.append(keeper.operand(key, self.heads.key))
        else:
            self._extend(kept, query, key, this)
            if not self.is_cross:
                self.keys.append(keeper.operand(new_tokens(key, this), self.heads.key))
        assert count > 0
        self.queries.append(keeper.operand(query, self.heads.query))

    def _extend(self, options: Options, query: Operand, key: Operand, this: Pass) -> None:
        """Mask and bias of one more pass."""
        assert self.options is not None
        if not self.seen:
            first = self.queries[0], self.keys[0]
            self.seen = [self._visible(self.options, *first)]
            self.options["bias"] = self._placed(self.options, *first, 0)
        found = self._visible(options, query, key)
        bands = self.seen[0].bands
        # With one query a layer may do without a mask.
        is_silent = not found.bands and bands == {Causal()} and _tokens(query) == 1
        if found.bands != bands and not is_silent:
            raise self._apart("their masks differ")
        start = 0 if self.is_cross else max(this.starts, default=0)
        self.options["bias"] = self._with_bias(self._placed(options, query, key, start))
        if found.key_ids is not None and not self.is_cross:
            found = found._replace(key_ids=_of_new(found.key_ids, this))
        self.seen.append(found)

    def _visible(self, options: Options, query: Operand, key: Operand) -> Visible:
        mask = options["mask"]
        if isinstance(query, Tensor) and isinstance(key, Tensor):
            found = visible(mask, query.shape[0], query.shape[2], key.shape[2])
        elif not isinstance(query, Ragged) or isinstance(key, Ragged):
            found = only_bands(mask)
        else:
            found = None
        if found is None:
            raise self._apart("a mask is no Causal, Window, KeyLengths or Documents, nor these joined by &")
        return found

    def _placed(self, options: Options, query: Operand, key: Operand, start: int):
        """The bias, counted from where the first query stands."""
        bias = options["bias"]
        if isinstance(bias, VectorBias):
            return replace(bias, lowest=bias.lowest + _tokens(key) - _tokens(query) - start)
        return replace(bias, start=None) if isinstance(bias, AlibiBias | RelativeBias) else bias

    def _with_bias(self, more):
        assert self.options is not None
        bias = self.options["bias"]
        if isinstance(bias, VectorBias) and isinstance(more, VectorBias):
            bias = bias.joined(more)
            if bias is not None:
                return bias
        elif type(bias) is type(more) and not isinstance(bias, Tensor):
            return bias
        raise self._apart("a bias is no function of the distance")

    def _apart(self, why: str) -> ValueError:
        way_out = "watch one forward pass over the whole text instead"
        return ValueError(f"watch: {self.name}: the passes of one text cannot be joined into one map: {why}; {way_out}")

    def map(self, paths: Sequence[Sequence[Piece]] | None, old: list[int]) -> AttentionMap:
        """The map of all rows, (R, H, Q, K), or ragged.

        Args:
            paths: per row, where its tokens are; None where there is one pass, which is taken as it was.
            old: per row of the first pass, the keys before its first query.
        """
        assert self.options is not None
        if paths is None:
            return self._map(self.queries[0], self.keys[0], self.options)
        asked = join(self.queries, [_later(path, old) for path in paths])
        roots = [path[0].row for path in paths]
        key_rows = rows(self.keys[0])
        keys = [key_rows[root] for root in roots] if self.is_cross else join(self.keys, paths)
        is_padded = isinstance(self.queries[0], Tensor) and len({(len(q), len(k)) for q, k in zip(asked, keys, strict=True)}) == 1
        mask = self._mask(paths, old, [len(x) for x in keys], is_padded)
        query, key = (torch.stack(x).transpose(1, 2) if is_padded else Ragged.from_list(x) for x in (asked, keys))
        return self._map(query, key, Options(**self.options | {"mask": mask}))

    def _mask(self, paths: Sequence[Sequence[Piece]], old: list[int], keys: list[int], is_padded: bool):
        seen = self.seen or [self._visible(self.options, self.queries[0], self.keys[0])]
        if all(each.key_ids is None for each in seen):
            return whole(seen[0].bands, None, None)
        device = self.queries[0].values.device if isinstance(self.queries[0], Ragged) else self.queries[0].device
        query_ids = [_ids([(seen[p.step].query_ids, p) for p in _later(path, old)], device) for path in paths]
        if self.is_cross:
            key_ids = [_ids([(seen[0].key_ids, Piece(0, path[0].row, n))], device) for path, n in zip(paths, keys, strict=True)]
        else:
            key_ids = [_ids([(seen[p.step].key_ids, p) for p in path], device) for path in paths]
        put = torch.stack if is_padded else torch.cat
        return whole(seen[0].bands, put(key_ids), put(query_ids))

    def _map(self, query: Operand, key: Operand, options: Options) -> AttentionMap:
        if self.heads.pairs is not None:
            key = _paired(key, self.heads.pairs)
        return AttentionMap(query, key, **options)
