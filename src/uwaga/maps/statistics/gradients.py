"""Gradients of lse, entropy and received: by the definition, again a tile of rows at a time, so in O(rows * K) memory.

An engine finds the values; here they become functions of the operands. Second derivatives differentiate the definition as
a whole, and take O(Q * K).

Letters: B sequences, H query heads, Q queries, K keys, C queries of a tile.
"""

from dataclasses import replace

import torch
from torch import Tensor

from uwaga._base.tracing import is_transformed, without_autocast
from uwaga.maps.engines import tiles
from uwaga.maps.engines.tiles import Tile
from uwaga.ops.attention.call import DIFFERENTIABLE, Call, Options
from uwaga.ops.attention.sequences import split

LSE, ENTROPY, RECEIVED = "lse", "entropy", "received"


def attach(statistic: str, value: Tensor, call: Call, row_weights: Tensor | None = None) -> Tensor:
    """`value`, which is this statistic of the call, as a function of the call's operands and of the rows' weights."""
    inputs = (*call.operands, row_weights)
    if not torch.is_grad_enabled() or not any(x is not None and x.requires_grad for x in inputs):
        return value
    if is_transformed():
        raise NotImplementedError(
            f"AttentionMap: torch.func does not differentiate {statistic}; torch.autograd.grad does, twice"
        )
    return _Statistic.apply(value, statistic, call.options, row_weights, *call.tensors)


class _Statistic(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value: Tensor, statistic: str, options: Options, row_weights: Tensor | None, *tensors):
        ctx.statistic, ctx.options = statistic, options
        ctx.save_for_backward(row_weights, *tensors)
        return value.clone()

    @staticmethod
    def backward(ctx, grad: Tensor):
        row_weights, *tensors = ctx.saved_tensors
        needs = (*ctx.needs_input_grad[4:10], ctx.needs_input_grad[3])
        how = _differentiate if torch.is_grad_enabled() else _accumulate
        with without_autocast(grad.device):
            found = how(ctx.statistic, Call.of(tensors, ctx.options), row_weights, grad, needs)
        return None, None, None, found[-1], *found[:-1], *(None,) * (len(tensors) - 6)


def _differentiate(statistic: str, call: Call, row_weights: Tensor | None, grad: Tensor, needs: tuple) -> list:
    """The gradients as differentiable functions of everything."""
    inputs = [x for x, needed in zip((*call.operands, row_weights), needs, strict=True) if needed]
    outputs, grads = [], []
    for part, weights, grad_part in _parts(statistic, call, row_weights, grad):
        for tile in tiles.tiles(part, tiles.height(part)):
            outputs.append(_of_tile(statistic, part, tile, weights))
            grads.append(_grad_of_tile(statistic, grad_part, tile))
    found = iter(_grad(outputs, inputs, grads, create_graph=True))
    return [next(found) if needed else None for needed in needs]


def _accumulate(statistic: str, call: Call, row_weights: Tensor | None, grad: Tensor, needs: tuple) -> list:
    """The gradients, tile by tile."""
    operands = (*call.operands, row_weights)
    totals = [torch.zeros_like(x) if needed else x for x, needed in zip(operands, needs, strict=True)]
    whole = replace(call, **dict(zip(DIFFERENTIABLE, totals[:-1], strict=True)))
    parts = _parts(statistic, call, row_weights, grad)
    into = _parts(statistic, whole, totals[-1], grad)  # views of the totals
    for (part, weights, grad_part), (target, target_weights, _) in zip(parts, into, strict=True):
        views = [x for x, needed in zip((*target.operands, target_weights), needs, strict=True) if needed]
        _add(statistic, part, weights, grad_part, needs, views)
    return [x if needed else None for x, needed in zip(totals, needs, strict=True)]


def _add(
    statistic: str, call: Call, row_weights: Tensor | None, grad: Tensor, needs: tuple, into: list[Tensor]
) -> None:
    """Add the gradients of one dense call."""
    with torch.enable_grad():
        leaves = [_leaf(x, needed) for x, needed in zip((*call.operands, row_weights), needs, strict=True)]
        call = replace(call, **dict(zip(DIFFERENTIABLE, leaves[:-1], strict=True)))
        inputs = [x for x, needed in zip(leaves, needs, strict=True) if needed]
        height = tiles.height(call)
        for at in range(0, max(call.query.shape[2], 1), height):
            (tile,) = tiles.tiles(call, height, [at])  # with a graph of its own, which is let go
            output = _of_tile(statistic, call, tile, leaves[-1])
            for total, found in zip(into, _grad([output], inputs, [_grad_of_tile(statistic, grad, tile)]), strict=True):
                total.add_(found)


def _parts(statistic: str, call: Call, row_weights: Tensor | None, grad: Tensor) -> list:
    """The dense calls of the sequences, each with its rows' weights and its part of the gradient."""
    if call.query_offsets is None:
        return [(call, row_weights, grad)]
    offsets = call.key_offsets if statistic == RECEIVED else call.query_offsets
    grads = grad.split(offsets.diff().tolist(), dim=2)
    weights = [None] * call.sequences
    if row_weights is not None:
        weights = row_weights.split(call.query_offsets.diff().tolist(), dim=2)
    return list(zip(split(call), weights, grads, strict=True))


def _of_tile(statistic: str, call: Call, tile: Tile, row_weights: Tensor | None) -> Tensor:
    normalizer = tiles.normalizer(call, tile)
    if statistic == LSE:
        return tiles.log_sum_exp(normalizer)
    weights_BHCK = tiles.weights(tile, normalizer)
    if statistic == ENTROPY:
        # log a_ij as s_ij - lse_i: the logarithm of a weight that underflows has no derivative.
        lse_BHC1 = torch.where(normalizer.sum == 0, 0.0, tiles.log_sum_exp(normalizer))[..., None]
        logarithms_BHCK = torch.where(weights_BHCK == 0, 0.0, tile.scores - lse_BHC1)
        return -(weights_BHCK * logarithms_BHCK).sum(-1)
    if row_weights is None:
        return weights_BHCK.sum(-2)
    w_BHC1 = row_weights[:, :, tile.rows, None]
    # A row of weight 0 is not visited, unless the gradient of that weight is asked for.
    is_skipped = (w_BHC1 == 0) & (not row_weights.requires_grad)
    return torch.where(is_skipped, 0.0, w_BHC1 * weights_BHCK).sum(-2)


def _grad_of_tile(statistic: str, grad: Tensor, tile: Tile) -> Tensor:
    return grad if statistic == RECEIVED else grad[:, :, tile.rows]


def _grad(outputs: list[Tensor], inputs: list[Tensor], grads: list[Tensor], create_graph: bool = False):
    live = [(y, g) for y, g in zip(outputs, grads, strict=True) if y.requires_grad]
    if not live:
        return [torch.zeros_like(x) for x in inputs]
    ys, gs = zip(*live, strict=True)
    return torch.autograd.grad(ys, inputs, gs, create_graph=create_graph, allow_unused=True, materialize_grads=True)


def _leaf(tensor: Tensor | None, needs_grad: bool) -> Tensor | None:
    return None if tensor is None else tensor.detach().requires_grad_(needs_grad)
