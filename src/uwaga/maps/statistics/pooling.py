"""Ranges of queries and keys that a map is pooled over: from bins and spans as users give them to rising edges.

Letters: B sequences, S spans, Q positions of an axis.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

Bins = int | Sequence[int] | Tensor
Spans = Sequence[tuple[int, int]] | Tensor
_MOST_BINS = 2**28  # whose edges take 2 GB


def bin_edges(bins: Bins, sizes_B: Tensor, batch: tuple[int, ...], name: str) -> Tensor:
    """(B, n+1) int64: the edges of n ranges of an axis whose sizes are (B,).

    Args:
        bins: a number n of equal ranges, range b being floor(b * Q / n) to floor((b + 1) * Q / n), of which some are empty
            where n > Q; or rising edges, (n+1,) or (batch..., n+1).

    Raises:
        ValueError: no range, or edges that fall or leave a sequence.
    """
    if isinstance(bins, int) and not isinstance(bins, bool):
        if bins < 1:
            raise ValueError(f"AttentionMap.pool: {name} must be at least 1, not {bins}")
        if bins > _MOST_BINS:
            raise ValueError(f"AttentionMap.pool: {name} must be at most {_MOST_BINS}, not {bins}")
        return torch.arange(bins + 1, device=sizes_B.device) * sizes_B[:, None] // bins
    given = _integers(bins, sizes_B, f"AttentionMap.pool: {name} must be a number or a list of rising edges")
    if given.shape[-1:] == (0,) or not _fits(given.shape[:-1], batch) or given.dim() == 0:
        want = "(n+1,)" if not batch else f"(n+1,) or {(*batch, 'n+1')}".replace("'", "")
        raise ValueError(f"AttentionMap.pool: edges of {name} must be {want}, not {tuple(given.shape)}")
    found = given.expand(*batch, given.shape[-1]).reshape(len(sizes_B), -1)
    if bool((found.diff() < 0).any()):
        raise ValueError(f"AttentionMap.pool: edges of {name} must not fall, but they are {given.tolist()}")
    _check_inside(found, sizes_B, f"AttentionMap.pool: edges of {name}")
    return found.contiguous()


def span_bounds(given: Spans, sizes_B: Tensor, batch: tuple[int, ...], name: str) -> Tensor:
    """(B, S, 2) int64 from S pairs (start, stop), or one list of pairs per sequence, (batch..., S, 2).

    Raises:
        ValueError: pairs that are none, that stop before they start, or that leave a sequence.
    """
    rule = f"AttentionMap.between: {name} must be pairs (start, stop)"
    pairs = _integers(given, sizes_B, rule)
    if pairs.dim() < 2 or pairs.shape[-1] != 2 or not _fits(pairs.shape[:-2], batch):
        raise ValueError(f"{rule}, (S, 2), not of the shape {tuple(pairs.shape)}")
    found = pairs.expand(*batch, *pairs.shape[-2:]).reshape(len(sizes_B), *pairs.shape[-2:])
    if bool((found[..., 1] < found[..., 0]).any()):
        raise ValueError(f"{rule} that do not stop before they start, but they are {pairs.tolist()}")
    _check_inside(found.flatten(1), sizes_B, f"AttentionMap.between: {name}")
    return found


def span_edges(spans_BS2: Tensor) -> Tensor:
    """(B, 2 S) edges that cut an axis wherever a span begins or ends: spans that overlap become sums of the same pieces."""
    return spans_BS2.flatten(1).sort(dim=1).values


def span_means(cells: Tensor, rows: Tensor, row_edges: Tensor, columns: Tensor, column_edges: Tensor) -> Tensor:
    """(B, H, S, T): spans from the mass cells (B, H, P, C) of their pieces.

    A span's mass is the sum over its key pieces, and the mean over its queries, piece by piece.
    """
    # Selected, not multiplied by zero: a nan stays in the spans that it belongs to.
    in_columns = _members(columns, column_edges)[:, None, None]
    per_span = torch.where(in_columns, cells[:, :, :, None], 0.0).sum(-1)
    share = row_edges.diff()[:, None] / rows.diff(dim=-1).clamp(min=1)
    in_rows = _members(rows, row_edges)[:, None, :, :, None]
    parts = share.to(cells.dtype)[:, None, :, :, None] * per_span[:, :, None]
    return torch.where(in_rows, parts, 0.0).sum(-2)


def _members(spans_BS2: Tensor, edges_BP: Tensor) -> Tensor:
    """(B, S, P-1) bool: which pieces, of some positions, a span is made of."""
    first_B1P, last_B1P = edges_BP[:, None, :-1], edges_BP[:, None, 1:]
    return (spans_BS2[..., :1] <= first_B1P) & (last_B1P <= spans_BS2[..., 1:]) & (first_B1P < last_B1P)


def _integers(given: object, like: Tensor, rule: str) -> Tensor:
    try:
        found = torch.as_tensor(given, device=like.device)
    except (TypeError, ValueError, RuntimeError):  # no numbers, or lists of different lengths
        raise ValueError(f"{rule}, not {given!r}") from None
    if found.numel() and (found.dtype.is_floating_point or found.dtype == torch.bool):
        raise ValueError(f"{rule}, of integers, not {found.dtype}")
    return found.long()


def _fits(shape: tuple[int, ...], batch: tuple[int, ...]) -> bool:
    return shape in ((), batch)


def _check_inside(positions: Tensor, sizes_B: Tensor, name: str) -> None:
    outside = (positions < 0) | (positions > sizes_B[:, None])
    if bool(outside.any()):
        b, at = outside.nonzero()[0].tolist()
        where = f" of sequence {b}" if len(sizes_B) > 1 else ""
        raise ValueError(f"{name} must lie in 0..{int(sizes_B[b])}{where}, not {int(positions[b, at])}")
