"""PyTorch's own fused kernels: scaled_dot_product_attention, and varlen_attn for ragged batches on CUDA.

The right choice on CUDA, and the fallback on the CPU. Three differences of PyTorch's kernels are corrected here, and one
cannot be: queries that see nothing give zeros; hidden keys hold zeros where no query sees them; masks that SDPA cannot
express are passed in dense form, which is O(Q * K). But in a key that *some* query sees, a nan can reach a query
that does not see it (0 * nan inside the kernel): only the other engines exclude that.

Letters: B sequences, H query heads, G key/value heads, Q queries, K keys, D query/key width, E value width, N tokens.
"""

import inspect
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from uwaga._base.tracing import constant, is_intercepted
from uwaga.ops.attention.call import Call, compute_dtype, has_groups
from uwaga.ops.attention.relative_bias import relative_scores
from uwaga.ops.attention.sequences import join, split
from uwaga.ops.mask_program import START_LAST, START_VALUE, UNBOUNDED, Band, visible

_VARLEN_DTYPES = (torch.float16, torch.bfloat16)
_MOST_DOCUMENTS = 1 << 16  # offsets, one more than documents: a dimension of the grid of varlen_attn's kernels


def refusal(call: Call) -> str | None:
    options = call.options
    if not options.softmax:
        return "PyTorch's kernels always apply softmax"
    if options.softcap:
        return "PyTorch's kernels have no softcap"
    if call.sinks is not None:
        return "PyTorch's kernels have no sinks"
    if options.dropout:
        return "PyTorch's kernels draw their own dropout pattern, which no other engine can reproduce"
    if options.wants_lse:
        return "scaled_dot_product_attention does not return the log-sum-exp"
    if call.query_offsets is not None and is_intercepted() and _varlen_window(call) is None:
        return "a loop over the sequences of a ragged batch cannot be traced"
    return None


def is_one_kernel(call: Call) -> bool:
    """Return whether one kernel serves the call by its own options: no matrix of a mask or bias, and no loop over sequences."""
    return _has_kernel(call) if call.query_offsets is None else _varlen_window(call) is not None


def cost(call: Call) -> str | None:
    """Return what a call that PyTorch's kernels do not express costs, for `explain`; None for one that they do."""
    if is_one_kernel(call):
        return None
    if call.query_offsets is not None:
        return "one sequence after another"
    has_bias = call.bias is not None or call.relative is not None
    size = call.query.shape[2] * call.key.shape[2] * (call.query.dtype.itemsize if has_bias else 1)
    return f"this mask or bias becomes a matrix (Q, K) of {size} bytes, one for each sequence and head that has its own"


def attend(call: Call) -> tuple[Tensor, Tensor | None]:
    """Return the output (B, H, Q, E); PyTorch's kernels give no lse."""
    if call.query_offsets is None:
        return _attend_dense(call), None
    window = _varlen_window(call)
    if window is not None:
        return _attend_varlen(call, window), None
    return join(call, [_attend_dense(part) for part in split(call)], None)


def _attend_dense(call: Call) -> Tensor:
    query, key, value = call.query, call.key, call.value
    scale, grouped = call.options.scale, has_groups(query, key)
    if key.shape[2] == 0:
        return query[..., :0].sum(-1, keepdim=True).expand(*query.shape[:3], value.shape[3])
    if _has_kernel(call):
        is_causal = len(call.options.mask_program) > 0
        return scaled_dot_product_attention(query, key, value, is_causal=is_causal, scale=scale, enable_gqa=grouped)

    visible_BHQK = _visible(call)
    sees_BHQ1, seen_BHK1 = visible_BHQK.any(-1, keepdim=True), visible_BHQK.any(-2)[..., None]
    query = torch.where(sees_BHQ1, query, 0.0)
    # A key head is hidden where no query head of its group sees it; a mask that differs between query heads of a group is not reduced.
    if seen_BHK1.shape[1] == 1 or query.shape[1] == key.shape[1]:
        key, value = torch.where(seen_BHK1, key, 0.0), torch.where(seen_BHK1, value, 0.0)
    # SDPA gives nan for a query that sees no key: let it see all keys, and replace its result by zeros.
    attn_mask = _attn_mask(call, visible_BHQK | ~sees_BHQ1)
    out_BHQE = scaled_dot_product_attention(query, key, value, attn_mask, scale=scale, enable_gqa=grouped)
    return torch.where(sees_BHQ1, out_BHQE, 0.0)


def _visible(call: Call) -> Tensor:
    queries, keys = call.query.shape[2], call.key.shape[2]
    visible_BHQK = visible(call.options.mask_program, call.mask_tensors, queries, keys, call.query.device)
    if call.bias is not None:
        visible_BHQK = visible_BHQK & (call.bias != -float("inf"))
    return visible_BHQK.expand(*visible_BHQK.shape[:2], queries, keys)


def _attn_mask(call: Call, visible_BHQK: Tensor) -> Tensor:
    """Return mask and biases as SDPA takes them: bool, or floating in the query's dtype."""
    if call.bias is None and call.relative is None:
        return visible_BHQK
    bias = call.query.new_zeros((), dtype=compute_dtype(call.query.dtype))
    if call.relative is not None:
        bias = bias + relative_scores(call)
    if call.bias is not None:
        bias = bias + torch.where(call.bias == -float("inf"), 0.0, call.bias)
    return torch.where(visible_BHQK, bias, -float("inf")).to(call.query.dtype)


def _has_kernel(call: Call) -> bool:
    """Return whether SDPA expresses a dense call by its options, without a matrix of mask and biases."""
    if call.bias is not None or call.relative is not None:
        return False
    return len(call.options.mask_program) == 0 or _is_upper_left_causal(call)


def _is_upper_left_causal(call: Call) -> bool:
    program, queries, keys = call.options.mask_program, call.query.shape[2], call.key.shape[2]
    if len(program) != 1 or not isinstance(band := program[0], Band) or band.low != -UNBOUNDED or band.high != 0:
        return False
    return queries == keys if band.start_mode == START_LAST else band.start_mode == START_VALUE and band.start == 0


def _varlen_window(call: Call) -> tuple[int, int] | None:
    """Return the window_size of varlen_attn that equals the call's mask, or None where there is none."""
    width, program = call.query.shape[3], call.options.mask_program
    if not call.query.is_cuda or call.query.dtype not in _VARLEN_DTYPES:
        return None
    assert call.query_offsets is not None
    if 0 in (call.query.shape[2], call.key.shape[2]) or call.query_offsets.shape[0] > _MOST_DOCUMENTS:
        return None
    has_flash, takes_groups = varlen_kernels(call.query.device)
    if not has_flash or (has_groups(call.query, call.key) and not takes_groups):
        return None
    if call.bias is not None or call.relative is not None:
        return None
    if width != call.value.shape[3] or width > 256 or width % 8:  # the widths of the flash kernels
        return None
    if not program:
        return -1, -1
    if len(program) != 1 or not isinstance(band := program[0], Band):
        return None
    if band.start_mode != START_LAST or band.low > 0 or band.high < 0:
        return None
    return (-1 if band.low == -UNBOUNDED else -band.low), (-1 if band.high == UNBOUNDED else band.high)


@constant
def varlen_kernels(device: torch.device) -> tuple[bool, bool]:
    """Return whether this GPU runs the kernels of varlen_attn, and whether they take grouped heads: PyTorch 2.11 has no enable_gqa."""
    from torch.nn.attention.varlen import varlen_attn

    has_flash = torch.cuda.get_device_capability(device) >= (8, 0)
    return has_flash, "enable_gqa" in inspect.signature(varlen_attn).parameters


def _attend_varlen(call: Call, window: tuple[int, int]) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn  # here, since importing it registers operators

    assert call.query_offsets is not None
    assert call.key_offsets is not None
    query, key, value = (
        x[0].transpose(0, 1) if x.stride(3) == 1 else x[0].transpose(0, 1).contiguous()
        for x in (call.query, call.key, call.value)
    )
    # A bound: for documents of one query grouped heads become queries, which empty documents among them forbid.
    most_queries = max(call.options.max_queries, 2)
    groups: dict[str, Any] = {"enable_gqa": True} if has_groups(call.query, call.key) else {}
    out_NHE = varlen_attn(
        query,
        key,
        value,
        call.query_offsets.int(),
        call.key_offsets.int(),
        most_queries,
        call.options.max_keys,
        scale=call.options.scale,
        window_size=window,
        **groups,
    )
    assert isinstance(out_NHE, Tensor)  # without return_aux it gives no lse
    return out_NHE.transpose(0, 1)[None]
