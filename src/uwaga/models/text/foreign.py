"""Directories of families that are not ours, as models of transformers, where that is installed.

No code of a directory is run, and its weights are read from safetensors alone: what runs is the class that the installed transformers has
for its model_type.
"""

import inspect
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from uwaga._base import json_files
from uwaga._base.errors import CheckpointError
from uwaga._base.terminal import printable
from uwaga.integrations.transformers.ragged_classifier import RaggedClassifier
from uwaga.integrations.transformers.ragged_model import RaggedModel
from uwaga.models.checkpoints import load_save, mapped_weights, transformers_directories
from uwaga.models.checkpoints.mapped_weights import SharedFile
from uwaga.models.families import family_of, model_types
from uwaga.models.tokenizers.loading import Tokenizer

# Encoder-decoders of which the encoder alone runs, as in sentence-transformers, and its class.
_ENCODERS = {
    "longt5": "LongT5EncoderModel",
    "switch_transformers": "SwitchTransformersEncoderModel",
    "umt5": "UMT5EncoderModel",
}
_INSTALL = "pip install 'transformers>=5'"


def _own() -> tuple[str, ...]:
    """Model types that TextEncoder reads by itself: those that have a class without a head, except GPT-2, which runs through transformers."""
    return tuple(
        kind for kind in model_types() if kind != "gpt2" and () in family_of(kind, "load").architectures.values()
    )


def is_needed(folder: Path) -> bool:
    """Whether the model in a folder is of a family that is not ours."""
    model_type = json_files.read(folder / "config.json").get("model_type")
    return model_type not in model_types() or model_type == "gpt2"


def is_classifier(folder: Path) -> bool:
    """Whether the model in a folder is one for sequence classification, of a family whose classifiers are not ours: BERT's relatives have
    theirs."""
    described = json_files.read(folder / "config.json")
    kind = described.get("model_type")
    if kind in model_types() and any("sequence" in has for has in family_of(kind, "load").architectures.values()):
        return False
    names = described.get("architectures")
    return isinstance(names, list) and len(names) == 1 and str(names[0]).endswith("ForSequenceClassification")


def load(
    folder: Path, tokenizer: Tokenizer, dtype: torch.dtype | None, shared: SharedFile | None = None
) -> RaggedModel:
    """The model in a folder. tokenizer: of the same folder. dtype: None for that of the files, or float32 in place of float16. shared: a file to map the weights from.

    Raises CheckpointError: transformers is not installed, has no such model, or refuses the files; they do not fit together, are not
    safetensors, or have numbers that are NaN or infinite; the model gives no state to every token of a text.
    """
    model, described = _load(folder, dtype, classifies=False)
    if shared is not None:
        # transformers has read a copy, which is freed: of its models it alone knows what is made of the files.
        shapes = {name: x.shape for name, x in model.state_dict().items()}
        model.load_state_dict(mapped_weights.mapped(shared, model.state_dict, shapes), assign=True)
        model.requires_grad_(False)
    types = (tokenizer.prefix_types, tokenizer.suffix_types) if _takes_types(folder, described) else None
    return RaggedModel(model, types=types)


def load_classifier(folder: Path, dtype: torch.dtype | None) -> RaggedClassifier:
    """The model for sequence classification in a folder. Raises CheckpointError as `load`; another number of labels than one."""
    model, described = _load(folder, dtype, classifies=True)
    return RaggedClassifier(model, takes_types=_takes_types(folder, described))


def _load(folder: Path, dtype: torch.dtype | None, *, classifies: bool) -> tuple[Any, dict[str, Any]]:
    """The model, and what is in its config.json."""
    load_save.check_dtype(dtype)
    path = folder / "config.json"
    described = json_files.read(path)
    shown = printable(repr(described.get("model_type")))
    if find_spec("transformers") is None or int(import_module("transformers").__version__.partition(".")[0]) < 5:
        known = ", ".join(_own())
        raise CheckpointError(
            f"{path}: model_type is {shown}, which uwaga runs through the package transformers, version 5 or newer: {_INSTALL}. "
            f"Without it: {known}"
        )
    maker = _maker(path, described, shown, classifies=classifies)
    model = _from_pretrained(folder, maker, described, dtype)
    if not all(bool(x.isfinite().all()) for x in model.parameters()):
        raise CheckpointError(f"{folder}: a weight has an entry that is NaN or infinite")
    return model, described


def _maker(path: Path, described: Mapping[str, Any], shown: str, *, classifies: bool) -> Any:
    """The class of transformers that reads the directory."""
    import transformers

    model_type = described.get("model_type")
    if isinstance(model_type, str) and model_type in _ENCODERS and not classifies:
        return getattr(transformers, _ENCODERS[model_type])
    known = isinstance(model_type, str) and model_type in transformers.CONFIG_MAPPING
    config = transformers.CONFIG_MAPPING[str(model_type)] if known else None
    models = transformers.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING if classifies else transformers.MODEL_MAPPING
    if config is None or config not in models:
        code = " The code that comes with it is never run here;" if described.get("auto_map") else ""
        raise CheckpointError(
            f"{path}: model_type is {shown}; uwaga's own are {', '.join(_own())}, and transformers {transformers.__version__} has no "
            f"{'classifier' if classifies else 'model'} of it.{code} sentence_transformers."
            f"{'CrossEncoder' if classifies else 'SentenceTransformer'} may read it with trust_remote_code=True"
        )
    if described.get("is_encoder_decoder", getattr(config(), "is_encoder_decoder", False)):
        what = "is not run as a reranker" if classifies else "gives no vectors of a text"
        raise CheckpointError(f"{path}: model_type is {shown}, an encoder-decoder, which {what}")
    made: Any = models[config]
    each = made if isinstance(made, tuple | list) else [made]
    if not any("input_ids" in inspect.signature(one.forward).parameters for one in each):
        raise CheckpointError(f"{path}: model_type is {shown}, which does not read tokens")
    return transformers.AutoModelForSequenceClassification if classifies else transformers.AutoModel


def _from_pretrained(folder: Path, maker: Any, described: Mapping[str, Any], dtype: torch.dtype | None) -> Any:
    import transformers

    options: dict[str, Any] = {
        "dtype": "auto" if dtype is None else dtype,
        "use_safetensors": True,
        "trust_remote_code": False,
    }
    weights = transformers_directories.weights_of(folder, described)
    with (
        transformers_directories.reading(folder),
        transformers_directories.bounded(folder / "config.json", described, weights),
    ):
        config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
        if maker is transformers.AutoModelForSequenceClassification and config.num_labels != 1:
            raise CheckpointError(f"{folder} classifies sequences into {config.num_labels} labels; a reranker has one")
        made = maker if maker is not transformers.AutoModel else transformers.MODEL_MAPPING[type(config)]
        if isinstance(made, type) and "add_pooling_layer" in inspect.signature(made).parameters:
            options["add_pooling_layer"] = False  # it would be computed of every text, and thrown away
        model, info = maker.from_pretrained(
            folder, config=config, local_files_only=True, output_loading_info=True, **options
        )
    _check_keys(folder, model, info)
    if dtype is None and model.dtype is torch.float16:  # as load_save.load_folder
        model = model.float()
    return model.eval().requires_grad_(False)


def _check_keys(folder: Path, model: Any, info: Mapping[str, Any]) -> None:
    """Raises CheckpointError: weights of the model are missing, or left over. Those of a head, which is not computed, may be."""
    own = {name for name, _ in model.named_children()}
    body = model.base_model_prefix
    missing = sorted(info["missing_keys"])
    left = [name for name in info["unexpected_keys"] if name.removeprefix(f"{body}.").split(".")[0] in own]
    lines = [f"  {printable(name)} is missing" for name in missing]
    lines += [f"  {printable(name)} is no weight of the model" for name in sorted(left)]
    if lines:
        raise CheckpointError("\n".join([f"{folder} does not match {type(model).__name__} of transformers", *lines]))


def _takes_types(folder: Path, described: Mapping[str, Any]) -> bool:
    """Whether the tokenizer of transformers gives the model token types."""
    from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING_NAMES

    return gives_types(folder, described, TOKENIZER_MAPPING_NAMES.get(str(described.get("model_type"))))


# Classes of tokenizers that give token types, without "Tokenizer" at their ends. A test compares them with transformers.
TYPED_TOKENIZERS = {
    "Bert", "Canine", "ConvBert", "DPRContextEncoder", "DPRQuestionEncoder", "Deberta", "DebertaV2", "Electra", "FNet", "LayoutLMv2",
    "MarkupLM", "MobileBert", "SqueezeBert", "Tapas",
}  # fmt: skip
# With one of these, the class of a family, the name in a file does not matter to AutoTokenizer.
_GENERIC = ("TokenizersBackend", "PythonBackend", "PreTrainedTokenizerFast", "MistralCommonBackend")


def gives_types(folder: Path, described: Mapping[str, Any], of_family: str | None) -> bool:
    """Whether AutoTokenizer of transformers gives token types, as the files of a folder say, or the class of the tokenizer.

    described: what is in config.json. of_family: the class of the family's tokenizer.
    """
    settings = json_files.optional(folder / "tokenizer_config.json") or {}
    names = settings.get("model_input_names")
    if names is not None:
        return isinstance(names, Sequence) and "token_type_ids" in names
    named = of_family if of_family in _GENERIC else None
    named = named or settings.get("tokenizer_class") or described.get("tokenizer_class") or of_family
    return str(named).removesuffix("Fast").removesuffix("Tokenizer") in TYPED_TOKENIZERS
