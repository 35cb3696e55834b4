"""The layers that turn ids of tokens into vectors: they see the ids of every pass."""

import sys

from torch import Tensor, nn


def embeddings(model: nn.Module) -> list[nn.Module]:
    """Those of this package's models, which are called words, and those that models of transformers name."""
    weights: set[int] = set()
    for path, module in model.named_modules():
        if isinstance(module, nn.Embedding) and path.split(".")[-1].endswith("words"):
            weights.add(id(module.weight))
    there = sys.modules.get("transformers")
    for module in model.modules() if there is not None else ():
        if isinstance(module, there.PreTrainedModel) and (weight := _input_weight(module)) is not None:
            weights.add(id(weight))
    return [module for module in model.modules() if id(getattr(module, "weight", None)) in weights and _embeds(module)]


def _input_weight(model: nn.Module) -> Tensor | None:
    try:
        found = model.get_input_embeddings()
    except NotImplementedError:  # a model of something else than tokens
        return None
    weight = getattr(found, "weight", None)
    return weight if isinstance(found, nn.Embedding) and isinstance(weight, Tensor) else None


def _embeds(module: nn.Module) -> bool:
    return isinstance(module, nn.Embedding)
