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


def _all(names: str, rule: Rule, within: str = "") -> dict[str, Rule]:
    return {f"{within}{name}": rule for name in names.split()}


def _nested(name: str, rules: Rules) -> dict[str, Rule]:
    return {f"{name}.{key}": rule for key, rule in rules.items()}


# Arguments that sentence-transformers replaces by its own, or that say where files are.
_HUB = _all("cache_dir local_files_only revision subfolder token trust_remote_code", HARMLESS)
_MODEL_KWARGS = {
    **_HUB,
    **_all("add_pooling_layer attn_implementation device_map low_cpu_mem_usage", HARMLESS),
    **_all("dtype torch_dtype", ("auto",)),
    "use_safetensors": (True,),
}
_PROCESSOR_KWARGS = {
    **_HUB,
    **_all("model_max_length truncation_side", COMPUTED),
    **_all("clean_up_tokenization_spaces padding_side use_fast", HARMLESS),
}
_CONFIG_KWARGS = {**_HUB, "use_cache": HARMLESS}
_CALL: Rules = {
    "add_special_tokens": (True,), "max_length": COMPUTED, "padding": (True, "longest"), "padding_side": HARMLESS, "return_tensors": ("pt",),
    "truncation": (True, "longest_first"),
}  # fmt: skip
_TRANSFORMER: Rules = {
    **_all("do_lower_case max_seq_length module_output_name transformer_task", COMPUTED),
    **_all("document_length query_expansion query_length", COMPUTED),  # rejected, except for ColBERT models
    **_all("backend cache_dir unpad_inputs", HARMLESS),
    "tokenizer_name_or_path": (None,),
    "modality_config.text.method": ("forward",),
    "modality_config.text.method_output_name": COMPUTED,
    "modality_config.text.format": HARMLESS,
    "modality_config.message.method": ("forward",),
    "modality_config.message.method_output_name": COMPUTED,
    "modality_config.message.format": ("auto", "flat", "structured"),
    **_all("audio image video", HARMLESS, "modality_config."),  # of other inputs than texts
    **_nested("processing_kwargs.common", _CALL),
    **_nested("processing_kwargs.text", {**_CALL, "logits_to_keep": HARMLESS}),
    **_all("audio image video", HARMLESS, "processing_kwargs."),
    "processing_kwargs.chat_template": COMPUTED,
    **_nested("model_kwargs", _MODEL_KWARGS),
    **_nested("model_args", _MODEL_KWARGS),
    **_nested("processor_kwargs", _PROCESSOR_KWARGS),
    **_nested("tokenizer_args", _PROCESSOR_KWARGS),
    **_nested("config_kwargs", _CONFIG_KWARGS),
    **_nested("config_args", _CONFIG_KWARGS),
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
    _check(path, settings, FILES[kind], "")


def _check(path: Path, settings: Mapping[str, Any], rules: Rules, within: str) -> None:
    for key, value in settings.items():
        name, wrong = f"{within}{key}", ""
        rule, is_object = rules.get(name), any(key_path.startswith(f"{name}.") for key_path in rules)
        if rule is None and is_object and isinstance(value, dict | None):
            _check(path, value or {}, rules, f"{name}.")
        elif rule is None and is_object:
            wrong = f"{printable(name)} must be a JSON object or null, not {printable(repr(value))}"
        elif rule is None:
            siblings = {other.removeprefix(within).partition(".")[0] for other in rules if other.startswith(within)}
            near = get_close_matches(key, siblings, n=1, cutoff=0.8)
            meant = f"did you mean {within}{near[0]}? " if near else ""
            wrong = (
                f"the key {printable(name)} is unknown, and may change vectors; {meant}remove it if it has no effect"
            )
        elif isinstance(rule, tuple) and not any(type(value) is type(allowed) and value == allowed for allowed in rule):
            raise unsupported(path, name, value, " or ".join(map(repr, rule)))
        if wrong:
            raise CheckpointError(f"{path}: {wrong}")


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
    processor = settings.get("tokenizer_args", settings.get("processor_kwargs")) or {}
    length, file = _length(path, settings, processor)
    described = folder / "tokenizer_config.json"
    named = untrusted.read_json(described, missing_ok=True)
    if length is None:
        file, found = described, cast(Any, named.get("model_max_length", named.get("max_len")))  # its older name
        is_length = isinstance(found, int | float) and not isinstance(found, bool) and 0 < found < _NO_LIMIT
        length = int(found) if is_length else None
    key = "truncation_side"
    values, said_by = (named, described) if processor.get(key) is None else (processor, path)
    if (side := values.get(key)) is not None:
        side = config_json.setting(values, said_by, key, Literal["left", "right"], None)
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
    modalities = settings.get("modality_config")
    if modalities is None:
        # sentence-transformers replaces module_output_name too.
        outputs = {"module_output_name": settings.get("module_output_name", name)}
    else:
        outputs = {
            f"modality_config.{kind}.{key}": (modalities.get(kind) or {}).get(key)
            for kind in ("text", *(["message"] if "message" in modalities else []))
            for key in ("method", "method_output_name")
        }
        outputs["module_output_name"] = settings.get("module_output_name")
    expected = {"method": "forward", "method_output_name": output, "module_output_name": name}
    for key, value in outputs.items():
        if value != (right := expected[key.rpartition(".")[2]]):
            raise unsupported(path, key, value, repr(right))


def _length(path: Path, settings: Mapping[str, Any], processor: Mapping[str, Any]) -> tuple[int | None, Path]:
    """Return the most tokens of a text, as the file of the module says."""
    calls = settings.get("processing_kwargs") or {}
    # Those of texts count more where a chat template is rendered, and less elsewhere.
    kinds = ("text", "common") if "message" in (settings.get("modality_config") or {}) else ("common", "text")
    for where, key in (
        *((calls.get(kind) or {}, "max_length") for kind in kinds),
        (processor, "model_max_length"),
        (settings, "max_seq_length"),
    ):
        if key in where and not (where is settings and where[key] is None):
            return config_json.setting(where, path, key, Size, None), path
    return None, path
