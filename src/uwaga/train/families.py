"""The model families that can be trained: their config classes, objectives, and which of their settings are not configurable."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from importlib import import_module
from typing import Any, Literal

from uwaga._base.options import unknown_key
from uwaga.train.errors import ConfigError

# A limit, since each layer is several modules, which take time and memory even without weights. 1,000 have been trained
# (Wang et al. 2022, DeepNet).
MOST_LAYERS = 1000
Objective = Literal["language-model", "encoder-decoder", "masked-language-model"]


@dataclass(frozen=True, kw_only=True)
class ModelFamily:
    """A model family.

    Attributes:
        module, name: of its config class.
        objectives: those that it can be trained for.
        given: settings that the tokenizer or the objective decides.
        fixed: by objective, settings that it decides, with their values.
    """

    module: str
    name: str
    objectives: tuple[str, ...]
    given: frozenset[str]
    fixed: Mapping[str, Mapping[str, Any]]

    @property
    def config_class(self) -> type:
        value: type = getattr(import_module(self.module), self.name)
        return value


_TOKENS = frozenset({"vocab_size", "eos_token_ids", "pad_token_id", "kept"})
FAMILIES = {
    "bert": ModelFamily(
        module="uwaga.models.bert.config", name="BertConfig", objectives=("masked-language-model",),
        given=frozenset({"vocab_size", "pad_token_id", "kept", "labels", "outputs", "model_type"}),
        fixed={"masked-language-model": {"outputs": ("masked_lm",)}},
    ),
    "gpt2": ModelFamily(
        module="uwaga.models.gpt2.config", name="GPT2Config", objectives=("language-model",), given=_TOKENS, fixed={},
    ),
    "t5": ModelFamily(
        module="uwaga.models.t5.config", name="T5Config", objectives=("encoder-decoder",),
        given=_TOKENS | {"decoder_start_token_id", "model_type"}, fixed={},
    ),
    "transformer": ModelFamily(
        module="uwaga.models.transformer.config", name="TransformerConfig",
        objectives=("language-model", "encoder-decoder"),
        given=_TOKENS | {"decoder_start_token_id", "decoder_vocab_size"}, fixed={"language-model": {"num_layers": 0}},
    ),
}  # fmt: skip


def check(model: Mapping[str, Any], objective: str) -> None:
    """The table [model] is of a model that can be built. Raises ConfigError."""
    max_tokens(model, objective)


def max_tokens(model: Mapping[str, Any], objective: str) -> int | None:
    """The longest row that such a model has positions for; None: no limit. Raises ConfigError."""
    longest: int | None = model_config(model, objective, {"vocab_size": 2**16}).max_tokens
    return longest


def model_config(model: Mapping[str, Any], objective: str, tokens: Mapping[str, Any]) -> Any:
    """The config of a model, such as a GPT2Config.

    Args:
        model: the table [model].
        objective: of the run.
        tokens: settings that the tokenizer decides, as `Corpus.model_settings`; at least "vocab_size".

    Raises:
        ConfigError: a setting is unknown, not configurable, or has an invalid value.
    """
    family = _family(model, objective)
    fixed = family.fixed.get(objective, {})
    free = frozenset(each.name for each in fields(family.config_class)) - family.given - set(fixed)
    known = frozenset(f"model.{name}" for name in (*free, "family"))
    for name, value in model.items():
        if name in fixed and name not in family.given:
            if value != fixed[name]:
                raise ConfigError(f"model.{name} must be {fixed[name]!r} for a {objective}, not {value!r}")
        elif name in family.given:
            raise ConfigError(f"model.{name} is not configurable: the tokenizer and the objective decide it")
        elif f"model.{name}" not in known:
            raise ConfigError(unknown_key(f"model.{name}", known))
    # TOML has arrays where configs have tuples.
    settings = {k: tuple(v) if isinstance(v, list) else v for k, v in model.items() if k != "family"}
    try:
        made = family.config_class(**settings | dict(fixed) | dict(tokens))
    except (ValueError, TypeError) as error:
        raise ConfigError(f"model: {error}") from error
    for name in ("num_layers", "num_decoder_layers"):
        if getattr(made, name, 0) > MOST_LAYERS:
            raise ConfigError(f"model.{name} must be at most {MOST_LAYERS}, not {getattr(made, name)}")
    if objective == "encoder-decoder":
        for name in ("num_layers", "num_decoder_layers"):
            if getattr(made, name) == 0:
                raise ConfigError(f"model.{name} must be at least 1 for an {objective}, not 0")
    return made


def hidden_dropouts(model: Mapping[str, Any], objective: str) -> list[str]:
    """The settings by which such a model drops hidden states in training. Raises ConfigError."""
    made = model_config(model, objective, {"vocab_size": 2**16})
    elsewhere = ("attention_dropout", "classifier_dropout")
    return [x.name for x in fields(made) if "dropout" in x.name and x.name not in elsewhere and getattr(made, x.name)]


def _family(model: Mapping[str, Any], objective: str) -> ModelFamily:
    name = model.get("family")
    if not isinstance(name, str) or name not in FAMILIES:
        known = ", ".join(map(repr, FAMILIES))
        raise ConfigError(f"model.family must be one of {known}, not {name!r}")
    family = FAMILIES[name]
    if objective not in family.objectives:
        able = ", ".join(each for each, family in FAMILIES.items() if objective in family.objectives)
        raise ConfigError(f"model.family {name!r} has no objective {objective!r}; these have: {able}")
    return family
