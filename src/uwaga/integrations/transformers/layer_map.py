"""The AttentionMap of a layer's attention, with the gradients that the weights of eager attention have.

Letters: B batch, H query heads, G key/value heads, Q queries, K keys, D query/key width.
"""

import math
import weakref
from functools import partial

import torch
from torch import Tensor
from torch.autograd.graph import Node

from uwaga.maps.base import MAX_BYTES, format_bytes
from uwaga.maps.map import AttentionMap, map_options
from uwaga.ops.attention.hooks import Asked


class LayerMap(AttentionMap):
    """The map of a layer whose output has a gradient: with `retain_grad` and `grad`, as the weights of eager attention.

    The gradient is that through the layer's output; losses computed from the map itself (`lse`, `entropy`, `received`) do
    not contribute.
    """

    _node: Node | None = None  # what made the layer's output, (B, Q, H, E); a part of a map has none
    _place: int = 0  # among the results of the node
    _value: Tensor | None = None  # (B, G, K, E)
    _retains: bool = False
    _gradient: Tensor | None = None  # of the layer's output, of all backward passes so far

    def retain_grad(self) -> None:
        """Keep the gradient of the weights in a backward pass; a second call has no effect.

        Raises:
            RuntimeError: this is a part of a map, or was pickled.
        """
        if self._node is None:
            raise RuntimeError(f"{self.kind}.retain_grad: only the map that the model returned can retain its gradient")
        if not self._retains:
            self._retains = True
            # A weak reference: the node would keep the map, and the map keeps the node.
            self._node.register_prehook(partial(_keep_gradient, weakref.ref(self)))

    @property
    def requires_grad(self) -> bool:
        """Whether a backward pass through the layer's output reaches the weights."""
        return self._node is not None

    @property
    def grad(self) -> Tensor | None:
        """(B, H, Q, K): the gradient of the weights, computed when read; None before a backward pass.

        At a hidden key it is the derivative with respect to a weight there, as in eager attention.

        Raises:
            ValueError: it takes more memory than `to_dense` allows.
        """
        if self._gradient is None:
            return None
        assert self._value is not None
        if (size := math.prod(self.shape) * self._gradient.itemsize) > MAX_BYTES:
            raise ValueError(
                f"{self.kind}.grad: the dense matrix {self.shape} takes {size} bytes ({format_bytes(size)}), more than {MAX_BYTES}"
            )
        gradient_BHQE = self._gradient.transpose(1, 2)
        value_BGKE = self._value.to(gradient_BHQE.dtype)
        gradient_BGXQE = gradient_BHQE.unflatten(1, (value_BGKE.shape[1], -1))  # X query heads for each of G
        return (gradient_BGXQE @ value_BGKE[:, :, None].mT).flatten(1, 2)

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in vars(self).items() if name not in vars(LayerMap)}


def _keep_gradient(of: "weakref.ref[LayerMap]", gradients: tuple[Tensor | None, ...]) -> None:
    map_of_call = of()
    if map_of_call is None or (more := gradients[map_of_call._place]) is None:
        return
    more = more.detach()
    map_of_call._gradient = more.clone() if map_of_call._gradient is None else map_of_call._gradient + more


def map_of_call(asked: Asked, output: Tensor | None) -> AttentionMap:
    """The map of a call, from its whole batch and its output, (B, Q, H, E); None where a hook has changed the output, whose gradient is
    not that of the weights."""
    assert isinstance(asked.value, Tensor)
    options = map_options(asked.options)
    if output is None or not torch.is_grad_enabled() or output.grad_fn is None:
        return AttentionMap(asked.query, asked.key, **options)
    made = LayerMap(asked.query, asked.key, **options)
    made._node, made._place, made._value = output.grad_fn, output.output_nr, asked.value.detach()
    return made
