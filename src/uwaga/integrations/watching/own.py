"""The attentions of this package: layers that can be told to call a watcher."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import nn

from uwaga.integrations.watching.attentions import Attention
from uwaga.maps.recordings.stack import AttentionId
from uwaga.nn import MultiHeadAttention
from uwaga.nn.attention import Watcher
from uwaga.nn.layers import DecoderLayer
from uwaga.ops.ragged import Operand

Tell = Callable[[nn.Module, Operand, Operand, dict[str, Any]], None]


def find(model: nn.Module) -> list[Attention]:
    """All MultiHeadAttention in it. Layers are numbered within their stack, by kind."""
    crossing = {id(layer.cross_attention) for layer in model.modules() if isinstance(layer, DecoderLayer)}
    deciding = {id(layer.attention) for layer in model.modules() if isinstance(layer, DecoderLayer)}
    continuing = {
        id(layer)
        for module in model.modules()
        # A model that writes behind its prompt is a decoder, whatever its layers are called.
        if getattr(module, "prompt_counts", False) is True
        for layer in module.modules()
    }
    counts = dict.fromkeys(("encoder", "decoder", "cross"), 0)
    found = []
    for path, module in model.named_modules():
        if not isinstance(module, MultiHeadAttention):
            continue
        if id(module) in crossing:
            kind = "cross"
        elif id(module) in deciding | continuing or "decoder" in path.split("."):
            kind = "decoder"
        else:
            kind = "encoder"
        found.append(Attention(path, module, AttentionId(kind, counts[kind])))
        counts[kind] += 1
    return found


@contextmanager
def watching(modules: Iterable[nn.Module], tell: Tell) -> Iterator[None]:
    """Within it, these of the modules that are of this package tell of their calls, and so to whom they told before."""
    own = [module for module in modules if isinstance(module, MultiHeadAttention)]
    before = [module.watcher for module in own]
    for module, other in zip(own, before, strict=True):
        module.watcher = partial(_call, module, tell, other)
    try:
        yield
    finally:
        for module, other in zip(own, before, strict=True):
            module.watcher = other


def _call(
    module: nn.Module,
    tell: Tell,
    other: Watcher | None,
    query: Operand,
    key: Operand,
    value: Operand,
    options: dict[str, Any],
) -> None:
    if other is not None:
        other(query, key, value, options)
    tell(module, query, key, options)
