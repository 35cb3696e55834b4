"""The model of a training: its table [model], and random initial weights."""

import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

import torch

from uwaga.models.configuration import Config
from uwaga.models.families import config as model_settings
from uwaga.models.families import family_of
from uwaga.models.transformer import NoInitialisation, Transformer
from uwaga.train.errors import ConfigError

# A limit, since each layer is several modules, which take time and memory even without weights. 1,000 have been trained
# (Wang et al. 2022, DeepNet).
MOST_LAYERS = 1000
# Settings that the tokenizer and the objective decide.
_DECIDED = {
    "vocab_size",
    "decoder_vocab_size",
    "eos_token_ids",
    "pad_token_id",
    "decoder_start_token_id",
    "outputs",
    "labels",
}


# By the name in a TOML: the model type, and what it can be trained for.
_FAMILIES = {
    "bert": ("bert", ("masked-language-model",)),
    "gpt2": ("gpt2", ("language-model",)),
    "t5": ("t5", ("encoder-decoder",)),
    "transformer": ("uwaga-transformer", ("language-model", "encoder-decoder")),
}


def hidden_dropouts(model: Config) -> list[str]:
    """Return the settings by which a model drops hidden states in training."""
    settable = family_of(model.model_type, "model").settings - {"attention_dropout", "classifier_dropout"}
    return [x.name for x in fields(model) if "dropout" in x.name and x.name in settable and getattr(model, x.name)]


def model_config(model: Mapping[str, Any], objective: str, tokens: Mapping[str, Any]) -> Config:
    """Return the configuration of a model.

    Args:
        model: the table [model].
        objective: of the run.
        tokens: settings that the tokenizer decides, as `Corpus.model_settings`; at least "vocab_size".

    Raises:
        ConfigError: a setting is unknown, not configurable, or has an invalid value.
    """
    fixed = {"num_layers": 0} if (model.get("family"), objective) == ("transformer", "language-model") else {}
    for message in _conflicts(model, objective, fixed):
        raise ConfigError(f"model.{message}")
    model_type, _ = _FAMILIES[model["family"]]
    # TOML has arrays where configs have tuples.
    settings = {k: tuple(v) if isinstance(v, list) else v for k, v in model.items() if k != "family"}
    outputs = {"outputs": ("logits",)} if objective == "masked-language-model" else {}
    try:
        made = model_settings(model_type, **(settings | dict(tokens) | outputs | fixed))
    except (ValueError, TypeError) as error:
        raise ConfigError(f"model: {str(error).removeprefix('config: ')}") from error
    for name in ("num_layers", "num_decoder_layers"):
        if getattr(made, name) > MOST_LAYERS:
            raise ConfigError(f"model.{name} must be at most {MOST_LAYERS}, not {getattr(made, name)}")
    if objective == "encoder-decoder" and not made.has_both:
        absent = "num_layers" if made.is_causal else "num_decoder_layers"
        raise ConfigError(f"model.{absent} must be at least 1 for an {objective}, not 0")
    return made


def _conflicts(model: Mapping[str, Any], objective: str, fixed: Mapping[str, int]) -> Iterator[str]:
    name = model.get("family")
    if not isinstance(name, str) or name not in _FAMILIES:
        yield f"family must be one of {', '.join(map(repr, _FAMILIES))}, not {name!r}"
    able = [family for family, (_, objectives) in _FAMILIES.items() if objective in objectives]
    if name not in able:
        yield f"family {name!r} has no objective {objective!r}; these have: {', '.join(able)}"
    for name in model:
        if name in fixed and model[name] != fixed[name]:
            yield f"{name} must be {fixed[name]!r} for a {objective}, not {model[name]!r}"
        if name in _DECIDED:
            yield f"{name} is not configurable: the tokenizer and the objective decide it"


def new_model(config: Config, seed: int) -> Transformer:
    """Return a model with initial float32 weights on the CPU, in training mode; the same seed gives the same bits.

    Norm weights are ones, biases zeros, and matrices are drawn as its family says. The state of PyTorch's generator is restored.

    Raises:
        ConfigError: the weights would not fit into the memory of this machine.
    """
    _check_memory(config)
    with torch.random.fork_rng(devices=[]):  # layers draw weights of their own, which are drawn again
        model = Transformer(config)
    generator, initial = torch.Generator().manual_seed(seed), family_of(config.model_type, "model").initial
    assert initial is not None
    draw = initial(config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() > 1:
                draw(name, weight, generator)
            else:
                weight.fill_(1.0 if name.endswith(".weight") else 0.0)
    return model.train()


def _check_memory(config: Config) -> None:
    """Raise ConfigError if the weights alone are larger than this machine's memory. This is known before anything is
    allocated."""
    there = _memory_bytes()
    with torch.device("meta"), NoInitialisation():
        weights = sum(map(torch.numel, Transformer(config).parameters()))
    if 4 * weights > there:
        raise ConfigError(
            f"model: {weights:,} weights take {4 * weights / 1e9:,.1f} GB in float32, and this machine has {there / 1e9:,.1f} GB"
        )


def _memory_bytes() -> int:
    """Return this machine's memory."""
    if sys.platform != "win32":
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    import ctypes

    # MEMORYSTATUSEX: its own size and the load in percent, 4 bytes each, the memory in bytes, and six more sizes.
    status = (ctypes.c_uint64 * 8)(64)
    if not ctypes.windll.kernel32.GlobalMemoryStatusEx(status):
        raise ctypes.WinError()
    return status[1]
