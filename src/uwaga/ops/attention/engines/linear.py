"""Attention without softmax by associativity: (Q K^T) V = Q (K^T V), O(N * D * E) in place of O(N * N * (D + E)).

    z_i = sum_j (q_i . k_j) v_j = q_i . S    with the state S = sum_j k_j v_j^T, a D x E matrix

Causal: S runs along the sequence (Katharopoulos et al., "Transformers are RNNs", 2020), by chunks: within a chunk
the scores are computed, and earlier tokens contribute through the state. The gradients are three more products of the same
form, so the backward pass saves only its inputs and can itself be differentiated.

Letters: B sequences, H query heads, G key/value heads, P sequences and heads as one, Q queries, K keys, T tokens of
both, D query/key width, E value width, C tokens of a chunk, X chunks of a segment.
"""

from typing import Any

import torch
from torch import Tensor

from uwaga._base import native
from uwaga._base.tracing import is_batch_of_gradients, is_plain_eager
from uwaga.ops.attention.call import Call, Options, compute_dtype, no_forward_mode
from uwaga.ops.attention.native_structs import DTYPES, FORWARD_RESULT, row_fields, run, tensor_fields
from uwaga.ops.attention.sequences import join, split
from uwaga.ops.mask_program import START_LAST, START_VALUE, UNBOUNDED, And, Band, Lengths, MaskProgram

_CHUNK = 128  # tokens whose scores are computed explicitly: C * (D + E) operations a token against D * E for the state
_SEGMENT = 16 * _CHUNK  # tokens at once: keeps the scores of a segment, 1 MiB a head, in the caches


def refusal(call: Call) -> str | None:
    options = call.options
    if options.softmax:
        return "softmax cannot be reassociated"
    if options.softcap or options.dropout or call.bias is not None or call.relative is not None:
        return "softcap, dropout and biases act on each score"
    if _parse(options.mask_program) is None:
        return "it supports no mask but Causal (with one start for all sequences), KeyLengths and both together"
    return None


def has_batch_invariant_rows(call: Call) -> bool:
    """Return whether a row of an eager call that is not refused has the same bits in any batch: documents of a ragged batch are computed one by
    one, and others by the native kernels but for keys that all queries see in float32, whose products are PyTorch's."""
    if call.query_offsets is not None:
        return True
    if not _runs_natively(call.query, call.key, call.value):
        return False
    parsed = _parse(call.options.mask_program)
    assert parsed is not None
    band, _ = parsed
    sees_all = band is None or _keys_before_first(band, call.query.shape[2], call.key.shape[2]) > 1
    return call.query.dtype != torch.float32 or not sees_all


def attend(call: Call) -> tuple[Tensor, Tensor | None]:
    """Return the output (B, H, Q, E); there is no lse without softmax."""
    if call.query_offsets is None:
        return _attend_dense(call), None
    return join(call, [_attend_dense(part) for part in split(call)], None)


def _parse(program: MaskProgram) -> tuple[Band | None, Lengths | None] | None:
    """Return the causal band and the lengths, or None where the program is anything else."""
    bands = [
        x for x in program if isinstance(x, Band) and x.starts is None and x.low == -UNBOUNDED and x.high < UNBOUNDED
    ]
    lengths = [x for x in program if isinstance(x, Lengths)]
    ands = [x for x in program if isinstance(x, And)]
    if len(bands) > 1 or len(lengths) > 1 or len(bands) + len(lengths) + len(ands) != len(program):
        return None
    return bands[0] if bands else None, lengths[0] if lengths else None


def _attend_dense(call: Call) -> Tensor:
    parsed = _parse(call.options.mask_program)
    assert parsed is not None
    band, lengths = parsed
    query, key, value, queries, keys = call.query, call.key, call.value, call.query.shape[2], call.key.shape[2]
    if lengths is not None:
        query, key, value = _hide(query, key, value, call.mask_tensors[lengths.lengths])
    if band is None or keys == 0:
        return _all(query, key, value, call.options.scale, query.dtype)

    # Query i sees the first i + before keys: all queries see those before the last key of query 0; each later key is seen from one query on.
    before = _keys_before_first(band, queries, keys)
    shared, late = min(max(before - 1, 0), keys), min(max(1 - before, 0), queries)
    last = shared + queries - late  # no query sees a key from here on
    rest_PKD, rest_PKE = (_heads(x[:, :, shared:last], query.shape[1]) for x in (key, value))
    # A sum of two parts is rounded once, at its end.
    dtype = compute_dtype(query.dtype) if shared else query.dtype
    past_PQE = Past.apply(query[:, :, late:].flatten(0, 1), rest_PKD, rest_PKE, call.options.scale, dtype)
    out_BHQE = past_PQE.unflatten(0, query.shape[:2])
    if late:
        out_BHQE = torch.nn.functional.pad(out_BHQE, (0, 0, late, 0))
    if shared:
        out_BHQE = out_BHQE + _all(query, key[:, :, :shared], value[:, :, :shared], call.options.scale, dtype)
    return out_BHQE.to(query.dtype)


def _hide(query: Tensor, key: Tensor, value: Tensor, lengths_B: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return zeros for the keys beyond each length, and for the queries of a sequence without keys: they see nothing."""
    inside_BK = torch.arange(key.shape[2], device=key.device) < lengths_B[:, None]
    inside_BK1 = inside_BK[:, None, :, None]
    sees_B111 = (lengths_B > 0)[:, None, None, None]
    return torch.where(sees_B111, query, 0.0), torch.where(inside_BK1, key, 0.0), torch.where(inside_BK1, value, 0.0)


def _keys_before_first(band: Band, queries: int, keys: int) -> int:
    """Return how many keys query 0 sees: start + high + 1; query i sees i more. Negative: the first queries see nothing."""
    return (keys - queries if band.start_mode == START_LAST else band.start) + band.high + 1


def _all(query: Tensor, key: Tensor, value: Tensor, scale: float, dtype: torch.dtype) -> Tensor:
    """Compute every query over every key, (B, H, Q, E) in `dtype`; computed in float32 (float64 for float64)."""
    if key.shape[2] == 0:  # zeros that depend on the query without reading it: it may hold a nan
        return query[..., :0].sum(-1, keepdim=True).expand(*query.shape[:3], value.shape[3]).to(dtype)
    # All query heads of a group in one product: (B, G, H / G * Q, D).
    per_group = (query.shape[1] // key.shape[1], query.shape[2])
    q_BGQD = query.unflatten(1, (key.shape[1], per_group[0])).flatten(2, 3)
    q_PQD, k_PKD, v_PKE = q_BGQD.flatten(0, 1), key.flatten(0, 1), value.flatten(0, 1)
    out_BGQE = _whole(q_PQD, k_PKD, v_PKE, scale, dtype).unflatten(0, key.shape[:2])
    return out_BGQE.unflatten(2, per_group).flatten(1, 2)


def _whole(q_PQD: Tensor, k_PKD: Tensor, v_PKE: Tensor, scale: float, dtype: torch.dtype) -> Tensor:
    """Compute z_i = sum over all j of (q_i . k_j) * scale * v_j in `dtype`: native for the 16-bit types where nothing but autograd is active,
    else PyTorch's operators, which every transform knows."""
    is_plain = is_plain_eager() and not any(map(is_batch_of_gradients, (q_PQD, k_PKD, v_PKE)))
    if q_PQD.dtype in (torch.bfloat16, torch.float16) and is_plain and _runs_natively(q_PQD, k_PKD, v_PKE):
        out_PQE: Tensor = Whole.apply(q_PQD, k_PKD, v_PKE, scale, dtype)
        return out_PQE
    compute = compute_dtype(q_PQD.dtype)
    state_PDE = k_PKD.to(compute).transpose(-1, -2) @ v_PKE.to(compute) * scale
    return (q_PQD.to(compute) @ state_PDE).to(dtype)


class Whole(torch.autograd.Function):
    """The native `_whole`, with queries (P, Q, D), keys (P, K, D) and values (P, K, E). Its derivatives have the same form."""

    @staticmethod
    def forward(ctx: Any, q_PQD: Tensor, k_PKD: Tensor, v_PKE: Tensor, scale: float, dtype: torch.dtype) -> Tensor:
        ctx.save_for_backward(q_PQD, k_PKD, v_PKE)
        ctx.scale = scale
        return _native(q_PQD, k_PKD, v_PKE, scale, (), dtype)

    @staticmethod
    def backward(ctx: Any, grad_PQE: Tensor) -> tuple[Tensor | None, ...]:
        q_PQD, k_PKD, v_PKE = ctx.saved_tensors
        # dq_i = sum_j (dz_i . v_j) k_j;  dk_j = sum_i (v_j . dz_i) q_i;  dv_j = sum_i (k_j . q_i) dz_i.
        grad_q = _whole(grad_PQE, v_PKE, k_PKD, ctx.scale, q_PQD.dtype)
        grad_k = _whole(v_PKE, grad_PQE, q_PQD, ctx.scale, k_PKD.dtype)
        grad_v = _whole(k_PKD, q_PQD, grad_PQE, ctx.scale, v_PKE.dtype)
        return grad_q, grad_k, grad_v, None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> Any:
        raise no_forward_mode()


def _heads(x_BGKD: Tensor, heads: int) -> Tensor:
    """Return (P, K, D): each key head once per query head that reads it."""
    repeats = heads // x_BGKD.shape[1]
    return (x_BGKD if repeats == 1 else x_BGKD.repeat_interleave(repeats, dim=1)).flatten(0, 1)


class Past(torch.autograd.Function):
    """z_i = sum over j <= i of (q_i . k_j) * scale * v_j in `dtype`, with queries (P, Q, D), keys (P, K, D), values (P, K, E), K <= Q."""

    @staticmethod
    def forward(ctx: Any, q_PQD: Tensor, k_PKD: Tensor, v_PKE: Tensor, scale: float, dtype: torch.dtype) -> Tensor:
        ctx.save_for_backward(q_PQD, k_PKD, v_PKE)
        ctx.scale = scale
        return _past(q_PQD, k_PKD, v_PKE, scale, dtype)

    @staticmethod
    def backward(ctx: Any, grad_PQE: Tensor) -> tuple[Tensor | None, ...]:
        q_PQD, k_PKD, v_PKE = ctx.saved_tensors
        queries, keys = q_PQD.shape[1], k_PKD.shape[1]
        # dq_i = sum_{j<=i} (dz_i . v_j) k_j;  dk_j = sum_{i>=j} (v_j . dz_i) q_i;  dv_j = sum_{i>=j} (k_j . q_i) dz_i:
        # the last two run from the end, where query i stands before key j.
        grad_q = Past.apply(grad_PQE, v_PKE, k_PKD, ctx.scale, q_PQD.dtype)
        q, k, v, grad = (_fit(x, queries).flip(1) for x in (q_PQD, k_PKD, v_PKE, grad_PQE))
        grad_k = Past.apply(v, grad, q, ctx.scale, k_PKD.dtype).flip(1)[:, :keys]
        grad_v = Past.apply(k, q, grad, ctx.scale, v_PKE.dtype).flip(1)[:, :keys]
        return grad_q, grad_k, grad_v, None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> Any:
        raise no_forward_mode()


_CAUSAL_FROM_ZERO = (Band(-UNBOUNDED, 0, START_VALUE, 0),)


def _runs_natively(q: Tensor, k: Tensor, v: Tensor) -> bool:
    same = q.dtype in DTYPES and q.dtype == k.dtype == v.dtype and q.device.type == "cpu"
    return same and q.shape[0] > 0 and native.reason_unavailable() is None


def _native(
    q_PQD: Tensor, k_PKD: Tensor, v_PKE: Tensor, scale: float, mask_program: MaskProgram, dtype: torch.dtype
) -> Tensor:
    """Compute the same sums by the native kernels, (P, Q, E) in `dtype`: the results have the same bits for any number of threads and any batch."""
    options = Options(
        scale=scale, softmax=False, mask_program=mask_program, max_queries=q_PQD.shape[1], max_keys=k_PKD.shape[1]
    )
    out_1PQE = q_PQD.new_empty((1, *q_PQD.shape[:2], v_PKE.shape[2]), dtype=dtype)
    call = Call(query=q_PQD[None], key=k_PKD[None], value=v_PKE[None], options=options)
    run("uwaga_linear_forward", call, FORWARD_RESULT.pack(*tensor_fields(out_1PQE), *row_fields(None)))
    return out_1PQE[0]


def _past(q_PQD: Tensor, k_PKD: Tensor, v_PKE: Tensor, scale: float, dtype: torch.dtype) -> Tensor:
    if _runs_natively(q_PQD, k_PKD, v_PKE):
        return _native(q_PQD, k_PKD, v_PKE, scale, _CAUSAL_FROM_ZERO, dtype)
    compute = compute_dtype(q_PQD.dtype)
    heads, queries = q_PQD.shape[:2]
    out_PQE = q_PQD.new_empty((heads, queries, v_PKE.shape[2]), dtype=compute)
    state_PDE = q_PQD.new_zeros((heads, k_PKD.shape[2], v_PKE.shape[2]), dtype=compute)
    nan_P1 = q_PQD.new_zeros((heads, 1), dtype=compute)
    for first in range(0, queries, _SEGMENT):
        segment = slice(first, min(first + _SEGMENT, queries))
        q, k, v = (_fit(x[:, segment].to(compute), segment.stop - first) for x in (q_PQD, k_PKD, v_PKE))
        k, v, nan_PT = _without_non_finite(k, v)
        out_PQE[:, segment], state_PDE = _segment(q * scale, k, v, state_PDE)
        if nan_P1.isnan().any() or nan_PT.isnan().any():
            nan_PT = nan_P1 + nan_PT.cumsum(1)
            out_PQE[:, segment] += nan_PT[..., None]
            nan_P1 = nan_PT[:, -1:]
    return out_PQE.to(dtype)


def _segment(q_PTD: Tensor, k_PTD: Tensor, v_PTE: Tensor, state_PDE: Tensor) -> tuple[Tensor, Tensor]:
    """Return the outputs of one segment, and the state after it."""
    tokens = q_PTD.shape[1]
    chunk = min(_CHUNK, tokens)
    q, k, v = (_fit(x, -(-tokens // chunk) * chunk).unflatten(1, (-1, chunk)) for x in (q_PTD, k_PTD, v_PTE))
    scores_PXCC = (q @ k.transpose(-1, -2)).tril_()
    after_PXDE = (k.transpose(-1, -2) @ v).cumsum(1) + state_PDE[:, None]
    before_PXDE = torch.cat((state_PDE[:, None], after_PXDE[:, :-1]), dim=1)
    out_PXCE = scores_PXCC @ v + q @ before_PXDE
    return out_PXCE.flatten(1, 2)[:, :tokens], after_PXDE[:, -1]


def _without_non_finite(k_PTD: Tensor, v_PTE: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return keys and values with zeros where they are not finite, and a (P, T) of 0 or nan that says where: 0 * nan would
    reach queries that do not see them, so their effect is added to those that do."""
    nan_PT = (k_PTD * 0.0).sum(-1) + (v_PTE * 0.0).sum(-1)
    bad_PT1 = nan_PT.isnan()[..., None]
    if bad_PT1.any():
        k_PTD, v_PTE = k_PTD.masked_fill(bad_PT1, 0.0), v_PTE.masked_fill(bad_PT1, 0.0)
    return k_PTD, v_PTE, nan_PT


def _fit(x_PTD: Tensor, tokens: int) -> Tensor:
    """Cut or zero-padded to a number of tokens."""
    missing = tokens - x_PTD.shape[1]
    return x_PTD[:, :tokens] if missing <= 0 else torch.nn.functional.pad(x_PTD, (0, 0, 0, missing))
