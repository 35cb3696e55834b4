"""The tokens behind a map's keys: which are equal, and which came before.

Letters: B batch, H query heads, Q queries, K keys, N packed tokens. A dense map's sequences are packed here too.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from uwaga.maps.base import WeightMap
from uwaga.ops.ragged import Ragged


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyTokens:
    """The token of every key of a map whose queries are the last Q of K positions of each sequence."""

    packed: Tensor  # (N,) int64 from 0: a number for each kind of token; all sequences, one after the other
    sequence: Tensor  # (N,) int64: which one each token is of
    queries: Tensor  # int64: where the queries are in `packed`
    batch: tuple[int, ...] | None  # the dimensions before K of the tokens of a dense map; None of a ragged one
    has_heads: bool  # whether the map has a dimension of heads

    @staticmethod
    def of(m: WeightMap, tokens: Tensor | Ragged) -> "KeyTokens":
        """Checked against the map.

        Raises:
            ValueError: tokens that are no integers or not one per key, or more queries than keys.
        """
        lengths = [(shape[-2], shape[-1]) for shape in m.shapes]
        _check(m, tokens, lengths)
        is_ragged = m.parts() is not None
        ids = tokens.values if isinstance(tokens, Ragged) else tokens
        batch = None if is_ragged else tuple(ids.shape[:-1])
        if batch is not None:
            lengths = lengths * ids.shape[:-1].numel()
        queries, keys = torch.tensor(lengths, device=ids.device, dtype=torch.int64).reshape(-1, 2).unbind(1)
        sequence = torch.repeat_interleave(torch.arange(len(keys), device=ids.device), keys)
        from_end = keys.cumsum(0)[sequence] - torch.arange(len(sequence), device=ids.device)
        return KeyTokens(
            packed=ids.flatten().unique(return_inverse=True)[1],
            sequence=sequence,
            queries=(from_end <= queries[sequence]).nonzero().squeeze(-1),
            batch=batch,
            has_heads=len(m.shape) > (3 if is_ragged else 2),
        )

    def of_keys(self) -> Tensor:
        """(K,), (batch..., K) or (N,), as masks take ids."""
        return self._unpack(self.packed)

    def of_queries(self) -> Tensor:
        """(Q,), (batch..., Q) or (N,)."""
        return self._unpack(self.packed[self.queries])

    def before(self) -> Tensor:
        """The token before each key, in the shape of `of_keys`; before the first of a sequence, one that equals no other."""
        is_first = self.sequence.diff(prepend=self.sequence.new_full((1,), -1)) != 0
        return self._unpack(torch.where(is_first, -1, self.packed.roll(1)))

    def occurred(self) -> Tensor:
        """bool: whether the token of each query stands at an earlier key of its sequence too. It broadcasts to a number
        per query and head: (Q,), (batch..., 1, Q), or (N, 1) and (N,) of a ragged map."""
        # One number per token and sequence, so that one pass finds the first place of each.
        _, kind = torch.stack((self.sequence, self.packed)).unique(dim=1, return_inverse=True)
        place = torch.arange(len(kind), device=kind.device)
        first = place.new_full((len(kind),), len(kind)).scatter_reduce(0, kind, place, "amin")
        found = self._unpack((first[kind] < place)[self.queries])
        if not self.has_heads or self.batch == ():
            return found
        return found[..., None] if self.batch is None else found[..., None, :]

    def _unpack(self, packed: Tensor) -> Tensor:
        return packed if self.batch is None else packed.reshape(*self.batch, -1)


def _check(m: WeightMap, tokens: Tensor | Ragged, lengths: list[tuple[int, int]]) -> None:
    ids = tokens.values if isinstance(tokens, Ragged) else tokens
    if ids.dtype.is_floating_point or ids.dtype == torch.bool:
        raise ValueError(f"head scores: tokens must be integers, not {ids.dtype}")
    keys = sum(k for _, k in lengths)
    fits = [(keys,)] if m.parts() is not None else [(keys,), (*m.shape[:-3], keys)]
    if tuple(ids.shape) not in fits:
        raise ValueError(f"head scores: tokens must be one per key, {fits[-1]}, not {tuple(ids.shape)}")
    if isinstance(tokens, Ragged) and tokens.lengths.tolist() != [k for _, k in lengths]:
        found = f"{[k for _, k in lengths]}, not {tokens.lengths.tolist()}"
        raise ValueError(f"head scores: tokens must have the lengths of the map's keys, {found}")
    for q, k in lengths:
        if q > k:
            rule = f"queries must be the last of the keys' positions, but there are {q} queries and {k} keys"
            raise ValueError(f"head scores: {rule}")
