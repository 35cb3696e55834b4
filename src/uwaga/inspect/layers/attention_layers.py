"""The attention layers of a model by kind and number, and its token embeddings."""

import sys
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor, nn

from uwaga.inspect.recordings.recording import describe_layers
from uwaga.inspect.recordings.stack import AttentionId
from uwaga.models.embeddings import Embeddings


class AttentionLayer(NamedTuple):
    """An attention layer of a model."""

    path: str
    module: nn.Module
    id: AttentionId


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionLayers:
    """All attention layers of a model."""

    ids: dict[nn.Module, AttentionId]

    @staticmethod
    def of(layers: Iterable[AttentionLayer], operation: str = "watch") -> "AttentionLayers":
        """operation: "watch" or "edit", for messages. Raises ValueError: two layers have the same kind and number."""
        first: dict[AttentionId, str] = {}
        for path, _, where in layers:
            if where in first:
                raise ValueError(
                    f"{operation}: two attentions of this model are {where}, {first[where]} and {path}; {operation} a part of it that "
                    "has one of them"
                )
            first[where] = path
        return AttentionLayers(ids={module: where for _, module, where in layers})

    def select(self, model: str, layers: Collection[int] | None, kinds: Collection[str] | None) -> set[AttentionId]:
        """The layers of these numbers and kinds; None for all.

        Raises:
            ValueError: the model has no attention layers, or none of a given number or kind.
        """
        available = set(self.ids.values())
        if not available:
            raise ValueError(
                f"watch: {model} has no attention that can be watched: neither uwaga.nn.MultiHeadAttention nor a model of "
                "transformers that offers attn_implementation"
            )
        for name, wanted, existing in (
            ("kind", kinds, {where.kind for where in available}),
            ("layer", layers, {where.layer for where in available if kinds is None or where.kind in kinds}),
        ):
            missing = [] if wanted is None else [each for each in wanted if each not in existing]
            if missing:
                raise ValueError(f"watch: {model} has no {name} {missing[0]!r}; there are {describe_layers(available)}")
        return {
            where
            for where in available
            if (kinds is None or where.kind in kinds) and (layers is None or where.layer in layers)
        }


def token_embeddings(model: nn.Module) -> list[nn.Module]:
    """The modules that are called with token ids as their first argument: `Embeddings` of this package, and get_input_embeddings() of
    transformers.

    With a hook on the token embedding inside, `Embeddings` would not compute it in one operation with positions and norm, and a watched
    model would have other bits.
    """
    weights: set[int] = set()
    whole = [module for module in model.modules() if isinstance(module, Embeddings)]
    library = sys.modules.get("transformers")
    if library is not None:
        huggingface_models = [module for module in model.modules() if isinstance(module, library.PreTrainedModel)]
        weights |= {id(weight) for module in huggingface_models if (weight := _input_weight(module)) is not None}
    modules = [module for module in model.modules() if isinstance(module, nn.Embedding)]
    return [*whole, *(module for module in modules if id(module.weight) in weights)]


def _input_weight(model: Any) -> Tensor | None:
    """The weight of the token embedding, which encoder and decoder may share."""
    try:
        result = model.get_input_embeddings()
    except NotImplementedError:  # a model of images or audio
        return None
    return result.weight if isinstance(result, nn.Embedding) else None
