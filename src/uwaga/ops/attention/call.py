"""One call of attention after validation: what `api` hands to every engine.

Letters: B sequences, H query heads, G key/value heads (H % G == 0), Q queries, K keys, D query/key width, E value
width, N packed tokens, R ragged rows, L distances.

An engine is a module with

    refusal(call) -> str | None
        why it cannot serve this call, as the end of the message "engine 'x' cannot serve this call: ...".
        Cheap, and traceable by torch.compile: it looks at shapes, dtypes, devices and options, never at values.
    forward(call) -> tuple[Tensor, Tensor | None]
        output (B, H, Q, E) in the query's dtype, laid out as `new_output(call)`; and lse (B, H, Q) as `new_lse(call)`
        where `options.wants_lse`, else None. A ragged call has B = 1, and the tokens of all sequences as Q and K.
    backward(call, output, lse, grad_output, grad_lse, needs) -> tuple of six Tensor | None
        gradients of query, key, value, relative, bias and sinks, each with the shape and dtype of its operand; `needs`
        is six bools, and an entry that is not needed may be None. The gradient of `bias` may come as (B, H, Q, K) in
        float32: the caller sums it to the bias's shape. `call.options.wants_lse` was true in the forward pass where
        softmax is. grad_output has any strides; grad_lse is (B, H, Q) or None.

Engines made of differentiable PyTorch operations offer `attend(call) -> tuple[Tensor, Tensor | None]` in place of the
last two.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from uwaga.ops.mask_program import START_LAST, MaskProgram

# The operands that gradients flow to.
DIFFERENTIABLE = ("query", "key", "value", "relative", "bias", "sinks")
# How many tensors of `Call.tensors` come before those of the mask.
FIXED_TENSORS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The plain values of a call: hashable, and free of tensors."""

    scale: float
    softcap: float = 0.0  # 0: none
    softmax: bool = True  # False: a_ij = s_ij
    dropout: float = 0.0  # probability of dropping a weight
    dropout_origin: tuple[int, int] = (0, 0)  # positions of query 0 and key 0 for dropout, of a part of a longer call
    mask_program: MaskProgram = ()
    relative_zero: int = 0  # relative[h, j - i - start + relative_zero]
    relative_start_mode: int = START_LAST
    relative_start: int = 0  # where the mode is START_VALUE
    max_queries: int = 0  # the longest sequence; Q and K of a dense call
    max_keys: int = 0
    wants_lse: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """Canonical operands (views of what the user passed, any strides) and options. Absent operands are None."""

    query: Tensor  # (B, H, Q, D); ragged: (1, H, N, D), the transposed view of (N, H, D)
    key: Tensor  # (B, G, K, D)
    value: Tensor  # (B, G, K, E)
    relative: Tensor | None = None  # (H, L) float32 (float64 for float64), contiguous
    bias: Tensor | None = None  # floating, four dimensions that broadcast to (B, H, Q, K); ragged: (R, H, max Q, max K)
    sinks: Tensor | None = None  # (H,) float32 (float64 for float64), contiguous
    query_offsets: Tensor | None = None  # (R+1,) int64, contiguous; both are given, or neither
    key_offsets: Tensor | None = None  # (R+1,) int64
    relative_starts: Tensor | None = None  # (B,) int64 (ragged: (R,)), where the mode is START_PER_ROW
    seed: Tensor | None = None  # int64 scalar, on the CPU, where dropout > 0
    mask_tensors: tuple[Tensor, ...] = ()  # contiguous, except dense bool masks, which broadcast by zero strides
    options: Options

    @staticmethod
    def of(tensors: Sequence[Tensor | None], options: Options) -> "Call":
        """The call whose `tensors` these are."""
        query, key, value, relative, bias, sinks, query_offsets, key_offsets, relative_starts, seed = tensors[
            :FIXED_TENSORS
        ]
        assert query is not None
        assert key is not None
        assert value is not None
        return Call(
            query=query,
            key=key,
            value=value,
            relative=relative,
            bias=bias,
            sinks=sinks,
            query_offsets=query_offsets,
            key_offsets=key_offsets,
            relative_starts=relative_starts,
            seed=seed,
            mask_tensors=tuple(x for x in tensors[FIXED_TENSORS:] if x is not None),
            options=options,
        )

    @property
    def operands(self) -> tuple[Tensor | None, ...]:
        """The six that gradients flow to, in the order of DIFFERENTIABLE."""
        return self.query, self.key, self.value, self.relative, self.bias, self.sinks

    @property
    def tensors(self) -> tuple[Tensor | None, ...]:
        """All tensors: the operands, offsets, starts and seed, and those of the mask."""
        positions = (self.query_offsets, self.key_offsets, self.relative_starts, self.seed)
        return (*self.operands, *positions, *self.mask_tensors)

    @property
    def sequences(self) -> int:
        """B, or R of a ragged call."""
        return self.query.shape[0] if self.query_offsets is None else self.query_offsets.shape[0] - 1

    @property
    def heads_per_key_head(self) -> int:
        """H / G: query head h reads key head h // heads_per_key_head."""
        return self.query.shape[1] // max(self.key.shape[1], 1)


# An engine's `attend`, and the result of a backward pass: a gradient for each of DIFFERENTIABLE, None where none is needed.
Attend = Callable[[Call], tuple[Tensor, Tensor | None]]
Gradients = tuple[Tensor | None, ...]


def has_groups(query: Tensor, key: Tensor) -> bool:
    """Whether several query heads share a key head; a bool also where torch.compile makes the numbers of heads symbolic, which PyTorch's
    kernels ask for."""
    if query.shape[1] != key.shape[1]:  # noqa: SIM103  # the branch makes the bool
        return True
    return False


def no_forward_mode() -> NotImplementedError:
    """The error of forward-mode differentiation through kernels that PyTorch cannot differentiate."""
    return NotImplementedError(
        "attention: the fast engines have no forward-mode derivatives; torch.autograd.forward_ad needs float64 or "
        "impl='reference'"
    )


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of the arithmetic: float64 for float64, float32 for everything else."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def new_output(call: Call) -> Tensor:
    """Uninitialised (B, H, Q, E), with the query's order of heads and tokens in memory, so that merging the heads
    afterwards is a view wherever splitting them was one."""
    batch, heads, queries, _ = call.query.shape
    width = call.value.shape[3]
    _, head_stride, token_stride, _ = call.query.stride()
    heads_inside = call.query_offsets is not None or head_stride < token_stride
    strides = output_strides(heads, queries, width, heads_inside)
    # Strided from the start rather than a transposed view: autograd forbids changing a view in place.
    return call.query.new_empty_strided((batch, heads, queries, width), strides)


def output_strides(heads: int, queries: int, width: int, heads_inside: bool) -> tuple[int, int, int, int]:
    """The strides of an output (B, H, Q, E): heads inside tokens in memory, or tokens inside heads."""
    steps = (width, heads * width) if heads_inside else (queries * width, width)
    return queries * heads * width, *steps, 1


def new_lse(call: Call) -> Tensor:
    """Uninitialised (B, H, Q) log-sum-exp, float32 (float64 for float64)."""
    return call.query.new_empty(call.query.shape[:3], dtype=compute_dtype(call.query.dtype))
