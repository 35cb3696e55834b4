"""The mask function that transformers calls once for all layers of a kind.

Letters: B batch, Q queries, K keys.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from uwaga._base.tracing import is_intercepted
from uwaga.integrations.transformers.carrier import PlannedMask
from uwaga.integrations.transformers.closures import (
    EmptyWindowError,
    Place,
    UnknownMaskError,
    is_band,
    packed_documents,
    read,
)
from uwaga.integrations.transformers.plan import (
    Plan,
    Refused,
    hide_keys,
    hide_queries_too,
    last_queries,
    packed_stretches,
    padded_stretches,
    visible_keys,
    with_last,
)
from uwaga.ops.masks import Both, Causal, Either, Mask


def planned_mask(
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
    """The mask (batch_size, 1, q_length, kv_length) of a layer as a plan; None where transformers wants none for full
    attention.

    Args:
        q_offset, kv_offset: where the first query and the first key stand in the whole sequence.
        mask_function: transformers' closure of (batch, head, query, key); None is causal.
        attention_mask: (B, whole length) bool, False in padding.
        options: what transformers tells its other mask functions.

    Under torch.compile, and for mask functions that transformers does not know itself, a plain dense tensor.
    """
    from transformers import masking_utils

    mask_function = masking_utils.causal_mask_function if mask_function is None else mask_function
    if not is_intercepted():
        place = Place(queries=q_length, keys=kv_length, query_offset=int(q_offset), key_offset=kv_offset)
        try:
            plan = make_plan(mask_function, place, attention_mask)
        except UnknownMaskError:
            pass
        except EmptyWindowError as error:
            return PlannedMask.of(Refused(str(error)), batch_size, q_length, kv_length, device)
        else:
            if plan.mask is None and allow_is_bidirectional_skip:
                return None
            made = PlannedMask.of(plan, batch_size, q_length, kv_length, device)
            # transformers asks so for a decoding step with a cache of fixed size, which may be compiled: the numbers of the
            # plan change from token to token, and each would be a graph of its own.
            if q_length == 1 and not allow_is_bidirectional_skip and options.get("allow_is_causal_skip") is False:
                made.row = made.dense()
            return made
    asked: dict[str, Any] = {
        **options,
        "allow_is_bidirectional_skip": allow_is_bidirectional_skip,
        "allow_is_causal_skip": False,
        "q_offset": q_offset,
    }
    return masking_utils.sdpa_mask(
        batch_size=batch_size,
        q_length=q_length,
        kv_length=kv_length,
        kv_offset=kv_offset,
        mask_function=mask_function,
        attention_mask=attention_mask,
        device=device,
        **asked,
    )


def make_plan(function: Callable, place: Place, padding: Tensor | None) -> Plan:
    """The plan of a mask function and a padding mask. Raises UnknownMaskError."""
    mask = read(function, place)
    packed = packed_documents(function)
    if packed is not None:  # transformers looks for packed sequences only where there is no padding mask
        inner = read(packed[1], replace(place, relative=True))
        stretches = packed_stretches(packed[0], inner) if is_band(inner) else None
        return Plan(mask=mask, stretches=stretches, is_self_attention=True)
    is_causal = _is_causal(mask)
    seen_BK = visible_keys(padding, place.key_offset, place.keys)
    if padding is None or seen_BK is None:
        return Plan(mask=mask, is_self_attention=is_causal)
    of_padding = _hide(seen_BK, padding, place, is_causal)
    whole = of_padding if mask is None else mask & of_padding
    if place.queries != place.keys or place.start != 0 or not is_band(mask):
        return Plan(mask=whole, is_self_attention=is_causal)
    stretches = padded_stretches(seen_BK, read(function, replace(place, relative=True)))
    if not is_causal or stretches is None or bool(seen_BK[:, -1].all()):
        return Plan(mask=whole, stretches=stretches, is_self_attention=is_causal, tokens=seen_BK)

    def band(starts_B: Tensor) -> Mask:
        found = read(function, replace(place, queries=1, starts=starts_B))
        assert found is not None
        return found

    tokens, last = with_last(seen_BK), last_queries(seen_BK, band)
    return Plan(mask=whole, stretches=stretches, is_self_attention=True, tokens=tokens, last=last)


def _hide(seen_BK: Tensor, padding: Tensor, place: Place, is_causal: bool) -> Mask:
    tokens_BQ = visible_keys(padding, place.query_offset, place.queries)
    if is_causal and tokens_BQ is not None:
        return hide_queries_too(seen_BK, tokens_BQ)
    return hide_keys(seen_BK, place.queries)


def _is_causal(mask: Mask | None) -> bool:
    """Then queries and keys are the same sequence: transformers makes no other causal masks."""
    if isinstance(mask, Both | Either):
        return _is_causal(mask.left) or _is_causal(mask.right)
    return isinstance(mask, Causal)
