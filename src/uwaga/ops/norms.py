"""The norm of a residual sum in one pass over memory, forward and backward:

    sum = x + dropout(added)
    layer norm: (sum - mean) / sqrt(variance + eps) * weight + bias      (Ba, Kiros and Hinton 2016)
    RMS norm:   sum / sqrt(mean of squares + eps) * weight               (Zhang and Sennrich 2019)

with float32 arithmetic for bfloat16 and float16, and the sum not rounded before its norm is taken. A row has the same bits in
any batch; gradients of weight and bias are sums over rows in an order that depends on the number of rows alone.

Letters: N rows, M width.
"""

from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.nn import functional

from uwaga._base import native
from uwaga._base.native_layout import struct_of
from uwaga._base.tracing import is_batch_of_gradients, is_recorded
from uwaga.ops import dropout, rows

KINDS = {"layer": 1, "rms": 2}  # UWAGA_LAYER_NORM, UWAGA_RMS_NORM
_BACKWARD = struct_of("uwaga_norm_backward_args")
_EMBED = struct_of("uwaga_embed_args")


class Normed(NamedTuple):
    """A residual sum and its norm, both (..., M)."""

    output: Tensor
    sum: Tensor | None  # None: not requested


class _Rule(NamedTuple):
    kind: str
    eps: float
    p: float
    seed: int


def residual_norm(
    x: Tensor,
    added: Tensor,
    *,
    kind: str,
    weight: Tensor | None,
    bias: Tensor | None = None,
    eps: float,
    p: float = 0.0,
    wants_sum: bool = False,
) -> Normed:
    """Compute norm(x + dropout(added)), and the sum itself where it is wanted.

    The native kernels compute it where they can (`rows.is_native`), PyTorch's operators elsewhere.

    Args:
        x, added: (..., M), of one shape and dtype.
        kind: "layer" or "rms".
        weight: (M,), or None for ones.
        bias: (M,), or None for zeros; only of a layer norm.
        eps: added to the variance, or to the mean of squares.
        p: the probability of dropping a number of `added`; the seed is drawn from PyTorch's default generator.
        wants_sum: return the sum too, rounded to the dtype of x.

    Raises:
        ValueError: an unknown kind; a bias of an RMS norm; p is not in [0, 1].

    >>> x = torch.tensor([[1.0, 2.0, 3.0]])
    >>> residual_norm(x, x, kind="rms", weight=None, eps=0.0).output
    tensor([[0.4629, 0.9258, 1.3887]])
    """
    if kind not in KINDS:
        raise ValueError(f"residual_norm: kind must be 'layer' or 'rms', not {kind!r}")
    if kind == "rms" and bias is not None:
        raise ValueError("residual_norm: an RMS norm has no bias")
    width = x.shape[-1] if x.dim() else 0
    fits = x.shape == added.shape and all(w is None or w.shape == (width,) for w in (weight, bias))
    if not fits or width == 0 or not 0.0 <= p < 1.0 or not rows.is_native(x, added, weight, bias):
        total = dropout.add_dropped(x, added, p)
        return Normed(_composed(total, kind, weight, bias, eps), total if wants_sum else None)
    rule = _Rule(kind, eps, p, dropout.draw_seed() if p else 0)
    if is_recorded(x, added, weight, bias):
        output, total = cast(tuple[Tensor, Tensor], _ResidualNorm.apply(rule, x, added, weight, bias))
        return Normed(output, total if wants_sum else None)
    return _forward(rule, x, added, weight, bias, wants_sum=wants_sum)


def _composed(x: Tensor, kind: str, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """Compute the norm of x by PyTorch's operators."""
    if kind == "rms":
        return functional.rms_norm(x, x.shape[-1:], weight, eps)
    return functional.layer_norm(x, x.shape[-1:], weight, bias, eps)


def _forward(
    rule: _Rule, x: Tensor, added: Tensor, weight: Tensor | None, bias: Tensor | None, *, wants_sum: bool
) -> Normed:
    x, added = x.contiguous(), added.contiguous()
    output = torch.empty_like(x)
    total = torch.empty_like(x) if wants_sum else None
    if x.numel():
        weight, bias = _contiguous(weight), _contiguous(bias)
        packed = dropout.arguments(x, added, weight, bias, KINDS[rule.kind], rule.eps, rule.p, rule.seed)
        result = dropout.RESULT.pack(*rows.fields(output), *rows.fields(total))
        native.check(native.library().functions.uwaga_norm_forward(packed, result))
    return Normed(output, total)


def _contiguous(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.contiguous()


def _floats(x: Tensor | None) -> tuple[int, int]:
    return (0, 0) if x is None else (x.data_ptr(), x.numel())


class _ResidualNorm(torch.autograd.Function):
    """(norm, sum). The backward pass reads the sum, which is an output, so that it can be differentiated once more."""

    @staticmethod
    def forward(
        ctx: Any, rule: _Rule, x: Tensor, added: Tensor, weight: Tensor | None, bias: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        output, total = _forward(rule, x, added, weight, bias, wants_sum=True)
        assert total is not None
        ctx.rule = rule
        ctx.save_for_backward(total, weight, bias)
        ctx.set_materialize_grads(False)
        return output, total

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, grad_total: Tensor | None) -> tuple[Tensor | None, ...]:
        total, weight, bias = ctx.saved_tensors
        rule: _Rule = ctx.rule
        _, needs_x, needs_added, needs_weight, needs_bias = ctx.needs_input_grad
        if grad is None:
            if grad_total is None:
                return (None,) * 5
            return None, grad_total, _of_added(grad_total, rule) if needs_added else None, None, None
        is_batch = is_batch_of_gradients(grad) or (grad_total is not None and is_batch_of_gradients(grad_total))
        if torch.is_grad_enabled() or is_batch or not rows.is_native(total, grad, grad_total, weight):
            result = _composed_backward(rule, total, weight, bias, grad, grad_total)
            return None, result[0], _of_added(result[0], rule) if needs_added else None, *result[1:]
        grad = rows.dense(grad)
        grad_total = None if grad_total is None else rows.dense(grad_total)
        grad_x = torch.empty_like(total) if needs_x or (needs_added and not rule.p) else None
        grad_added = torch.empty_like(total) if needs_added and rule.p else None
        width = total.shape[-1]
        grad_weight = torch.zeros(width) if needs_weight else None
        grad_bias = torch.zeros(width) if needs_bias else None
        if total.numel():
            weight = _contiguous(weight)
            packed = dropout.arguments(total, None, weight, None, KINDS[rule.kind], rule.eps, rule.p, rule.seed)
            gradients = _BACKWARD.pack(
                *rows.fields(grad),
                *rows.fields(grad_total),
                *rows.fields(grad_x),
                *rows.fields(grad_added),
                *_floats(grad_weight),
                *_floats(grad_bias),
            )
            native.check(native.library().functions.uwaga_norm_backward(packed, gradients))
        return (
            None,
            grad_x if needs_x else None,
            grad_added if rule.p else grad_x if needs_added else None,
            None if grad_weight is None else grad_weight.to(total.dtype),
            None if grad_bias is None else grad_bias.to(total.dtype),
        )


def _of_added(grad_total: Tensor, rule: _Rule) -> Tensor:
    return dropout.gradient(grad_total, rule.p, rule.seed) if rule.p else grad_total


def _composed_backward(
    rule: _Rule, total: Tensor, weight: Tensor | None, bias: Tensor | None, grad: Tensor, grad_total: Tensor | None
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Return the gradients of the sum, weight and bias by PyTorch's operators, to be differentiated once more where gradients are
    recorded."""
    create_graph = torch.is_grad_enabled()
    with torch.enable_grad():
        read = [
            t if t is None or (t.requires_grad and create_graph) else t.detach().requires_grad_()
            for t in (total, weight, bias)
        ]
        output = _composed(cast(Tensor, read[0]), rule.kind, read[1], read[2], rule.eps)
        leaves = [t for t in read if t is not None]
        result = iter(torch.autograd.grad(output, leaves, grad, create_graph=create_graph))
    grads = [None if t is None else next(result) for t in read]
    first = cast(Tensor, grads[0])
    return first if grad_total is None else first + grad_total, grads[1], grads[2]


class Lookup(NamedTuple):
    """Rows of an embedding table."""

    table: Tensor  # (V, M)
    indices: Tensor | None  # int64, or None: row 0 for every token


def embedding_norm(
    tokens: Lookup, types: Lookup | None, positions: Lookup, *, weight: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor:
    """Compute the layer norm of token embedding + type embedding + position embedding, (..., M) for indices (...).

    One pass over memory by the native kernels where no gradients are recorded; else PyTorch's embeddings and `residual_norm`.

    Args:
        tokens, types, positions: each with indices of one shape, those of `tokens` not None. types None: there are none.
        weight, bias: (M,), or None for ones and zeros.
        eps: added to the variance.

    Raises:
        IndexError, ValueError: an index is not a row of its table.
    """
    lookups = (tokens, types, positions)
    tensors = [x.table for x in lookups if x is not None] + [x for x in (weight, bias) if x is not None]
    indices = [x.indices for x in lookups if x is not None and x.indices is not None]
    assert tokens.indices is not None
    if is_recorded(*tensors) or not rows.is_native_index(*indices) or not rows.is_native(*tensors):
        x = functional.embedding(tokens.indices, tokens.table)
        if types is not None:
            x = x + (types.table[0] if types.indices is None else functional.embedding(types.indices, types.table))
        added = functional.embedding(cast(Tensor, positions.indices), positions.table).expand(x.shape)
        return residual_norm(x, added, kind="layer", weight=weight, bias=bias, eps=eps).output
    width = tokens.table.shape[1]
    output = tokens.table.new_empty(*tokens.indices.shape, width)
    if output.numel():
        kept = [None if x is None else Lookup(x.table.contiguous(), _contiguous(x.indices)) for x in lookups]
        weight, bias = _contiguous(weight), _contiguous(bias)
        packed = _EMBED.pack(
            tokens.indices.numel(),
            width,
            *(field for lookup in kept for field in _lookup_fields(lookup)),
            *rows.fields(weight),
            *rows.fields(bias),
            *rows.fields(output),
            eps,
            native.threads(),
        )
        native.check(native.library().functions.uwaga_embed(packed))
    return output


def _lookup_fields(lookup: Lookup | None) -> tuple[int, ...]:
    if lookup is None:
        return (*rows.NO_TENSOR, 0, 0, 0)
    return (*rows.fields(lookup.table), lookup.table.shape[0], *_floats(lookup.indices))
