"""Convert bins and spans of queries and keys to ascending edges, over which a map is pooled.

Letters: B sequences, S spans, Q positions of an axis.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from uwaga._base.arguments import integer

Bins = int | Sequence[int] | Tensor
Spans = Sequence[tuple[int, int]] | Tensor
_MAX_BINS = 2**28  # their edges take 2 GB


def bin_edges(bins: Bins, sizes_B: Tensor, batch: tuple[int, ...], name: str) -> Tensor:
    """Return the edges (B, n+1) int64 of n ranges of an axis with sizes (B,).

    Args:
        bins: a number n of equal ranges, where range b is [floor(b * Q / n), floor((b + 1) * Q / n)), empty for some b if
            n > Q; or ascending edges, (n+1,) or (batch..., n+1).

    Raises:
        ValueError: no range, or edges that descend or lie outside a sequence.
    """
    if isinstance(bins, int) and not isinstance(bins, bool):
        bins = integer(bins, f"AttentionMap.pool: {name}", 1, _MAX_BINS)
        return torch.arange(bins + 1, device=sizes_B.device) * sizes_B[:, None] // bins
    edges = _integers(bins, sizes_B, f"AttentionMap.pool: {name} must be a number or a list of ascending edges")
    if edges.shape[-1:] == (0,) or not _fits(edges.shape[:-1], batch) or edges.dim() == 0:
        want = "(n+1,)" if not batch else f"(n+1,) or {(*batch, 'n+1')}".replace("'", "")
        raise ValueError(f"AttentionMap.pool: edges of {name} must be {want}, not {tuple(edges.shape)}")
    result = edges.expand(*batch, edges.shape[-1]).reshape(len(sizes_B), edges.shape[-1])
    if bool((result.diff() < 0).any()):
        raise ValueError(f"AttentionMap.pool: edges of {name} must be ascending, not {edges.tolist()}")
    _check_inside(result, sizes_B, f"AttentionMap.pool: edges of {name}")
    return result.contiguous()


def span_bounds(spans: Spans, sizes_B: Tensor, batch: tuple[int, ...], name: str) -> Tensor:
    """Return spans (B, S, 2) int64 from S pairs (start, stop), or from pairs per sequence, (batch..., S, 2).

    Raises:
        ValueError: not pairs, a stop before its start, or a span outside a sequence.
    """
    rule = f"AttentionMap.between: {name} must be pairs (start, stop)"
    pairs = _integers(spans, sizes_B, rule)
    if pairs.dim() < 2 or pairs.shape[-1] != 2 or not _fits(pairs.shape[:-2], batch):
        raise ValueError(f"{rule}, (S, 2), not of the shape {tuple(pairs.shape)}")
    result = pairs.expand(*batch, *pairs.shape[-2:]).reshape(len(sizes_B), *pairs.shape[-2:])
    if bool((result[..., 1] < result[..., 0]).any()):
        raise ValueError(f"{rule} with start <= stop, not {pairs.tolist()}")
    _check_inside(result.flatten(1), sizes_B, f"AttentionMap.between: {name}")
    return result


def span_edges(spans_BS2: Tensor) -> Tensor:
    """Return edges (B, 2 S) at every start and stop, so that overlapping spans are sums of the same ranges."""
    return spans_BS2.flatten(1).sort(dim=1).values


def span_means(cells: Tensor, rows: Tensor, row_edges: Tensor, columns: Tensor, column_edges: Tensor) -> Tensor:
    """Compute the weights between spans, (B, H, S, T), from pooled cells (B, H, P, C) of the ranges between edges.

    The weight between two spans is the sum over the ranges of the keys, and the mean over all queries.
    """
    # By torch.where rather than a product with 0, so that a NaN stays in its spans.
    in_columns = members(columns, column_edges)[:, None, None]
    per_span = torch.where(in_columns, cells[:, :, :, None], 0.0).sum(-1)
    share = row_edges.diff()[:, None] / rows.diff(dim=-1).clamp(min=1)
    in_rows = members(rows, row_edges)[:, None, :, :, None]
    parts = share.to(cells.dtype)[:, None, :, :, None] * per_span[:, :, None]
    return torch.where(in_rows, parts, 0.0).sum(-2)


def members(spans_BS2: Tensor, edges_BP: Tensor) -> Tensor:
    """Return which ranges belong to a span, (B, S, P-1) bool; an empty range belongs to no span."""
    first_B1P, last_B1P = edges_BP[:, None, :-1], edges_BP[:, None, 1:]
    return (spans_BS2[..., :1] <= first_B1P) & (last_B1P <= spans_BS2[..., 1:]) & (first_B1P < last_B1P)


def _integers(value: object, like: Tensor, rule: str) -> Tensor:
    try:
        result = torch.as_tensor(value, device=like.device)
    except (TypeError, ValueError, RuntimeError):  # not numbers, or lists of different lengths
        raise ValueError(f"{rule}, not {value!r}") from None
    if result.numel() and (result.dtype.is_floating_point or result.dtype == torch.bool):
        raise ValueError(f"{rule}, of integers, not {result.dtype}")
    return result.long()


def _fits(shape: tuple[int, ...], batch: tuple[int, ...]) -> bool:
    return shape in ((), batch)


def _check_inside(positions: Tensor, sizes_B: Tensor, name: str) -> None:
    outside = (positions < 0) | (positions > sizes_B[:, None])
    if bool(outside.any()):
        b, at = outside.nonzero()[0].tolist()
        where = f" of sequence {b}" if len(sizes_B) > 1 else ""
        raise ValueError(f"{name} must lie in 0..{int(sizes_B[b])}{where}, not {int(positions[b, at])}")
