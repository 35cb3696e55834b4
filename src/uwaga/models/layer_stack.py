"""Running a stack of layers: the last hidden states and, where requested, those after every layer."""

from collections.abc import Callable
from typing import NamedTuple, TypeVar

from torch import nn

from uwaga.nn.operand import map_values, one_of_each, tokens_of_rows
from uwaga.ops.ragged import Operand, Ragged

# (layer, its index, its input) -> its output; with only="first" or "last" that of the last layer, see EncoderLayer
LayerCall = Callable[..., Operand]

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
    only: str | None = None,
) -> StackOutput:
    """Run every layer by `call(layer, n, x)`, then the final norm where there is one; states: keep every layer's output.

    only: "first" or "last", of Ragged x: the last states are those of this token of each row alone; the last layer is called with it.
    """
    hidden_states = [x]
    for n, layer in enumerate(layers):
        x = call(layer, n, x, only=only) if only and n == len(layers) - 1 else call(layer, n, x)
        if states:
            hidden_states.append(x)
    if only and not len(layers):
        assert isinstance(x, Ragged)
        x = one_of_each(x, tokens_of_rows("run_layers", x, only))
    return StackOutput(x if norm is None else map_values(norm, x), tuple(hidden_states) if states else None)


def check_only(model: str, only: str | None, ids: Operand, states: bool) -> None:
    """ValueError unless `only` is None, or "first" or "last" of Ragged ids without empty rows, without the states of all layers."""
    if only is None:
        return
    tokens_of_rows(model, ids, only)
    if states:
        raise ValueError(f"{model}: only={only!r} leaves out states that output_hidden_states asks for")


def require_decoder(model: str, decoder: _Stack | None) -> _Stack:
    """The decoder of a model. Raises ValueError where it is None: the model has only an encoder."""
    if decoder is None:
        raise ValueError(f"{model}: this model has only an encoder, and cannot decode")
    return decoder
