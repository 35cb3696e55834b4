"""Small models of this package with random weights."""

from typing import Any

import torch

from uwaga.models import Transformer, config

_SIZES = {"vocab_size": 40, "d_model": 16, "num_layers": 2, "num_heads": 4, "d_ff": 32}


def tiny(model_type: str, *, seed: int | None = None, **settings: Any) -> Transformer:
    """A model of a type in evaluation mode; seed: of its weights, None: the state of PyTorch's generator."""
    if seed is not None:
        torch.manual_seed(seed)
    return Transformer(config(model_type, **_SIZES | settings)).eval()
