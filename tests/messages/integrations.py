"""Calls of what runs inside PyTorch, transformers and sentence-transformers that raise."""

import copy
import pickle
import sys
from collections.abc import Callable
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

from uwaga.integrations import pack_linear, patch_torch, register_with_transformers, unpack_linear
from uwaga.integrations.sentence_transformers import unpad
from uwaga.integrations.transformers import attention
from uwaga.integrations.transformers.attention import uwaga_attention
from uwaga.integrations.transformers.mask_plan import lazy_mask

register_with_transformers()
X = torch.zeros(1, 2, 4, 8)
HIDDEN = masking_utils.sliding_window_causal_mask_function(0)
WIDE = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4}


def attend(
    *, query: torch.Tensor = X, key: torch.Tensor = X, mask: Any = None, layer: nn.Module | None = None, **options: Any
) -> object:
    return uwaga_attention(layer or nn.Identity(), query, key, key, mask, **options)


def offsets(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers)


def mask(function: Callable | None = None) -> torch.Tensor:
    return lazy_mask(batch_size=1, q_length=4, kv_length=4, mask_function=function)


def by_itself(family: str) -> nn.Module:
    return transformers.AutoModel.from_config(transformers.AutoConfig.for_model(family, vocab_size=64, **WIDE))


def bert() -> nn.Module:
    model = tiny_models.make("bert", tiny_models.ENCODERS["bert"], transformers.AutoModel)
    model.set_attn_implementation("uwaga")
    return model


def maps(model: nn.Module) -> Any:
    return model(tiny_models.tokens(3, 7), output_attentions=True)


def gradient_too_large(patch: pytest.MonkeyPatch) -> None:
    made = maps(bert())
    made.attentions[0].retain_grad()
    made[0].sum().backward()
    patch.setattr(attention, "MAX_BYTES", 2000)
    made.attentions[0].grad  # noqa: B018


def replaced(name: str) -> None:
    """Unpack a module whose forward or class was replaced."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    pack_linear(model)
    if name == "forward":
        model[1].forward = model[1].forward
    else:
        parametrizations.weight_norm(model[1])
    unpack_linear(model)


def patched(patch: pytest.MonkeyPatch) -> None:
    opened = patch_torch()
    try:
        patch.setattr(nn.functional, "scaled_dot_product_attention", lambda *_: None)
        opened.undo()
    finally:
        patch.undo()
        opened.undo()


def without(patch: pytest.MonkeyPatch, package: str, call: Callable[[], object]) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == package]:
        patch.delitem(sys.modules, name)
    patch.setitem(sys.modules, package, None)
    call()


def encoder(model: Any, change: Callable[[Any], object] = lambda _: None, **options: Any) -> None:
    transformer = Transformer(str(model), **options)
    change(transformer)
    unpad(sentence_transformers.SentenceTransformer(modules=[transformer, Pooling(16)], device="cpu"))


CALLS = {
    **{f"attn_implementation: {name}": lambda name=name: attend(layer=nn.Linear(1, 1), **{name: torch.zeros(1)})
        for name in ("indices", "block_indices", "sinks", "block_table", "cache")},
    "attn_implementation: offsets of two rows": lambda: attend(query=X.expand(2, -1, -1, -1), cu_seq_lens_q=offsets(0, 4)),
    "attn_implementation: a map of packed queries that go on": lambda: attend(
        query=X[:, :, :2], is_causal=True, output_attentions=True, cu_seq_lens_q=offsets(0, 1, 2), cu_seq_lens_k=offsets(0, 3, 4)),
    "attn_implementation: a window of nothing in a mask": lambda: attend(mask=mask(HIDDEN)),
    "attn_implementation: a window of nothing in a packed batch": lambda: attend(sliding_window=0, cu_seq_lens_q=offsets(0, 4)),
    "attn_implementation: a mask of a window of nothing that is read": lambda: mask(HIDDEN)[0],
    "attn_implementation: a mask that is added": lambda: mask() + torch.zeros(1),
    "attn_implementation: a mask that is subtracted": lambda: 1.0 - mask(),
    "attn_implementation: a mask that is multiplied": lambda: mask() * 2,
    "attn_implementation: a model that computes attention by itself": lambda: by_itself("mpnet").set_attn_implementation("uwaga"),
    "attn_implementation: such a part by a dict": lambda: by_itself("mpnet").set_attn_implementation({"": "uwaga"}),
    "attn_implementation: such a model when it is made": lambda: transformers.AutoModel.from_config(
        transformers.AutoConfig.for_model("mpnet", vocab_size=64, **WIDE), attn_implementation="uwaga"),
    "register_with_transformers: without transformers": lambda patch: without(patch, "transformers", register_with_transformers),
    "LayerMap.retain_grad: a part": lambda: maps(bert()).attentions[0].select(0).retain_grad(),
    "LayerMap.retain_grad: a pickle": lambda: pickle.loads(pickle.dumps(maps(bert()).attentions[0])).retain_grad(),
    "LayerMap.grad: too large": gradient_too_large,
    "pack_linear: no linear map": lambda: pack_linear(nn.LayerNorm(4)),
    "unpack_linear: a forward that was replaced": lambda: replaced("forward"),
    "unpack_linear: a class that was replaced": lambda: replaced("class"),
    "patch_torch: replaced by other code": patched,
    "unpad: no Transformer": lambda: unpad(nn.Sequential(nn.Linear(2, 2))),
    "unpad: without sentence-transformers": lambda patch: without(patch, "sentence_transformers", lambda: unpad(None)),
    "unpad: another backend": lambda model: encoder(model, lambda transformer: setattr(transformer, "backend", "onnx")),
    "unpad: a family that computes attention by itself": lambda model: encoder(
        model, lambda transformer: setattr(transformer, "model", copy.deepcopy(by_itself("mpnet")))),
    "unpad: padding that is read": lambda model: encoder(model, query_expansion={"strategy": "fixed", "attend": False, "length": 8}),
}  # fmt: skip
