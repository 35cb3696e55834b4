"""Running a stack of layers: the last hidden states and, where requested, those after every layer."""

from collections.abc import Callable
from typing import NamedTuple, TypeVar

from torch import nn

from uwaga.nn.operand import map_values
from uwaga.ops.ragged import Operand

# (layer, its index, its input) -> its output
LayerCall = Callable[[nn.Module, int, Operand], Operand]

_Stack = TypeVar("_Stack", bound=nn.Module)


class StackOutput(NamedTuple):
    """The hidden states of a stack: Ragged where its input is Ragged."""

    last: Operand  # (B, Q, M), after the final norm
    states: (
        tuple[Operand, ...] | None
    )  # the input and the output of every layer, before the final norm; None: not requested


def run_layers(
    layers: nn.ModuleList,
    norm: nn.Module | None,
    x: Operand,
    call: LayerCall,
    *,
    states: bool,
) -> StackOutput:
    """Run every layer by `call(layer, n, x)`, then the final norm where there is one; states: keep every layer's output."""
    hidden_states = [x]
    for n, layer in enumerate(layers):
        x = call(layer, n, x)
        if states:
            hidden_states.append(x)
    return StackOutput(x if norm is None else map_values(norm, x), tuple(hidden_states) if states else None)


def require_decoder(model: str, decoder: _Stack | None) -> _Stack:
    """The decoder of a model. Raises ValueError where it is None: the model has only an encoder."""
    if decoder is None:
        raise ValueError(f"{model}: this model has only an encoder, and cannot decode")
    return decoder
