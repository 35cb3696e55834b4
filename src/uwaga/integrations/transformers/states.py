"""Hidden states without their padding: between two attentions, where a model does the same to every token.

An attention function cannot tell the layers around it that padding need not be computed, and those take most of the time.
So it gives its output as a tensor that stands for (B, N, ...) and holds the tokens alone. A linear layer, a norm, an
activation or a sum of such states works on the tokens (token_rules.py); anything else gets the plain tensor, which is
zero in padding. In the last layer all states turn plain again: a model gives plain tensors.

Letters: B batch, H heads, N tokens of a sequence, T tokens of the batch that are no padding, D width.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only


@dataclass(slots=True, kw_only=True, eq=False)
class Packing:
    """Where the tokens of a padded batch are."""

    places: Tensor  # (T,) int64 among the B * N
    offsets: Tensor  # (B+1,) int64, where each sequence begins among the T
    batch: int
    length: int  # N
    is_closed: bool = False  # states turn plain

    @staticmethod
    def of(tokens_BN: Tensor) -> "Packing":
        lengths = tokens_BN.sum(1)
        offsets = torch.cat((lengths.new_zeros(1), lengths.cumsum(0)))
        places = tokens_BN.flatten().nonzero().squeeze(1)
        return Packing(places=places, offsets=offsets, batch=tokens_BN.shape[0], length=tokens_BN.shape[1])

    @staticmethod
    def current(tokens_BN: Tensor) -> "Packing":
        """The packing of this pass through a model: its layers may have several masks, of windows and whole sequences,
        but all states turn plain together."""
        latest = getattr(_LATEST, "packing", None)
        packing = Packing.of(tokens_BN)
        if latest is None or latest.is_closed or not latest.has_same_tokens(packing):
            _LATEST.packing = latest = packing
        return latest

    @staticmethod
    def is_open() -> bool:
        """Whether this thread is in a pass through a model whose states are packed."""
        return getattr(_LATEST, "packing", None) is not None

    @staticmethod
    def close_current() -> None:
        """In the last layer: from now on all states of this pass are plain."""
        latest = getattr(_LATEST, "packing", None)
        if latest is not None:
            latest.is_closed, _LATEST.packing = True, None

    def has_same_tokens(self, other: "Packing") -> bool:
        """Whether states of the two can stand side by side."""
        if self is other:
            return True
        return self.batch == other.batch and self.length == other.length and torch.equal(self.places, other.places)

    def pack(self, plain: Tensor) -> Tensor:
        """(T, ...) from what broadcasts to (B, N, ...)."""
        whole = plain.expand(self.batch, self.length, *plain.shape[2:])
        return whole.flatten(0, 1).index_select(0, self.places)

    def unpack(self, values: Tensor) -> Tensor:
        """(B, N, ...) with zeros in padding."""
        rows = values.new_zeros(self.batch * self.length, *values.shape[1:])
        return rows.index_copy(0, self.places, values).unflatten(0, (self.batch, self.length))


_LATEST = threading.local()  # .packing: of the pass through a model that this thread is in, or None


class PackedStates(Tensor):
    """Stands for (B, N, ...), or where `heads_first` for (B, H, N, D); holds `values`, (T, ...) or (T, H, D).

    A view stays one: its values are a view of its base's values, and its plain tensor one of its base's plain tensor, so
    that what is written into one is in the other. Base and views turn plain together.
    """

    packing: Packing
    values: Tensor  # type: ignore[assignment]  # a sparse tensor's method, which has no meaning here
    heads_first: bool
    settled: Tensor | None  # the plain tensor, once somebody asked for it: what is written there counts
    base: "PackedStates | None"  # whose view these are
    again: Callable[[Tensor], Tensor] | None  # makes of the base's plain tensor that of the view

    @staticmethod
    def of(packing: Packing, values: Tensor, *, heads_first: bool = False) -> "PackedStates":
        shape = [packing.batch, packing.length, *values.shape[1:]]
        if heads_first:
            shape[1], shape[2] = shape[2], shape[1]
        made = Tensor._make_wrapper_subclass(PackedStates, shape, dtype=values.dtype, device=values.device)
        made.packing, made.values, made.heads_first = packing, values, heads_first
        made.settled = made.base = made.again = None
        return made

    # torch.compile loses track of what states hold: it may compile what is between their operations.
    @classmethod
    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def __torch_function__(
        cls, function: Callable, types: Sequence[type], args: Sequence = (), kwargs: Mapping | None = None
    ) -> object:
        from uwaga.integrations.transformers.token_rules import ABOUT, RULES

        with torch._C.DisableTorchFunctionSubclass():
            if function in ABOUT:
                return function(*args, **(kwargs or {}))
            rule = RULES.get(function)
            found = None if rule is None else rule(function, args, kwargs or {})
            return _plainly(function, args, kwargs) if found is None else found

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
        return first.settled is None and not self.packing.is_closed

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def plain(self) -> Tensor:
        """The plain tensor, the same one every time."""
        if self.settled is None:
            if self.base is not None and self.again is not None:
                self.settled = self.again(self.base.plain())
            else:
                whole = self.packing.unpack(self.values)
                self.settled = whole.transpose(1, 2) if self.heads_first else whole
        return self.settled

    def like(self, values: Tensor) -> "PackedStates":
        """Other states of the same tokens; themselves, where the values are."""
        if values is self.values:
            return self
        return PackedStates.of(self.packing, values, heads_first=self.heads_first)

    def view_of(
        self, values: Tensor, again: Callable[[Tensor], Tensor], *, heads_first: bool = False
    ) -> "PackedStates":
        """A view of these states, whose values are one of theirs."""
        made = PackedStates.of(self.packing, values, heads_first=heads_first)
        made.base, made.again = self, again
        return made


def plain(x: Tensor) -> Tensor:
    """The tensor itself, or what it stands for."""
    return x.plain() if isinstance(x, PackedStates) else x


def _plainly(function: Callable, args: Sequence, kwargs: Mapping | None) -> object:
    args, kwargs = tree_map_only(PackedStates, PackedStates.plain, (tuple(args), dict(kwargs or {})))
    return function(*args, **kwargs)
