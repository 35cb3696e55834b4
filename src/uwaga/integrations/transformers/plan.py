"""What one attention of transformers may skip: a mask over the whole batch, and the same as stretches of tokens.

Letters: B batch, Q queries, K keys, N tokens of a sequence, R stretches of the whole batch.
"""

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
class Plan:
    """The mask of one layer or many, over the scores (B, heads, Q, K)."""

    mask: Mask | None  # None: every query sees every key
    stretches: Stretches | None = None  # the same without what padded queries see, where Q and K are the same tokens
    is_self_attention: bool = False  # they are: else two sequences of one length may have met here
    tokens: Tensor | None = None  # (B, N) bool, False in padding, where there is some


@dataclass(frozen=True, slots=True)
class Refused:
    """In the place of a plan that is an error where a layer reads it. transformers also makes masks that no layer takes."""

    reason: str

    @property
    def mask(self) -> NoReturn:
        raise ValueError(self.reason)

    stretches = tokens = is_self_attention = mask


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
    return Documents(seen_BK.long(), query_ids=torch.where(tokens_BQ, 1, -1))


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
