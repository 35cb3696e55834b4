"""Attention over a sequence whose parts lie with several processes, with the bits of one process.

A process computes its own queries against all keys that they see. The keys and values are fetched from where they are, in order,
from a multiple of 2,048 on: there a chunk of the native kernels begins, so the sums of a row associate as in one process
(docs/kernels.md). In the backward pass a process computes the gradient of its queries in the same way, and the gradients of its
keys and values from all queries that see them, fetched from a multiple of 48 on, where a block of rows begins. So no gradient is
ever added up from the parts of several processes, which could not have the same bits.

Letters: B batch, H query heads, G key/value heads, Q queries, K keys of the whole sequence, D query/key width, E value width, n
rows or keys of one process.
"""

import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from uwaga._base.tracing import has_tangent, is_intercepted, is_transformed
from uwaga.ops import mask_program
from uwaga.ops.attention import api, choose, gradients
from uwaga.ops.attention.api import AttendedLse
from uwaga.ops.attention.arguments import AttentionOptions, make_call, unflatten_lse, unflatten_output
from uwaga.ops.attention.call import Call, Gradients, Options
from uwaga.ops.attention.engines import cpu
from uwaga.ops.attention.native_structs import DTYPES
from uwaga.ops.biases import DistanceBias
from uwaga.ops.engine_choice import Choice
from uwaga.ops.mask_program import START_LAST, START_PER_ROW, START_VALUE, Interval
from uwaga.ops.masks import Mask
from uwaga.ops.ragged import Ragged
from uwaga.sequence_parallel.exchange import Group, ProcessGroupError

# Where the kernels' sums begin anew: kChunkKeys of native/drivers/forward.cc, kBlockRows of native/drivers/backward_unit.h.
_CHUNK_KEYS, _BLOCK_ROWS = 2048, 48

OPERANDS, OPTIONS, BACKWARD, RECEIVED, ROW = range(5)
_STAGES = ("its operands", "its mask and options", "its backward pass", "its received weights", "a row of its map")
_SIZES = ("batch size B", "query heads H", "key heads G", "head width D", "value width E", "dtype")


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    group: dist.ProcessGroup | None = None,
    mask: Mask | Tensor | None = None,
    bias: DistanceBias | None = None,
    scale: float | None = None,
    normalize: str | None = "softmax",
    softcap: float | None = None,
    sinks: Tensor | None = None,
    dropout: float = 0.0,
    impl: str | None = None,
) -> Tensor:
    """`uwaga.attention` of one sequence, of which each process holds a contiguous part: the output of this process's queries.

    The whole sequence is the parts in the order of the ranks. All processes of the group call this together, with parts of any
    length: other lengths in other processes, none at all, and other lengths of queries than of keys. Output, lse and the
    gradients of query, key and value have the bits of `uwaga.attention(..., impl="cpu")` on the whole sequence in one process.
    Gradients of sinks, slopes and tables are those of this process's queries, like the gradients of every parameter that
    processes share; their sum over the group is that of one process within float32 rounding, not to the bit, since one process
    adds up all queries in another order.

    Memory: this process's part, and all keys and values from the first to the last that its queries see (rounded down to a
    multiple of 2,048): under a causal mask the last process holds all of them, under a window the window. The backward pass
    fetches them again, then frees them and fetches queries, output, lse and output gradient of all rows that see its keys.

    Args:
        query: (..., H, n, D), this process's part, or (n, D). On the CPU, in float32, bfloat16 or float16.
        key: (..., G, m, D), its part of the keys.
        value: (..., G, m, E).
        group: of torch.distributed, with a backend for the CPU (gloo); None: all processes.
        mask: of the whole sequence, the same in all processes: Causal, Window, KeyLengths, Documents (their ids are those of all
            tokens), a bool tensor that broadcasts to (..., H, Q, K), or these joined by & and |.
        bias: AlibiBias or RelativeBias.
        scale, softcap, sinks: as in `uwaga.attention`, the same in all processes.
        normalize: must be "softmax".
        dropout: must be 0.0.
        impl: None or "cpu": the native kernels, the only engine whose bits do not depend on the division.

    Returns:
        (..., H, n, E) in the query's dtype. Where one process records gradients all must, and all run the backward pass.

    Raises:
        ShapeError, ValueError: as `uwaga.attention`, in the process whose arguments are wrong; in all processes where their
            parts disagree on a size, a dtype or an option, by rank; no process group.
        ProcessGroupError: a process ended, did not answer within the group's timeout, refused its arguments, or is at
            another call; the message has its rank.
        NotImplementedError: a second derivative, forward-mode derivatives, torch.compile and torch.func.
    """
    options = AttentionOptions(mask, bias, scale, normalize, softcap, sinks, dropout)
    output = _SequenceParallel(Group.of(group)).attend(query, key, value, options, impl).output
    assert isinstance(output, Tensor)
    return output


@contextmanager
def sequence_parallel(group: dist.ProcessGroup | None = None) -> Iterator[None]:
    """Inside it, `uwaga.attention` means `uwaga.sequence_parallel.attention` over the group, in layers and models too.

    Tensors are then this process's part of the sequence. Only attention mixes positions, so layers need no other change, except
    those that count positions from 0: pass them the positions of the part. It holds for all threads of the process. A backward pass
    that computes attention again (torch.utils.checkpoint) must be inside it as well. `uwaga.attend` is refused there.

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
        call, division, records = divide(self._group, query, key, value, options, impl)
        output, lse = _Attention.apply(division, *call.tensors) if records else division.forward(call)
        return AttendedLse(unflatten_output(query, output), unflatten_lse(query, lse))

    def explain(self, query: Any, key: Any, value: Any, options: AttentionOptions, impl: str | None) -> Choice:
        """What would serve the call; the other processes need not ask too. Raises what `attend` raises for these arguments alone."""
        _call_of_part(query, key, value, options, impl)
        others = "their bits would depend on how the sequence is divided"
        return Choice(
            "cpu",
            f"native kernels on the CPU, in each of {self._group.size} processes, which exchange keys and values",
            {name: others for name in choose.NAMES if name != "cpu"},
        )


def _call_of_part(query: Any, key: Any, value: Any, options: AttentionOptions, impl: str | None) -> Call:
    """The validated call of this process's operands, without what is over the whole sequence: mask, bias and sinks."""
    _check_served(query, key, value, options, impl)
    part = options._replace(mask=None, bias=None, sinks=None)
    call = make_call(query, key, value, part, wants_lse=True)
    _check_kernels(call)
    return call


def divide(
    group: Group, query: Any, key: Any, value: Any, options: AttentionOptions, impl: str | None
) -> "tuple[Call, Division, bool]":
    """The validated call with this process's operands and the mask of the whole sequence, how it is divided, and whether gradients are
    recorded. value=None: a map of weights, E = 0. All processes of the group call this together; errors as in `attention`."""
    number, failure = group.next_call(), None
    header = [0] * (len(_SIZES) + 2)
    try:
        header = _sizes(_call_of_part(query, key, value, options, impl))
    except (ValueError, NotImplementedError) as error:
        failure = error
    result = agree(group, OPERANDS, number, header, failure)
    for name, sizes in zip(_SIZES, zip(*result, strict=True), strict=False):
        check_equal(name, [str(list(DTYPES)[n]) for n in sizes] if name == "dtype" else sizes)
    lengths = len(_SIZES), len(_SIZES) + 1
    query_starts, key_starts = ([0, *accumulate(sizes[n] for sizes in result)] for n in lengths)
    global_sizes = query_starts[-1], key_starts[-1]

    checksum, records = 0, False
    try:
        call = make_call(query, key, value, options, wants_lse=True, global_sizes=global_sizes)
        _check_kernels(call)
        checksum = _checksum(call)
        records = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in call.operands)
    except (ValueError, NotImplementedError) as error:
        failure = error
    result = agree(group, OPTIONS, number, [checksum, int(records)], failure)
    check_equal("mask, bias, scale, softcap or sinks (checksums)", [x[0] for x in result])
    check_equal("gradients (1: query, key, value, bias or sinks require them)", [x[1] for x in result])
    visible = _visible(call, query_starts, key_starts)
    return call, Division(group, number, query_starts, key_starts, call.options, visible), records


def _check_kernels(call: Call) -> None:
    """ValueError unless the native kernels serve the call."""
    # A map has a value of width 0: the key stands in for it.
    if (reason := cpu.refusal(call if call.value.shape[3] else replace(call, value=call.key))) is not None:
        raise ValueError(f"uwaga.sequence_parallel: the native kernels cannot serve this call: {reason}")


def _check_served(query: Any, key: Any, value: Any, options: AttentionOptions, impl: str | None) -> None:
    """ValueError or NotImplementedError for what attention over processes does not do."""
    at = "uwaga.sequence_parallel:"
    if any(isinstance(x, Ragged) for x in (query, key, value)):
        raise ValueError(f"{at} query, key and value must be tensors; Ragged batches are not divided over processes")
    if isinstance(options.bias, Tensor):
        raise ValueError(f"{at} bias must be AlibiBias or RelativeBias, which know positions, not a tensor")
    if options.normalize is None:
        raise ValueError(f"{at} normalize must be 'softmax'")
    if options.dropout:
        raise ValueError(f"{at} dropout must be 0.0")
    if impl not in (None, "cpu"):
        raise ValueError(f"{at} impl must be None or 'cpu', not {impl!r}")
    if is_intercepted() or is_transformed() or has_tangent(query, key, value):
        raise NotImplementedError(
            f"{at} torch.compile, other tracers, torch.func and forward-mode derivatives are not supported"
        )


def _sizes(call: Call) -> list[int]:
    """What the processes tell one another of their operands: _SIZES, and the lengths of their parts."""
    batch, heads, queries, width = call.query.shape
    dtype = list(DTYPES).index(call.query.dtype)
    return [batch, heads, call.key.shape[1], width, call.value.shape[3], dtype, queries, call.key.shape[2]]


def agree(group: Group, stage: int, number: int, header: Sequence[int], failure: Exception | None) -> list[list[int]]:
    """The headers of all processes, which are at the same call; an error of one process is one in all of them."""
    result = group.headers(f"call {number}, {_STAGES[stage]}", [stage, number, failure is not None, *header])
    if failure is not None:
        raise failure
    for rank, (their_stage, their_number, failed, *_) in enumerate(result):
        if failed:
            raise ProcessGroupError(
                f"uwaga.sequence_parallel: rank {rank} refused its arguments; its own error says why"
            )
        if (their_stage, their_number) != (stage, number):
            raise ProcessGroupError(
                f"uwaga.sequence_parallel: rank {rank} is at {_STAGES[their_stage]} of call {their_number}, and rank {group.rank} at "
                f"{_STAGES[stage]} of call {number}: all processes must make the same calls in the same order"
            )
    return [x[3:] for x in result]


def check_equal(name: str, by_rank: Sequence[object]) -> None:
    """ValueError, with the first two ranks that differ, unless all processes have the same."""
    for rank, value in enumerate(by_rank):
        if value != by_rank[0]:
            raise ValueError(
                f"uwaga.sequence_parallel: the processes disagree on {name}: rank 0 has {by_rank[0]}, rank {rank} has {value}"
            )


def _checksum(call: Call) -> int:
    """Of what must be the same in all processes: the mask, from which each finds what to send and which keys its queries see, and
    options."""
    options = replace(call.options, max_queries=0, max_keys=0)
    result = zlib.crc32(repr(options).encode())
    for tensor in (call.relative, call.relative_starts, call.sinks, *call.mask_tensors):
        if tensor is not None:
            result = _checksum_of(tensor.detach(), result)
    return result


def _checksum_of(tensor: Tensor, checksum: int) -> int:
    """`checksum` continued by the values of a tensor, whatever its strides; a matrix that is shared by heads is read once."""
    if tensor.dim() <= 2:
        return zlib.crc32(tensor.contiguous().view(-1).view(torch.uint8).numpy().data, checksum)
    known: dict[int, int] = {}
    for part in tensor:
        if part.data_ptr() not in known:
            known[part.data_ptr()] = _checksum_of(part, 0)
        checksum = zlib.crc32(known[part.data_ptr()].to_bytes(4, "little"), checksum)
    return checksum


@dataclass(frozen=True, slots=True)
class _Visible:
    """For each process the keys that its queries see, and the queries that see its keys, as intervals of the whole sequence."""

    keys: list[Interval]
    queries: list[Interval]


def _visible(call: Call, query_starts: Sequence[int], key_starts: Sequence[int]) -> _Visible:
    """Intervals begin where the kernels' sums begin anew."""
    program, tensors, sizes = call.options.mask_program, call.mask_tensors, (query_starts[-1], key_starts[-1])
    parts_of_queries, parts_of_keys = _intervals(query_starts), _intervals(key_starts)
    keys = [mask_program.keys_seen(program, tensors, sizes, rows) for rows in parts_of_queries]
    queries = [mask_program.queries_that_see(program, tensors, sizes, columns) for columns in parts_of_keys]
    return _Visible(
        [(first // _CHUNK_KEYS * _CHUNK_KEYS, last) for first, last in keys],
        [(first // _BLOCK_ROWS * _BLOCK_ROWS, last) for first, last in queries],
    )


def _intervals(starts: Sequence[int]) -> list[Interval]:
    return list(pairwise(starts))


@dataclass(frozen=True, slots=True)
class Division:
    """How one call is divided over the processes; `options` are those of the whole sequence."""

    group: Group
    number: int
    query_starts: list[int]
    key_starts: list[int]
    options: Options
    visible: _Visible

    def forward(self, call: Call) -> tuple[Tensor, Tensor]:
        """The output (B, H, n, E) and lse (B, H, n) of this process's queries. `call` has this process's part of the operands, and the
        mask of the whole sequence."""
        output, lse = cpu.forward(self.of_own_queries(call, self.visible.keys))
        assert lse is not None
        return output, lse

    def backward(
        self,
        call: Call,
        output: Tensor,
        lse: Tensor,
        grad_output: Tensor | None,
        grad_lse: Tensor | None,
        needs: Sequence[bool],
    ) -> Gradients:
        """The gradients of this process's parts of query, key and value, and of relative and sinks by its queries."""
        needs_rows = needs[0] or needs[3] or needs[5]
        needs_columns = needs[1] or needs[2]
        header = [int(needs_rows), int(needs_columns), int(grad_lse is not None)]
        result = agree(self.group, BACKWARD, self.number, header, None)
        grad_output = torch.zeros_like(output) if grad_output is None else grad_output.resolve_neg()
        if grad_lse is None and any(x[2] for x in result):
            grad_lse = torch.zeros_like(lse)

        keys = [interval if x[0] else (0, 0) for interval, x in zip(self.visible.keys, result, strict=True)]
        of_rows: Gradients = (None,) * 6
        if any(x[0] for x in result):
            part = self.of_own_queries(call, keys)
            if needs_rows:
                wanted = (needs[0], False, False, needs[3], False, needs[5])
                of_rows = gradients.backward("cpu", part, output, lse, grad_output, grad_lse, wanted)
            del part
        queries = [interval if x[1] else (0, 0) for interval, x in zip(self.visible.queries, result, strict=True)]
        of_columns: Gradients = (None,) * 6
        if any(x[1] for x in result):

            def fetch(name: str, own_BHnE: Tensor) -> Tensor:
                return self.fetch(name, own_BHnE, self.query_starts, queries)

            rows, own = queries[self.group.rank], self.own(self.key_starts)
            part = self.part(call, fetch("query", call.query), call.key, call.value, rows, own)
            output, grad_output = fetch("output", output), fetch("gradient of the output", grad_output)
            lse = fetch("lse", lse[..., None])[..., 0]
            if grad_lse is not None:
                grad_lse = fetch("gradient of the lse", grad_lse[..., None])[..., 0]
            if needs_columns:
                wanted = (False, needs[1], needs[2], False, False, False)
                of_columns = gradients.backward("cpu", part, output, lse, grad_output, grad_lse, wanted)
        return tuple(b if a is None else a for a, b in zip(of_rows, of_columns, strict=True))

    def of_own_queries(self, call: Call, keys: Sequence[Interval]) -> Call:
        """The call of this process's queries and those keys that they see, which are fetched."""
        key = self.fetch("key", call.key, self.key_starts, keys)
        value = self.fetch("value", call.value, self.key_starts, keys) if call.value.shape[3] else key[..., :0]
        return self.part(call, call.query, key, value, self.own(self.query_starts), keys[self.group.rank])

    def own(self, starts: Sequence[int]) -> Interval:
        return starts[self.group.rank], starts[self.group.rank + 1]

    def fetch(self, name: str, own_BHnD: Tensor, starts: Sequence[int], wanted: Sequence[Interval]) -> Tensor:
        """A tensor's rows `wanted[rank]` as a view (B, H, n, D) of (n, B, H, D), so that parts arrive where they belong."""
        rows = self.group.rows(f"call {self.number}, {name}", own_BHnD.detach().permute(2, 0, 1, 3), starts, wanted)
        return rows.permute(1, 2, 0, 3)

    def part(self, call: Call, query: Tensor, key: Tensor, value: Tensor, rows: Interval, columns: Interval) -> Call:
        """The call of queries `rows` and keys `columns` of the whole sequence, as a dense call of their own."""
        sizes, moved = (self.query_starts[-1], self.key_starts[-1]), rows[0] - columns[0]
        program, tensors = mask_program.rectangle(call.options.mask_program, call.mask_tensors, sizes, rows, columns)
        options = replace(call.options, mask_program=program, max_queries=query.shape[2], max_keys=key.shape[2])
        starts = call.relative_starts
        if options.relative_start_mode != START_PER_ROW:
            start = sizes[1] - sizes[0] if options.relative_start_mode == START_LAST else options.relative_start
            options = replace(options, relative_start_mode=START_VALUE, relative_start=start + moved)
        return replace(
            call,
            query=query,
            key=key,
            value=value,
            relative_starts=None if starts is None else starts + moved,
            mask_tensors=tensors,
            options=options,
        )


class _Attention(torch.autograd.Function):
    """The output and lse of this process's queries."""

    @staticmethod
    def forward(ctx: Any, division: Division, *tensors: Tensor | None) -> tuple[Tensor, Tensor]:
        output, lse = division.forward(Call.of(tensors, division.options))
        ctx.division = division
        ctx.save_for_backward(*tensors, output, lse)
        ctx.set_materialize_grads(False)
        return output, lse

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor | None, grad_lse: Tensor | None) -> Gradients:
        if torch.is_grad_enabled():
            raise NotImplementedError(
                "uwaga.sequence_parallel.attention has no second derivative: the backward pass with create_graph=True"
            )
        *tensors, output, lse = ctx.saved_tensors
        call = Call.of(tensors, ctx.division.options)
        result = ctx.division.backward(call, output, lse, grad_output, grad_lse, ctx.needs_input_grad[1:7])
        return None, *result, *(None,) * (len(tensors) - 6)
