"""Who looks on while transformers' models attend: what makes an AttentionMap of each layer's call.

Letters: B batch, H query heads, G key/value heads, Q queries, K keys, D query/key width.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypedDict

from torch import Tensor, nn

from uwaga.integrations.transformers.layer import Layer, whole_mask
from uwaga.integrations.transformers.operands import whole
from uwaga.maps.map import AttentionMap
from uwaga.ops.masks import Mask


class MapOptions(TypedDict):
    """Options of AttentionMap and of uwaga.attention alike."""

    mask: Mask | None
    bias: Tensor | None
    scale: float | None
    softcap: float | None
    sinks: Tensor | None


Observer = Callable[[nn.Module, Tensor, Tensor, MapOptions], None]

_HERE = threading.local()  # .observers: of this thread, the outermost first


@contextmanager
def observing(observer: Observer) -> Iterator[None]:
    """Within it, every attention that this thread computes with attn_implementation="uwaga" is told to `observer`.

    It is called as observer(module, query, key, options) before the layer's output exists, where `module` is the
    attention layer, query (B, H, Q, D) and key (B, G, K, D) are plain tensors of the whole batch, padding included, and
    AttentionMap(query, key, **options) is the map (B, H, Q, K) of the weights. A packed batch is one sequence, B = 1,
    whose mask keeps its documents apart. Nothing of size Q x K is made for it; the tensors are those of the model, cut
    from no graph and copied by nobody (a static cache goes on writing into its keys). Observers may be nested: all are
    told. Under torch.compile nobody is.
    """
    before = observers()
    _HERE.observers = (*before, observer)
    try:
        yield
    finally:
        _HERE.observers = before


def observers() -> tuple[Observer, ...]:
    """Those of this thread."""
    return getattr(_HERE, "observers", ())


def observe(
    layer: Layer,
    query: Tensor,
    key: Tensor,
    *,
    scale: float | None,
    softcap: float | None,
    sinks: Tensor | None,
    wants_map: bool,
) -> AttentionMap | None:
    """Tell all observers of this call; the map itself where it is wanted."""
    if not (wants_map or observers()):
        return None
    query, key = whole(query, key)
    mask, bias = whole_mask(layer, query, key)
    options = MapOptions(mask=mask, bias=bias, scale=scale, softcap=softcap, sinks=sinks)
    for observer in observers():
        observer(layer.module, query, key, options)
    return AttentionMap(query, key, **options) if wants_map else None
