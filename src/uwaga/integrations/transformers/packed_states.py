"""Hidden states without their padding: between two attentions, where a model computes every token alike.

An attention function cannot tell the layers around it to skip padding, and those layers take most of the time.
So its output is a subclass of Tensor that stands for (B, N, ...) and holds the tokens alone. Linear layers, norms, activations
and sums of such states compute the tokens only (_RULES); any other operation gets the plain tensor, which is zero in padding. In the
last layer all states turn plain again: a model returns plain tensors.

Letters: B batch, H heads, N tokens of a sequence, T tokens of the batch that are not padding, D width.
"""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._pytree import tree_map_only

from uwaga._base.tracing import uncompiled
from uwaga.ops.linear.api import linear_map


@dataclass(slots=True, kw_only=True, eq=False)
class Packing:
    """The positions of the tokens of a padded batch that are not padding."""

    token_indices: Tensor  # (T,) int64, in 0 ... B * N - 1
    offsets: Tensor  # (B+1,) int64, the first of the T tokens of each sequence
    batch: int
    length: int  # N
    is_closed: bool = False  # all states of this pass turn plain

    @staticmethod
    def of(tokens_BN: Tensor) -> "Packing":
        lengths = tokens_BN.sum(1)
        offsets = torch.cat((lengths.new_zeros(1), lengths.cumsum(0)))
        batch, length = tokens_BN.shape
        token_indices = tokens_BN.flatten().nonzero().squeeze(1)
        return Packing(token_indices=token_indices, offsets=offsets, batch=batch, length=length)

    @staticmethod
    def current(tokens_BN: Tensor) -> "Packing":
        """Return the packing of the current forward pass.

        Layers may have several masks, of windows and whole sequences, but all states turn plain together.
        """
        latest = getattr(_CURRENT, "packing", None)
        packing = Packing.of(tokens_BN)
        if latest is None or latest.is_closed or not latest.has_same_tokens(packing):
            _CURRENT.packing = latest = packing
        return latest

    @staticmethod
    def is_open() -> bool:
        """Return whether this thread is in the forward pass of a model whose states are packed."""
        return getattr(_CURRENT, "packing", None) is not None

    @staticmethod
    def close_current() -> None:
        """Turn all states of this forward pass plain, in its last layer."""
        latest = getattr(_CURRENT, "packing", None)
        if latest is not None:
            latest.is_closed, _CURRENT.packing = True, None

    def has_same_tokens(self, other: "Packing") -> bool:
        """Return whether states of the two packings can be operands of one operation."""
        if self is other:
            return True
        is_same_shape = (self.batch, self.length) == (other.batch, other.length)
        return is_same_shape and torch.equal(self.token_indices, other.token_indices)

    def pack(self, plain: Tensor) -> Tensor:
        """Return the tokens (T, ...) of what broadcasts to (B, N, ...)."""
        whole = plain.expand(self.batch, self.length, *plain.shape[2:])
        return whole.flatten(0, 1).index_select(0, self.token_indices)

    def unpack(self, values: Tensor) -> Tensor:
        """Return (B, N, ...), with zeros in padding."""
        rows = values.new_zeros(self.batch * self.length, *values.shape[1:])
        return rows.index_copy(0, self.token_indices, values).unflatten(0, (self.batch, self.length))


_CURRENT = threading.local()  # .packing: of the current forward pass of this thread, or None


class PackedStates(Tensor):
    """Stands for (B, N, ...), or where `heads_first` for (B, H, N, D); holds `values`, (T, ...) or (T, H, D).

    A view stays a view: its values are a view of the values of its base, and its plain tensor a view of the plain tensor of its
    base, so that writes to one are seen in the other. Base and views turn plain together.
    """

    packing: Packing
    values: Tensor  # type: ignore[assignment]  # a sparse tensor's method, which has no meaning here
    heads_first: bool
    materialized: Tensor | None  # the plain tensor, once it was needed: it may have been written to
    base: "PackedStates | None"  # whose view these are
    recompute: Callable[[Tensor], Tensor] | None  # from the plain tensor of the base to that of the view

    @staticmethod
    def of(packing: Packing, values: Tensor, *, heads_first: bool = False) -> "PackedStates":
        shape = [packing.batch, packing.length, *values.shape[1:]]
        if heads_first:
            shape[1], shape[2] = shape[2], shape[1]
        made = Tensor._make_wrapper_subclass(PackedStates, shape, dtype=values.dtype, device=values.device)
        made.packing, made.values, made.heads_first = packing, values, heads_first
        made.materialized = made.base = made.recompute = None
        return made

    # torch.compile does not trace the subclass: it compiles the code between operations on states.
    @classmethod
    @uncompiled
    def __torch_function__(
        cls, function: Callable, types: Sequence[type], args: Sequence = (), kwargs: Mapping | None = None
    ) -> object:
        from uwaga.integrations.transformers.packed_states import _METADATA, _RULES

        with torch._C.DisableTorchFunctionSubclass():
            if function in _METADATA:
                return function(*args, **(kwargs or {}))
            rule = _RULES.get(function)
            result = None if rule is None else rule(function, args, kwargs or {})
            return _plainly(function, args, kwargs) if result is None else result

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch names its arguments otherwise
        cls, function: Callable, types: Sequence[type], args: Sequence = (), kwargs: Mapping | None = None
    ) -> object:
        return _plainly(function, args, kwargs)

    @property
    def is_packed(self) -> bool:
        first = self
        while first.base is not None:
            first = first.base
        return first.materialized is None and not self.packing.is_closed

    @uncompiled
    def plain(self) -> Tensor:
        """Return the plain tensor, the same one every time."""
        if self.materialized is None:
            if self.base is not None and self.recompute is not None:
                self.materialized = self.recompute(self.base.plain())
            else:
                whole = self.packing.unpack(self.values)
                self.materialized = whole.transpose(1, 2) if self.heads_first else whole
        return self.materialized

    def like(self, values: Tensor) -> "PackedStates":
        """Return states of the same tokens with other values, or this object if the values are its own."""
        if values is self.values:
            return self
        return PackedStates.of(self.packing, values, heads_first=self.heads_first)

    def view_of(
        self, values: Tensor, recompute: Callable[[Tensor], Tensor], *, heads_first: bool = False
    ) -> "PackedStates":
        """Return a view of these states, whose values are one of theirs."""
        made = PackedStates.of(self.packing, values, heads_first=heads_first)
        made.base, made.recompute = self, recompute
        return made


def plain(x: Tensor) -> Tensor:
    """Return the plain tensor of packed states; any other tensor itself."""
    return x.plain() if isinstance(x, PackedStates) else x


def linear_of_tokens(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Compute x W^T + b by uwaga.linear, for x (..., K) and weight (N, K); packed states stay packed."""
    if type(x) is PackedStates:
        mapped = _linear(linear_map, (x, weight, bias), {})
        if mapped is not None:
            return mapped
        x = x.plain()
    return linear_map(x, weight, bias)


def _plainly(function: Callable, args: Sequence, kwargs: Mapping | None) -> object:
    args, kwargs = tree_map_only(PackedStates, PackedStates.plain, (tuple(args), dict(kwargs or {})))
    return function(*args, **kwargs)


Rule = Callable[[Callable, Sequence, Mapping], object]


def _each_token(function: Callable, args: Sequence, kwargs: Mapping) -> PackedStates | None:
    """Compute a function of the last dimensions of one tensor of states: a layer, a norm or an activation."""
    states = _states(args)
    if states is None or any(isinstance(x, PackedStates) for x in (*args[1:], *kwargs.values())):
        return None
    return states.like(function(states.values, *args[1:], **kwargs))


def _where(fits: Callable[[Sequence, Mapping], bool]) -> Callable[[Callable, Sequence, Mapping], PackedStates | None]:
    """Return the rule `_each_token` for calls whose arguments fit."""
    return lambda function, args, kwargs: _each_token(function, args, kwargs) if fits(args, kwargs) else None


def _is_over_width(args: Sequence, kwargs: Mapping) -> bool:
    """Return whether a mean is over the width and leaves a dimension of one."""
    dimension = args[1] if len(args) > 1 else kwargs.get("dim")
    keeps = args[2] if len(args) > 2 else kwargs.get("keepdim", False)
    return dimension in (-1, (-1,), [-1]) and bool(keeps) and _width(args) > 0


def _is_cast(args: Sequence, kwargs: Mapping) -> bool:
    return len(args) == 2 and isinstance(args[1], torch.dtype) and kwargs.keys() <= {"copy", "non_blocking"}


def _norm_fits(args: Sequence, kwargs: Mapping) -> bool:
    """Return whether a norm leaves out the dimension of the tokens."""
    return len(args[1] if len(args) > 1 else kwargs.get("normalized_shape", ())) <= _width(args)


_linear = _where(lambda args, kwargs: _width(args) > 0)


def _parts(function: Callable, args: Sequence, kwargs: Mapping) -> tuple[PackedStates, ...] | None:
    """Split the last dimension, as gated layers do."""
    states = _states(args)
    is_width = kwargs == {"dim": -1} if len(args) == 2 else args[2:] == (-1,) and not kwargs
    if states is None or not is_width or _width(args) == 0:
        return None
    count = args[1]

    def again(index: int) -> Callable[[Tensor], Tensor]:
        return lambda plain: function(plain, count, -1)[index]

    parts = enumerate(function(states.values, count, -1))
    return tuple(states.view_of(part, again(index)) for index, part in parts)


def _cast_like(function: Callable, args: Sequence, kwargs: Mapping) -> PackedStates | None:
    if len(args) != 2 or args[0].device != args[1].device:
        return None
    return _each_token(Tensor.to, (args[0], args[1].dtype), {})


def _elementwise(function: Callable, args: Sequence, kwargs: Mapping) -> PackedStates | None:
    """Compute sums and products with states of the same tokens, numbers, and what broadcasts to (B, N, ...)."""
    first = next((x for x in args if isinstance(x, PackedStates)), None)
    if first is None or first.heads_first or _has_tensors(kwargs.values()):
        return None
    operands = [_beside(first, x) for x in args]
    return None if any(x is None for x in operands) else first.like(function(*operands, **kwargs))


def _in_place(function: Callable, args: Sequence, kwargs: Mapping) -> PackedStates | None:
    states = _states(args)
    if states is None or _has_tensors(kwargs.values()):
        return None
    operands = [_beside(states, x) for x in args]
    if any(x is None for x in operands):
        return None
    function(*operands, **kwargs)
    return states


def _beside(states: PackedStates, x: object) -> object | None:
    """Return the operand in a shape that broadcasts to the states' values, or None if there is no such shape."""
    inner = states.values.dim() - 1
    if isinstance(x, PackedStates):
        fits = x.is_packed and not x.heads_first and x.values.dim() == inner + 1
        return x.values if fits and x.packing.has_same_tokens(states.packing) else None
    if not isinstance(x, Tensor) or x.dim() <= inner:
        return x
    packing, x = states.packing, x if x.dim() > inner + 1 else x[None]
    if x.dim() > inner + 2 or x.shape[0] not in (1, packing.batch) or x.shape[1] not in (1, packing.length):
        return None
    return packing.pack(x)


def _states(args: Sequence) -> PackedStates | None:
    """Return the first argument, where it is states (B, N, ...) that are still packed."""
    states = args[0] if args else None
    return states if isinstance(states, PackedStates) and states.is_packed and not states.heads_first else None


def _width(args: Sequence) -> int:
    """Return how many dimensions the first argument, states, has for each token."""
    return args[0].values.dim() - 1 if args and isinstance(args[0], PackedStates) else 0


def _has_tensors(options: Iterable) -> bool:
    return any(isinstance(x, Tensor) for x in options)


def _reshape(function: Callable, args: Sequence, kwargs: Mapping) -> PackedStates | None:
    """Return what leaves (B, N) as it is."""
    states, shape = _states(args), args[1:]
    if len(shape) == 1 and isinstance(shape[0], tuple | list):
        shape = tuple(shape[0])
    if states is None or kwargs or len(shape) < 3 or not all(isinstance(size, int) for size in shape):
        return None
    tokens = states.values.shape[0]
    if tuple(shape[:2]) != (states.packing.batch, states.packing.length) or tokens == 0:
        return None
    values = function(states.values, (tokens, *shape[2:]))
    if values.data_ptr() != states.values.data_ptr():
        return states.like(values)  # a copy
    return states.view_of(values, lambda plain: function(plain, shape))


def _transpose(function: Callable, args: Sequence, kwargs: Mapping) -> PackedStates | None:
    """Transpose (B, N, H, D) to (B, H, N, D) and back."""
    states, *dimensions = args
    if not states.is_packed or states.values.dim() != 3 or sorted(dimensions) != [1, 2] or kwargs:
        return None
    return states.view_of(states.values, lambda plain: plain.transpose(1, 2), heads_first=not states.heads_first)


def _getters(*names: str) -> frozenset[Callable]:
    return frozenset(getattr(Tensor, name).__get__ for name in names)


# Functions that read a tensor's metadata and not its values.
_METADATA: frozenset[Callable] = _getters("shape", "ndim", "dtype", "device", "requires_grad", "is_cuda", "layout") | {
    Tensor.size,
    Tensor.dim,
    Tensor.numel,
    Tensor.is_floating_point,
}

_RULES_OF: Mapping[Rule, Sequence[Callable]] = {
    _linear: (F.linear,),
    _where(_norm_fits): (F.layer_norm, F.rms_norm),
    _where(lambda args, kwargs: not _has_tensors((*args[1:], *kwargs.values()))): (  # functions of each number by itself

        F.gelu, F.relu, F.silu, F.dropout, F.tanh, F.sigmoid, torch.tanh, torch.sigmoid, torch.rsqrt, torch.relu, torch.pow,
        Tensor.pow, Tensor.__pow__, Tensor.tanh, Tensor.neg,
    ),
    _elementwise: (
        torch.add, torch.sub, torch.mul, torch.div, Tensor.add, Tensor.sub, Tensor.mul, Tensor.div, Tensor.__add__,
        Tensor.__radd__, Tensor.__sub__, Tensor.__rsub__, Tensor.__mul__, Tensor.__rmul__, Tensor.__truediv__,
    ),
    _in_place: (Tensor.__iadd__, Tensor.__imul__, Tensor.add_, Tensor.mul_),
    _where(_is_over_width): (Tensor.mean, torch.mean),
    _parts: (Tensor.chunk, torch.chunk),
    _where(_is_cast): (Tensor.to, Tensor.type),
    _cast_like: (Tensor.type_as,),
    _where(lambda args, kwargs: not kwargs): (Tensor.float,),
    _reshape: (Tensor.view, Tensor.reshape),
    _transpose: (Tensor.transpose,),
    _where(lambda args, kwargs: len(args) == 1 and not kwargs): (Tensor.contiguous,),
}  # fmt: skip
_RULES: Mapping[Callable, Rule] = {function: rule for rule, functions in _RULES_OF.items() for function in functions}
