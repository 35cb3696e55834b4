"""The model of a training: its table [model], random initial weights, and the loss: the sum of the cross-entropies of the scored tokens.

Letters: N packed tokens, S scored ones, M model width, V vocabulary.
"""

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from uwaga._base.options import unknown_key
from uwaga.models.configuration import Config
from uwaga.models.families import config as model_settings
from uwaga.models.families import family_of
from uwaga.models.transformer import Transformer
from uwaga.ops.attention import api
from uwaga.ops.ragged import Operand, Ragged
from uwaga.train import seeds
from uwaga.train.errors import ConfigError

# A limit, since each layer is several modules, which take time and memory even without weights. 1,000 have been trained
# (Wang et al. 2022, DeepNet).
MOST_LAYERS = 1000
# Logits that are in memory at once: 256 MB in float32, and as much each for gradient and softmax.
_MOST_LOGITS = 2**26
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


def max_tokens(model: Mapping[str, Any], objective: str) -> int | None:
    """The longest row that a model of the table [model] has positions for; None: no limit. Raises ConfigError."""
    return model_config(model, objective, {"vocab_size": 2**16}).max_tokens


def hidden_dropouts(model: Mapping[str, Any], objective: str) -> list[str]:
    """The settings by which such a model drops hidden states in training. Raises ConfigError."""
    made = model_config(model, objective, {"vocab_size": 2**16})
    settable = family_of(made.model_type, "model").settings - {"attention_dropout", "classifier_dropout"}
    return [x.name for x in fields(made) if "dropout" in x.name and x.name in settable and getattr(made, x.name)]


def model_config(model: Mapping[str, Any], objective: str, tokens: Mapping[str, Any]) -> Config:
    """The configuration of a model.

    Args:
        model: the table [model].
        objective: of the run.
        tokens: settings that the tokenizer decides, as `Corpus.model_settings`; at least "vocab_size".

    Raises:
        ConfigError: a setting is unknown, not configurable, or has an invalid value.
    """
    model_type = _model_type(model, objective)
    settable = family_of(model_type, "model").settings
    fixed = {"num_layers": 0} if objective == "language-model" and "num_decoder_layers" in settable else {}
    known = frozenset(f"model.{name}" for name in (*(settable - _DECIDED - set(fixed)), "family"))
    for name, value in model.items():
        if name in fixed:
            if value != fixed[name]:
                raise ConfigError(f"model.{name} must be {fixed[name]!r} for a {objective}, not {value!r}")
        elif name in _DECIDED & settable:
            raise ConfigError(f"model.{name} is not configurable: the tokenizer and the objective decide it")
        elif f"model.{name}" not in known:
            raise ConfigError(unknown_key(f"model.{name}", known))
    # TOML has arrays where configs have tuples.
    settings = {k: tuple(v) if isinstance(v, list) else v for k, v in model.items() if k != "family"}
    outputs = {"outputs": ("logits",)} if objective == "masked-language-model" else {}
    try:
        made = model_settings(model_type, **(settings | dict(tokens) | outputs | fixed))
    except (ValueError, TypeError) as error:
        raise ConfigError(f"model: {error}") from error
    for name in ("num_layers", "num_decoder_layers"):
        if getattr(made, name) > MOST_LAYERS:
            raise ConfigError(f"model.{name} must be at most {MOST_LAYERS}, not {getattr(made, name)}")
    if objective == "encoder-decoder" and not made.has_both:
        absent = "num_layers" if made.is_causal else "num_decoder_layers"
        raise ConfigError(f"model.{absent} must be at least 1 for an {objective}, not 0")
    return made


def _model_type(model: Mapping[str, Any], objective: str) -> str:
    name = model.get("family")
    if not isinstance(name, str) or name not in _FAMILIES:
        known = ", ".join(map(repr, _FAMILIES))
        raise ConfigError(f"model.family must be one of {known}, not {name!r}")
    model_type, objectives = _FAMILIES[name]
    if objective not in objectives:
        able = ", ".join(each for each, (_, objectives) in _FAMILIES.items() if objective in objectives)
        raise ConfigError(f"model.family {name!r} has no objective {objective!r}; these have: {able}")
    return model_type


def new_model(config: Config, seed: int) -> Transformer:
    """A model with initial float32 weights on the CPU, in training mode; the same seed gives the same bits.

    Norm weights are ones, biases zeros, and matrices are drawn as its family says. The state of PyTorch's generator is restored.

    Raises:
        ConfigError: the weights would not fit into the memory of this machine.
    """
    _check_memory(config)
    with seeds.fork_rng(torch.device("cpu")):  # layers draw weights of their own, which are drawn again
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
    """Raises ConfigError, before anything is allocated: the weights alone are larger than this machine's memory."""
    with torch.device("meta"):
        weights = sum(weight.numel() for weight in Transformer(config).parameters())
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


# The loss.


class Objective(nn.Module):
    """A model with its loss, as one module that is distributed and compiled.

    Args:
        model: of this package.
        smoothing: label smoothing: this fraction of the target probability is uniform over all tokens (Szegedy et al. 2016).
    """

    def __init__(self, model: Transformer, smoothing: float = 0.0) -> None:
        super().__init__()
        self.model, self.smoothing = model, smoothing

    def forward(self, ids: Ragged, decoder_ids: Ragged | None, labels: Tensor, scored: Tensor | None) -> Tensor:
        """() float32, the sum over all labels.

        Args:
            ids: (N,) int64.
            decoder_ids: (N',) int64, of an encoder and a decoder.
            labels: (S,) int64.
            scored: (S,) int64: which tokens they are of; None for all, in order.
        """
        hidden = self.model(*_lowered(ids, decoder_ids), outputs=()).last_hidden_state
        hidden_NM = hidden.values if isinstance(hidden, Ragged) else hidden.flatten(0, 1)
        hidden_SM = hidden_NM if scored is None else hidden_NM[scored]
        # In evaluation mode the loss is the cross-entropy of the labels.
        smoothing = self.smoothing if self.training else 0.0
        return cross_entropy(self.model.logits, hidden_SM, labels, smoothing, self.model.config.output_vocab_size)


def _lowered(ids: Ragged, decoder_ids: Ragged | None) -> tuple[Operand, Operand | None]:
    """As the model computes it fastest: rows of one length, such as windows, as a matrix, which has no padding either. In a
    graph for batches of all sizes packed, without the longest row, which would be part of it. Where several processes share the rows
    (`uwaga.sequence_parallel`), packed as they are."""
    both = (ids,) if decoder_ids is None else (ids, decoder_ids)
    if torch.compiler.is_compiling():
        lowered: list[Operand] = [Ragged(each.values, each.offsets) for each in both]
    elif api.override is None and all(len(each) * each.max_length == len(each.values) for each in both):
        lowered = [each.values.view(len(each), -1) for each in both]
    else:
        lowered = list(both)
    return lowered[0], (lowered[1] if len(lowered) > 1 else None)


def cross_entropy(
    logits: Callable[[Tensor], Tensor], hidden_SM: Tensor, labels_S: Tensor, smoothing: float, vocabulary: int
) -> Tensor:
    """() float32: the sum over the labels.

    Logits of large vocabularies are computed in blocks of tokens, and recomputed in the backward pass.
    """

    def of(hidden: Tensor, labels: Tensor) -> Tensor:
        # In float32 whatever the logits are in: the sum of V exponentials is what loses most.
        return functional.cross_entropy(logits(hidden).float(), labels, reduction="sum", label_smoothing=smoothing)

    rows = max(_MOST_LOGITS // vocabulary, 1)
    if len(labels_S) <= rows:
        return of(hidden_SM, labels_S)
    blocks = zip(hidden_SM.split(rows), labels_S.split(rows), strict=True)
    if not torch.is_grad_enabled():
        return torch.stack([of(*block) for block in blocks]).sum()
    return torch.stack([checkpoint(of, *block, use_reentrant=False) for block in blocks]).sum()
