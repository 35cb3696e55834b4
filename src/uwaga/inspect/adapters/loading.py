"""Models of transformers from the directories of families that this package does not have itself.

A directory is untrusted: no code of it is run, weights are safetensors, and their number bounds the model that config.json may ask for.
"""

import os
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from uwaga._base import json_files
from uwaga._base.errors import CheckpointError
from uwaga._base.terminal import printable
from uwaga.inspect.adapters import vision
from uwaga.inspect.adapters.huggingface import HuggingFaceAdapter
from uwaga.models.checkpoints import transformers_directories, weight_files
from uwaga.models.families import family_of, model_types
from uwaga.models.families.family import File
from uwaga.models.tokenizers.loading import Tokenizer

_VOCABULARIES = ("*.model", "vocab*.json", "*vocab.txt")


def is_own(folder: Path) -> bool:
    """Whether this package has the family of a directory, with all that its config.json asks for. Raises CheckpointError: no config.json."""
    file = folder / "config.json"
    described = json_files.read(file)
    if described.get("model_type") not in model_types():
        return False
    try:
        stored = frozenset(weight_files.find(folder).stored)
        family_of(described["model_type"], str(file)).read(
            described["model_type"], File(described, str(file), stored), {}
        )
    except CheckpointError:
        return False
    return True


def load(folder: Path, dtype: torch.dtype) -> nn.Module:
    """The model of a directory that reads texts, of the class that config.json names, in evaluation mode; of CLIP and its like the text tower.

    Raises:
        CheckpointError: transformers is not installed, does not know it, or computes its attention where nothing can be watched; it
            reads no text; weights that are missing, of another shape, NaN or infinite, or not safetensors.
    """
    model: Any = _load(folder, dtype)
    if vision.vision_models(model) and hasattr(model, "text_model"):
        model = model.text_model
    try:
        HuggingFaceAdapter(model)
    except ValueError as error:  # it reads no texts, or cannot be watched
        raise CheckpointError(f"{folder}: {error}") from error
    return cast("nn.Module", model)


def load_vision(folder: Path, dtype: torch.dtype) -> nn.Module:
    """The vision transformer of a directory, or of the model in it. Raises CheckpointError: as `load`; there is not one of these."""
    model = _load(folder, dtype)
    found = vision.vision_models(model)
    if len(found) != 1:
        rule = f"{type(model).__name__} reads no pictures that can be watched" if not found else f"it has {len(found)}"
        raise CheckpointError(f"{folder}: {rule}; a vision transformer is one of {', '.join(vision.FAMILIES)}")
    return cast("nn.Module", found[0])


def _load(folder: Path, dtype: torch.dtype) -> nn.Module:
    """The whole model of a directory."""
    file = folder / "config.json"
    described = json_files.read(file)
    kind = printable(repr(described.get("model_type")))
    try:
        import transformers
    except ImportError as error:
        known = ", ".join(model_types())
        rule = f"supported: {known}; with transformers installed others too: pip install transformers"
        raise CheckpointError(f"{file}: model_type is {kind}; {rule}") from error
    found = transformers_directories.weights_of(folder, described)
    with transformers_directories.reading(folder), transformers_directories.bounded(file, described, found):
        config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        maker = _class_of(transformers, config, described)
        model, info = maker.from_pretrained(
            folder,
            config=config,
            dtype=dtype,
            use_safetensors=True,
            local_files_only=True,
            attn_implementation="sdpa" if maker._supports_sdpa else "eager",
            ignore_mismatched_sizes=True,  # listed below
            output_loading_info=True,
        )
    # The pooler of BERT's relatives is not part of what is shown.
    lost = sorted(name for name in info["missing_keys"] if ".pooler." not in f".{name}")
    wrong = [f"  {printable(str(name))} is not in the files" for name in lost]
    wrong += [f"  {printable(str(each[0]))} has another shape in the files" for each in info["mismatched_keys"]]
    wrong += [
        f"  {name} has values that are NaN or infinite"
        for name, weight in model.named_parameters()
        if not bool(torch.isfinite(weight).all())
    ]
    if wrong:
        raise CheckpointError("\n".join([f"{folder} does not have the weights of {maker.__name__}", *wrong]))
    for part in (model, getattr(model, "text_model", model)):
        part.__dict__["directory"] = folder
    return cast("nn.Module", model.eval())


def tokenizer(folder: Path) -> Tokenizer:
    """Of a directory: its tokenizer.json, or what transformers makes of its other files. Raises CheckpointError."""
    if os.path.lexists(folder / "tokenizer.json"):
        return Tokenizer.load(folder)
    if not any(True for pattern in _VOCABULARIES for _ in folder.glob(pattern)):
        raise CheckpointError(
            f"there is no {folder / 'tokenizer.json'}, and no vocabulary from which transformers makes one"
        )
    import transformers

    with transformers_directories.reading(folder):
        made = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    return tokenizer_of(made, folder / "tokenizer.json")


def tokenizer_of(given: Any, path: Path = Path("tokenizer")) -> Tokenizer:
    """A copy of a tokenizer of transformers or of tokenizers. Raises ValueError: it is neither, or has no Rust tokenizer inside."""
    from tokenizers import Tokenizer as Backend

    backend = getattr(given, "backend_tokenizer", given)
    if not isinstance(backend, Backend):
        rule = "a tokenizer of tokenizers, or one of transformers that has a backend_tokenizer"
        raise ValueError(f"tokenizer must be {rule}, not {type(given).__name__}")
    return Tokenizer(Backend.from_str(backend.to_str()), path)


def _class_of(transformers: Any, config: Any, described: dict[str, Any]) -> Any:
    """The class that config.json names, or the body alone where it names none of transformers'."""
    names = described.get("architectures")
    for name in names if isinstance(names, list) else []:
        made: Any = getattr(transformers, name, None) if isinstance(name, str) else None
        is_model = isinstance(made, type) and issubclass(made, transformers.PreTrainedModel)
        if is_model and made.config_class is type(config):
            return made
    return transformers.MODEL_MAPPING[type(config)]
