"""The layers that turn ids of tokens into vectors: they see the ids of every pass."""

import sys
from typing import Any

from torch import Tensor, nn


def embeddings(model: nn.Module) -> list[nn.Embedding]:
    """Those of this package's models, which are called token_embedding, and those that models of transformers name."""
    weights: set[int] = set()
    for path, module in model.named_modules():
        if isinstance(module, nn.Embedding) and path.split(".")[-1].endswith("token_embedding"):
            weights.add(id(module.weight))
    there = sys.modules.get("transformers")
    if there is not None:
        foreign = [module for module in model.modules() if isinstance(module, there.PreTrainedModel)]
        weights |= {id(weight) for module in foreign if (weight := _input_weight(module)) is not None}
    found = [module for module in model.modules() if isinstance(module, nn.Embedding)]
    return [module for module in found if id(module.weight) in weights]


def _input_weight(model: Any) -> Tensor | None:
    """The table of ids, which encoders and decoders may share."""
    try:
        found = model.get_input_embeddings()
    except NotImplementedError:  # a model of something else than tokens
        return None
    return found.weight if isinstance(found, nn.Embedding) else None
