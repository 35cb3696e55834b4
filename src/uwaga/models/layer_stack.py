"""Running a stack of layers: its last hidden states, and those after every layer where wanted."""

from collections.abc import Callable
from typing import NamedTuple

from torch import nn

from uwaga.nn.operand import map_values
from uwaga.ops.ragged import Operand

# (layer, its number, hidden states before it) -> hidden states after it
LayerCall = Callable[[nn.Module, int, Operand], Operand]


class StackOutput(NamedTuple):
    """The hidden states of a stack. Ragged where its input is."""

    last: Operand  # (B, Q, M), after the last norm
    states: tuple[Operand, ...] | None  # of the input and after every layer, before the last norm; None: not wanted


def run_layers(
    layers: nn.ModuleList,
    norm: nn.Module | None,
    x: Operand,
    call: LayerCall,
    *,
    states: bool,
) -> StackOutput:
    """The output of all layers, each by `call(layer, n, x)`, and then of the norm, where there is one."""
    seen = [x]
    for n, layer in enumerate(layers):
        x = call(layer, n, x)
        if states:
            seen.append(x)
    return StackOutput(x if norm is None else map_values(norm, x), tuple(seen) if states else None)
