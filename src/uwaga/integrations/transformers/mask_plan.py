"""The mask function that transformers calls once for all layers of a kind. It returns a LazyMask: a tensor of the shape of the
mask that models expect, which carries a MaskPlan of what attention may skip.

Letters: B batch, Q queries, K keys, N tokens of a sequence, T tokens that are not padding, R segments of the whole batch.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from uwaga._base.tracing import is_intercepted
from uwaga.integrations.transformers.mask_functions import (
    EmptyWindowError,
    MaskRegion,
    UnknownMaskError,
    depends_on_distance_alone,
    packed_documents,
    read,
)
from uwaga.ops.masks import Both, Causal, Documents, Either, KeyLengths, Mask
from uwaga.ops.score_shape import ScoreShape

# The attribute of a padding mask that says which queries are tokens. With encoder_hidden_states a mask says so of the keys alone.
OF_ITSELF = "uwaga_is_of_itself"


@dataclass(frozen=True, kw_only=True)
class Segments:
    """The batch as R segments of consecutive tokens. Each attends to itself alone, segments of padding to nothing.

    Together they are its B * N tokens in order, so that a ragged call reads queries and keys in place.
    """

    offsets: Tensor  # (R+1,) int64
    lengths: Tensor | None  # (R,) int64: the keys of each segment, 0 in padding; None where nothing is padding
    mask: Mask | None  # inside each segment; depends on the distance alone

    @cached_property
    def visible(self) -> Mask | None:
        """The mask of the ragged call, the same one for every layer."""
        if self.lengths is None:
            return self.mask
        return KeyLengths(self.lengths) if self.mask is None else self.mask & KeyLengths(self.lengths)


@dataclass(frozen=True, slots=True, kw_only=True)
class LastQueries:
    """The last position of each sequence of a causal batch in which it is padding somewhere.

    `generate` reads the next token there, also where it warns of padding on the right. Which keys such a query sees does not
    depend on its distance from the tokens of its segment alone. Both masks are of a ragged call of one query for each sequence.
    """

    of_batch: Mask  # keys (B * N,): all positions
    of_tokens: Mask  # keys (T,): those of MaskPlan.tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskPlan:
    """The mask of one layer or many, over the scores (B, heads, Q, K)."""

    mask: Mask | None  # None: every query sees every key
    segments: Segments | None = None  # the same mask, except for padded queries, where Q and K are the same tokens
    # Q and K are the same tokens; else two sequences of equal length may have been combined.
    is_self_attention: bool = False
    tokens: Tensor | None = None  # (B, N) bool, False in padding that is not computed, where there is some
    last: LastQueries | None = None  # computed by a separate call, where there are segments
    is_packed: bool = False  # it keeps documents of a packed batch apart


def visible_keys(padding: Tensor | None, offset: int, keys: int) -> Tensor | None:
    """Return which keys are no padding, (B, K) bool, or None if all are. Keys beyond the end of transformers' mask are padding."""
    if padding is None:
        return None
    seen_BK = padding[:, offset : offset + keys]
    if (missing := keys - seen_BK.shape[1]) > 0:
        seen_BK = torch.nn.functional.pad(seen_BK, (0, missing))
    return None if bool(seen_BK.all()) else seen_BK


def with_last(tokens_BQ: Tensor) -> Tensor:
    """Return the queries (B, Q) that causal attention computes: real tokens, and the last position of each sequence."""
    computed_BQ = tokens_BQ.clone()
    computed_BQ[:, -1] = True
    return computed_BQ


def last_queries(seen_BN: Tensor, band: Callable[[Tensor], Mask]) -> LastQueries:
    """Return the last queries of a batch in which the tokens of each sequence are contiguous.

    band: makes the causal mask, or window, from the position of the query of each sequence among its keys, (B,).
    """
    batch, length = seen_BN.shape
    ones_B = seen_BN.new_ones(batch, dtype=torch.int64)
    padding_before_B = seen_BN.long().argmax(1)  # keys that are left out of the tokens
    ids_BN = seen_BN.long()
    return LastQueries(
        of_batch=band(ones_B * (length - 1)) & Documents(ids_BN.flatten(), query_ids=ones_B),
        of_tokens=band(length - 1 - padding_before_B) & Documents(ids_BN[with_last(seen_BN)], query_ids=ones_B),
    )


def padded_segments(seen_BN: Tensor, mask: Mask | None) -> Segments | None:
    """Return alternating segments of tokens and padding, or None if the tokens of a sequence are not contiguous."""
    begins_BN = torch.ones_like(seen_BN)
    begins_BN[:, 1:] = seen_BN[:, 1:] != seen_BN[:, :-1]
    if bool(((begins_BN & seen_BN).sum(1) > 1).any()):
        return None
    offsets = _offsets(begins_BN)
    is_token_R = seen_BN.flatten()[offsets[:-1]]
    return Segments(offsets=offsets, lengths=torch.where(is_token_R, offsets.diff(), 0), mask=mask)


def packed_segments(documents_BN: Tensor, mask: Mask | None) -> Segments:
    """Return one segment for each document. No document continues in the next sequence."""
    begins_BN = torch.ones_like(documents_BN, dtype=torch.bool)
    begins_BN[:, 1:] = documents_BN[:, 1:] != documents_BN[:, :-1]
    return Segments(offsets=_offsets(begins_BN), lengths=None, mask=mask)


def _offsets(begins_BN: Tensor) -> Tensor:
    first_R = begins_BN.flatten().nonzero().squeeze(1)
    return torch.cat((first_R, first_R.new_tensor([begins_BN.numel()])))


_ARITHMETIC = ("aten::add", "aten::sub", "aten::rsub", "aten::mul")


class LazyMask(Tensor):
    """A bool tensor (B, 1, Q, K), True where a query sees a key, which is computed when an operation reads it.

    Models only pass it to attention, which reads the plan. A model that slices or concatenates its mask gets plain dense
    tensors, and passes its result to attention.
    """

    # A text says why there is no plan, which is an error when a layer reads it: transformers makes masks that no layer reads.
    plan: MaskPlan | str
    row: Tensor | None  # the dense form for a single query, used under torch.compile in place of the plan
    materialized: Tensor | None  # the dense form, once there is a view of it that may be written to

    @staticmethod
    def of(plan: MaskPlan | str, batch: int, queries: int, keys: int, device: torch.device | str) -> "LazyMask":
        made = Tensor._make_wrapper_subclass(
            LazyMask, (batch, 1, queries, keys), dtype=torch.bool, device=torch.device(device)
        )
        made.plan, made.row, made.materialized = plan, None, None
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]  # torch's own idiom

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch names its arguments otherwise
        cls, function: Any, types: Sequence[type], args: Sequence = (), kwargs: Mapping | None = None
    ) -> object:
        schema = function._schema
        if schema.name in _ARITHMETIC:
            # Eager attention adds a mask of 0 and -inf; to add True and False would be silently wrong. Not a TypeError:
            # from an operator, Python would take it as NotImplemented and raise another message.
            raise ValueError(
                f"attn_implementation='uwaga': this model computes with its attention mask itself ({schema.name}), and "
                "does not pass it to uwaga; load it with attn_implementation='eager'"
            )
        arguments = (args, kwargs or {})
        if any(result.alias_info is not None for result in schema.returns):
            for mask in tree_leaves(arguments):
                if isinstance(mask, LazyMask):
                    mask.materialized = mask.dense()
        args, kwargs = tree_map_only(LazyMask, LazyMask.dense, arguments)
        return function(*args, **kwargs)

    def valid_plan(self) -> MaskPlan:
        """Return the plan. Raises ValueError if there is no plan."""
        if isinstance(self.plan, str):
            raise ValueError(self.plan)
        return self.plan

    def dense(self) -> Tensor:
        """Return the plain tensor."""
        if self.materialized is not None:
            return self.materialized
        if self.row is not None:
            return self.row
        batch, _, queries, keys = self.shape
        mask = self.valid_plan().mask
        if mask is None:
            return torch.ones(self.shape, dtype=torch.bool, device=self.device)
        sizes = ScoreShape(queries=queries, keys=keys, batch=(batch,))
        return mask.dense(sizes, str(self.device)).expand(self.shape).contiguous()

    def __repr__(self) -> str:  # type: ignore[override]  # torch's own has an option of its own
        return f"LazyMask(shape={tuple(self.shape)}, {self.plan if isinstance(self.plan, str) else self.plan.mask})"


def lazy_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: Callable | None = None,
    attention_mask: Tensor | None = None,
    allow_is_bidirectional_skip: bool = False,
    device: torch.device | str = "cpu",
    **options: object,
) -> Tensor | None:
    """Return the mask (batch_size, 1, q_length, kv_length) of a layer as a plan; None if transformers expects no mask for full
    attention.

    Args:
        q_offset, kv_offset: positions of the first query and the first key in the whole sequence.
        mask_function: transformers' closure of (batch, head, query, key); None is causal.
        attention_mask: (B, whole length) bool, False in padding.
        options: further arguments of transformers' mask functions.

    Under torch.compile, and for mask functions that are not transformers' own, a plain dense tensor.
    """
    from transformers import masking_utils

    mask_function = masking_utils.causal_mask_function if mask_function is None else mask_function
    if not is_intercepted():
        region = MaskRegion(queries=q_length, keys=kv_length, query_offset=int(q_offset), key_offset=kv_offset)
        try:
            plan = build_plan(mask_function, region, attention_mask)
        except UnknownMaskError:
            pass
        except EmptyWindowError as error:
            return LazyMask.of(str(error), batch_size, q_length, kv_length, device)
        else:
            if plan.mask is None and allow_is_bidirectional_skip:
                return None
            made = LazyMask.of(plan, batch_size, q_length, kv_length, device)
            # These arguments mean a decoding step with a cache of fixed size, which may be compiled: the numbers of the plan
            # change from token to token, and each would compile another graph.
            if q_length == 1 and not allow_is_bidirectional_skip and options.get("allow_is_causal_skip") is False:
                made.row = made.dense()
            return made
    arguments: dict[str, Any] = {"batch_size": batch_size, "q_length": q_length, "kv_length": kv_length}
    arguments |= {"q_offset": q_offset, "kv_offset": kv_offset, "mask_function": mask_function, "device": device}
    arguments |= options | {"allow_is_bidirectional_skip": allow_is_bidirectional_skip, "allow_is_causal_skip": False}
    return masking_utils.sdpa_mask(**arguments, attention_mask=attention_mask)


def build_plan(function: Callable, region: MaskRegion, padding: Tensor | None) -> MaskPlan:
    """Return the plan of a mask function and a padding mask. Raises UnknownMaskError."""
    mask = read(function, region)
    packed = packed_documents(function)
    if packed is not None:  # transformers detects packed sequences only where there is no padding mask
        inner = read(packed[1], replace(region, relative=True))
        segments = packed_segments(packed[0], inner) if depends_on_distance_alone(inner) else None
        return MaskPlan(mask=mask, segments=segments, is_self_attention=True, is_packed=True)
    is_causal = _is_causal(mask)
    of_itself = is_causal or getattr(padding, OF_ITSELF, False)
    seen_BK = visible_keys(padding, region.key_offset, region.keys)
    if padding is None or seen_BK is None:
        return MaskPlan(mask=mask, is_self_attention=of_itself)
    of_padding = _hide(seen_BK, padding, region, is_causal)
    whole = of_padding if mask is None else mask & of_padding
    if region.queries != region.keys or region.start != 0 or not depends_on_distance_alone(mask):
        return MaskPlan(mask=whole, is_self_attention=of_itself)
    segments = padded_segments(seen_BK, read(function, replace(region, relative=True)))
    if not is_causal or segments is None or bool(seen_BK[:, -1].all()):
        return MaskPlan(mask=whole, segments=segments, is_self_attention=of_itself, tokens=seen_BK)

    def band(starts_B: Tensor) -> Mask:
        result = read(function, replace(region, queries=1, starts=starts_B))
        assert result is not None
        return result

    tokens, last = with_last(seen_BK), last_queries(seen_BK, band)
    return MaskPlan(mask=whole, segments=segments, is_self_attention=True, tokens=tokens, last=last)


def _hide(seen_BK: Tensor, padding: Tensor, region: MaskRegion, is_causal: bool) -> Mask:
    """Return the mask of padded keys; and of padded queries, where it is causal: rows of padding need not be computed either."""
    tokens_BQ = visible_keys(padding, region.query_offset, region.queries)
    if is_causal and tokens_BQ is not None:
        return Documents(seen_BK.long(), query_ids=torch.where(with_last(tokens_BQ), 1, -1))
    if bool((seen_BK[:, 1:] <= seen_BK[:, :-1]).all()):
        return KeyLengths(seen_BK.sum(1))
    return Documents(seen_BK.long(), query_ids=seen_BK.new_ones(region.queries, dtype=torch.int64))


def _is_causal(mask: Mask | None) -> bool:
    """Return whether the mask is causal. Then queries and keys are the same sequence: transformers makes no other causal masks."""
    if isinstance(mask, Both | Either):
        return _is_causal(mask.left) or _is_causal(mask.right)
    return isinstance(mask, Causal)
