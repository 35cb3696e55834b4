"""Attention signals of the new tokens of each request, for serving engines.

Letters: R requests, H query heads, Q new tokens of a request, S spans, C ranges between the ends of spans.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from uwaga._base.arguments import check, integer
from uwaga.maps.map import AttentionMap, TopK
from uwaga.maps.statistics.pooling import members, span_edges
from uwaga.ops.ragged import Ragged

_NAME = "request_signals"


class RequestSignals(NamedTuple):
    """Hold exact signals of one request, for every head and each new token."""

    entropy: Tensor  # (H, Q), in nats
    sink: Tensor  # (H, Q): the weight on the first keys
    spans: Tensor  # (H, Q, S): the weight on each span of keys
    top: TopK  # (H, Q, k): the largest weights and their keys; weight 0 and key -1 if fewer are visible


def request_signals(
    m: AttentionMap, spans: Sequence[Sequence[tuple[int, int]]] | None = None, *, sinks: int = 4, top: int = 8
) -> list[RequestSignals]:
    """Compute how the new tokens of each request attend, in two passes over the keys of the batch, without gradients.

    Args:
        m: a ragged map with heads, as from `AttentionMap.of_paged`; each sequence is a request.
        spans: for each request, pairs (start, stop) of positions of its keys, such as the system prompt and each retrieved document.
            Spans may overlap, and requests may have different numbers of spans. None: no spans.
        sinks: the number of first keys that count as attention sinks (Xiao et al., "Efficient Streaming Language Models with Attention
            Sinks", 2023).
        top: k, at least 1, and may be more than a request has keys.

    Raises:
        ValueError: a map that is not ragged or has no heads; not one list of spans for each request; a span that is not a pair
            start <= stop within the keys of its request; sinks below 0 or a top below 1.

    >>> cache = torch.eye(4).reshape(2, 2, 1, 4) * 9.0  # two blocks of two keys
    >>> m = AttentionMap.of_paged(torch.eye(4)[:1, None], cache, torch.tensor([[1, 0]]), torch.tensor([4]), scale=1.0)
    >>> signals, = request_signals(m, [[(0, 2), (2, 4)]], sinks=1, top=1)
    >>> signals.spans.round(decimals=2), signals.top.positions
    (tensor([[[0., 1.]]]), tensor([[[2]]]))
    """
    if not isinstance(m, AttentionMap) or len(m.shape) != 4 or not isinstance(m.query, Ragged):
        raise ValueError(f"{_NAME}: needs a ragged map with heads, such as AttentionMap.of_paged makes, not {m!r}")
    top, sinks = integer(top, f"{_NAME}: top", 1), integer(sinks, f"{_NAME}: sinks", 0)
    keys = [shape[-1] for shape in m.shapes]
    bounds = _bounds(spans, keys, sinks)
    m.prepare(entropy=True, topk=top)
    on_spans = _mass(m, bounds)
    largest, entropy = m.topk(top), m.entropy()
    assert isinstance(entropy, Ragged)
    assert isinstance(largest.weights, Ragged)
    assert isinstance(largest.positions, Ragged)
    per_request = zip(entropy.to_list(), largest.weights.to_list(), largest.positions.to_list(), strict=True)
    signals = []
    for r, (entropy_QH, weights_QHk, positions_QHk) in enumerate(per_request):
        of_spans = on_spans[r, :, : len(entropy_QH), : len(bounds[r])]
        best = TopK(weights_QHk.transpose(0, 1), positions_QHk.transpose(0, 1))
        signals.append(RequestSignals(entropy_QH.T.detach(), of_spans[..., 0], of_spans[..., 1:], best))
    return signals


def _bounds(spans: Sequence[Sequence[tuple[int, int]]] | None, keys: list[int], sinks: int) -> list[Tensor]:
    """Return the spans (S+1, 2) int64 of each request: the span of the sinks, then its own spans."""
    lists = [[]] * len(keys) if spans is None else _as_list(spans, "spans")
    check(
        len(lists) == len(keys),
        f"{_NAME}: spans must be one list for each of the {len(keys)} requests, not {len(lists)}",
    )
    bounds = []
    for r, (of_request, length) in enumerate(zip(lists, keys, strict=True)):
        pairs = []
        for n, span in enumerate(_as_list(of_request, f"spans of request {r}")):
            pair = [integer(x, f"{_NAME}: a span of request {r}") for x in _as_list(span, f"a span of request {r}")]
            pairs.append(pair)
            check(
                len(pair) == 2 and 0 <= pair[0] <= pair[1] <= length,
                f"{_NAME}: span {n} of request {r} must be a pair (start, stop) with 0 <= start <= stop <= {length}, the number of its keys, not {tuple(pair)}",
            )
        bounds.append(torch.tensor([[0, min(sinks, length)], *pairs], dtype=torch.int64))
    return bounds


def _as_list(x: Any, name: str) -> list[Any]:
    try:
        return list(x)
    except TypeError:
        raise ValueError(f"{_NAME}: {name} must be a list, not {x!r}") from None


def _mass(m: AttentionMap, bounds: list[Tensor]) -> Tensor:
    """Compute the weights of every query on every span, (R, H, longest Q, most S), in one pass; 0 for missing ones."""
    assert isinstance(m.query, Ragged)
    queries_R1, device = m.query.lengths[:, None], m.device
    most = max((len(x) for x in bounds), default=1)
    spans_RS2 = torch.stack([torch.cat((x, x.new_zeros(most - len(x), 2))) for x in bounds]) if bounds else None
    if spans_RS2 is None:
        return torch.zeros((0, m.shape[1], 0, most), dtype=m.dtype, device=device)
    spans_RS2 = spans_RS2.to(device)
    edges_RC = span_edges(spans_RS2)
    # Ranges of one query each; those beyond a request's queries are empty.
    rows_RQ = torch.arange(m.query.max_length + 1, device=device).minimum(queries_R1)
    cells_RHQC = m.pool(rows_RQ, edges_RC).weights
    is_inside_RSC = members(spans_RS2, edges_RC)
    # Span by span, and by torch.where rather than a product with 0, so that a NaN stays in its spans.
    on_each = [torch.where(is_inside_RSC[:, s, None, None], cells_RHQC, 0.0).sum(-1) for s in range(most)]
    return torch.stack(on_each, dim=-1)
