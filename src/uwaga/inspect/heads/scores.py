"""Scores of heads for three attention patterns: previous token, duplicate token, induction.

The patterns are those of Olsson et al., "In-context Learning and Induction Heads" (2022), and of the head detector of
TransformerLens. For all three:

- the score of a query is the sum of its weights on the keys of the pattern: 1 if it reads no other keys;
- the score of a head is the mean in float64 over the queries of all sequences that see a key and whose pattern has a key;
  NaN without such a query (TransformerLens divides by all queries, so its score is low for texts without repetitions);
- the first token is included, and nothing is normalised: a head whose weight is mostly on the first token has low scores;
- the share of a learned sink is not weight on the pattern.

Queries are the last Q of K positions. The cost is one pass over Q and K (a band, for the previous token), O(N) memory.

Letters: B batch, H heads, Q queries, K keys, N packed tokens of all sequences.
"""

import torch
from torch import Tensor

from uwaga.maps.base import WeightMap, integers
from uwaga.maps.map import AttentionMap
from uwaga.maps.per_head import has_visible_key, per_head
from uwaga.nn.operand import values_of
from uwaga.ops.masks import Causal, Documents
from uwaga.ops.ragged import Ragged


def previous_token(m: AttentionMap) -> Tensor:
    """Return the mean weight of query i on key i - 1, (H,) in float64, over queries with such a key."""
    places = [torch.arange(k - q, k, device=m.device) >= 1 for q, k in (shape[-2:] for shape in m.shapes)]
    has_previous = torch.cat([*places, torch.ones(0, dtype=torch.bool, device=m.device)])
    if m.parts() is not None and len(m.shape) > 3:
        has_previous = has_previous[:, None]
    return per_head(m.diagonal(-1), has_visible_key(m, has_previous))


def duplicate_token(m: AttentionMap, tokens: Tensor | Ragged) -> Tensor:
    """Return the mean weight on earlier keys with the same token, (H,) in float64, over queries with such a key.

    Args:
        m: the map of one layer.
        tokens: token ids, (K,) or (batch..., K); of a ragged map (N,) or Ragged, one per packed key. A token is not a
            duplicate of itself.

    Raises:
        ValueError: tokens that are not integers, one per key, or more queries than keys.
    """
    return _score(m, tokens, after=False)


def induction(m: AttentionMap, tokens: Tensor | Ragged) -> Tensor:
    """Return the mean weight on keys right after an earlier copy of the query's token (A B ... A: on B).

    The result is (H,) in float64, from 0 to 1.

    Olsson et al. (2022) call it the prefix-matching score. The mean is over the queries whose token occurred before. Where a
    token occurs twice in a row, the second follows the first, so that its own position belongs to its pattern, as in
    TransformerLens.

    Args:
        m: the map of one layer.
        tokens: as for `duplicate_token`.

    Raises:
        ValueError: as `duplicate_token`.
    """
    return _score(m, tokens, after=True)


def _score(m: AttentionMap, tokens: Tensor | Ragged, *, after: bool) -> Tensor:
    """Return the mean weight (H,) on earlier keys with the query's token, or on the keys after them.

    The mean is over the queries whose token occurs at an earlier key of the sequence.
    """
    sizes = [(shape[-2], shape[-1]) for shape in m.shapes]
    _check(m, tokens, sizes)
    is_ragged = m.parts() is not None
    ids = values_of(tokens)
    sizes = sizes if is_ragged else sizes * ids.shape[:-1].numel()
    queries, keys = torch.tensor(sizes, device=ids.device, dtype=torch.int64).reshape(-1, 2).unbind(1)
    # For all sequences, one after another: the number of the sequence, a number per distinct token, and the token's place.
    sequence = torch.repeat_interleave(torch.arange(len(keys), device=ids.device), keys)
    packed, place = ids.flatten().unique(return_inverse=True)[1], torch.arange(len(sequence), device=ids.device)
    is_query = keys.cumsum(0)[sequence] - place <= queries[sequence]  # the last ones of the sequence

    def unpacked(x: Tensor) -> Tensor:
        """Reshape to (K,) or (Q,), (batch..., K or Q), or (N,), as masks take ids."""
        return x if is_ragged else x.reshape(*ids.shape[:-1], -1)

    # One id per token and sequence, so that one pass finds the first position of each.
    _, kind = torch.stack((sequence, packed)).unique(dim=1, return_inverse=True)
    first = place.new_full((len(kind),), len(kind)).scatter_reduce(0, kind, place, "amin")
    occurred = unpacked((first[kind] < place)[is_query])
    if len(m.shape) > (3 if is_ragged else 2) and (is_ragged or ids.dim() > 1):
        occurred = occurred[..., None] if is_ragged else occurred[..., None, :]
    is_first = sequence.diff(prepend=sequence.new_full((1,), -1)) != 0
    marks = torch.where(is_first, -1, packed.roll(1)) if after else packed  # -1 equals no token
    mask = Documents(unpacked(marks), query_ids=unpacked(packed[is_query])) & Causal(include_self=after)
    return per_head(m.mass(mask), has_visible_key(m, occurred))


def _check(m: WeightMap, tokens: Tensor | Ragged, lengths: list[tuple[int, int]]) -> None:
    ids = values_of(tokens)
    integers(ids, "head scores: tokens")
    keys = sum(k for _, k in lengths)
    fits = [(keys,)] if m.parts() is not None else [(keys,), (*m.shape[:-3], keys)]
    if tuple(ids.shape) not in fits:
        raise ValueError(f"head scores: tokens must be one per key, {fits[-1]}, not {tuple(ids.shape)}")
    if isinstance(tokens, Ragged) and tokens.lengths.tolist() != [k for _, k in lengths]:
        actual = f"{[k for _, k in lengths]}, not {tokens.lengths.tolist()}"
        raise ValueError(f"head scores: tokens must have the lengths of the map's keys, {actual}")
    if more := [(q, k) for q, k in lengths if q > k]:
        queries, keys = more[0]
        rule = "queries must be the last of the keys' positions"
        raise ValueError(f"head scores: {rule}, but there are {queries} queries and {keys} keys")
