"""Compute attention and its map in one pass.

Letters: B batch, H query heads, G key/value heads, Q queries, K keys, D query/key width, E value width, N packed tokens.
"""

from dataclasses import replace
from types import ModuleType
from typing import NamedTuple, Never

import torch
from torch import Tensor

from uwaga._base import keywords
from uwaga._base.arguments import check, integer
from uwaga._base.tracing import has_tangent, is_intercepted, is_recorded, may_branch_on
from uwaga.maps.engines import available as map_engines
from uwaga.maps.map import AttentionMap, describe_mask
from uwaga.maps.spec import RowStatistics, RowStatisticsRequest
from uwaga.maps.statistics import arguments
from uwaga.maps.statistics.row_cache import RowCache
from uwaga.ops.attention import api, choose
from uwaga.ops.attention.arguments import AttentionOptions, make_call, unflatten_lse, unflatten_output
from uwaga.ops.attention.autograd import run
from uwaga.ops.attention.call import Call
from uwaga.ops.biases import DistanceBias
from uwaga.ops.masks import Mask
from uwaga.ops.ragged import Operand


class Attended(NamedTuple):
    """Hold the result of `attend`."""

    output: Operand  # (..., H, Q, E) in the query's dtype; Ragged if the query is
    lse: Operand  # (..., H, Q) float32 (float64 for float64), or Ragged (N, H); -inf if no key is visible
    map: AttentionMap  # inside sequence_parallel a uwaga.sequence_parallel.SequenceMap


def attend(
    query: Operand,
    key: Operand,
    value: Operand,
    *,
    mask: Mask | Tensor | None = None,
    bias: DistanceBias | Tensor | None = None,
    scale: float | None = None,
    normalize: str | None = "softmax",
    softcap: float | None = None,
    sinks: Tensor | None = None,
    dropout: float = 0.0,
    impl: str | None = None,
    entropy: bool = False,
    topk: int | None = None,
    **other: Never,
) -> Attended:
    """Compute attention and the map of its weights in one pass.

    Args:
        query, key, value, mask, bias, scale, softcap, sinks: as in `uwaga.attention`.
        normalize: "softmax"; without softmax there is no map.
        dropout: as in `uwaga.attention`, for the output only. The map has the weights before dropout.
        impl: None chooses an engine; "cpu" or "reference" uses that engine for output and map, or raises; "triton", which
            has statistics only, uses it for the map.
        entropy: compute `map.entropy()` in the same pass.
        topk: the number of largest weights per query to compute in the same pass, for `map.topk(k)` and `map.peak()`.

    Returns:
        output (..., H, Q, E) and lse (..., H, Q), both differentiable, and the map, which has the lse already. With
        gradients or dropout, `uwaga.attention` computes the output, and a second pass computes entropy and topk if requested.

    Raises:
        ShapeError, ValueError: as `uwaga.attention`; normalize=None, or topk below 1.

    >>> x = torch.eye(3) * 9.0
    >>> output, lse, weights = attend(x, x, x, topk=1)
    >>> weights.peak().position
    tensor([0, 1, 2])
    """
    if other:
        keywords.refuse(other, attend)
    options = AttentionOptions(mask, bias, scale, normalize, softcap, sinks, dropout)
    if api.override is not None:
        return Attended(*api.override.attend_with_map((query, key, value), options, impl, entropy, topk))
    check_wanted(normalize, topk)
    call = make_call(query, key, value, options, wants_lse=True)
    qk_call = replace(call, value=call.key[..., :0], seed=None, options=replace(call.options, dropout=0.0))
    engine = map_engines.choose(call, impl)
    request = RowStatisticsRequest(entropy=entropy, top=topk or 0)
    output, of_call, rows = _run(call, qk_call, engine, impl, request)
    cache = RowCache.of_pass(qk_call, engine, request, rows)
    m = AttentionMap._of(query, key, describe_mask(mask), cache)
    lse = m.lse if of_call is None else unflatten_lse(query, of_call)
    return Attended(unflatten_output(query, output), lse, m)


def check_wanted(normalize: str | None, topk: object) -> None:
    """Raise ValueError for options without a map."""
    check(normalize is not None, "attend: a map needs softmax weights, which normalize=None does not have")
    if topk is not None:
        integer(topk, "attend: topk", 1)


def _run(
    call: Call, qk_call: Call, engine: ModuleType, impl: str | None, request: RowStatisticsRequest
) -> tuple[Tensor, Tensor | None, RowStatistics]:
    """Return the output, the lse if autograd computes it with the output, and the rows of the map."""
    if not _needs_operator(call):
        with torch.no_grad():
            rows = engine.rows(call, replace(request, output=True))
        return rows.output, None, rows
    impl = None if impl == "triton" else impl
    if (name := choose.engine_name(call, impl)) == "cpu":
        output, lse = run(call, name)
        assert lse is not None
        normalizer = arguments.of_lse(lse)
        rows = (
            _rows(qk_call, engine, request)._replace(normalizer=normalizer)
            if request != RowStatisticsRequest()
            else RowStatistics(normalizer)
        )
        return output, lse, rows
    # The other engines have no lse, or compute it from the whole matrix.
    call = replace(call, options=replace(call.options, wants_lse=False))
    output, _ = run(call, choose.engine_name(call, impl))
    return output, None, _rows(qk_call, engine, request)


def _needs_operator(call: Call) -> bool:
    """Return whether gradients, dropout, tracers, torch.func or tensor subclasses need `uwaga.attention` for the output."""
    if call.options.dropout or is_intercepted() or not may_branch_on(call.query):
        return not has_tangent(*call.operands)  # it has no forward-mode derivatives
    return is_recorded(*call.operands)


def _rows(qk_call: Call, engine: ModuleType, request: RowStatisticsRequest) -> RowStatistics:
    with torch.no_grad():
        return engine.rows(qk_call, request)
