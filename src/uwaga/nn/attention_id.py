"""The name of an attention layer in a model."""

from collections.abc import Collection
from typing import NamedTuple

KINDS = ("encoder", "decoder", "cross")  # of attentions; "decoder" is self-attention that continues a text


class AttentionId(NamedTuple):
    """The kind and layer of an attention, such as ("encoder", 3)."""

    kind: str
    layer: int

    def __str__(self) -> str:
        return f"{self.kind} {self.layer}"

    @property
    def stacks(self) -> tuple[str, str]:
        """Return the stacks, "encoder" or "decoder", whose tokens are the queries and the keys."""
        return ("decoder", "encoder") if self.kind == "cross" else (self.kind, self.kind)


def describe_layers(names: Collection[tuple[str, int]]) -> str:
    """Return the layers by kind, such as "encoder 0, 1, 2; cross 1"."""
    layers: dict[str, list[int]] = {}
    for kind, layer in sorted(names, key=lambda name: (KINDS.index(name[0]), name[1])):
        layers.setdefault(kind, []).append(layer)
    return "; ".join(f"{kind} {', '.join(map(str, numbers))}" for kind, numbers in layers.items()) or "none"
