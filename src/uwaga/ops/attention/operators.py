"""The registered operators uwaga::forward, uwaga::backward and uwaga::double_backward.

torch.compile, export, torch.func and dispatch modes record attention as these operators; plain eager mode does not use them (autograd.py).
All of them take the same flat list of a call's operands and options, CALL below. A mask that has no tensors, or no mask, is
None there and not an empty list: packages of torch._inductor.aoti_compile_and_package pass None for an empty list.

Letters as in call.py.
"""

from collections.abc import Callable, Sequence
from typing import Any, NoReturn, cast

import torch
from torch import Tensor
from torch._functorch.utils import enable_single_level_autograd_function

from uwaga._base.tracing import has_tangent, is_in_forward_mode
from uwaga.ops.attention import gradients, relative_bias
from uwaga.ops.attention.call import FIXED_TENSORS, Call, Gradients, Options, new_lse, new_output, no_forward_mode
from uwaga.ops.mask_program import pack, unpack

CALL = (
    "Tensor query, Tensor key, Tensor value, Tensor? relative, Tensor? bias, Tensor? sinks, "
    "Tensor? query_offsets, Tensor? key_offsets, Tensor? relative_starts, Tensor? seed, Tensor[]? mask_tensors, "
    "SymInt[]? mask_program, SymInt relative_zero, int relative_start_mode, SymInt relative_start, "
    "SymInt max_queries, SymInt max_keys, float scale, float softcap, bool softmax, float dropout, str engine"
)
CALL_LENGTH = CALL.count(",") + 1

torch.library.define("uwaga::forward", f"({CALL}) -> (Tensor, Tensor)")
torch.library.define(
    "uwaga::backward",
    f"(Tensor grad_output, Tensor? grad_lse, Tensor output, Tensor lse, bool[] needs, {CALL})"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
)
torch.library.define(
    "uwaga::double_backward",
    f"(Tensor?[] cotangents, Tensor grad_output, Tensor? grad_lse, bool[] needs, {CALL})"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
)


def run(call: Call, engine: str) -> tuple[Tensor, Tensor | None]:
    """Compute the call as a registered operator. Its lse is always computed, since a backward pass may need it."""
    query = call.query
    for mask in filter(torch._C._functorch.is_batchedtensor, call.mask_tensors):
        # vmap overlooks what is mapped in a list that may be None, so that the query must be mapped too.
        query = torch.where(mask.flatten()[:0].any(), query, query)
    output, lse = call_forward((query, *call.tensors[1:]), call.options, engine)
    return output, lse if call.options.softmax else None


def call_forward(tensors: Sequence[Tensor | None], options: Options, engine: str) -> tuple[Tensor, Tensor]:
    """Call the operator uwaga::forward over `Call.tensors`; the lse is empty where there is no softmax."""
    return cast(tuple[Tensor, Tensor], torch.ops.uwaga.forward(*flatten(tensors, options, engine)))


def flatten(tensors: Sequence[Tensor | None], options: Options, engine: str) -> tuple[Any, ...]:
    """Return a call as the operators' list CALL."""
    o = options
    places = (o.relative_zero, o.relative_start_mode, o.relative_start, o.max_queries, o.max_keys)
    plain = (pack(o.mask_program) or None, *places, o.scale, o.softcap, o.softmax, o.dropout, engine)
    return (*tensors[:FIXED_TENSORS], list(tensors[FIXED_TENSORS:]) or None, *plain)


def unflatten(arguments: Sequence[Any]) -> tuple[Call, str]:
    """Return the call and the engine from the operators' list CALL."""
    *fixed, mask_tensors = arguments[: FIXED_TENSORS + 1]
    mask_program, zero, mode, start, max_queries, max_keys = arguments[FIXED_TENSORS + 1 : FIXED_TENSORS + 7]
    scale, softcap, softmax, dropout, engine = arguments[FIXED_TENSORS + 7 :]
    query, key, query_offsets = fixed[0], fixed[1], fixed[6]
    if query_offsets is None:  # torch.jit.trace records numbers as constants; the sizes may differ now
        max_queries, max_keys = query.shape[2], key.shape[2]
        if fixed[3] is not None:
            zero = relative_bias.zero(mode, start, zero, max_queries, max_keys)
    options = Options(
        scale=scale,
        softcap=softcap,
        softmax=softmax,
        dropout=dropout,
        mask_program=unpack(mask_program or ()),
        relative_zero=zero,
        relative_start_mode=mode,
        relative_start=start,
        max_queries=max_queries,
        max_keys=max_keys,
        wants_lse=softmax,
    )
    return Call.of((*fixed, *(mask_tensors or ())), options), engine


# Kernels. An operator returns tensors of its own in the layout that its fake promises, never None.


def forward(*arguments: Any) -> tuple[Tensor, Tensor]:
    call, engine = unflatten(arguments)
    output, lse = gradients.forward(engine, call)
    if engine != "cpu":  # the native engine returns that layout itself
        output = new_output(call).copy_(output)
    return output, call.query.new_empty(0) if lse is None else lse.contiguous()


def backward(
    grad_output: Tensor,
    grad_lse: Tensor | None,
    output: Tensor,
    lse: Tensor | None,
    needs: Sequence[bool],
    *arguments: Any,
) -> tuple[Tensor, ...]:
    call, engine = unflatten(arguments)
    if not call.options.softmax:  # empty tensors stand for the absent ones
        lse = grad_lse = None
    result = gradients.backward(engine, call, output, lse, grad_output, grad_lse, needs)
    return _present(call, result, call.operands)


def _double_backward(
    cotangents: Sequence[Tensor | None],
    grad_output: Tensor,
    grad_lse: Tensor | None,
    needs: Sequence[bool],
    *arguments: Any,
) -> tuple[Tensor, ...]:
    call, _ = unflatten(arguments)
    result = gradients.double_backward(call, grad_output, grad_lse, tuple(cotangents), needs)
    return _present(call, result, (*call.operands, grad_output, grad_lse))


def _present(call: Call, gradients: Gradients, like: Sequence[Tensor | None]) -> tuple[Tensor, ...]:
    """Return contiguous gradients; an empty tensor for each that is absent."""
    return tuple(
        call.query.new_empty(0) if x is None or y is None else _empty_like(y).copy_(x)
        for x, y in zip(gradients, like, strict=True)
    )


def _empty_like(x: Tensor) -> Tensor:
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


# Fakes: shapes, dtypes and layouts only.


def _forward_fake(*arguments: Any) -> tuple[Tensor, Tensor]:
    call, _ = unflatten(arguments)
    return new_output(call), new_lse(call) if call.options.softmax else call.query.new_empty(0)


def _backward_fake(*inputs: Any) -> tuple[Tensor, ...]:
    (*_, needs), arguments = inputs[:5], inputs[5:]
    call, _ = unflatten(arguments)
    return _fakes(call, call.operands, needs)


def _double_backward_fake(*inputs: Any) -> tuple[Tensor, ...]:
    (_, *grads, _), arguments = inputs[:4], inputs[4:]
    call, _ = unflatten(arguments)
    return _fakes(call, (*call.operands, *grads), (True,) * 8)


def _fakes(call: Call, like: Sequence[Tensor | None], needs: Sequence[bool]) -> tuple[Tensor, ...]:
    return tuple(
        _empty_like(x) if x is not None and needed else call.query.new_empty(0)
        for x, needed in zip(like, needs, strict=True)
    )


# Autograd: an operand that was None has the gradient None.


def _forward_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs[:FIXED_TENSORS], *(inputs[FIXED_TENSORS] or ()), *output)
    ctx.numbers = inputs[FIXED_TENSORS + 1 :]
    if not unflatten(inputs)[0].options.softmax:
        ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)


def _forward_autograd(ctx: Any, grad_output: Tensor | None, grad_lse: Tensor | None) -> tuple[Any, ...]:
    *tensors, output, lse = ctx.saved_tensors
    arguments = (*tensors[:FIXED_TENSORS], tensors[FIXED_TENSORS:] or None, *ctx.numbers)
    # Only the operands' own needs count: those of offsets and masks are false.
    needs = list(ctx.needs_input_grad[:6])
    if grad_output is None and grad_lse is None:
        return (None,) * CALL_LENGTH
    if grad_output is None:
        grad_output = torch.zeros_like(output)
    result = torch.ops.uwaga.backward(grad_output, grad_lse, output, lse, needs, *arguments)
    return (*(x if needed else None for x, needed in zip(result, needs, strict=True)), *_NOTHING)


def _backward_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    grad_output, grad_lse, _, _, needs, *arguments = inputs
    ctx.save_for_backward(grad_output, grad_lse, *arguments[:FIXED_TENSORS], *(arguments[FIXED_TENSORS] or ()))
    ctx.numbers, ctx.needs = arguments[FIXED_TENSORS + 1 :], needs
    ctx.set_materialize_grads(False)


def _backward_autograd(ctx: Any, *cotangents: Tensor | None) -> tuple[Any, ...]:
    grad_output, grad_lse, *tensors = ctx.saved_tensors
    arguments = (*tensors[:FIXED_TENSORS], tensors[FIXED_TENSORS:] or None, *ctx.numbers)
    result = torch.ops.uwaga.double_backward(list(cotangents), grad_output, grad_lse, ctx.needs, *arguments)
    like = (*tensors[:6], grad_output, grad_lse)
    *of_operands, of_grad_output, of_grad_lse = (None if y is None else x for x, y in zip(result, like, strict=True))
    return (of_grad_output, of_grad_lse, None, None, None, *of_operands, *_NOTHING)


# vmap: the mapped dimension, of size V, is folded into the batch.

# Those of `Call.tensors` that have no batch dimension to fold into.
_SHARED = {3: "a vector of biases", 5: "sinks", 6: "offsets", 7: "offsets", 9: "a dropout seed"}
_BIAS, _OFFSETS = 4, 6

Tensors = Sequence[Tensor | None]


def _fold(
    size: int, dims: Sequence[int | None], tensors: Tensors, options: Options, needs: Sequence[bool] = (False,) * 6
) -> list[Tensor | None]:
    """Return `Call.tensors` of one call with a batch of V * B. Raises ValueError where they cannot be folded."""
    if tensors[_OFFSETS] is not None:
        raise ValueError("attention: vmap over a ragged batch is not supported; a Ragged has a batch of its own")
    if options.dropout:
        raise ValueError(
            "attention: vmap with dropout is not supported: its pattern depends on the position in the batch"
        )
    for at, name in _SHARED.items():
        if dims[at] is not None:
            raise ValueError(f"attention: vmap over {name} is not supported; loop over the mapped dimension")
        if at < len(needs) and needs[at]:
            raise ValueError(
                f"attention: vmap over the gradient of {name} is not supported; loop over the mapped dimension"
            )
    folded = _lead_all(size, _batch_of(dims, tensors), dims, tensors)
    return [x if at in _SHARED else y for at, (x, y) in enumerate(zip(tensors, folded, strict=True))]


def _batch_of(dims: Sequence[int | None], tensors: Tensors) -> int:
    """Return B of the query, which comes first, without the mapped dimension."""
    assert tensors[0] is not None
    return tensors[0].shape[_batch_dimension(dims[0])]


def _lead_all(size: int, batch: int, dims: Sequence[int | None], tensors: Tensors) -> list[Tensor | None]:
    """Return (V * B, ...) of each (B, ...) or (1, ...) whose mapped dimension is anywhere; a tensor without one is
    repeated."""
    return [None if x is None else _lead(size, batch, dim, x) for x, dim in zip(tensors, dims, strict=True)]


def _lead(size: int, batch: int, dim: int | None, x: Tensor) -> Tensor:
    x = x.expand(size, *x.shape) if dim is None else x.movedim(dim, 0)
    return x.expand(size, batch, *x.shape[2:]).flatten(0, 1)


def _unfold(size: int, batch: int, results: Tensors) -> tuple[Gradients, tuple[int | None, ...]]:
    """Return (V, B, ...) of each (V * B, ...), and the index of the mapped dimension; None for an absent result, None or empty."""
    unfolded = [x if x is None or x.dim() == 1 else x.unflatten(0, (size, batch)) for x in results]
    return tuple(unfolded), tuple(None if x is None or x.dim() == 1 else 0 for x in results)


def _unfold_gradients(
    size: int, batch: int, dims: Sequence[int | None], tensors: Tensors, results: Tensors
) -> tuple[Gradients, tuple[int | None, ...]]:
    """Return what `_unfold` returns, for gradients of the first of `Call.tensors`; one that was broadcast over the batch is summed over it."""
    unfolded, unfolded_dims = _unfold(size, batch, results)
    bias, of_bias = tensors[_BIAS], unfolded[_BIAS]
    if bias is not None and of_bias is not None and bias.shape[_batch_dimension(dims[_BIAS])] != batch:
        unfolded = (*unfolded[:_BIAS], of_bias.sum(1, keepdim=True), *unfolded[_BIAS + 1 :])
    return unfolded, unfolded_dims


def _batch_dimension(dim: int | None) -> int:
    """Return the index of the batch dimension, which is first apart from the mapped dimension."""
    return 1 if dim == 0 else 0


def _forward_vmap(info: Any, in_dims: tuple[Any, ...], *arguments: Any) -> tuple[Gradients, tuple[int | None, ...]]:
    call, engine = unflatten(arguments)
    dims = (*in_dims[:FIXED_TENSORS], *(in_dims[FIXED_TENSORS] or [None] * len(call.mask_tensors)))
    batch = _batch_of(dims, call.tensors)
    folded = _fold(info.batch_size, dims, call.tensors, call.options)
    return _unfold(info.batch_size, batch, call_forward(folded, call.options, engine))


def _backward_vmap(info: Any, in_dims: tuple[Any, ...], *arguments: Any) -> tuple[Gradients, tuple[int | None, ...]]:
    *state, needs = arguments[:5]
    call, engine = unflatten(arguments[5:])
    fixed = in_dims[5 : 5 + FIXED_TENSORS]
    dims = (*fixed, *(in_dims[5 + FIXED_TENSORS] or [None] * len(call.mask_tensors)))
    size, batch = info.batch_size, _batch_of(dims, call.tensors)
    led = _lead_all(size, batch, in_dims[:3], state[:3])
    lse = _lead_all(size, batch, in_dims[3:4], state[3:]) if call.options.softmax else state[3:]
    folded = _fold(size, dims, call.tensors, call.options, needs)
    result = torch.ops.uwaga.backward(*led, *lse, needs, *flatten(folded, call.options, engine))
    present = [x if needed else None for x, needed in zip(result, needs, strict=True)]
    outputs, out_dims = _unfold_gradients(size, batch, dims, call.tensors, present)
    return tuple(call.query.new_empty(0) if x is None else x for x in outputs), out_dims


def _double_backward_vmap(*_: Any) -> NoReturn:
    raise NotImplementedError(
        "attention: vmap over second derivatives is not supported; loop over the mapped dimension"
    )


_NOTHING = (None,) * (CALL_LENGTH - 6)  # the gradients of all arguments of CALL behind the six operands
_LIBRARY = torch.library.Library("uwaga", "FRAGMENT")


def _register_autograd(name: str, setup: Callable[..., None], backward: Callable[..., tuple[Any, ...]]) -> None:
    """Register as torch.library.register_autograd does, for torch.func too.

    PyTorch's own calls Function.apply, which rejects functions without a separate setup_context inside a transform. But the dispatcher comes
    here for one level of transforms at a time, where a function of one level is right."""
    operator = getattr(torch.ops.uwaga, name).default

    def below(keyset: Any, *arguments: Any) -> tuple[Tensor, ...]:
        with torch._C._AutoDispatchBelowAutograd():
            result: tuple[Tensor, ...] = operator.redispatch(keyset & torch._C._after_autograd_keyset, *arguments)
        return result

    class Recorded(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, ...]:
            *arguments, keyset = inputs
            # Gradients are off in a function's forward, and the next transform of torch.func would record nothing.
            with torch.enable_grad():
                result = below(keyset, *arguments)
            setup(ctx, arguments, result)
            return result

        @staticmethod
        def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
            return (*backward(ctx, *grads), None)

    apply = cast(Any, super(torch.autograd.Function, Recorded)).apply

    def kernel(keyset: Any, *arguments: Any) -> Any:
        if is_in_forward_mode() and has_tangent(*(x for x in arguments if isinstance(x, Tensor))):
            raise no_forward_mode()
        is_recorded = torch.is_grad_enabled() and torch._C._any_requires_grad(*arguments)
        if not is_recorded:
            return below(keyset, *arguments)
        with enable_single_level_autograd_function():
            return apply(*arguments, keyset)

    _LIBRARY.impl(name, kernel, "Autograd", with_keyset=True)


for _name, _kernel, _fake in (
    ("uwaga::forward", forward, _forward_fake),
    ("uwaga::backward", backward, _backward_fake),
    ("uwaga::double_backward", _double_backward, _double_backward_fake),
):
    torch.library.impl(_name, "CompositeExplicitAutograd", _kernel)
    torch.library.register_fake(_name, _fake)
_register_autograd("forward", _forward_setup, _forward_autograd)
_register_autograd("backward", _backward_setup, _backward_autograd)
torch.library.register_vmap("uwaga::forward", _forward_vmap)
torch.library.register_vmap("uwaga::backward", _backward_vmap)
torch.library.register_vmap("uwaga::double_backward", _double_backward_vmap)
