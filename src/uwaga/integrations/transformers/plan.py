"""What one attention of transformers may skip: a mask over the whole batch, and the same as stretches of tokens.

Letters: B batch, Q queries, K keys, N tokens of a sequence, R stretches of the whole batch.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NoReturn

import torch
from torch import Tensor

from uwaga.ops.masks import Documents, KeyLengths, Mask


@dataclass(frozen=True, kw_only=True)
class Stretches:
    """The batch as R stretches of tokens, each of which attends to itself alone; those of padding to nothing.

    They lie one behind the other in its B * N tokens, so that a ragged call reads queries and keys where they are.
    """

    offsets: Tensor  # (R+1,) int64
    lengths: Tensor | None  # (R,) int64: the keys of each stretch, 0 in padding; None where nothing is padding
    mask: Mask | None  # inside each stretch; of the distance alone

    @cached_property
    def visible(self) -> Mask | None:
        """The mask of the ragged call, the same one for every layer."""
        if self.lengths is None:
            return self.mask
        return KeyLengths(self.lengths) if self.mask is None else self.mask & KeyLengths(self.lengths)


@dataclass(frozen=True, slots=True, kw_only=True)
class LastQueries:
    """The last position of each sequence of a causal batch in which it is padding somewhere.

    `generate` reads there what comes next, also where it warns of padding on the right. What such a query sees is not said by
    its distance from the tokens of its stretch. Both masks are of a ragged call of one query for each sequence.
    """

    of_batch: Mask  # keys (B * N,): all positions
    of_tokens: Mask  # keys (T,): those of Plan.tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The mask of one layer or many, over the scores (B, heads, Q, K)."""

    mask: Mask | None  # None: every query sees every key
    stretches: Stretches | None = None  # the same without what padded queries see, where Q and K are the same tokens
    is_self_attention: bool = False  # they are: else two sequences of one length may have met here
    tokens: Tensor | None = None  # (B, N) bool, False in padding that is not computed, where there is some
    last: LastQueries | None = None  # these are computed by a call of their own, where the other has stretches


@dataclass(frozen=True, slots=True)
class Refused:
    """In the place of a plan that is an error where a layer reads it. transformers also makes masks that no layer takes."""

    reason: str

    @property
    def mask(self) -> NoReturn:
        raise ValueError(self.reason)

    stretches = tokens = last = is_self_attention = mask


def visible_keys(padding: Tensor | None, offset: int, keys: int) -> Tensor | None:
    """(B, K) bool, False where a key is padding; None where none is. What transformers' mask is too short for, is."""
    if padding is None:
        return None
    seen_BK = padding[:, offset : offset + keys]
    if (missing := keys - seen_BK.shape[1]) > 0:
        seen_BK = torch.nn.functional.pad(seen_BK, (0, missing))
    return None if bool(seen_BK.all()) else seen_BK


def hide_keys(seen_BK: Tensor, queries: int) -> Mask:
    """The mask of padded keys."""
    if bool((seen_BK[:, 1:] <= seen_BK[:, :-1]).all()):
        return KeyLengths(seen_BK.sum(1))
    return Documents(seen_BK.long(), query_ids=seen_BK.new_ones(queries, dtype=torch.int64))


def hide_queries_too(seen_BK: Tensor, tokens_BQ: Tensor) -> Mask:
    """The mask of padded keys and queries: where no stretch can be made, rows of padding need not be computed either."""
    return Documents(seen_BK.long(), query_ids=torch.where(with_last(tokens_BQ), 1, -1))


def with_last(tokens_BQ: Tensor) -> Tensor:
    """(B, Q) the queries that are computed where attention is causal: real tokens, and the last position of each sequence."""
    wanted_BQ = tokens_BQ.clone()
    wanted_BQ[:, -1] = True
    return wanted_BQ


def last_queries(seen_BN: Tensor, band: Callable[[Tensor], Mask]) -> LastQueries:
    """Those of a batch whose tokens are in one piece each; `band` makes the causal mask, or window, from where the query of
    each sequence stands among its keys, (B,)."""
    batch, length = seen_BN.shape
    ones_B = seen_BN.new_ones(batch, dtype=torch.int64)
    padding_before_B = seen_BN.long().argmax(1)  # keys that are left out of the tokens
    ids_BN = seen_BN.long()
    return LastQueries(
        of_batch=band(ones_B * (length - 1)) & Documents(ids_BN.flatten(), query_ids=ones_B),
        of_tokens=band(length - 1 - padding_before_B) & Documents(ids_BN[with_last(seen_BN)], query_ids=ones_B),
    )


def padded_stretches(seen_BN: Tensor, mask: Mask | None) -> Stretches | None:
    """Tokens and padding in turn; None where the tokens of a sequence are not in one piece."""
    begins_BN = torch.ones_like(seen_BN)
    begins_BN[:, 1:] = seen_BN[:, 1:] != seen_BN[:, :-1]
    if bool(((begins_BN & seen_BN).sum(1) > 1).any()):
        return None
    offsets = _offsets(begins_BN)
    is_token_R = seen_BN.flatten()[offsets[:-1]]
    return Stretches(offsets=offsets, lengths=torch.where(is_token_R, offsets.diff(), 0), mask=mask)


def packed_stretches(documents_BN: Tensor, mask: Mask | None) -> Stretches:
    """One stretch for each document; none goes on in the next sequence."""
    begins_BN = torch.ones_like(documents_BN, dtype=torch.bool)
    begins_BN[:, 1:] = documents_BN[:, 1:] != documents_BN[:, :-1]
    return Stretches(offsets=_offsets(begins_BN), lengths=None, mask=mask)


def _offsets(begins_BN: Tensor) -> Tensor:
    first_R = begins_BN.flatten().nonzero().squeeze(1)
    return torch.cat((first_R, first_R.new_tensor([begins_BN.numel()])))
