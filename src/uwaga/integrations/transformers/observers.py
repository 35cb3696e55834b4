"""Observers of the attention calls of transformers' models, and the AttentionMap of each call.

Letters: B batch, H query heads, G key/value heads, Q queries, K keys, D query/key width.
"""

import math
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node

from uwaga.integrations.transformers.layer_call import LayerArguments, plain_tensors, whole_mask
from uwaga.integrations.transformers.packed_states import plain
from uwaga.maps.base import MAX_BYTES, format_bytes
from uwaga.maps.map import AttentionMap, MapOptions

Observer = Callable[[nn.Module, Tensor, Tensor, Tensor, MapOptions], None]

# .observers: of this thread, the outermost first; each in a list of its own, since one may be there twice.
_HERE = threading.local()


@contextmanager
def observing(observer: Observer) -> Iterator[None]:
    """Within it, `observer` is called for every attention that this thread computes with attn_implementation="uwaga".

    It is called as observer(module, query, key, value, options) before the layer's output exists, where `module` is the
    attention layer, query (B, H, Q, D), key (B, G, K, D) and value (B, G, K, E) are plain tensors of the whole batch, padding included, and
    AttentionMap(query, key, **options) is the map (B, H, Q, K) of the weights. A packed batch is one sequence, B = 1,
    whose mask keeps its documents apart. No matrix Q x K is made. The tensors are those of the model, neither
    detached nor copied (a static cache overwrites its keys later). Observers may be nested: all are called. Under
    torch.compile none is.
    """
    added = [observer]
    _HERE.observers = (*getattr(_HERE, "observers", ()), added)
    try:
        yield
    finally:  # others of this thread may have begun, and not ended, since
        _HERE.observers = tuple(each for each in _HERE.observers if each is not added)


def observers() -> tuple[Observer, ...]:
    """The observers of this thread."""
    return tuple(each for (each,) in getattr(_HERE, "observers", ()))


class ObservedCall(NamedTuple):
    """The arguments of the map of one call: AttentionMap(query, key, **options)."""

    query: Tensor
    key: Tensor
    options: MapOptions


def notify_observers(
    layer: LayerArguments,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    scale: float | None,
    softcap: float | None,
    sinks: Tensor | None,
    is_wanted: bool,
) -> ObservedCall | None:
    """Call all observers; None where there are none and no map is wanted."""
    if not (is_wanted or observers()):
        return None
    query, key, value = plain_tensors(query, key, value)
    mask, bias = whole_mask(layer, query, key)
    options = MapOptions(mask=mask, bias=bias, scale=scale, softcap=softcap, sinks=sinks)
    return notify(layer.module, query, key, value, options, is_wanted=is_wanted)


def notify(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, options: MapOptions, *, is_wanted: bool
) -> ObservedCall | None:
    """The same for plain tensors of the whole batch, whose options are known."""
    if not (is_wanted or observers()):
        return None
    for observer in observers():
        observer(module, query, key, value, options)
    return ObservedCall(query, key, options)


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


def map_of_call(seen: ObservedCall, output: Tensor, value: Tensor) -> AttentionMap:
    """The map of a call, from its output, (B, Q, H, E), and its values, (B, G, K, E)."""
    query, key, options = seen
    if not torch.is_grad_enabled() or output.grad_fn is None:
        return AttentionMap(query, key, **options)
    made = LayerMap(query, key, **options)
    made._node, made._place = output.grad_fn, output.output_nr
    made._value = plain(value).detach().expand(query.shape[0], -1, -1, -1)
    return made
