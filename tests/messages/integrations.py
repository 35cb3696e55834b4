"""Calls of what runs inside PyTorch, transformers and sentence-transformers that raise."""

import copy
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import sentence_transformers
import tiny_models
import torch
import transformers
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.modules import Pooling
from torch import nn
from torch.nn.utils import parametrizations
from transformers import masking_utils

from uwaga.integrations import pack_linear, register_with_transformers, unpack_linear
from uwaga.integrations.sentence_transformers import unpad
from uwaga.integrations.transformers.attention import uwaga_attention
from uwaga.integrations.transformers.mask_plan import lazy_mask
from uwaga.integrations.transformers.register import find_documents

register_with_transformers()
X = torch.zeros(1, 2, 4, 8)
HIDDEN = masking_utils.sliding_window_causal_mask_function(0)
WIDE = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4}


def attend(
    *, query: torch.Tensor = X, key: torch.Tensor = X, mask: Any = None, layer: nn.Module | None = None, **options: Any
) -> object:
    return uwaga_attention(layer or nn.Identity(), query, key, key, mask, **options)


def mask(function: Callable | None = None) -> torch.Tensor:
    return lazy_mask(batch_size=1, q_length=4, kv_length=4, mask_function=function)


def by_itself(family: str) -> nn.Module:
    return transformers.AutoModel.from_config(transformers.AutoConfig.for_model(family, vocab_size=64, **WIDE))


def replaced(name: str) -> None:
    """Unpack a module whose forward or class was replaced."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    pack_linear(model)
    if name == "forward":
        model[1].forward = model[1].forward
    else:
        parametrizations.weight_norm(model[1])
    unpack_linear(model)


def without(patch: pytest.MonkeyPatch, package: str, call: Callable[[], object]) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == package]:
        patch.delitem(sys.modules, name)
    patch.setitem(sys.modules, package, None)
    call()


def encoder(model: Any, change: Callable[[Any], object] = lambda _: None, **options: Any) -> None:
    transformer = Transformer(str(model), **options)
    change(transformer)
    unpad(sentence_transformers.SentenceTransformer(modules=[transformer, Pooling(16)], device="cpu"))
