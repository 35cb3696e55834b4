"""The attention function that transformers' models call in every layer.

Letters: B batch, H query heads, G key/value heads, Q queries, K keys, D query/key width, E value width, N tokens of a
sequence, R ragged rows.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from uwaga.integrations.transformers.editors import around, editors_of, start_of_dense
from uwaga.integrations.transformers.layer_call import (
    AttentionCall,
    LayerArguments,
    QueryKeyValue,
    attention_call,
    check_documents,
    is_output_collected,
    plain_tensors,
    plan_of,
    put_last,
    remaining_layers,
    whole_mask,
)
from uwaga.integrations.transformers.observers import MapOptions, ObservedCall, map_of_call, notify, notify_observers
from uwaga.integrations.transformers.packed_states import PackedStates, Packing
from uwaga.maps.map import AttentionMap
from uwaga.nn.attention import Editor
from uwaga.ops.attention.api import attention
from uwaga.ops.masks import DenseMask, Mask
from uwaga.ops.ragged import Operand, Ragged

# Arguments of some models that change the result and are not supported. All other keyword arguments, such as position_ids, are
# for other implementations.
_NOT_SUPPORTED = ("indices", "block_indices", "sinks", "block_table")


def uwaga_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    cu_seq_lens_q: Tensor | None = None,
    cu_seq_lens_k: Any = None,
    cache: object = None,
    **others: object,
) -> tuple[Tensor, AttentionMap | None]:
    """Attention of a layer of transformers: the output (B, Q, H, E), and with output_attentions=True a map of the weights. Padded
    queries may give zeros, except the last position of a causal sequence.

    Args:
        module: the layer.
        query, key, value: (B, H, Q, D), (B, G, K, D), (B, G, K, E).
        attention_mask: a LazyMask; or (B or 1, H or 1, Q, K), bool or to be added to the scores.
        is_causal: used where there is no mask. None is False, as in eager attention: what is causal has a mask. In a packed
            batch it is `module.is_causal`, as in FlashAttention.
        sliding_window: used for packed batches without a mask; a mask includes it.
        s_aux: (H,) a sink for each head.
        position_bias: (B or 1, H, Q, K), added to the scores.
        cu_seq_lens_q, cu_seq_lens_k: (R+1,) offsets of the documents of a packed batch (B = 1). With a paged cache,
            cu_seq_lens_k is a dict of them by the type of layer.
        cache: the paged cache of continuous batching, which stores the new keys and values and returns those of whole
            documents; a cache of another kind raises ValueError.

    Raises:
        ValueError: the layer passes an argument that is not supported.
    """
    _refuse(module, others)
    if cache is not None:
        # The mask is that of the packed queries alone; without one, `is_causal` and `sliding_window` count in each document.
        key, value, cu_seq_lens_k = _from_pages(module, key, value, cache, cu_seq_lens_k, others)
        attention_mask = None
    layer = LayerArguments(
        module=module,
        mask=attention_mask,
        plan=plan_of(attention_mask),
        position_bias=position_bias,
        is_causal=_is_causal(module, cu_seq_lens_q) if is_causal is None else is_causal,
        sliding_window=sliding_window,
        query_offsets=cu_seq_lens_q,
        key_offsets=cu_seq_lens_k,
    )
    _check_packed(layer, query)
    check_documents(layer, others.get("position_ids"))
    wants_map = _wants("attentions", others)
    if editors := editors_of(module):
        return _edited(
            editors,
            layer,
            (query, key, value),
            others,
            wants_map,
            MapOptions(mask=None, bias=None, scale=scaling, softcap=softcap, sinks=s_aux),
            dropout,
        )
    seen = notify_observers(layer, query, key, value, scale=scaling, softcap=softcap, sinks=s_aux, is_wanted=wants_map)
    call = attention_call(layer, (query, key, value))
    attend = partial(attention, scale=scaling, softcap=softcap, sinks=s_aux, dropout=dropout)
    output = attend(call.query, call.key, call.value, mask=call.mask, bias=call.bias)
    if call.last is not None:
        last = attend(call.last.query, call.last.key, call.last.value, mask=call.last.mask)
        output = put_last(output, last, call.last)
    expected = _as_expected(layer, call, output, query.shape[2], others)
    return expected, map_of_call(seen, expected, value) if wants_map and seen is not None else None


def _edited(
    editors: tuple[Editor, ...],
    layer: LayerArguments,
    tensors: QueryKeyValue,
    others: Mapping[str, object],
    wants_map: bool,
    own: MapOptions,
    dropout: float,
) -> tuple[Tensor, AttentionMap | None]:
    """`uwaga_attention` with editors around it.

    Where only outputs of heads change, the call is that without an edit; else it is over the whole batch, whose positions are those
    that the editors mean.
    """
    query, key, value = tensors
    scale, softcap, sinks = own["scale"], own["softcap"], own["sinks"]
    seen: list[ObservedCall | None] = []
    if not any(getattr(editor, "needs_operands", True) for editor in editors):
        seen.append(
            notify_observers(layer, query, key, value, scale=scale, softcap=softcap, sinks=sinks, is_wanted=wants_map)
        )
        call = attention_call(layer, tensors)
        start = None
    else:
        if layer.query_offsets is not None:
            raise ValueError(
                "edit: a packed batch (cu_seq_lens_q) has no positions of texts; only outputs of heads can be edited in it"
            )
        query, key, value = plain_tensors(*tensors)
        mask, bias = whole_mask(layer, query, key)
        call = AttentionCall(query, key, value, mask, bias)
        start = _start(layer, mask, bias)

    def attend(
        query: Operand, key: Operand, value: Operand, options: dict[str, Any], *, is_first: bool = True
    ) -> Operand:
        if is_first and not seen:
            assert isinstance(query, Tensor)
            assert isinstance(key, Tensor)
            assert isinstance(value, Tensor)
            at = MapOptions(mask=options["mask"], bias=options["bias"], scale=scale, softcap=softcap, sinks=sinks)
            seen.append(notify(layer.module, query, key, value, at, is_wanted=wants_map))
        output: Operand = attention(query, key, value, **options)
        if call.last is not None:
            last = attention(
                call.last.query, call.last.key, call.last.value, **options | {"mask": call.last.mask, "bias": None}
            )
            output = put_last(output, last, call.last)
        return output

    options = {
        "mask": call.mask,
        "bias": call.bias,
        "scale": scale,
        "softcap": softcap,
        "sinks": sinks,
        "dropout": dropout,
    }
    output = around(editors, attend, start)(call.query, call.key, call.value, options)
    expected = _as_expected(layer, call, output, tensors[0].shape[2], others)
    if not wants_map or seen[0] is None:
        return expected, None
    # Without the gradients of LayerMap, which are those of the output before it was edited.
    return expected, AttentionMap(seen[0].query, seen[0].key, **seen[0].options)


def _start(layer: LayerArguments, mask: Mask | None, bias: Tensor | None) -> int | None:
    """The position of the first query where the mask is dense; None: the mask says it, or the last query is at the last key."""
    if not getattr(layer.module, "is_causal", False):
        return None
    if isinstance(mask, DenseMask):
        return start_of_dense(mask.bits)
    if mask is None and bias is not None and bias.shape[-2] > 1:
        return start_of_dense(bias > torch.finfo(bias.dtype).min / 2)
    return None


def _is_causal(module: nn.Module, query_offsets: Tensor | None) -> bool:
    """The default of `is_causal`. Classes of bidirectional layers may have True, or no such attribute."""
    return query_offsets is not None and bool(getattr(module, "is_causal", False))


def _as_expected(
    layer: LayerArguments, call: AttentionCall, output: Operand, queries: int, others: Mapping[str, object]
) -> Tensor:
    """(B, Q, H, E), as packed states where the layers after this one are faster with them."""
    tokens = None if layer.plan is None else layer.plan.tokens
    to_come = remaining_layers(layer.module) if tokens is not None or Packing.is_open() else None
    if to_come == 0:
        Packing.close_current()
    if not isinstance(output, Ragged):
        return output.transpose(1, 2).contiguous()
    if call.packing is not None:
        states = PackedStates.of(call.packing, output.values)
        return states if states.is_packed else states.plain()
    if tokens is not None and to_come and _pays(tokens) and not _wants("hidden_states", others):
        packing = Packing.current(tokens)
        return PackedStates.of(packing, output.values.index_select(0, packing.token_indices))
    return output.values.unflatten(0, (-1, queries))


def _pays(tokens_BN: Tensor) -> bool:
    """Gathering the tokens costs less than a twentieth of a layer. Packed states have no gradients."""
    return not torch.is_grad_enabled() and int(tokens_BN.sum()) < 0.95 * tokens_BN.numel()


def _wants(name: str, others: Mapping[str, object]) -> bool:
    """Whether the caller requests the "attentions" of every layer, or its "hidden_states", which must be plain then."""
    return bool(others.get(f"output_{name}")) or is_output_collected(name)


def _refuse(module: nn.Module, others: Mapping[str, object]) -> None:
    for name in _NOT_SUPPORTED:
        if others.get(name) is not None:
            raise _refusal(module, name)


def _refusal(module: nn.Module, name: str) -> ValueError:
    return ValueError(
        f"attn_implementation='uwaga': {type(module).__name__} passes {name!r}, which is not supported; "
        "load the model with attn_implementation='eager'"
    )


def _from_pages(
    module: nn.Module,
    key: Tensor,
    value: Tensor,
    cache: object,
    key_offsets: Any,
    others: Mapping[str, object],
) -> tuple[Tensor, Tensor, Tensor]:
    """Keys (1, G, K, D) and values (1, G, K, E) of whole documents, and the offsets of the documents among the keys."""
    from transformers.generation.continuous_batching.cache import PagedAttentionCache

    if not isinstance(cache, PagedAttentionCache):
        raise _refusal(module, "cache")
    options: dict[str, Any] = dict(
        others, cu_seq_lens_k=key_offsets
    )  # `update` puts the offsets of this type of layer in their place
    key, value = cache.update(key, value, module.layer_idx, options)
    return key, value, options["cu_seq_lens_k"]


def _check_packed(layer: LayerArguments, query: Tensor) -> None:
    if layer.query_offsets is not None and query.shape[0] != 1:
        raise ValueError(
            f"attn_implementation='uwaga': cu_seq_lens_q needs one packed row, not a batch of {query.shape[0]}"
        )
