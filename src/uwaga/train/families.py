"""The families of models that training builds, and what of their settings is not for a configuration to say."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from importlib import import_module
from typing import Any

from uwaga._base import renamed
from uwaga.train.errors import ConfigError
from uwaga.train.settings import unknown

# Layers at most: each is several modules, which take time and memory before they have a weight. 1,000 have been trained
# (Wang et al. 2022, DeepNet).
MOST_LAYERS = 1000
OBJECTIVES = ("language-model", "encoder-decoder", "masked-language-model")


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A family: its settings' class, what it can learn, and its tokens.

    Attributes:
        home, name: the module and name of the settings' class.
        objectives: of OBJECTIVES.
        given: settings that the tokenizer or the objective decides.
        fixed: those that the objective decides, with their values.
    """

    home: str
    name: str
    objectives: tuple[str, ...]
    given: frozenset[str]
    fixed: Mapping[str, Mapping[str, Any]]

    @property
    def settings(self) -> type:
        found: type = getattr(import_module(self.home), self.name)
        return found


_TOKENS = frozenset({"vocab_size", "eos_token_ids", "pad_token_id", "kept"})
FAMILIES = {
    "bert": Trained(
        home="uwaga.models.bert.config", name="BertConfig", objectives=("masked-language-model",),
        given=frozenset({"vocab_size", "pad_token_id", "kept", "labels", "outputs", "model_type"}),
        fixed={"masked-language-model": {"outputs": ("masked_lm",)}},
    ),
    "gpt2": Trained(
        home="uwaga.models.gpt2.config", name="GPT2Config", objectives=("language-model",), given=_TOKENS, fixed={},
    ),
    "t5": Trained(
        home="uwaga.models.t5.config", name="T5Config", objectives=("encoder-decoder",),
        given=_TOKENS | {"decoder_start_token_id", "model_type"}, fixed={},
    ),
    "transformer": Trained(
        home="uwaga.models.transformer.config", name="TransformerConfig",
        objectives=("language-model", "encoder-decoder"),
        given=_TOKENS | {"decoder_start_token_id", "decoder_vocab_size"}, fixed={"language-model": {"num_layers": 0}},
    ),
}  # fmt: skip


def check(model: Mapping[str, Any], objective: str) -> None:
    """The table [model] is one that can be built. Raises ConfigError."""
    room(model, objective)


def room(model: Mapping[str, Any], objective: str) -> int | None:
    """The longest row that such a model has positions for; None: any. Raises ConfigError."""
    longest: int | None = built(model, objective, {"vocab_size": 2**16}).max_tokens
    return longest


def built(model: Mapping[str, Any], objective: str, tokens: Mapping[str, Any]) -> Any:
    """The settings of the model: those of the table [model], of the objective, and of the tokenizer.

    tokens: "vocab_size", and what else the tokenizer says, as `Corpus.model_settings` has it.
    """
    family = _family(model, objective)
    fixed = family.fixed.get(objective, {})
    free = frozenset(each.name for each in fields(family.settings)) - family.given - set(fixed)
    known = frozenset(f"model.{name}" for name in (*free, "family"))
    renamed.refuse("model", model, _renamed(family), ConfigError)
    for name, value in model.items():
        if name in fixed and name not in family.given:
            if value != fixed[name]:
                raise ConfigError(f"model.{name} must be {fixed[name]!r} for a {objective}, not {value!r}")
        elif name in family.given:
            raise ConfigError(f"model.{name} is not for the configuration to say: the tokenizer and the objective do")
        elif f"model.{name}" not in known:
            raise unknown(f"model.{name}", known)
    settings = {name: value for name, value in model.items() if name != "family"}
    try:
        made = family.settings(**settings | dict(fixed) | dict(tokens))
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


def _renamed(family: Trained) -> dict[str, str]:
    """Former names of the family's settings, and those of today."""
    owner = f"{family.settings.__module__}.{family.settings.__qualname__}"
    return {each.old: each.new for each in renamed.PARAMETERS if each.owner == owner}


def _family(model: Mapping[str, Any], objective: str) -> Trained:
    name = model.get("family")
    if not isinstance(name, str) or name not in FAMILIES:
        known = ", ".join(map(repr, FAMILIES))
        raise ConfigError(f"model.family must be one of {known}, not {name!r}")
    family = FAMILIES[name]
    if objective not in family.objectives:
        able = ", ".join(each for each, family in FAMILIES.items() if objective in family.objectives)
        raise ConfigError(f"model.family {name!r} has no objective {objective!r}; these have: {able}")
    return family
