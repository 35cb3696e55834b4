"""What a stack of layers gives: its last states, and where asked those after every layer."""

from collections.abc import Callable
from typing import NamedTuple

from torch import nn

from uwaga.nn.operand import map_values
from uwaga.ops.ragged import Operand

# One layer, its number, and the states before it: those after it.
Call = Callable[[nn.Module, int, Operand], Operand]


class Seen(NamedTuple):
    """The states of a stack. Ragged where its input is."""

    last: Operand  # (B, Q, M), after the last norm
    states: tuple[Operand, ...] | None  # of the input and after every layer, before the last norm; None: not asked for


def through(
    layers: nn.ModuleList,
    norm: nn.Module | None,
    x: Operand,
    call: Call,
    *,
    states: bool,
) -> Seen:
    """x through all layers, each by `call(layer, n, x)`, and then the norm, where there is one."""
    seen = [x]
    for n, layer in enumerate(layers):
        x = call(layer, n, x)
        if states:
            seen.append(x)
    return Seen(x if norm is None else map_values(norm, x), tuple(seen) if states else None)
