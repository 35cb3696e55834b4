"""The operations that leave hidden states packed: RULES, from the function to what makes of its arguments a result or,
where they are not of the kind that the rule knows, None.

Letters as in states.py.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from uwaga.integrations.transformers.states import PackedStates

Rule = Callable[[Callable, Sequence, Mapping], object]


def _each_token(function: Callable, args: Sequence, kwargs: Mapping) -> PackedStates | None:
    """Functions of one tensor of states that work on their last dimensions: layers, norms, activations."""
    states, *rest = args
    if not isinstance(states, PackedStates) or not states.is_packed or states.heads_first:
        return None
    if any(isinstance(x, PackedStates) for x in (*rest, *kwargs.values())):
        return None
    return states.like(function(states.values, *rest, **kwargs))


def _each_number(function: Callable, args: Sequence, kwargs: Mapping) -> PackedStates | None:
    """The same for functions of each number by itself, with plain options."""
    return None if _has_tensors((*args[1:], *kwargs.values())) else _each_token(function, args, kwargs)


def _last_dimension(function: Callable, args: Sequence, kwargs: Mapping) -> PackedStates | None:
    """A mean over the width that leaves a dimension of one."""
    dimension = args[1] if len(args) > 1 else kwargs.get("dim")
    keeps = args[2] if len(args) > 2 else kwargs.get("keepdim", False)
    return _each_token(function, args, kwargs) if dimension in (-1, (-1,), [-1]) and keeps else None


def _parts(function: Callable, args: Sequence, kwargs: Mapping) -> tuple[PackedStates, ...] | None:
    """The width in pieces, as gated layers take it."""
    states, *count = args
    is_width = kwargs.get("dim") == -1 if len(count) == 1 else count[1:] == [-1] and not kwargs
    if not isinstance(states, PackedStates) or not states.is_packed or states.heads_first or not is_width:
        return None
    return tuple(states.like(part) for part in function(states.values, count[0], dim=-1))


def _cast(function: Callable, args: Sequence, kwargs: Mapping) -> PackedStates | None:
    return _each_token(function, args, kwargs) if len(args) == 2 and isinstance(args[1], torch.dtype) else None


def _cast_like(function: Callable, args: Sequence, kwargs: Mapping) -> PackedStates | None:
    states, other = args
    return _each_token(Tensor.to, (states, other.dtype), {}) if states.device == other.device else None


def _elementwise(function: Callable, args: Sequence, kwargs: Mapping) -> PackedStates | None:
    """Sums and products with states of the same tokens, numbers, and what broadcasts to (B, N, ...)."""
    first = next((x for x in args if isinstance(x, PackedStates)), None)
    operands = [] if first is None else [_beside(first, x) for x in args]
    if first is None or any(x is None for x in operands) or _has_tensors(kwargs.values()):
        return None
    return first.like(function(*operands, **kwargs))


def _in_place(function: Callable, args: Sequence, kwargs: Mapping) -> PackedStates | None:
    states = args[0]
    if not isinstance(states, PackedStates) or states.heads_first or _has_tensors(kwargs.values()):
        return None
    operands = [_beside(states, x) for x in args]
    if any(x is None for x in operands):
        return None
    function(*operands, **kwargs)
    return states


def _beside(states: PackedStates, x: object) -> object | None:
    """The operand as it stands beside the states' values; None where it does not."""
    inner = states.values.dim() - 1
    if isinstance(x, PackedStates):
        fits = (
            x.is_packed
            and not x.heads_first
            and x.values.dim() == inner + 1
            and x.packing.has_same_tokens(states.packing)
        )
        return x.values if fits else None
    if not isinstance(x, Tensor) or x.dim() <= inner:
        return x
    if x.dim() > inner + 2:
        return None
    return states.packing.pack(x if x.dim() == inner + 2 else x[None])


def _has_tensors(options: Iterable) -> bool:
    return any(isinstance(x, Tensor) for x in options)


def _reshape(function: Callable, args: Sequence, kwargs: Mapping) -> PackedStates | None:
    """What leaves (B, N) as it is."""
    states, *shape = args
    if len(shape) == 1 and not isinstance(shape[0], int):
        shape = list(shape[0])
    if not states.is_packed or states.heads_first or kwargs or len(shape) < 3:
        return None
    if list(shape[:2]) != [states.packing.batch, states.packing.length]:
        return None
    return states.like(states.values.reshape(states.values.shape[0], *shape[2:]))


def _transpose(function: Callable, args: Sequence, kwargs: Mapping) -> PackedStates | None:
    """(B, N, H, D) to (B, H, N, D) and back."""
    states, *dimensions = args
    if not states.is_packed or states.values.dim() != 3 or sorted(dimensions) != [1, 2] or kwargs:
        return None
    return PackedStates.of(states.packing, states.values, heads_first=not states.heads_first)


def _same(function: Callable, args: Sequence, kwargs: Mapping) -> PackedStates | None:
    return args[0] if args[0].is_packed and len(args) == 1 and not kwargs else None


def _getters(*names: str) -> frozenset[Callable]:
    return frozenset(getattr(Tensor, name).__get__ for name in names)


# What asks about a tensor and not for its numbers.
ABOUT: frozenset[Callable] = _getters("shape", "ndim", "dtype", "device", "requires_grad", "is_cuda", "layout") | {
    Tensor.size,
    Tensor.dim,
    Tensor.numel,
    Tensor.is_floating_point,
}

_RULES_OF: Mapping[Rule, Sequence[Callable]] = {
    _each_token: (F.linear, F.layer_norm, F.rms_norm),
    _each_number: (
        F.gelu, F.relu, F.silu, F.dropout, F.tanh, F.sigmoid, torch.tanh, torch.sigmoid, torch.rsqrt, torch.relu, torch.pow,
        Tensor.pow, Tensor.__pow__, Tensor.tanh, Tensor.float, Tensor.neg,
    ),
    _elementwise: (
        torch.add, torch.sub, torch.mul, torch.div, Tensor.add, Tensor.sub, Tensor.mul, Tensor.div, Tensor.__add__,
        Tensor.__radd__, Tensor.__sub__, Tensor.__rsub__, Tensor.__mul__, Tensor.__rmul__, Tensor.__truediv__,
    ),
    _in_place: (Tensor.__iadd__, Tensor.__imul__, Tensor.add_, Tensor.mul_),
    _last_dimension: (Tensor.mean, torch.mean),
    _parts: (Tensor.chunk, torch.chunk),
    _cast: (Tensor.to, Tensor.type),
    _cast_like: (Tensor.type_as,),
    _reshape: (Tensor.view, Tensor.reshape),
    _transpose: (Tensor.transpose,),
    _same: (Tensor.contiguous,),
}  # fmt: skip
RULES: Mapping[Callable, Rule] = {function: rule for rule, functions in _RULES_OF.items() for function in functions}
