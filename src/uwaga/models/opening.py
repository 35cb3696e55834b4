"""Opening a model: a family of ours by its table. transformers computes any other, and what our table rejects.

A directory is untrusted: no code of it is run, weights of transformers' models are safetensors, and their number bounds the model that
config.json may ask for.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from uwaga._base import untrusted
from uwaga._base.arguments import check
from uwaga._base.errors import CheckpointError, UnsupportedModelError
from uwaga._base.terminal import printable
from uwaga.models.checkpoints import directories

if TYPE_CHECKING:
    import torch
    from torch import nn

    from uwaga.integrations.transformers.ragged_classifier import RaggedClassifier
    from uwaga.models.model import Model
    from uwaga.models.tokenizers.tokenizer import Tokenizer
    from uwaga.models.transformers_model import TransformersModel

_VOCABULARIES = ("*.model", "vocab*.json", "*vocab.txt")
# Encoder-decoders of which the encoder alone gives vectors, as in sentence-transformers, and its class.
_ENCODERS = {
    "longt5": "LongT5EncoderModel",
    "switch_transformers": "SwitchTransformersEncoderModel",
    "umt5": "UMT5EncoderModel",
}
# Classes of tokenizers that give token types, without "Tokenizer" at their ends. A test compares them with transformers.
TYPED_TOKENIZERS = {
    "Bert", "Canine", "ConvBert", "DPRContextEncoder", "DPRQuestionEncoder", "Deberta", "DebertaV2", "Electra", "FNet", "LayoutLMv2",
    "MarkupLM", "MobileBert", "SqueezeBert", "Tapas",
}  # fmt: skip
# With one of these, the class of a family, the name in a file does not matter to AutoTokenizer.
_GENERIC = ("TokenizersBackend", "PythonBackend", "PreTrainedTokenizerFast", "MistralCommonBackend")
# What is read of a directory: the class that config.json names; the states of its body; a number by its classifier.
Part = Literal["whole", "states", "classifier"]


def open(  # as the public name
    model: "str | os.PathLike[str] | nn.Module",
    *,
    dtype: "torch.dtype | str | None" = None,
    revision: str | None = None,
    tokenizer: object = None,
) -> "Model":
    """Open a model with its tokenizer: a family of uwaga, or any other model through transformers.

    Args:
        model: the name of a bundled model, a directory or a model id of the Hugging Face Hub, as `uwaga.models.load` takes it; or a module in
            evaluation mode, a `Transformer` or a model of transformers, in which nothing is changed.
        dtype: the dtype of the weights of a directory, or its name, such as "float32"; None: the dtype of the files.
        revision: a branch, tag or commit on the Hub.
        tokenizer: the tokenizer of a module, from transformers or tokenizers, which is copied; None: the tokenizer of the directory that the
            module was read from.

    Raises:
        CheckpointError: neither uwaga nor transformers can read the directory, or its model reads no text.
        ValueError: the module cannot be watched, reads no text or is in training mode; it has no tokenizer, or the tokenizer has more ids than
            the module has embeddings; a wrong dtype; an argument that belongs to the other kind of model.
    """
    if not isinstance(model, str | os.PathLike):
        is_plain = dtype is None and revision is None
        check(is_plain, "open: dtype and revision are for a directory; a module is taken as it is")
        return _of_module(model, tokenizer)
    check(tokenizer is None, "open: tokenizer is for a module; a directory has its own")
    found = directories.find(model, revision)  # before PyTorch is imported, which takes seconds
    import torch

    return _opened(os.fspath(model), found, cast(Any, getattr(torch, str(dtype), dtype)))


def _opened(name: str, found: Path, dtype: "torch.dtype | None") -> "Model":
    from uwaga.models.checkpoints import sentence_files
    from uwaga.models.checkpoints.load_save import load_folder
    from uwaga.models.tokenizers.loading import load_target_tokenizer, load_tokenizer

    folder = directories.transformer(found)
    result: Model
    try:
        result = load_folder(folder, dtype, keeps_float16=True)
        result.tokenizer = load_tokenizer(folder, lowercase=sentence_files.lowercases(folder))
        result.target_tokenizer = load_target_tokenizer(folder) or result.tokenizer
    except UnsupportedModelError as refusal:
        try:
            module = read_module(folder, dtype, "whole", refusal)
            if hasattr(module, "text_model") and hasattr(module, "vision_model"):  # of CLIP and its like the text tower
                module = module.text_model
                module.__dict__["directory"] = folder
            result = _wrapped(module)
        except ValueError as error:  # it reads no texts, or cannot be watched
            raise error if isinstance(error, CheckpointError) else CheckpointError(f"{folder}: {error}") from error
        result.tokenizer = result.target_tokenizer = _tokenizer_of_directory(folder)
    result.name, result.directory = name, found
    result.title = directories.BUNDLED[name].title if name in directories.BUNDLED else Path(name).name or name
    return result


def read_states(
    folder: Path,
    dtype: "torch.dtype | None",
    tokenizer: "Tokenizer",
    refusal: CheckpointError,
) -> "TransformersModel":
    """Read the model of transformers in a folder, for the hidden states of texts.

    Args:
        tokenizer: the tokenizer of the same folder.
        dtype: the dtype of the weights; None: the dtype of the files, or float32 in place of float16.
        refusal: why our tables cannot read the folder.

    Raises CheckpointError: transformers is not installed, has no such model, or refuses the files; they do not fit together, are not
    safetensors, or have numbers that are NaN or infinite; the model does not give a state to every token of a text.
    """
    from uwaga.models.transformers_model import TransformersModel

    model = read_module(folder, dtype, "states", refusal)
    types = (tokenizer.prefix_types, tokenizer.suffix_types) if _takes_types(folder) else None
    result = TransformersModel(model, types=types)
    with _after(folder, refusal):
        result.packing  # noqa: B018  # raises what is wrong with the model
    return result


def read_classifier(folder: Path, dtype: "torch.dtype | None") -> "RaggedClassifier":
    """Read the model for sequence classification in a folder.

    Raises CheckpointError as `read_states`, and if the model has another number of labels than one.
    """
    from uwaga.integrations.transformers.ragged_classifier import RaggedClassifier

    return RaggedClassifier(read_module(folder, dtype, "classifier"), takes_types=_takes_types(folder))


def read_module(folder: Path, dtype: "torch.dtype | None", part: Part, refusal: CheckpointError | None = None) -> Any:
    """Read a model of transformers, in evaluation mode, with gradients only if it is whole.

    refusal: why our tables cannot read the folder. Raises CheckpointError as `read_states`.
    """
    from importlib.metadata import version

    from uwaga.models.checkpoints.load_save import check_dtype
    from uwaga.models.families import model_types

    check_dtype(dtype)
    described = untrusted.read_json(folder / "config.json")
    if find_spec("transformers") is None or int(version("transformers").partition(".")[0]) < 5:
        install, kind = "version 5 or newer: pip install 'transformers>=5'", described.get("model_type")
        if refusal is not None and kind in model_types():
            raise CheckpointError(f"{refusal}; transformers may read it, {install}") from refusal
        rule = f"model_type is {printable(repr(kind))}, which uwaga reads through the package transformers, {install}"
        raise CheckpointError(f"{folder / 'config.json'}: {rule}. Without it: {', '.join(model_types())}") from refusal
    with _after(folder, refusal):
        return _read_module(folder, dtype, part, described)


@contextmanager
def _after(folder: Path, refusal: CheckpointError | None) -> Iterator[None]:
    """Put the refusal of our table, which names the wrong key, before an error of transformers about the same folder."""
    from uwaga.models.families import model_types

    try:
        yield
    except CheckpointError as error:
        if refusal is None or untrusted.read_json(folder / "config.json").get("model_type") not in model_types():
            raise
        raise CheckpointError(f"{refusal}\n{error}") from error


def _read_module(folder: Path, dtype: "torch.dtype | None", part: Part, described: Mapping[str, Any]) -> Any:
    from inspect import signature

    import torch
    import transformers

    from uwaga.models.checkpoints import transformers_directories

    file, found = folder / "config.json", transformers_directories.weights_of(folder, described)
    with transformers_directories.reading(folder), transformers_directories.bounded(file, described, found):
        maker = None if part == "whole" else _maker(file, described, is_classifier=part == "classifier")
        config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        maker = maker or _class_of(transformers, config, described)
        if part == "classifier" and config.num_labels != 1:
            raise CheckpointError(f"{folder} classifies sequences into {config.num_labels} labels; a reranker has one")
        options: dict[str, Any] = {}
        made = transformers.MODEL_MAPPING[type(config)] if maker is transformers.AutoModel else maker
        if part == "states" and isinstance(made, type) and "add_pooling_layer" in signature(made).parameters:
            options["add_pooling_layer"] = False  # it would be computed of every text, and thrown away
        model, info = maker.from_pretrained(
            folder,
            config=config,
            dtype="auto" if dtype is None else dtype,
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=False,
            ignore_mismatched_sizes=True,  # listed below
            output_loading_info=True,
            **options,
        )
    _check_weights(folder, model, info)
    if dtype is None and part != "whole" and model.dtype is torch.float16:  # as load_folder
        model = model.float()
    model.__dict__["directory"] = folder
    return model.eval().requires_grad_(part == "whole")


def _check_weights(folder: Path, model: Any, info: Mapping[str, Any]) -> None:
    """Raise CheckpointError if weights of the model are missing, left over, of another shape, NaN or infinite.

    Weights of a head that is not computed may be left over. Weights of the pooler of BERT's relatives may be missing: nothing reads it.
    """
    children = {name for name, _ in model.named_children()}
    body = model.base_model_prefix
    left = [name for name in info["unexpected_keys"] if name.removeprefix(f"{body}.").split(".")[0] in children]
    missing = [name for name in info["missing_keys"] if ".pooler." not in f".{name}"]
    lines = [f"  {printable(name)} is missing" for name in sorted(missing)]
    lines += [f"  {printable(name)} is no weight of the model" for name in sorted(left)]
    lines += [f"  {printable(str(keys[0]))} has another shape in the files" for keys in info["mismatched_keys"]]
    strange = [name for name, weight in model.named_parameters() if not bool(weight.isfinite().all())]
    lines += [f"  {name} has values that are NaN or infinite" for name in strange]
    if lines:
        raise CheckpointError("\n".join([f"{folder} does not match {type(model).__name__} of transformers", *lines]))


def _class_of(transformers: Any, config: Any, described: Mapping[str, Any]) -> Any:
    """Return the class that config.json names, or the class of the body if it names no class of transformers."""
    names = described.get("architectures")
    for name in names if isinstance(names, list) else []:
        made: Any = getattr(transformers, name, None) if isinstance(name, str) else None
        is_model = isinstance(made, type) and issubclass(made, transformers.PreTrainedModel)
        if is_model and made.config_class is type(config):
            return made
    return transformers.MODEL_MAPPING[type(config)]


def _maker(file: Path, described: Mapping[str, Any], *, is_classifier: bool) -> Any:
    """Return the class of transformers that gives states, or one number, to a text. Raises CheckpointError."""
    from inspect import signature

    import transformers

    from uwaga.models.families import model_types

    model_type = described.get("model_type")
    shown, name = printable(repr(model_type)), model_type if isinstance(model_type, str) else ""
    if name in _ENCODERS and not is_classifier:
        return getattr(transformers, _ENCODERS[name])
    is_known = name in transformers.CONFIG_MAPPING
    config = transformers.CONFIG_MAPPING[name] if is_known else None  # it has no `get` of its own
    models = transformers.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING if is_classifier else transformers.MODEL_MAPPING
    made: Any = () if config is None or config not in models else models[config]
    makers, wrong = made if isinstance(made, tuple | list) else [made], ""
    if config is None or config not in models:
        code = " The code that comes with it is never run here;" if described.get("auto_map") else ""
        what, reader = ("classifier", "CrossEncoder") if is_classifier else ("model", "SentenceTransformer")
        wrong = (
            f"; uwaga's own are {', '.join(model_types())}, and transformers {transformers.__version__} has no {what} of it.{code} "
            f"sentence_transformers.{reader} may read it with trust_remote_code=True"
        )
    elif described.get("is_encoder_decoder", getattr(config(), "is_encoder_decoder", False)):
        what = "is not run as a reranker" if is_classifier else "gives no vectors of a text"
        wrong = f", an encoder-decoder, which {what}"
    elif not any("input_ids" in signature(maker.forward).parameters for maker in makers):
        wrong = ", which does not read tokens"
    if wrong:
        raise CheckpointError(f"{file}: model_type is {shown}{wrong}")
    return transformers.AutoModelForSequenceClassification if is_classifier else transformers.AutoModel


def is_classifier(folder: Path) -> bool:
    """Return whether a model classifies sequences and its family is not one of ours that has classifiers."""
    from uwaga.models.families import family_of, model_types

    described = untrusted.read_json(folder / "config.json")
    kind = described.get("model_type")
    if kind in model_types() and any("sequence" in has for has in family_of(kind, "load").architectures.values()):
        return False
    names = described.get("architectures")
    return isinstance(names, list) and len(names) == 1 and str(names[0]).endswith("ForSequenceClassification")


def _wrapped(module: Any) -> "TransformersModel":
    """Wrap a module of transformers. Raises ValueError if it reads no text, is in training mode, or computes attention by itself."""
    from uwaga.models.transformers_model import TransformersModel

    result = TransformersModel(module)
    check(
        module._can_set_attn_implementation(),
        f"{type(module).__name__} computes attention by itself, where nothing can be watched or changed",
    )
    return result


def _of_module(module: "nn.Module", tokenizer: object) -> "Model":
    from uwaga.integrations.transformers.inside import outermost
    from uwaga.models.tokenizers.loading import of_model
    from uwaga.models.transformer import Transformer

    kind = type(module).__name__
    name = getattr(getattr(module, "config", None), "name_or_path", "")
    folder = getattr(module, "directory", None) or (Path(name) if name and Path(name).is_dir() else None)
    is_ours, inside = isinstance(module, Transformer), outermost(module)
    wrong = ""
    if is_ours and module.training:
        wrong = "is in training mode, in which dropout changes what it computes; call model.eval()"
    elif len(inside) > 1:
        wrong = f"has {len(inside)} models of transformers inside: give one of them"
    elif not is_ours and not inside:
        wrong = "is neither a model of uwaga.models nor of transformers"
    check(not wrong, f"{kind} {wrong}")
    result: Any = copy(module) if is_ours else _wrapped(inside[0][1])  # with tokenizers of its own
    if tokenizer is not None:
        result.tokenizer = result.target_tokenizer = _tokenizer_of(tokenizer)
    elif folder is None:
        pass
    elif is_ours:
        result.tokenizer, result.target_tokenizer = of_model(module), of_model(module, decoder=True)
    else:
        result.tokenizer = result.target_tokenizer = _tokenizer_of_directory(folder)
    check(
        result.tokenizer is not None,
        f"this {kind} was not read from a directory: give its tokenizer, as in uwaga.models.open(model, tokenizer=tokenizer)",
    )
    embeddings, ids = result.config.vocab_size, result.tokenizer.vocab_size
    check(not 0 < embeddings < ids, f"the tokenizer has the token id {ids - 1}, and {kind} has {embeddings} embeddings")
    result.title, result.directory = (Path(name).name if isinstance(name, str) else "") or kind, folder
    return result


def _tokenizer_of_directory(folder: Path) -> "Tokenizer":
    """Read the tokenizer.json of a folder, or let transformers make a tokenizer of its other files. Raises CheckpointError."""
    from uwaga.models.checkpoints import transformers_directories
    from uwaga.models.tokenizers.loading import load_tokenizer

    if os.path.lexists(folder / "tokenizer.json"):
        return load_tokenizer(folder)
    if not any(True for pattern in _VOCABULARIES for _ in folder.glob(pattern)):
        raise CheckpointError(
            f"there is no {folder / 'tokenizer.json'}, and no vocabulary from which transformers makes one"
        )
    import transformers

    with transformers_directories.reading(folder):
        made = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    return _tokenizer_of(made, folder / "tokenizer.json")


def _tokenizer_of(source: Any, path: Path = Path("tokenizer")) -> "Tokenizer":
    """Copy a tokenizer of transformers or of tokenizers. Raises ValueError if it is neither, or has no Rust tokenizer inside."""
    from tokenizers import Tokenizer as Backend

    from uwaga.models.tokenizers.tokenizer import Tokenizer

    backend = getattr(source, "backend_tokenizer", source)
    if not isinstance(backend, Backend):
        rule = "a tokenizer of tokenizers, or one of transformers that has a backend_tokenizer"
        raise ValueError(f"tokenizer must be {rule}, not {type(source).__name__}")
    return Tokenizer(Backend.from_str(backend.to_str()), path)


def _takes_types(folder: Path) -> bool:
    """Return whether the tokenizer of transformers gives the model token types."""
    from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING_NAMES

    described = untrusted.read_json(folder / "config.json")
    return gives_types(folder, described, TOKENIZER_MAPPING_NAMES.get(str(described.get("model_type"))))


def gives_types(folder: Path, described: Mapping[str, Any], of_family: str | None) -> bool:
    """Return whether AutoTokenizer of transformers gives token types, by the files of a folder and the class of the tokenizer.

    described: the content of config.json. of_family: the class of the family's tokenizer.
    """
    settings = untrusted.read_json(folder / "tokenizer_config.json", missing_ok=True)
    names = settings.get("model_input_names")
    if names is not None:
        return isinstance(names, Sequence) and "token_type_ids" in names
    name = of_family if of_family in _GENERIC else None
    name = name or settings.get("tokenizer_class") or described.get("tokenizer_class") or of_family
    return str(name).removesuffix("Fast").removesuffix("Tokenizer") in TYPED_TOKENIZERS
