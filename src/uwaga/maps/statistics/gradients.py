"""Gradients of lse, entropy, received and weights, by autograd of their definition in engines/tiles.py.

An engine computes the values; `attach` makes them differentiable. First derivatives are accumulated a tile of rows at a
time, in O(rows * K) memory; second derivatives differentiate all tiles at once, in O(Q * K) memory.

Letters: B sequences, H query heads, Q queries, K keys, C queries of a tile.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from uwaga._base.tracing import is_recorded, is_transformed, without_autocast
from uwaga.maps.engines import tiles
from uwaga.maps.engines.tiles import Tile
from uwaga.maps.spec import Selection
from uwaga.ops.attention.call import Call, Options
from uwaga.ops.attention.gradients import grad_or_zeros, with_operands
from uwaga.ops.attention.sequences import split

LSE, ENTROPY, RECEIVED = "lse", "entropy", "received"


def attach(statistic: str, value: Tensor, call: Call, row_weights: Tensor | None = None) -> Tensor:
    """Make `value`, a statistic of the call, differentiable with respect to operands and row weights.

    Raises:
        NotImplementedError: under a transform of torch.func.
    """
    if not _needs_graph(statistic, (*call.operands, row_weights)):
        return value
    outputs: Tensor = _Statistic.apply(value, statistic, call.options, row_weights, *call.tensors)
    return outputs


def attach_weights(value: Tensor, call: Call, selection: Selection, keys: Tensor) -> Tensor:
    """Make `value`, weights (sequences, heads, queries, keys) of a dense call, differentiable with respect to operands.

    Raises:
        NotImplementedError: under a transform of torch.func.
    """
    if not _needs_graph("a weight", call.operands):
        return value
    outputs: Tensor = _Weights.apply(value, call.options, selection, keys, *call.tensors)
    return outputs


def _needs_graph(what: str, inputs: Sequence[Tensor | None]) -> bool:
    """Return whether autograd records this call. Raises NotImplementedError: under torch.func."""
    if not is_recorded(*inputs):
        return False
    if is_transformed():
        raise NotImplementedError(
            f"AttentionMap: {what} cannot be differentiated by torch.func; use torch.autograd.grad, which also gives second derivatives"
        )
    return True


class _Weights(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, value: Tensor, options: Options, selection: Selection, keys: Tensor, *tensors: Tensor | None
    ) -> Tensor:
        ctx.options, ctx.selection, ctx.keys = options, selection, keys
        ctx.save_for_backward(*tensors)
        return value.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        call, needs = Call.of(ctx.saved_tensors, ctx.options), ctx.needs_input_grad[4:10]
        creates = torch.is_grad_enabled()
        with without_autocast(grad.device), torch.enable_grad():
            if not creates:
                leaves = [
                    None if x is None else x.detach().requires_grad_(need)
                    for x, need in zip(call.operands, needs, strict=True)
                ]
                call = with_operands(call, leaves)
            inputs = _needed(call.operands, needs)
            totals = [torch.zeros_like(x) for x in inputs]
            for inside, weights in _selected_weights(call, ctx.selection, ctx.keys):
                result = grad_or_zeros([weights], inputs, [grad[:, :, inside]], create_graph=creates)
                totals = [total + more for total, more in zip(totals, result, strict=True)]
        grads = iter(totals)
        of_operands = [next(grads) if need else None for need in needs]
        return None, None, None, None, *of_operands, *(None,) * (len(call.tensors) - len(of_operands))


def _selected_weights(call: Call, selection: Selection, keys: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield, for each tile with selected rows, which of the selected queries it has, and their weights on the keys."""
    height, part = tiles.height(call), tiles.select_heads(call, selection.sequences, selection.heads)
    for start in tiles.starts(selection.queries, height):
        (tile,) = tiles.tiles(part, height, [start])
        inside = (selection.queries >= start) & (selection.queries < start + height)
        result = tiles.weights(tile, tiles.normalizer(part, tile))
        yield inside, result[:, :, selection.queries[inside] - start][..., keys]


class _Statistic(torch.autograd.Function):
    # The types of ctx are those of PyTorch's own stubs: it takes any attribute.
    @staticmethod
    def forward(
        ctx: Any, value: Tensor, statistic: str, options: Options, row_weights: Tensor | None, *tensors: Tensor | None
    ) -> Tensor:
        ctx.statistic, ctx.options = statistic, options
        ctx.save_for_backward(row_weights, *tensors)
        return value.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        row_weights, *tensors = ctx.saved_tensors
        needs = (*ctx.needs_input_grad[4:10], ctx.needs_input_grad[3])
        compute = _differentiate if torch.is_grad_enabled() else _accumulate
        with without_autocast(grad.device):
            result = compute(ctx.statistic, Call.of(tensors, ctx.options), row_weights, grad, needs)
        return None, None, None, result[-1], *result[:-1], *(None,) * (len(tensors) - 6)


class _DenseCall(NamedTuple):
    """Hold one dense call, with the weights of its rows and the gradient of its statistic."""

    call: Call
    row_weights: Tensor | None
    grad: Tensor


def _differentiate(
    statistic: str, call: Call, row_weights: Tensor | None, grad: Tensor, needs: Sequence[bool]
) -> list[Tensor | None]:
    """Compute the gradients of the operands and the row weights, differentiable themselves."""
    inputs = _needed((*call.operands, row_weights), needs)
    outputs, grads = [], []
    for part in _parts(statistic, call, row_weights, grad):
        for tile in tiles.tiles(part.call, tiles.height(part.call)):
            outputs.append(_of_tile(statistic, part.call, tile, part.row_weights))
            grads.append(_grad_of_tile(statistic, part.grad, tile))
    result = iter(grad_or_zeros(outputs, inputs, grads, create_graph=True))
    return [next(result) if needed else None for needed in needs]


def _accumulate(
    statistic: str, call: Call, row_weights: Tensor | None, grad: Tensor, needs: Sequence[bool]
) -> list[Tensor | None]:
    """Compute the gradients of the operands and the row weights, tile by tile."""
    operands = (*call.operands, row_weights)
    totals = [torch.zeros_like(x) if needed and x is not None else x for x, needed in zip(operands, needs, strict=True)]
    parts = _parts(statistic, call, row_weights, grad)
    targets = _parts(statistic, with_operands(call, totals[:-1]), totals[-1], grad)  # views of the totals
    for part, target in zip(parts, targets, strict=True):
        _add(statistic, part, needs, _needed((*target.call.operands, target.row_weights), needs))
    return [x if needed else None for x, needed in zip(totals, needs, strict=True)]


def _add(statistic: str, part: _DenseCall, needs: Sequence[bool], totals: list[Tensor]) -> None:
    """Add the gradients of one dense call."""
    operands = (*part.call.operands, part.row_weights)
    with torch.enable_grad():
        leaves = [
            None if x is None else x.detach().requires_grad_(needed) for x, needed in zip(operands, needs, strict=True)
        ]
        call, inputs = with_operands(part.call, leaves[:-1]), _needed(leaves, needs)
        height = tiles.height(call)
        for at in range(0, max(call.query.shape[2], 1), height):
            (tile,) = tiles.tiles(call, height, [at])  # its graph is freed before the next tile
            output = _of_tile(statistic, call, tile, leaves[-1])
            result = grad_or_zeros([output], inputs, [_grad_of_tile(statistic, part.grad, tile)])
            for total, gradient in zip(totals, result, strict=True):
                total.add_(gradient)


def _parts(statistic: str, call: Call, row_weights: Tensor | None, grad: Tensor) -> list[_DenseCall]:
    """Return the dense calls of the sequences."""
    if call.query_offsets is None or call.key_offsets is None:
        return [_DenseCall(call, row_weights, grad)]
    offsets = call.key_offsets if statistic == RECEIVED else call.query_offsets
    grads = grad.split(offsets.diff().tolist(), dim=2)
    weights: Sequence[Tensor | None] = [None] * call.sequences
    if row_weights is not None:
        weights = row_weights.split(call.query_offsets.diff().tolist(), dim=2)
    return [_DenseCall(*part) for part in zip(split(call), weights, grads, strict=True)]


def _needed(tensors: Sequence[Tensor | None], needs: Sequence[bool]) -> list[Tensor]:
    """Return the tensors whose gradient is needed."""
    return [x for x, needed in zip(tensors, needs, strict=True) if needed and x is not None]


def _of_tile(statistic: str, call: Call, tile: Tile, row_weights: Tensor | None) -> Tensor:
    """Compute the statistic of the rows of a tile; for `received`, the part of these rows, (B, H, K)."""
    normalizer = tiles.normalizer(call, tile)
    if statistic == LSE:
        return tiles.log_sum_exp(normalizer)
    weights_BHCK = tiles.weights(tile, normalizer)
    if statistic == ENTROPY:
        # log a_ij is s_ij - lse_i, since the logarithm of a weight that underflows has no derivative.
        lse_BHC1 = torch.where(normalizer.sum == 0, 0.0, tiles.log_sum_exp(normalizer))[..., None]
        logarithms_BHCK = torch.where(weights_BHCK == 0, 0.0, tile.scores - lse_BHC1)
        return -(weights_BHCK * logarithms_BHCK).sum(-1)
    if row_weights is None:
        return weights_BHCK.sum(-2)
    w_BHC1 = row_weights[:, :, tile.rows, None]
    # Rows of weight 0 are left out, unless the gradient of that weight is needed.
    is_skipped = (w_BHC1 == 0) & (not row_weights.requires_grad)
    return torch.where(is_skipped, 0.0, w_BHC1 * weights_BHCK).sum(-2)


def _grad_of_tile(statistic: str, grad: Tensor, tile: Tile) -> Tensor:
    return grad if statistic == RECEIVED else grad[:, :, tile.rows]
