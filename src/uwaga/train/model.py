"""A model with random initial weights, as its family's paper or code initializes them.

Letters: M model width, F hidden width, H heads, D head width.
"""

import os
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import init

from uwaga.models.bert.config import BertConfig
from uwaga.models.bert.model import BertModel
from uwaga.models.gpt2.config import GPT2Config
from uwaga.models.gpt2.model import GPT2Model
from uwaga.models.t5.config import T5Config
from uwaga.models.t5.model import T5Model
from uwaga.models.transformer.config import TransformerConfig
from uwaga.models.transformer.model import Transformer
from uwaga.train import seeds
from uwaga.train.errors import ConfigError

Settings = BertConfig | GPT2Config | T5Config | TransformerConfig
# Draws the numbers of one matrix, by its name.
_Draw = Callable[[str, Tensor, torch.Generator], object]


def new_model(settings: Settings, seed: int) -> nn.Module:
    """A model with initial float32 weights on the CPU, in training mode; the same seed gives the same bits.

    Norm weights are ones, biases zeros, and matrices are drawn as below. The state of PyTorch's generator is restored.

    Raises:
        ConfigError: the weights would not fit into the memory of this machine.
    """
    _check_memory(settings)
    with seeds.fork_rng(torch.device("cpu")):  # layers draw weights of their own, which are drawn again
        model = empty_model(settings)
    generator, draw = torch.Generator().manual_seed(seed), _drawing(settings)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() > 1:
                draw(name, weight, generator)
            else:
                weight.fill_(1.0 if name.endswith(".weight") else 0.0)
    return model.train()


def _check_memory(settings: Settings) -> None:
    """Raises ConfigError, before anything is allocated: the weights alone are larger than this machine's memory."""
    with torch.device("meta"):
        weights = sum(weight.numel() for weight in empty_model(settings).parameters())
    needed, there = 4 * weights, _memory_bytes()
    if needed > there:
        raise ConfigError(
            f"model: {weights:,} weights take {needed / 1e9:,.1f} GB in float32, and this machine has {there / 1e9:,.1f} GB"
        )


def _memory_bytes() -> int:
    """This machine's memory."""
    if sys.platform != "win32":
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    import ctypes

    # MEMORYSTATUSEX: its own size and the load in percent, 4 bytes each, the memory in bytes, and six more sizes.
    status = (ctypes.c_uint64 * 8)(64)
    if not ctypes.windll.kernel32.GlobalMemoryStatusEx(status):
        raise ctypes.WinError()
    return status[1]


def empty_model(settings: Settings) -> nn.Module:
    """The module of a model config, with the weights that its layers create."""
    match settings:
        case BertConfig():
            return BertModel(settings)
        case GPT2Config():
            return GPT2Model(settings)
        case T5Config():
            return T5Model(settings)
    return Transformer(settings)


def _drawing(settings: Settings) -> _Draw:
    match settings:
        case BertConfig():
            return _bert
        case GPT2Config():
            return _gpt2(settings)
        case T5Config():
            return _t5(settings)
    return _transformer(settings)


def _bert(name: str, weight: Tensor, generator: torch.Generator) -> None:
    """Devlin et al.'s code: a normal distribution of deviation 0.02, truncated at two deviations."""
    init.trunc_normal_(weight, std=0.02, a=-0.04, b=0.04, generator=generator)


def _gpt2(settings: GPT2Config) -> _Draw:
    """Radford et al. 2019, section 2.3: what is added to the residual stream is divided by the root of how often."""
    added = ("attention.output.weight", "feed_forward.down.weight")
    residual = 0.02 * (2 * settings.num_layers) ** -0.5

    def draw(name: str, weight: Tensor, generator: torch.Generator) -> None:
        init.normal_(weight, std=residual if name.endswith(added) else 0.02, generator=generator)

    return draw


def _t5(settings: T5Config) -> _Draw:
    """Raffel et al.'s code: as the width of what a map reads asks for; scores are not divided by the root of D, so that
    queries are."""
    read = settings.d_model**-0.5
    deviations: dict[str, float] = {
        "token_embedding": 1.0,
        "query": read * settings.d_kv**-0.5,
        "output": (settings.num_heads * settings.d_kv) ** -0.5,
        "down": settings.d_ff**-0.5,
    }

    def draw(name: str, weight: Tensor, generator: torch.Generator) -> None:
        init.normal_(weight, std=deviations.get(name.split(".")[-2], read), generator=generator)

    return draw


def _transformer(settings: TransformerConfig) -> _Draw:
    """The authors' tensor2tensor: Glorot and Bengio's uniform distribution, and embeddings of deviation 1 / root of M."""

    def draw(name: str, weight: Tensor, generator: torch.Generator) -> Any:
        if name.endswith("token_embedding.weight"):
            return init.normal_(weight, std=settings.d_model**-0.5, generator=generator)
        return init.xavier_uniform_(weight, generator=generator)

    return draw
