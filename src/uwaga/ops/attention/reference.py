"""What attention means, in plain PyTorch operations: the specification, and in float64 the oracle of every engine.

    s_ij = q_i . k_j * scale                            scores; then softcap, then bias
    a_ij = exp(s_ij) / sum_j exp(s_ij)                  weights, over the keys j that query i sees
    z_i  = sum_j a_ij v_j                               output
    lse_i = log sum_j exp(s_ij)

after Vaswani et al., "Attention Is All You Need" (2017); grouped heads after Ainslie et al., "GQA" (2023); softcap after
Gemma 2 (2024); sinks after Xiao et al., "Efficient Streaming Language Models with Attention Sinks" (2023), as a logit per
head that takes weight and gives no value.

A query that sees no key gives zeros, lse = -inf and no gradient. A pair that the mask hides is never multiplied, not even
by zero, since 0 * nan is nan: what a hidden key or value holds affects no output and no gradient.

Letters: B sequences, H query heads, G key/value heads (query head h reads key head h // (H / G)), Q queries, K keys,
D query/key width, E value width. Arithmetic is float32 (float64 for float64), whatever the inputs are stored in.
Memory is O(Q * K): this is written to be read and compared with, not to be fast.
"""

import math

import torch
from torch import Tensor

from uwaga.ops.attention.call import Call, compute_dtype
from uwaga.ops.attention.relative_bias import relative_scores
from uwaga.ops.attention.sequences import join, split
from uwaga.ops.mask_program import visible

_INFINITY = float("inf")
_LOW_32 = 0xFFFFFFFF


def refusal(call: Call) -> None:
    """It serves every call."""
    return


def cost(call: Call) -> str:
    """What is stored, for `explain`; of a ragged call for the longest sequence."""
    queries, keys = call.query.shape[2], call.key.shape[2]
    if call.query_offsets is not None:
        queries, keys = call.options.max_queries, call.options.max_keys
    batch = 1 if call.query_offsets is not None else call.query.shape[0]
    sizes = (batch, call.query.shape[1], queries, keys)
    dtype = compute_dtype(call.query.dtype)
    one_by_one = "" if call.query_offsets is None else "one sequence after another, "
    return (
        f"it stores all scores, {one_by_one}{sizes} in {str(dtype).removeprefix('torch.')}: "
        f"{math.prod(sizes) * dtype.itemsize} bytes and more"
    )


def attend(call: Call) -> tuple[Tensor, Tensor | None]:
    """The output (B, H, Q, E) in the query's dtype, and the lse (B, H, Q) where softmax is; differentiable twice."""
    if call.query_offsets is None:
        return _attend_dense(call)
    parts = [_attend_dense(part) for part in split(call)]
    lses = [lse for _, lse in parts if lse is not None]
    return join(call, [output for output, _ in parts], lses if call.options.softmax else None)


def _attend_dense(call: Call) -> tuple[Tensor, Tensor | None]:
    compute = compute_dtype(call.query.dtype)
    visible_BHQK = _visible(call)
    q_BHQD = torch.where(visible_BHQK.any(-1, keepdim=True), call.query.to(compute), 0.0)
    k_BHKD = call.key.to(compute).repeat_interleave(call.heads_per_key_head, dim=1)
    v_BHKE = call.value.to(compute).repeat_interleave(call.heads_per_key_head, dim=1)

    scores_BHQK = _scores(call, q_BHQD, k_BHKD, visible_BHQK)
    if call.options.softmax:
        weights_BHQK, lse_BHQ = _softmax(scores_BHQK, visible_BHQK, call.sinks)
    else:
        weights_BHQK, lse_BHQ = torch.where(visible_BHQK, scores_BHQK, 0.0), None
    out_BHQE = mix(_dropout(call, weights_BHQK), v_BHKE, visible_BHQK)
    # A query that sees nothing has no part in any gradient, whatever the gradient of its output holds.
    out_BHQE = torch.where(visible_BHQK.any(-1, keepdim=True), out_BHQE, 0.0)
    return out_BHQE.to(call.query.dtype), lse_BHQ


def _visible(call: Call) -> Tensor:
    """(B or 1, H or 1, Q, K): the mask, less the pairs that a bias of -inf hides."""
    queries, keys = call.query.shape[2], call.key.shape[2]
    visible_BHQK = visible(call.options.mask_program, call.mask_tensors, queries, keys, call.query.device)
    if call.bias is not None:
        visible_BHQK = visible_BHQK & (call.bias != -_INFINITY)
    return visible_BHQK.expand(*visible_BHQK.shape[:2], queries, keys)


def _scores(call: Call, q_BHQD: Tensor, k_BHKD: Tensor, visible_BHQK: Tensor) -> Tensor:
    """s_ij with softcap and biases; hidden entries hold anything."""
    scores_BHQK = dot(q_BHQD, k_BHKD, visible_BHQK) * call.options.scale
    if call.options.softcap:
        scores_BHQK = call.options.softcap * torch.tanh(scores_BHQK / call.options.softcap)
    if call.relative is not None:
        scores_BHQK = scores_BHQK + relative_scores(call)
    if call.bias is not None:
        scores_BHQK = scores_BHQK + call.bias
    return scores_BHQK


def _softmax(scores_BHQK: Tensor, visible_BHQK: Tensor, sinks_H: Tensor | None) -> tuple[Tensor, Tensor]:
    """Weights and log-sum-exp over the visible keys, and the sinks in the denominator."""
    # Subtracting the row's largest score changes nothing in exact arithmetic and keeps exp in range.
    seen_BHQK = torch.where(visible_BHQK, scores_BHQK, -_INFINITY).detach()
    none_BHQ1 = seen_BHQK.new_full((*seen_BHQK.shape[:-1], 1), -_INFINITY)
    largest_BHQ1 = torch.cat((seen_BHQK, none_BHQ1), dim=-1).amax(-1, keepdim=True)
    if sinks_H is not None:
        largest_BHQ1 = torch.maximum(largest_BHQ1, sinks_H.detach()[:, None, None])
    largest_BHQ1 = torch.where(largest_BHQ1 == -_INFINITY, 0.0, largest_BHQ1)

    shifted_BHQK = torch.where(visible_BHQK, scores_BHQK - largest_BHQ1, 0.0)
    exp_BHQK = torch.where(visible_BHQK, shifted_BHQK.exp(), 0.0)
    sum_BHQ1 = exp_BHQK.sum(-1, keepdim=True)
    if sinks_H is not None:
        sum_BHQ1 = sum_BHQ1 + (sinks_H[:, None, None] - largest_BHQ1).exp()
    is_empty_BHQ1 = sum_BHQ1 == 0
    sum_BHQ1 = torch.where(is_empty_BHQ1, 1.0, sum_BHQ1)
    lse_BHQ1 = torch.where(is_empty_BHQ1, -_INFINITY, largest_BHQ1 + sum_BHQ1.log())
    return exp_BHQK / sum_BHQ1, lse_BHQ1.squeeze(-1)


def _dropout(call: Call, weights_BHQK: Tensor) -> Tensor:
    if not call.options.dropout:
        return weights_BHQK
    batch, heads = call.query.shape[:2]
    weights_BHQK = weights_BHQK.expand(batch, heads, -1, -1)
    assert call.seed is not None
    queries, keys = weights_BHQK.shape[2:]
    kept_BHQK = kept(call.seed, call.options.dropout, batch, heads, queries, keys, weights_BHQK.device)
    return torch.where(kept_BHQK, weights_BHQK / (1.0 - call.options.dropout), 0.0)


def dot(q_BHQD: Tensor, k_BHKD: Tensor, visible_BHQK: Tensor) -> Tensor:
    """q_i . k_j for the visible pairs, computed so that a hidden key is multiplied with no query, forward or backward."""
    k_BHKD = _hide_unseen(k_BHKD, visible_BHQK)
    bad_K = _not_finite(k_BHKD)
    if bad_K is None:
        return q_BHQD @ k_BHKD.transpose(-1, -2)
    good_BHKD = k_BHKD.masked_fill(bad_K[:, None], 0.0)
    j = bad_K.nonzero().squeeze(-1)
    k_BHQJD = torch.where(visible_BHQK[..., j, None], k_BHKD[:, :, None, j], 0.0)
    scores_BHQJ = (q_BHQD[..., None, :] * k_BHQJD).sum(-1)
    return (q_BHQD @ good_BHKD.transpose(-1, -2)).index_copy(-1, j, scores_BHQJ)


def mix(weights_BHQK: Tensor, v_BHKE: Tensor, visible_BHQK: Tensor) -> Tensor:
    """sum_j a_ij v_j over the visible pairs, computed so that a hidden value is multiplied with no weight, forward or backward."""
    v_BHKE = _hide_unseen(v_BHKE, visible_BHQK)
    bad_K = _not_finite(v_BHKE)
    if bad_K is None:
        return weights_BHQK @ v_BHKE
    j = bad_K.nonzero().squeeze(-1)
    v_BHQJE = torch.where(visible_BHQK[..., j, None], v_BHKE[:, :, None, j], 0.0)
    bad_BHQE = (weights_BHQK[..., j, None] * v_BHQJE).sum(-2)
    return weights_BHQK @ v_BHKE.masked_fill(bad_K[:, None], 0.0) + bad_BHQE


def _hide_unseen(x_BHKD: Tensor, visible_BHQK: Tensor) -> Tensor:
    """Zeros in place of the keys or values that no query sees, such as padding."""
    return torch.where(visible_BHQK.any(-2)[..., None], x_BHKD, 0.0)


def _not_finite(x_BHKD: Tensor) -> Tensor | None:
    """(K,) bool: the keys that hold a nan or an infinity in any sequence and head; None where there are none."""
    bad_K = ~x_BHKD.detach().isfinite().all(-1).flatten(0, 1).all(0)
    return bad_K if bad_K.any() else None


def kept(seed: Tensor, dropout: float, batch: int, heads: int, queries: int, keys: int, device: torch.device) -> Tensor:
    """(B, H, Q, K) bool: which weights dropout keeps, a hash of (seed, sequence, head, query, key): the same in every engine.

    All arithmetic is modulo 2**64, and modulo 2**32 for the part per key; PyTorch's int64 wraps, so it serves for both.

        splitmix(x): x += 0x9E3779B97F4A7C15; x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9;
                     x = (x ^ x >> 27) * 0x94D049BB133111EB; x ^ x >> 31         (Steele, Lea and Flood 2014: SplitMix64)
        row_key = low 32 bits of splitmix(splitmix(seed + b * H + h) + i)
        x = row_key + j * 0x9E3779B1; x ^= x >> 16; x *= 0x85EBCA6B; x ^= x >> 13; x *= 0xC2B2AE35; x ^= x >> 16
                                                                                 (Appleby's MurmurHash3 finalizer)
        the weight is kept iff x >= min(floor(p * 2**32), 2**32 - 1)
    """
    sequence_head = torch.arange(batch * heads, device=device).view(batch, heads, 1)
    i_Q = torch.arange(queries, device=device)
    j_K = torch.arange(keys, device=device)
    row_BHQ = row_keys(seed.to(device) + sequence_head, i_Q)
    x = (row_BHQ[..., None] + j_K * 0x9E3779B1) & _LOW_32
    x = ((x ^ (x >> 16)) * 0x85EBCA6B) & _LOW_32
    x = ((x ^ (x >> 13)) * 0xC2B2AE35) & _LOW_32
    x = x ^ (x >> 16)
    return x >= min(int(dropout * 2**32), 2**32 - 1)


def row_keys(streams: Tensor, i_Q: Tensor) -> Tensor:
    """`row_key` of `kept` for the queries i of a stream, seed + b * H + h; both int64, and broadcast."""
    return _splitmix(_splitmix(streams) + i_Q) & _LOW_32


def _splitmix(x: Tensor) -> Tensor:
    x = x + _signed(0x9E3779B97F4A7C15)
    x = (x ^ _shift(x, 30)) * _signed(0xBF58476D1CE4E5B9)
    x = (x ^ _shift(x, 27)) * _signed(0x94D049BB133111EB)
    return x ^ _shift(x, 31)


def _shift(x: Tensor, bits: int) -> Tensor:
    """A logical shift to the right: int64's >> copies the sign bit."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _signed(constant: int) -> int:
    return constant - (1 << 64) if constant >= 1 << 63 else constant
