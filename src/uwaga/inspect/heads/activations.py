"""Keep the operands and outputs of a model's heads, and gradients of a result.

Letters: B batch, H query heads, G key/value heads, Q queries, K keys, D query/key width, E value width, N packed tokens.
"""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

from torch import Tensor, nn

from uwaga._base.arguments import check
from uwaga.inspect.editing import hooking
from uwaga.inspect.heads.gradients import GradientMap, cross_gradient_rollout, gradient_rollout
from uwaga.inspect.heads.rollout import PerToken
from uwaga.maps.map import AttentionMap, map_options
from uwaga.models.attention_layers import attention_layers, name_of, select
from uwaga.nn.attention_id import describe_layers
from uwaga.nn.operand import detached, map_values, values_of
from uwaga.ops.attention.hooks import Asked, Proceed
from uwaga.ops.ragged import Operand


@dataclass(frozen=True, slots=True, eq=False)
class HeadActivations:
    """Hold the operands and the output of one layer's attention in one pass: the model's own tensors, not copies."""

    query: Operand  # (..., H, Q, D), or Ragged (N, H, D)
    key: Operand  # (..., G, K, D)
    value: Operand  # (..., G, K, E)
    output: Operand  # (..., H, Q, E): the heads before W_O; with `gradients=True` it has a `grad` after a backward pass
    options: Mapping[str, Any]  # mask, bias, scale, softcap and sinks

    def map(self) -> AttentionMap:
        """Return the weights of the layer."""
        options = map_options(self.options).items()
        plain: dict[str, Any] = {name: x.detach() if isinstance(x, Tensor) else x for name, x in options}
        return AttentionMap(detached(self.query), detached(self.key), **plain)

    def gradient_map(self, *, positive: bool = True) -> GradientMap:
        """Return the weights times their gradients. Raises ValueError: no backward pass went through the layer."""
        gradient = values_of(self.output).grad
        if gradient is None:
            raise ValueError(
                "Activations: the heads have no gradient; use activations(model, gradients=True), and call backward() inside the block"
            )
        of_output = map_values(lambda _: gradient, self.output)
        return GradientMap(self.map(), self.value, of_output, positive=positive)


class Activations(dict[tuple[str, int], HeadActivations]):
    """Map (kind, layer) to the activations of the last pass through the layer."""

    def __missing__(self, name: tuple[str, int]) -> NoReturn:
        raise KeyError(f"Activations: there is no layer {name!r}; there are {describe_layers(self)}")

    def __repr__(self) -> str:
        return f"Activations({describe_layers(self)})"

    def gradient_maps(self, kind: str, *, positive: bool = True) -> dict[int, GradientMap]:
        """Return the gradient maps of all layers of a kind. Raises ValueError: no such layers, or no backward pass."""
        by_layer = {layer: self[name, layer].gradient_map(positive=positive) for name, layer in self if name == kind}
        check(by_layer, f"Activations: there is no layer of kind {kind!r}; there are {describe_layers(self)}")
        return by_layer

    def gradient_rollout(self, kind: str, token: int | Tensor = -1) -> PerToken:
        """Compute `uwaga.inspect.gradient_rollout` of an encoder's or decoder's self-attention."""
        return gradient_rollout(self.gradient_maps(kind), token)

    def cross_gradient_rollout(self, token: int | Tensor = -1) -> PerToken:
        """Compute `uwaga.inspect.cross_gradient_rollout` over the tokens of an encoder-decoder's encoder."""
        encoder, decoder, cross = (self.gradient_maps(kind) for kind in ("encoder", "decoder", "cross"))
        return cross_gradient_rollout(encoder, decoder, cross, token)


@contextmanager
def activations(
    model: nn.Module,
    *,
    layers: Collection[int] | None = None,
    kinds: Collection[str] | None = None,
    gradients: bool = False,
) -> Iterator[Activations]:
    """Keep queries, keys, values and outputs of all heads in a `with` block, and gradients of outputs.

        with activations(model, gradients=True) as found:
            (model(ids).logits[0, -1, answer]).backward()
        found.gradient_rollout("decoder")                  # Chefer et al. 2021

    Nothing is copied, and nothing of size Q x K is made. As in `uwaga.watch`, a model of transformers computes with
    attn_implementation="uwaga" in the block. With `uwaga.edit` around the block, the edited activations are kept.

    Args:
        model, layers, kinds: as in `uwaga.watch`.
        gradients: keep the gradient of each layer's heads in a backward pass inside the block.

    Raises:
        ValueError: as `uwaga.watch`.
    """
    found = attention_layers(model)
    chosen = select(found.values(), name_of(model), layers, kinds)
    kept = Activations()

    def keep(asked: Asked, module: Any, proceed: Proceed) -> Operand:
        asked = asked.whole()
        output = proceed(asked)
        if gradients and values_of(output).requires_grad:
            values_of(output).retain_grad()
        kept[found[module]] = HeadActivations(asked.query, asked.key, asked.value, output, asked.options)
        return output

    with hooking(model, {module: keep for module, where in found.items() if where in chosen}):
        yield kept
    check(kept, f"activations: nothing was kept: {name_of(model)} computed no attention in this thread")
