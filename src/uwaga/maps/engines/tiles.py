"""The weights of a dense call as they are defined, a tile of rows at a time: O(rows * K) memory, differentiable twice.

Products q_i . k_j are computed in blocks on a grid that depends on the call only: matrix products of other shapes round
differently, and a score must have the same bits whichever rows and keys are read. A score of 100 that is rounded in one way
for the normalizer and in another for the weight makes the weight wrong by a relative 1e-5.

Letters: B sequences, H query heads, G key/value heads, C queries of a tile, K keys, J keys that are not finite,
D query/key width.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from uwaga._base.tracing import is_tracing, may_branch_on, without_autocast
from uwaga.maps.spec import Normalizer
from uwaga.ops.attention.call import Call, compute_dtype
from uwaga.ops.attention.relative_bias import relative_scores
from uwaga.ops.mask_program import CallPart, select, selected, visible

_INFINITY = float("inf")
# Scores of one tile: 16 MB in float32, of which a statistic holds a few copies at a time.
_TILE = 1 << 22
_MOST_ROWS = 32
_BLOCK = 512  # keys of one block


class Keys(NamedTuple):
    """The keys in the form that all tiles use."""

    finite: Tensor  # (B, H, K, D) in the dtype of the arithmetic, zeros in place of the keys that are not finite
    # (J,) int64: keys that are not finite in some sequence and head; None under tracers and transforms.
    bad: Tensor | None
    raw: Tensor  # (B, H, J, D): these keys as they are; all keys, (B, H, K, D), if `bad` is None
    columns: Tensor | None  # (K,) int64: their positions; None: all keys of the call


class Tile(NamedTuple):
    """The scores of some rows; hidden entries are undefined."""

    rows: Tensor  # (C,) int64
    scores: Tensor  # (B, H, C, K) in the dtype of the arithmetic
    visible: Tensor  # (B, H, C, K) bool


def check_lengths() -> None:
    """Raise NotImplementedError where a tracer would record the lengths of ragged sequences as constants."""
    if is_tracing():
        raise NotImplementedError(
            "AttentionMap: tracers cannot record a ragged map, whose lengths are Python numbers; trace dense maps, or the "
            "output of attend alone"
        )


def height(call: Call) -> int:
    """How many rows a tile has: a power of two."""
    batch, heads, _, _ = call.query.shape
    fitting = int(_TILE // max(batch * heads * call.key.shape[2], 1))  # torch.jit.trace counts in tensors
    return min(_MOST_ROWS, 1 << max(fitting.bit_length() - 1, 0))


def tiles(call: Call, rows: int, at: Sequence[int] | None = None) -> Iterator[Tile]:
    """All tiles with this number of rows, or those that start at the given rows; at least one, which may be empty."""
    keys, queries = prepare(call), call.query.shape[2]
    for start in range(0, max(queries, 1), rows) if at is None else at:
        yield tile(call, keys, torch.arange(start, min(start + rows, queries), device=call.query.device))


def prepare(call: Call, chosen: Tensor | None = None) -> Keys:
    """The keys, one per query head; those that are not finite apart, since 0 * NaN would spread to all queries.

    chosen: keys, ascending, whose blocks are prepared; None for all keys.
    """
    columns, key_BGKD = None, call.key
    if chosen is not None:
        columns = blocks(chosen, _BLOCK, call.key.shape[2])
        key_BGKD = key_BGKD.index_select(2, columns)
    key_BHKD = key_BGKD.to(compute_dtype(key_BGKD.dtype)).repeat_interleave(call.heads_per_key_head, dim=1)
    good_BHK1 = key_BHKD.detach().isfinite().all(-1, keepdim=True)
    if not may_branch_on(key_BHKD):
        return Keys(torch.where(good_BHK1, key_BHKD, 0.0), None, key_BHKD.detach(), columns)
    bad_K = ~good_BHK1.flatten(0, 1).all(0).squeeze(-1)
    j_J = bad_K.nonzero().squeeze(-1)
    finite_BHKD = key_BHKD.masked_fill(bad_K[:, None], 0.0) if len(j_J) else key_BHKD
    return Keys(finite_BHKD, j_J, key_BHKD.index_select(2, j_J), columns)


def starts(chosen: Tensor, rows: int) -> list[int]:
    """The first rows of the tiles that have chosen rows."""
    return ((chosen // rows).unique() * rows).tolist()


def blocks(chosen: Tensor, size: int, end: int) -> Tensor:
    """All positions of the blocks that have chosen positions."""
    first = (chosen // size).unique() * size
    every = (first[:, None] + torch.arange(size, device=chosen.device)).flatten()
    return every[every < end]


def tile(call: Call, keys: Keys, rows: Tensor) -> Tile:
    """The scores of the listed rows, with scale, softcap and biases. Hidden keys affect neither values nor gradients."""
    seen_BHCK = seen(call, rows, keys.columns)
    q_BHCD = call.query.index_select(2, rows).to(compute_dtype(call.query.dtype))
    q_BHCD = torch.where(seen_BHCK.any(-1, keepdim=True), q_BHCD, 0.0)
    scores_BHCK = _products(q_BHCD, keys.finite)
    if keys.bad is None:
        # A separate product without gradients: 0 * NaN would be in the gradient of every query.
        good_BH1K = keys.raw.isfinite().all(-1)[:, :, None]
        scores_BHCK = torch.where(good_BH1K, scores_BHCK, _products(q_BHCD.detach(), keys.raw))
    elif len(keys.bad):
        sees_BHCJ1 = seen_BHCK[..., keys.bad, None]
        raw_BHCJD = torch.where(sees_BHCJ1, keys.raw[:, :, None], 0.0)
        scores_BHCK = scores_BHCK.index_copy(-1, keys.bad, (q_BHCD[..., None, :] * raw_BHCJD).sum(-1))
    return Tile(rows, finish(call, scores_BHCK, rows, keys.columns), seen_BHCK)


def _products(q_BHCD: Tensor, key_BHKD: Tensor) -> Tensor:
    """(B, H, C, K): q_i . k_j, block by block."""
    with without_autocast(q_BHCD.device):
        products = [q_BHCD @ block.transpose(-1, -2) for block in key_BHKD.split(_BLOCK, dim=2)]
    return torch.cat(products, dim=-1)


def seen(call: Call, rows: Tensor, columns: Tensor | None) -> Tensor:
    """(B, H, Q, K) bool of the listed rows and columns: the mask, without the pairs that a bias of -inf hides."""
    (batch, heads, queries, _), keys = call.query.shape, call.key.shape[2]
    program, tensors = call.options.mask_program, call.mask_tensors
    seen_BHQK = visible(program, tensors, queries, keys, call.query.device, rows, columns)
    if call.bias is not None:
        seen_BHQK = seen_BHQK & (selected(selected(call.bias, 2, rows), 3, columns) != -_INFINITY)
    return seen_BHQK.expand(batch, heads, len(rows), keys if columns is None else len(columns))


def finish(call: Call, products_BHQK: Tensor, rows: Tensor, columns: Tensor | None) -> Tensor:
    """The scores from the products q_i . k_j of the listed rows and columns."""
    scores_BHQK = products_BHQK * call.options.scale
    if call.options.softcap:
        scores_BHQK = call.options.softcap * torch.tanh(scores_BHQK / call.options.softcap)
    if call.relative is not None:
        scores_BHQK = scores_BHQK + relative_scores(call, rows, columns)
    if call.bias is not None:
        scores_BHQK = scores_BHQK + selected(selected(call.bias, 2, rows), 3, columns)
    return scores_BHQK


def normalizer(call: Call, tile: Tile) -> Normalizer:
    """The normalizer (B, H, C) of a tile's rows."""
    # Subtracting the largest score only keeps exp in range: it needs no gradient.
    seen_BHCK = torch.where(tile.visible, tile.scores.detach(), -_INFINITY)
    none_BHC1 = seen_BHCK.new_full((*seen_BHCK.shape[:-1], 1), -_INFINITY)
    maximum_BHC = torch.cat((seen_BHCK, none_BHC1), dim=-1).amax(-1)
    if call.sinks is not None:
        maximum_BHC = torch.maximum(maximum_BHC, call.sinks.detach()[:, None])
    maximum_BHC = torch.where(maximum_BHC == -_INFINITY, 0.0, maximum_BHC)
    sum_BHC = exponentials(tile, maximum_BHC).sum(-1)
    if call.sinks is not None:
        sum_BHC = sum_BHC + (call.sinks[:, None] - maximum_BHC).exp()
    return Normalizer(maximum_BHC, sum_BHC)


def weights(tile: Tile, normalizer: Normalizer) -> Tensor:
    """(B, H, C, K): the weights of a tile, given the normalizer of its rows."""
    sum_BHC = torch.where(normalizer.sum == 0, 1.0, normalizer.sum)
    return exponentials(tile, normalizer.maximum) / sum_BHC[..., None]


def exponentials(tile: Tile, maximum_BHC: Tensor) -> Tensor:
    """exp(s_ij - maximum_i) of the visible pairs, 0 elsewhere."""
    shifted_BHCK = torch.where(tile.visible, tile.scores - maximum_BHC[..., None], 0.0)
    return torch.where(tile.visible, shifted_BHCK.exp(), 0.0)


def diagonal_sums(call: Call, read: Iterable[tuple[Tensor, Tensor]]) -> Tensor:
    """(B, H, Q+K-1) in float64: entry n is the sum of all weights with j - i = n - (Q - 1).

    Args:
        read: some rows (C,) and their weights (B, H, C, K), until all are read.
    """
    (batch, heads, queries, _), keys = call.query.shape, call.key.shape[2]
    sums_BHn = call.query.new_zeros((batch, heads, max(queries + keys - 1, 0)), dtype=torch.float64)
    j_K = torch.arange(keys, device=sums_BHn.device)
    for rows, weights_BHCK in read:
        at_CK = j_K - rows[:, None] + queries - 1
        sums_BHn = sums_BHn.scatter_add(2, at_CK.flatten().expand(batch, heads, -1), weights_BHCK.double().flatten(2))
    return sums_BHn


def log_sum_exp(normalizer: Normalizer) -> Tensor:
    """(B, H, Q): -inf where there is neither a visible key nor a sink."""
    is_empty = normalizer.sum == 0
    return torch.where(is_empty, -_INFINITY, normalizer.maximum + torch.where(is_empty, 1.0, normalizer.sum).log())


def select_heads(call: Call, sequences: tuple[int, ...], heads: tuple[int, ...]) -> Call:
    """The call of these sequences and query heads alone, with a key head for each query head."""
    batch, all_heads = call.query.shape[:2]
    if len(sequences) == batch and len(heads) == all_heads:
        return call
    b, h = (torch.tensor(x, dtype=torch.int64, device=call.query.device) for x in (sequences, heads))
    groups = h // call.heads_per_key_head
    part = CallPart(sequences=b, heads=h)
    return replace(
        call,
        query=_taken(call.query, b, h),
        key=_taken(call.key, b, groups),
        value=_taken(call.value, b, groups),
        relative=None if call.relative is None else call.relative[h],
        bias=None if call.bias is None else part.of_scores(call.bias),
        sinks=None if call.sinks is None else call.sinks[h],
        relative_starts=None if call.relative_starts is None else call.relative_starts[b],
        mask_tensors=select(call.options.mask_program, call.mask_tensors, part),
    )


def _taken(x: Tensor, b: Tensor, h: Tensor) -> Tensor:
    """x[b][:, h]; a view where each of them lists neighbours, since keys are long."""
    return _select_list(_select_list(x, 0, b), 1, h)


def _select_list(x: Tensor, dimension: int, at: Tensor) -> Tensor:
    if not _are_neighbours(at):
        return x.index_select(dimension, at)
    return x.narrow(dimension, int(at[0]) if len(at) else 0, len(at))


def _are_neighbours(at: Tensor) -> bool:
    return bool((at.diff() == 1).all())
