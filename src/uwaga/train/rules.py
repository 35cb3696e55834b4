"""Values of a configuration that are each right and do not go together."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from uwaga.train import families
from uwaga.train.errors import ConfigError
from uwaga.train.sections import TargetConfig, TokenizerConfig

if TYPE_CHECKING:
    from uwaga.train.config import Config


def check(config: "Config") -> None:
    """Raises ConfigError."""
    for rule in _RULES:
        rule(config)


def _files(config: "Config") -> None:
    data = config.data
    if not data.train:
        raise ConfigError("data.train names no file")
    if not data.validation and not data.validation_fraction:
        raise ConfigError(
            "data.validation names no file, and data.validation_fraction is 0: there would be nothing to validate on"
        )
    if data.windows and data.kind == "pairs":
        raise ConfigError("data.windows is for texts, and data.kind is 'pairs'")
    is_parallel = data.kind == "pairs" and data.pair_format == "parallel"
    for name, own, their in (
        ("train", data.train, data.target_files),
        ("validation", data.validation, data.validation_target_files),
    ):
        target = "data.target_files" if name == "train" else "data.validation_target_files"
        if is_parallel and len(own) != len(their):
            raise ConfigError(f"{target} must name one file for each of data.{name}: {len(own)}, not {len(their)}")
        if not is_parallel and their:
            raise ConfigError(f"{target} is for data.pair_format 'parallel'")


def _objective(config: "Config") -> None:
    is_pairs = config.data.kind == "pairs"
    if is_pairs != (config.objective == "encoder-decoder"):
        wanted = "must be 'pairs'" if not is_pairs else "must not be 'pairs'"
        raise ConfigError(f"data.kind {wanted} for the objective {config.objective!r}")
    if config.data.windows and config.objective != "language-model":
        raise ConfigError(f"data.windows is for a language-model, not for the objective {config.objective!r}")
    if config.data.remove_characters and not is_pairs:
        raise ConfigError("data.remove_characters is for pairs")
    if config.tokenizer.target is not None and not is_pairs:
        raise ConfigError("tokenizer.target is for pairs")


def _sizes(config: "Config") -> None:
    data, batch = config.data, config.batch
    most = data.context_length * (2 if data.kind == "pairs" else 1)
    if batch.tokens_per_batch < most:
        both = "source and target of data.context_length" if data.kind == "pairs" else "a row of data.context_length"
        raise ConfigError(f"batch.tokens_per_batch must hold {both} tokens, {most}, and is {batch.tokens_per_batch}")
    if batch.tokens_per_step is not None and batch.tokens_per_step % batch.tokens_per_batch:
        raise ConfigError(
            f"batch.tokens_per_step must be a multiple of batch.tokens_per_batch, {batch.tokens_per_batch}, not {batch.tokens_per_step}"
        )
    room = families.room(config.model, config.objective)
    if room is not None and data.context_length > room:
        raise ConfigError(f"data.context_length is {data.context_length}, and the model has {room} positions")
    if config.objective == "masked-language-model" and data.context_length < 3:
        raise ConfigError(
            f"data.context_length must hold a token between the first and the last one, 3, and is {data.context_length}"
        )
    if config.schedule.warmup_steps > config.schedule.steps:
        steps = f"schedule.steps, {config.schedule.steps}"
        raise ConfigError(f"schedule.warmup_steps must not be more than {steps}, and is {config.schedule.warmup_steps}")


def _tokenizers(config: "Config") -> None:
    own = config.tokenizer
    _tokenizer(own, "tokenizer")
    target = own.target
    if target is None:
        return
    _tokenizer(target, "tokenizer.target")
    if target.shared and not {own.kind, target.kind} <= {"characters", "words"}:
        raise ConfigError("tokenizer.target.shared is for characters and words")
    if target.shared and target.vocab_size is not None:
        raise ConfigError(
            "tokenizer.target.vocab_size is not for a shared vocabulary: tokenizer.vocab_size limits both"
        )
    if not target.shared and config.model["family"] != "transformer":
        raise ConfigError(
            f"tokenizer.target needs a vocabulary of the decoder, which the family {config.model['family']!r} has not: "
            "set tokenizer.target.shared, or leave the table out"
        )


def _tokenizer(own: TokenizerConfig | TargetConfig, name: str) -> None:
    if (own.path is not None) != (own.kind == "given"):
        need = "is needed where" if own.path is None else "is for"
        raise ConfigError(f"{name}.path {need} {name}.kind{' is' if own.path is None else ''} 'given'")
    if own.kind == "byte-pair" and own.vocab_size is None:
        raise ConfigError(f"{name}.vocab_size is needed where {name}.kind is 'byte-pair'")
    if own.kind == "given" and (own.vocab_size is not None or own.lowercase):
        raise ConfigError(f"{name}.vocab_size and {name}.lowercase are not for {name}.kind 'given'")


_RULES: tuple[Callable[["Config"], None], ...] = (_files, _objective, _sizes, _tokenizers)
