"""Small models of this package with random weights."""

from functools import partial
from typing import Any, cast

import torch
from torch import nn

from uwaga import Ragged
from uwaga.models import Transformer, config

_SIZES = {"vocab_size": 40, "d_model": 16, "num_layers": 2, "num_heads": 4, "d_ff": 32}


def tiny(model_type: str, *, seed: int | None = None, **settings: Any) -> Transformer:
    """A model of a type in evaluation mode; seed: of its weights, None: the state of PyTorch's generator."""
    if seed is not None:
        torch.manual_seed(seed)
    return Transformer(config(model_type, **_SIZES | settings)).eval()


def drawn(module: nn.Module) -> nn.Module:
    """All weights at random, in evaluation mode: as they start, biases are 0 and norms 1, which would hide that two are swapped."""
    generator = torch.Generator().manual_seed(1)
    stored = (x for name, x in module.named_buffers() if name in module.state_dict())
    with torch.no_grad():
        for x in (*module.parameters(), *stored):
            x.copy_(torch.randn(x.shape, generator=generator) * 0.3)
    return module.eval()


NARROW = {"vocab_size": 20, "d_model": 8, "num_heads": 2, "d_ff": 16}
SHORT = NARROW | {"num_layers": 2, "max_position_embeddings": 10}
_GROUPED = {"num_kv_heads": 1, "d_k": 4, "eos_token_ids": ()}
PAPER = NARROW | {"vocab_size": 30, "d_model": 16, "num_layers": 2, "num_decoder_layers": 2, "eos_token_ids": ()}
# Models of two layers with the weights of one seed, as they start; further settings by name.
bert = partial(tiny, "bert", seed=0, **SHORT | {"pad_token_id": None})
gpt2 = partial(tiny, "gpt2", seed=0, **SHORT | {"eos_token_ids": ()})
llama = partial(tiny, "llama", seed=0, **SHORT | _GROUPED)
eurobert = partial(tiny, "eurobert", seed=0, **SHORT | _GROUPED | {"pad_token_id": 0})
t5 = partial(tiny, "t5", seed=0, **NARROW | {"num_layers": 2, "d_k": 4, "eos_token_ids": ()})
paper = partial(tiny, "uwaga-transformer", seed=0, **PAPER)
writer = partial(gpt2, vocab_size=12, num_layers=1)
# Ids for them, padded and not.
IDS = torch.arange(3, 15).unflatten(0, (2, 6))
PACKED = Ragged(torch.arange(3, 10), torch.tensor([0, 4, 7]))
_PAIR = NARROW | {"num_layers": 2, "num_decoder_layers": 2, "eos_token_ids": (3,)}


WRITERS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("gpt2", NARROW | {"num_layers": 3, "max_position_embeddings": 40, "eos_token_ids": (3,)}),
    "gpt2 banded": (
        "gpt2",
        NARROW | {"num_layers": 3, "max_position_embeddings": 40, "eos_token_ids": (3,), "band": 3},
    ),
    "t5": ("t5", _PAIR | {"d_k": 4}),
    "transformer": ("uwaga-transformer", _PAIR),
    "transformer of one layer": ("uwaga-transformer", _PAIR | {"num_decoder_layers": 1}),
    "decoder alone": ("uwaga-transformer", _PAIR | {"num_layers": 0}),
    "pre-norm": ("uwaga-transformer", _PAIR | {"norm": "pre", "lm_head_bias": True}),
}
_ROTARY = NARROW | {"num_layers": 3, "num_kv_heads": 2, "d_k": 4, "eos_token_ids": (3,)}
WRITERS["mistral"] = "mistral", _ROTARY | {"windows": (3, 3, 3)}
WRITERS["gemma2"] = "gemma2", _ROTARY | {"softcap": 2.0, "logit_softcap": 3.0, "windows": (4, None, 4), "scale": 1 / 3}
NAMED = WRITERS | {
    "bert": ("bert", NARROW | {"num_layers": 3, "max_position_embeddings": 40}),
    "llama": ("llama", _ROTARY | {"num_layers": 2, "num_heads": 4}),
}


def made(name: str) -> Transformer:
    """A model of NAMED."""
    model_type, settings = NAMED[name]
    return cast(Transformer, drawn(tiny(model_type, **settings)))


def ragged(texts: list[list[int]]) -> Ragged:
    return Ragged.from_list([torch.tensor(text) for text in texts])
