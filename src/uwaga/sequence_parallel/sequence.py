"""Attention over a sequence whose parts lie with several processes, with the bits of one process.

The public calls: what the processes agree on is in agreement.py, how the whole is divided in division.py, what each of them computes
while blocks travel in ring.py.

Letters: B batch, H query heads, G key/value heads, Q queries, K keys of the whole sequence, D query/key width, E value width, n
rows or keys of one process.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from uwaga._base.tracing import is_batch_of_gradients
from uwaga.ops.attention import api, choose
from uwaga.ops.attention.api import AttendedLse
from uwaga.ops.attention.arguments import AttentionOptions, unflatten_lse, unflatten_output
from uwaga.ops.attention.autograd import run
from uwaga.ops.attention.call import Call, Gradients
from uwaga.ops.biases import DistanceBias
from uwaga.ops.engine_choice import Choice
from uwaga.ops.masks import Mask
from uwaga.ops.ragged import Operand
from uwaga.sequence_parallel import ring
from uwaga.sequence_parallel.agreement import Divided, Refusal, agree, call_of_part, divide
from uwaga.sequence_parallel.division import Division, joined
from uwaga.sequence_parallel.exchange import Group


def attention(
    query: Operand,
    key: Operand,
    value: Operand,
    *,
    group: dist.ProcessGroup | None = None,
    mask: Mask | Tensor | None = None,
    bias: DistanceBias | Tensor | None = None,
    scale: float | None = None,
    normalize: str | None = "softmax",
    softcap: float | None = None,
    sinks: Tensor | None = None,
    dropout: float = 0.0,
    impl: str | None = None,
) -> Operand:
    """Compute `uwaga.attention` of one sequence, of which each process holds a contiguous part: the output of this process's queries.

    The whole sequence is the parts in the order of the ranks. All processes of the group call this together, with parts of any
    length: other lengths in other processes, none at all, and other lengths of queries than of keys. Output, lse and the
    gradients of query, key and value have the bits of `uwaga.attention(..., impl="cpu")` on the whole sequence in one process.
    Gradients of sinks, slopes, tables and bias tensors are those of the queries that this process computes, like the gradients of every parameter that
    processes share; their sum over the group is that of one process within float32 rounding, not to the bit, since one process
    adds up all queries in another order.

    Work is divided evenly, by what the queries see: a process computes other queries than those of its part, and sends home what it computed.

    Memory: this process's part, as many queries that it computes, and two blocks of keys and values (an eighth of a part each, or
    2,048 keys), whatever the mask. In the backward pass also as many keys whose gradients it computes, and two blocks of queries with what
    belongs to them.

    Args:
        query: (..., H, n, D), this process's part, or (n, D). On the CPU, in float32, bfloat16 or float16.
        key: (..., G, m, D), its part of the keys.
        value: (..., G, m, E).
        group: of torch.distributed, with a backend for the CPU (gloo); None: all processes.
        mask: of the whole sequence, the same in all processes: Causal, Window, KeyLengths, Documents (their ids are those of all
            tokens), a bool tensor that broadcasts to (..., H, Q, K), or these joined by & and |.
        bias: AlibiBias or RelativeBias, or a tensor over the whole sequence that broadcasts to (..., H, Q, K).
        scale, softcap, sinks: as in `uwaga.attention`, the same in all processes.
        normalize: as in `uwaga.attention`; with None every pair of a query and a key is computed, as by its impl="cpu".
        dropout: as in `uwaga.attention`, by the first process's random numbers: the same seed drops the same weights there.
        impl: None or "cpu": the native kernels, the only engine whose bits do not depend on the division.

    Returns:
        (..., H, n, E) in the query's dtype. Where one process records gradients all must, and all run the backward pass.

    Raises:
        ShapeError, ValueError: as `uwaga.attention`, in the process whose arguments are wrong; in all processes where their
            parts disagree on a size, a dtype or an option, by rank; no process group.
        ProcessGroupError: a process ended, did not answer within the group's timeout, rejected its arguments, or is at
            another call; the message has its rank.
        NotImplementedError: a second derivative, a batch of gradients, forward-mode derivatives, torch.compile and torch.func.
    """
    options = AttentionOptions(mask, bias, scale, normalize, softcap, sinks, dropout)
    return _SequenceParallel(Group.of(group)).attend(query, key, value, options, impl).output


@contextmanager
def sequence_parallel(group: dist.ProcessGroup | None = None) -> Iterator[None]:
    """Open a context in which `uwaga.attention` means `uwaga.sequence_parallel.attention` over the group, in layers and models too.

    Tensors are then this process's part of the sequence. Only attention mixes positions, so layers need no other change, except
    those that count positions from 0: pass them the positions of the part. It holds for all threads of the process, of which one
    at a time may call: the processes distinguish calls by their order. A backward pass that computes attention again (torch.utils.checkpoint) must be inside it as well. `uwaga.attend` there returns a `SequenceMap`.

    Args:
        group: as in `attention`.

    Raises:
        ValueError: no process group, or this process is not in it.
    """
    with api.override_attention(_SequenceParallel(Group.of(group))):
        yield


class _SequenceParallel:
    """Attention over a group in place of the engines: an `api.Override`."""

    def __init__(self, group: Group) -> None:
        self._group = group

    def attend(self, query: Any, key: Any, value: Any, options: AttentionOptions, impl: str | None) -> AttendedLse:
        with self._group.errors_reported():
            output, lse = _attend(divide(self._group, (query, key, value), options, impl))
            return AttendedLse(unflatten_output(query, output), unflatten_lse(query, lse))

    def attend_with_map(
        self,
        operands: tuple[Any, Any, Any],
        options: AttentionOptions,
        impl: str | None,
        entropy: bool,
        topk: int | None,
    ) -> tuple[Operand, Operand, Any]:
        """Compute what `uwaga.attend` computes in one process: in one pass, or with gradients or dropout in two."""
        from uwaga.maps.attended import check_wanted
        from uwaga.maps.engines import tiles
        from uwaga.maps.spec import RowStatisticsRequest
        from uwaga.maps.statistics import arguments
        from uwaga.maps.statistics.row_cache import RowCache
        from uwaga.sequence_parallel.sequence_map import SequenceMap, WholeMap, call_of_map

        query, key, _ = operands
        with self._group.errors_reported():
            refusal = Refusal()
            with refusal:
                check_wanted(options.normalize, topk)
            request = RowStatisticsRequest(entropy=entropy, top=topk or 0)
            divided = divide(self._group, operands, options, impl, request, refusal)
            whole, call = WholeMap.of(divided), call_of_map(divided.call)
            if divided.records or options.dropout:
                output, lse_BHn = _attend(divided)
                cache = RowCache(call, whole.engine, arguments.of_lse(lse_BHn))
                if request != RowStatisticsRequest():
                    cache.compute(request)
            else:
                with torch.no_grad():
                    rows = whole.engine.rows(divided.call, replace(request, output=True))
                output, lse_BHn = rows.output, tiles.log_sum_exp(rows.normalizer)
                cache = RowCache.of_pass(call, whole.engine, request, rows)
            weights = SequenceMap(query, key, cache, whole)
            return unflatten_output(query, output), unflatten_lse(query, lse_BHn), weights

    def explain(self, query: Any, key: Any, value: Any, options: AttentionOptions, impl: str | None) -> Choice:
        """Return what would serve the call; the other processes need not ask too. Raises what `attend` raises for these arguments, except for mask,
        bias and sinks: they are over the whole sequence, whose length the other processes know."""
        with torch.random.fork_rng(devices=()):  # dropout draws a seed
            call_of_part(query, key, value, options, impl, options.dropout)
        others = "their bits would depend on how the sequence is divided"
        return Choice(
            "cpu",
            f"native kernels on the CPU, in each of {self._group.size} processes, which exchange keys and values",
            {name: others for name in choose.NAMES if name != "cpu"},
        )


def _attend(divided: Divided) -> tuple[Tensor, Tensor]:
    """Return the output (B, H, n, E) and lse (B, H, n) of this process's queries."""
    call, records, how = divided
    if isinstance(how, Division):
        return _attend_divided(how, call, records)
    # A row that lies elsewhere has no tokens here, and all the same a backward pass, which all processes run.
    pieces = [
        _attend_alone(part) if division is None else _attend_divided(division, part, records)
        for division, part, _ in how.parts_of_call(call)
    ]
    output, lse = map(joined, zip(*pieces, strict=True))
    return output, lse


def _attend_alone(call: Call) -> tuple[Tensor, Tensor]:
    output, lse = run(call, "cpu")
    return output, output.new_zeros(output.shape[:3], dtype=torch.float32) if lse is None else lse


def _attend_divided(division: Division, call: Call, records: bool) -> tuple[Tensor, Tensor]:
    """Return the output (B, H, n, E) and lse (B, H, n) of this process's queries, recorded for autograd where that is asked for."""
    return _Attention.apply(division, *call.tensors) if records else ring.forward(division, call)[:2]


class _Attention(torch.autograd.Function):
    """The output and lse of this process's queries."""

    @staticmethod
    def forward(ctx: Any, division: Division, *tensors: Tensor | None) -> tuple[Tensor, Tensor]:
        call = Call.of(tensors, division.options)
        output, lse, rows = ring.forward(division, call)
        ctx.division, ctx.plan, ctx.operands = division, rows.plan, len(tensors)
        ctx.save_for_backward(*tensors, *rows.tensors())
        ctx.set_materialize_grads(False)
        return output, lse

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor | None, grad_lse: Tensor | None) -> Gradients:
        with ctx.division.group.errors_reported():
            return _Attention._gradients(ctx, grad_output, grad_lse)

    @staticmethod
    def _gradients(ctx: Any, grad_output: Tensor | None, grad_lse: Tensor | None) -> Gradients:
        division: Division = ctx.division
        operands, needs = ctx.operands, ctx.needs_input_grad[1:7]
        header, refusal = [*map(int, needs), int(grad_lse is not None)], Refusal()
        with refusal:
            _check_backward(grad_output, grad_lse)
            saved = ctx.saved_tensors
        by_rank = agree(division.group, "its backward pass", division.number, header, refusal.error)
        call, computed = Call.of(saved[:operands], division.options), saved[operands:]
        *needed, has_grad_lse = (any(x) for x in zip(*(of_rank[: len(header)] for of_rank in by_rank), strict=True))
        if grad_output is None:
            grad_output = call.query.new_zeros((*call.query.shape[:3], call.value.shape[3]))
        if grad_lse is None and has_grad_lse:
            grad_lse = call.query.new_zeros(call.query.shape[:3], dtype=torch.float32)
        grads = grad_output.resolve_neg(), None if grad_lse is None else grad_lse.resolve_neg()
        gradients = ring.backward(division, call, ring.Rows.of(ctx.plan, computed), *grads, needed)
        result = (x if needed else None for x, needed in zip(gradients, needs, strict=True))
        return None, *result, *(None,) * (operands - 6)


def _check_backward(*grads: Tensor | None) -> None:
    """Raise NotImplementedError for a backward pass that is not served."""
    at = "uwaga.sequence_parallel.attention has no"
    if torch.is_grad_enabled():
        raise NotImplementedError(f"{at} second derivative: the backward pass with create_graph=True")
    if any(map(is_batch_of_gradients, grads)):
        raise NotImplementedError(f"{at} batches of gradients: is_grads_batched=True, or vectorize=True")
