"""How much a head looks at the previous token, at equal tokens, and at what came after equal tokens.

After Olsson et al., "In-context Learning and Induction Heads" (2022), which scores repeated random tokens; the patterns
are those of TransformerLens's head detector. Choices that all three share:

- the score is the weight that a query puts on the keys of its pattern, summed over those keys, not divided by their
  number: 1 means that the head does nothing else;
- it is averaged over the queries that see something and whose pattern has a key. (TransformerLens's "mul" divides by all
  queries, so that a text without repetitions scores low there; here it is the head that is scored, and not the text);
- every such query counts once, whichever sequence it is in;
- the first token is in: as a key where a pattern names it, with all its weight. Weights are not normalised again without
  it. A head that rests on the first token has low scores, as it should: it does nothing of the kind then;
- with learned sinks, what a sink takes is weight that the pattern does not get.

Queries are the last Q of K positions. Cost is that of one pass over Q and K (a band, for the previous token): no N x N.

Letters: H heads, Q queries, K keys, N packed tokens.
"""

import torch
from torch import Tensor

from uwaga.maps.averages import PerQuery, per_head
from uwaga.maps.map import AttentionMap
from uwaga.maps.tokens import KeyTokens
from uwaga.ops.masks import Causal, Documents
from uwaga.ops.ragged import Ragged


def previous_token(m: AttentionMap) -> Tensor:
    """(H,) float64: the mean weight on j = i - 1, over the queries that have such a key."""
    places = [torch.arange(k - q, k, device=m.device) >= 1 for q, k in (shape[-2:] for shape in m.shapes)]
    has_previous = torch.cat([*places, torch.ones(0, dtype=torch.bool, device=m.device)])
    if m.parts() is not None and len(m.shape) > 3:
        has_previous = has_previous[:, None]
    return per_head(m.diagonal(-1), seeing(m, has_previous))


def duplicate_token(m: AttentionMap, tokens: Tensor | Ragged) -> Tensor:
    """(H,) float64: the mean weight on earlier keys of the same token, over the queries that have one.

    Args:
        m: the map of one layer.
        tokens: integers that are equal where the tokens are: (K,), or (batch..., K); of a ragged map (N,) or Ragged, one
            per packed key. A token is no duplicate of itself.

    Raises:
        ValueError: tokens that are no integers or not one per key, or more queries than keys.
    """
    known = KeyTokens.of(m, tokens)
    mask = Documents(known.of_keys(), query_ids=known.of_queries()) & Causal(include_self=False)
    return per_head(m.mass(mask), seeing(m, known.occurred()))


def induction(m: AttentionMap, tokens: Tensor | Ragged) -> Tensor:
    """(H,) float64: the mean weight on keys that follow an earlier occurrence of the query's token: A B ... A looks at B.

    Olsson et al. call it the prefix-matching score. Where a token stands twice in a row, the second is what follows the
    first, so that its own position belongs to its pattern, as in TransformerLens.

    Args:
        m: the map of one layer.
        tokens: as for `duplicate_token`.

    Raises:
        ValueError: as `duplicate_token`.
    """
    known = KeyTokens.of(m, tokens)
    mask = Documents(known.before(), query_ids=known.of_queries()) & Causal()
    return per_head(m.mass(mask), seeing(m, known.occurred()))


def seeing(m: AttentionMap, counted: Tensor | None = None) -> PerQuery:
    """bool per query and head: those that see a key, of the counted ones."""
    position = m.peak().position
    sees = (position.values if isinstance(position, Ragged) else position) >= 0
    sees = sees if counted is None else sees & counted
    return position.with_values(sees) if isinstance(position, Ragged) else sees
