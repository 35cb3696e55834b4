"""The attentions of a model by kind and layer."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from torch import nn

from uwaga.maps.recordings.recording import describe_layers
from uwaga.maps.recordings.stack import AttentionId

KINDS = ("encoder", "decoder", "cross")


class Attention(NamedTuple):
    """One attention of a model."""

    path: str
    module: nn.Module
    where: AttentionId


@dataclass(frozen=True, slots=True, kw_only=True)
class Attentions:
    """All of them."""

    where: dict[nn.Module, AttentionId]

    @staticmethod
    def of(found: Iterable[Attention]) -> "Attentions":
        """Raises ValueError where two have one name."""
        first: dict[AttentionId, str] = {}
        for path, _, where in found:
            if where in first:
                raise ValueError(
                    f"watch: two attentions of this model are {where}, {first[where]} and {path}; watch a part of it that "
                    "has one of them"
                )
            first[where] = path
        return Attentions(where={module: where for _, module, where in found})

    def chosen(self, model: str, layers: Collection[int] | None, kinds: Collection[str] | None) -> set[AttentionId]:
        """Those of the layers and kinds; None for all.

        Raises:
            ValueError: there is nothing to choose from, or a layer or kind that there is not.
        """
        all_there = set(self.where.values())
        if not all_there:
            raise ValueError(
                f"watch: {model} has no attention that can be watched: neither uwaga.nn.MultiHeadAttention nor a model of "
                "transformers that offers attn_implementation"
            )
        for name, asked, there in (
            ("kind", kinds, {where.kind for where in all_there}),
            ("layer", layers, {where.layer for where in all_there if kinds is None or where.kind in kinds}),
        ):
            absent = [] if asked is None else [each for each in asked if each not in there]
            if absent:
                raise ValueError(f"watch: {model} has no {name} {absent[0]!r}; there are {describe_layers(all_there)}")
        return {
            where
            for where in all_there
            if (kinds is None or where.kind in kinds) and (layers is None or where.layer in layers)
        }
