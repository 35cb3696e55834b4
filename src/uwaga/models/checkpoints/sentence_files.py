"""The files that sentence-transformers reads in addition to config.json, weights and tokenizer, and what is done with each key:
modules.json says where the transformer is, how its hidden states are pooled, and what follows.

A key is computed, has no effect on vectors and scores, or is supported with some values only. A key that is not listed is rejected, so
that no key is ignored in silence. docs/reference/model-options.md shows these tables, and a test compares them with the installed sentence-transformers.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path, PurePosixPath
from typing import Any, Literal, NamedTuple, cast

from uwaga._base import untrusted
from uwaga._base.errors import CheckpointError
from uwaga._base.options import Size, Switch
from uwaga._base.terminal import printable
from uwaga.models.checkpoints import config_json

COMPUTED, HARMLESS = "computed", "no effect"
INSTEAD = (
    "sentence_transformers reads it, and uwaga.integrations.sentence_transformers.unpad makes its models skip padding"
)


# COMPUTED, HARMLESS, or the only values that are supported, which change no number.
Rule = str | tuple[object, ...]
Rules = Mapping[str, Rule]


def _all(names: str, rule: Rule) -> dict[str, Rule]:
    return dict.fromkeys(names.split(), rule)


_TRANSFORMER: Rules = {
    **_all(
        "do_lower_case max_seq_length modality_config module_output_name processing_kwargs transformer_task", COMPUTED
    ),
    **_all("document_length query_expansion query_length", COMPUTED),  # rejected, except for ColBERT models
    **_all("backend cache_dir unpad_inputs", HARMLESS),
    "tokenizer_name_or_path": (None,),
    **_all("config_args config_kwargs model_args model_kwargs processor_kwargs tokenizer_args", (None, {})),
}
# Names of the file of the module Transformer: the first one that is there and not empty counts.
TRANSFORMER_FILES = tuple(
    f"sentence_{name}_config.json"
    for name in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
MODULES, MODEL = "modules.json", "config_sentence_transformers.json"
# By file, or by the class of a module whose folder has a config.json.
FILES: Mapping[str, Rules] = {
    MODULES: {**_all("path type", COMPUTED), **_all("idx kwargs name", HARMLESS)},
    MODEL: {
        **_all("activation_fn default_prompt_name model_type prompts similarity_fn_name truncate_dim", COMPUTED),
        # ColBERT models, which PyLate wrote.
        **_all("attend_to_expansion_tokens attend_to_mask_tokens do_query_expansion document_length document_prefix", COMPUTED),
        **_all("query_expansion query_length query_prefix skiplist_words", COMPUTED),
        **_all("__version__ max_active_dims requirements", HARMLESS),
        "keep_in_fp32_modules": (None, []),
    },
    TRANSFORMER_FILES[0]: _TRANSFORMER,
    "Pooling": {
        **_all("include_prompt pooling_mode pooling_mode_cls_token pooling_mode_lasttoken pooling_mode_max_tokens", COMPUTED),
        **_all("pooling_mode_mean_sqrt_len_tokens pooling_mode_mean_tokens pooling_mode_weightedmean_tokens", COMPUTED),
        **_all("embedding_dimension word_embedding_dimension", HARMLESS),
    },
    "Dense": {
        **_all("activation_function bias in_features module_input_name module_output_name out_features", COMPUTED),
        **_all("use_residual", COMPUTED),
        **_all("init_bias init_weight", (None,)),
    },
    "LayerNorm": _all("dimension", COMPUTED),
    "Normalize": _all("module_input_name module_output_name", COMPUTED),
    "Dropout": _all("dropout", HARMLESS),
    "MultiVectorMask": _all("keep_only_token_ids skiplist_tasks skiplist_words", COMPUTED),
    "LogitScore": {**_all("false_token_id true_token_id", COMPUTED), "module_input_name": ("causal_logits",)},
}  # fmt: skip
# Files of a processor of pictures or sounds, which sentence-transformers takes in place of the tokenizer.
PROCESSOR_FILES = ("processor_config.json", "preprocessor_config.json", "video_preprocessor_config.json")
ADAPTER_FILE = "adapter_config.json"

# What the module Transformer gives, by its task: the output of the model, and the name that the next module reads it by.
OUTPUTS = {
    "feature-extraction": ("last_hidden_state", "token_embeddings"),
    "sequence-classification": ("logits", "scores"),
    "text-generation": ("logits", "causal_logits"),
}
# Of messages in a chat template.
_FORMATS = ("auto", "flat", "structured")
# transformers writes 1e30 where a tokenizer has no limit.
_NO_LIMIT = 1 << 40

# In the order in which sentence-transformers concatenates several.
_POOLING = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
# Packages whose modules are computed. Those of PyLate have the names of sentence-transformers, which reads them so too.
_PACKAGES = ("sentence_transformers", "pylate")


class SentenceModule(NamedTuple):
    """A module of modules.json."""

    kind: str  # its class, such as Dense
    folder: Path


@dataclass(frozen=True, kw_only=True)
class SentenceModules:
    """The modules of modules.json."""

    transformer: Path
    is_listed: bool = True  # False: there is no modules.json, and the directory itself is the transformer
    pooling: tuple[str, ...] = ()  # cls, mean, max, ...: several are concatenated; empty: no pooling
    include_prompt: bool = True  # whether the tokens of a prompt are pooled
    others: tuple[SentenceModule, ...] = ()  # the other modules, in their order


def modules(folder: Path) -> SentenceModules:
    """Return the modules that modules.json lists. Raises CheckpointError."""
    path = folder / MODULES
    if not os.path.lexists(path):
        return SentenceModules(transformer=folder, is_listed=False)
    found = _read_modules(path, untrusted.read_json(path, of=list))
    kinds = [kind for kind, _ in found]
    if "Transformer" not in kinds:
        raise CheckpointError(
            f"{path} has no module of the type Transformer, only {', '.join(map(printable, kinds))}; {INSTEAD}"
        )
    has_pooling = kinds[1:2] == ["Pooling"]
    others = tuple(found[1 + has_pooling :])
    if kinds[0] != "Transformer" or {"Transformer", "Pooling"} & {module.kind for module in others}:
        raise CheckpointError(
            f"{path}: one Transformer must come first, and one Pooling may follow it, not {', '.join(map(printable, kinds))}"
        )
    pooling, include_prompt = _pooling(found[1].folder / "config.json") if has_pooling else ((), True)
    return SentenceModules(transformer=found[0].folder, pooling=pooling, include_prompt=include_prompt, others=others)


def folders(folder: Path) -> list[Path]:
    """Return the directory itself and the folders of its modules, whatever these are. Raises CheckpointError."""
    path = folder / MODULES
    modules = _read_modules(path, untrusted.read_json(path, of=list, missing_ok=True))
    return list(dict.fromkeys([folder, *(place for _, place in modules)]))


def _read_modules(path: Path, entries: list) -> list[SentenceModule]:
    modules, names = [], list[object]()
    for module in entries:
        kind, place = (module.get("type"), module.get("path")) if isinstance(module, dict) else (None, None)
        if not isinstance(kind, str) or not isinstance(place, str):
            raise CheckpointError(f"{path} must list modules with a type and a path")
        check(path, module, MODULES)
        if PurePosixPath(place).is_absolute() or ".." in PurePosixPath(place).parts or "\\" in place or "\0" in place:
            raise CheckpointError(f"{path} names the folder {printable(place)!r}, which is not inside its own")
        if kind.partition(".")[0] not in _PACKAGES:
            raise CheckpointError(
                f"{path}: the type {printable(kind)} is no module of sentence_transformers; the code that comes with a model is never run "
                "here; sentence_transformers.SentenceTransformer may read it with trust_remote_code=True"
            )
        names.append(module.get("name"))
        modules.append(SentenceModule(kind.rpartition(".")[2], path.parent / place))
    if same := [name for name in names if name is not None and names.count(name) > 1]:
        raise CheckpointError(
            f"{path}: two modules have the name {printable(str(same[0]))!r}, and sentence-transformers keeps one of them; "
            "give each a name of its own"
        )
    return modules


def _pooling(path: Path) -> tuple[tuple[str, ...], bool]:
    """Return the modes, and whether prompts are pooled."""
    settings = untrusted.read_json(path)
    check(path, settings, "Pooling")
    for key in ("include_prompt", *_POOLING):
        config_json.setting(settings, path, key, Switch, True)
    # New files have one mode or a list of them, old ones a bool for each mode. Without a mode it is the mean.
    modes = settings.get("pooling_mode", [word for key, word in _POOLING.items() if settings.get(key)] or "mean")
    modes = [modes] if isinstance(modes, str) else modes
    if not modes or not isinstance(modes, list) or any(mode not in _POOLING.values() for mode in modes):
        raise CheckpointError(f"{path} has no supported pooling mode")
    return tuple(modes), settings.get("include_prompt", True)


def check(path: Path, settings: Mapping[str, Any], kind: str) -> None:
    """Raise CheckpointError for a key of this file that is unknown, or has a value that is not supported.

    kind: a key of FILES.
    """
    for key, value in settings.items():
        rule = FILES[kind].get(key)
        if rule is None:
            near = get_close_matches(key, FILES[kind], n=1, cutoff=0.8)
            meant = f"did you mean {near[0]}? " if near else ""
            wrong = f"the key {printable(key)} is unknown, and may change vectors; {meant}remove it if it has no effect"
            raise CheckpointError(f"{path}: {wrong}")
        if isinstance(rule, tuple) and not any(type(value) is type(allowed) and value == allowed for allowed in rule):
            raise unsupported(path, key, value, " or ".join(map(repr, rule)))


def unsupported(path: Path, key: str, value: object, supported: str) -> CheckpointError:
    return CheckpointError(
        f"{path}: {printable(key)} is {printable(repr(value))}; only {supported} is supported; {INSTEAD}"
    )


@dataclass(frozen=True, kw_only=True)
class TransformerSettings:
    """What a directory says of the module Transformer: how texts become tokens, and which output of the model is read."""

    path: Path  # the file, for messages
    task: str = "feature-extraction"
    max_tokens: int | None = None  # special ones included; None: not given
    limited_by: Path | None = None  # the file that gives max_tokens
    lowercase: bool = False  # before anything that the tokenizer does
    truncation_side: str | None = None  # None: as tokenizer.json says
    values: Mapping[str, Any]  # the content of the file


def find(folder: Path) -> tuple[Path, dict[str, Any]]:
    """Return the file of the module Transformer in its folder, and its content."""
    for name in TRANSFORMER_FILES:
        if settings := untrusted.read_json(folder / name, missing_ok=True):
            return folder / name, settings
    return folder / TRANSFORMER_FILES[0], {}


def lowercases(folder: Path) -> bool:
    """Return whether texts are changed to lower case before the tokenizer reads them. Raises CheckpointError."""
    path, settings = find(folder)
    value: bool = config_json.setting(settings, path, "do_lower_case", Switch, False)
    return value


def read(folder: Path, *, is_module: bool) -> TransformerSettings:
    """Return the settings of the transformer in a folder. Raises CheckpointError if one is wrong, unknown or not computed.

    is_module: whether modules.json names it; else sentence-transformers reads the files of the tokenizer alone.
    """
    if os.path.lexists(folder / ADAPTER_FILE):
        raise CheckpointError(f"{folder} has {ADAPTER_FILE}: merge the adapter into its model, and save that")
    for name in PROCESSOR_FILES:
        kind = untrusted.read_json(folder / name, missing_ok=True).get("processor_class")
        if kind is not None:
            raise unsupported(folder / name, "processor_class", kind, "a tokenizer, without this key,")
    path, settings = find(folder) if is_module else (folder / TRANSFORMER_FILES[0], {})
    check(path, settings, TRANSFORMER_FILES[0])
    task = settings.get("transformer_task", "feature-extraction")
    if not isinstance(task, str) or task not in OUTPUTS:
        raise unsupported(path, "transformer_task", task, " or ".join(map(repr, OUTPUTS)))
    _check_outputs(path, settings, task)
    length, file = config_json.setting(settings, path, "max_seq_length", Size | None, None), path
    described = folder / "tokenizer_config.json"
    named = untrusted.read_json(described, missing_ok=True)
    if length is None:
        file, found = described, cast(Any, named.get("model_max_length", named.get("max_len")))  # its older name
        is_length = isinstance(found, int | float) and not isinstance(found, bool) and 0 < found < _NO_LIMIT
        length = int(found) if is_length else None
    side = config_json.setting(named, described, "truncation_side", Literal["left", "right"] | None, None)
    lowercase = config_json.setting(settings, path, "do_lower_case", Switch, False)
    return TransformerSettings(
        path=path,
        task=task,
        max_tokens=length,
        limited_by=file,
        lowercase=lowercase,
        truncation_side=side,
        values=settings,
    )


def _check_outputs(path: Path, settings: Mapping[str, Any], task: str) -> None:
    output, name = OUTPUTS[task]
    modalities = config_json.setting(settings, path, "modality_config", dict[str, Any] | None, None)
    # sentence-transformers replaces module_output_name too.
    module = settings.get("module_output_name", name if modalities is None else None)
    if module != name:
        raise unsupported(path, "module_output_name", module, f"{name!r}, of transformer_task {task!r},")
    expected = {"method": "forward", "method_output_name": output}
    for kind, found in ({} if modalities is None else {"text": None} | modalities).items():
        rest = {key: value for key, value in found.items() if key != "format"} if isinstance(found, dict) else None
        if kind not in ("text", "message") or rest != expected or found.get("format", "auto") not in _FORMATS:
            raise unsupported(path, f"modality_config.{kind}", found, repr(expected))
    calls = config_json.setting(settings, path, "processing_kwargs", dict[str, Any] | None, None)
    if calls and calls.keys() != {"chat_template"}:
        raise unsupported(path, "processing_kwargs", calls, "chat_template")
