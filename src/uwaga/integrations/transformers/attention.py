"""The attention function that transformers' models call in every layer, and the map that it returns.

Letters: B batch, H query heads, G key/value heads, Q queries, K keys, D query/key width, E value width, N tokens of a
sequence, R ragged rows.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from uwaga._base.arguments import check
from uwaga.integrations.transformers.layer_call import (
    AttentionCall,
    LayerArguments,
    attention_call,
    check_documents,
    is_output_collected,
    plain_tensors,
    plan_of,
    put_last,
    remaining_layers,
    whole_mask,
)
from uwaga.integrations.transformers.packed_states import PackedStates, Packing
from uwaga.maps.map import AttentionMap, map_options
from uwaga.ops.attention.api import attention
from uwaga.ops.attention.hooks import Asked, hooks_of, looking, run_hooks
from uwaga.ops.masks import DenseMask, Mask
from uwaga.ops.ragged import Operand, Ragged

# Arguments of some models that change the result and are not supported. All other keyword arguments, such as position_ids, are
# for other implementations.
_NOT_SUPPORTED = ("indices", "block_indices", "sinks", "block_table", "cache")


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
    cu_seq_lens_k: Tensor | None = None,
    **others: object,
) -> tuple[Tensor, AttentionMap | None]:
    """Compute the attention of a layer of transformers: the output (B, Q, H, E), and with output_attentions=True a map of the weights.

    Padded queries may give zeros, except the last position of a causal sequence.

    Args:
        module: the layer.
        query, key, value: (B, H, Q, D), (B, G, K, D), (B, G, K, E).
        attention_mask: a LazyMask; or (B or 1, H or 1, Q, K), bool or to be added to the scores.
        is_causal: used where there is no mask. None is False, as in eager attention: what is causal has a mask. In a packed
            batch it is `module.is_causal`, as in FlashAttention.
        sliding_window: used for packed batches without a mask; a mask includes it.
        s_aux: (H,) a sink for each head.
        position_bias: (B or 1, H, Q, K), added to the scores.
        cu_seq_lens_q, cu_seq_lens_k: (R+1,) offsets of the documents of a packed batch (B = 1), the same for queries and keys.

    Raises:
        ValueError: the layer passes an argument that is not supported.
    """
    for name in _NOT_SUPPORTED:
        if others.get(name) is not None:
            raise ValueError(
                f"attn_implementation='uwaga': {type(module).__name__} passes {name!r}, which is not supported; "
                "load the model with attn_implementation='eager'"
            )
    if is_causal is None:  # classes of bidirectional layers may say True, or nothing
        is_causal = cu_seq_lens_q is not None and bool(getattr(module, "is_causal", False))
    layer = LayerArguments(
        module=module,
        mask=attention_mask,
        plan=plan_of(attention_mask),
        position_bias=position_bias,
        is_causal=is_causal,
        sliding_window=sliding_window,
        offsets=None if cu_seq_lens_q is None else cu_seq_lens_q.long(),
    )
    if cu_seq_lens_q is not None and query.shape[0] != 1:
        raise ValueError(
            f"attn_implementation='uwaga': cu_seq_lens_q needs one packed row, not a batch of {query.shape[0]}"
        )
    if cu_seq_lens_q is not None and cu_seq_lens_k is not None and cu_seq_lens_k is not cu_seq_lens_q:
        check(
            torch.equal(cu_seq_lens_q, cu_seq_lens_k),
            f"attn_implementation='uwaga': {type(module).__name__} gets cu_seq_lens_q and cu_seq_lens_k that differ; documents of a packed "
            "batch have the same queries and keys",
        )
    check_documents(layer, others.get("position_ids"))
    wants_map = _wants("attentions", others)
    call = attention_call(layer, (query, key, value))
    layer_options = {"scale": scaling, "softcap": softcap, "sinks": s_aux, "dropout": dropout}

    def whole() -> Asked:
        all_query, all_key, all_value = plain_tensors(query, key, value)
        mask, bias = whole_mask(layer, all_query, all_key)
        return Asked(
            query=all_query,
            key=all_key,
            value=all_value,
            options={"mask": mask, "bias": bias} | layer_options,
            start=_start(layer, mask, bias),
            has_positions=layer.offsets is None,
        )

    def compute(asked: Asked) -> Operand:
        output = attention(asked.query, asked.key, asked.value, **asked.options)
        if call.last is not None and isinstance(asked.query, Ragged):
            output = put_last(asked, output, call.last)
        return output

    of_layer = hooks_of(module)
    seen: list[Asked] = []
    if wants_map:
        of_layer = (looking(lambda asked, _: seen.append(asked)), *of_layer)
    options = {"mask": call.mask, "bias": call.bias} | layer_options
    asked = Asked(query=call.query, key=call.key, value=call.value, options=options, whole_batch=whole)
    output = run_hooks(of_layer, asked, module, compute)
    attention_map = AttentionMap(seen[0].query, seen[0].key, **map_options(seen[0].options)) if wants_map else None
    return _as_expected(layer, call, output, query.shape[2], others), attention_map


def _start(layer: LayerArguments, mask: Mask | None, bias: Tensor | None) -> int | None:
    """Return the position of the first query where the mask is dense; None: the mask says it, or the last query is at the last key."""
    if not getattr(layer.module, "is_causal", False):
        return None
    if isinstance(mask, DenseMask):
        return _start_of_dense(mask.bits)
    if mask is None and bias is not None and bias.shape[-2] > 1:
        return _start_of_dense(bias > torch.finfo(bias.dtype).min / 2)
    return None


def _start_of_dense(visible: Tensor) -> int:
    """Return the position of the first query of causal attention among the keys, from a mask (..., Q, K).

    A query that is not padding is at the last key that it sees. A cache of fixed size has more keys than tokens.
    """
    queries, keys = visible.shape[-2:]
    last = torch.where(visible, torch.arange(keys, device=visible.device), -1).amax(-1)
    last = last - torch.arange(queries, device=visible.device)
    seen = visible.any(-1)
    return int(last[seen].max()) if bool(seen.any()) else keys - queries


def _as_expected(
    layer: LayerArguments, call: AttentionCall, output: Operand, queries: int, others: Mapping[str, object]
) -> Tensor:
    """Return the output as (B, Q, H, E), or as packed states if the layers after this one are faster with them."""
    tokens = None if layer.plan is None else layer.plan.tokens
    to_come = remaining_layers(layer.module) if tokens is not None or Packing.is_open() else None
    if to_come == 0:
        Packing.close_current()
    if not isinstance(output, Ragged):
        return output.transpose(1, 2).contiguous()
    if call.packing is not None:
        states = PackedStates.of(call.packing, output.values)
        return states if states.is_packed else states.plain()
    # Packed states have no gradients. Gathering the tokens costs less than a twentieth of a layer.
    pays = tokens is not None and not torch.is_grad_enabled() and int(tokens.sum()) < 0.95 * tokens.numel()
    if tokens is not None and to_come and pays and not _wants("hidden_states", others):
        packing = Packing.current(tokens)
        return PackedStates.of(packing, output.values.index_select(0, packing.token_indices))
    return output.values.unflatten(0, (-1, queries))


def _wants(name: str, others: Mapping[str, object]) -> bool:
    """Return whether the caller requests the "attentions" of every layer, or its "hidden_states", which must be plain then."""
    return bool(others.get(f"output_{name}")) or is_output_collected(name)
