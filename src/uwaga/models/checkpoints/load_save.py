"""Loading models from unmodified Hugging Face directories, and saving them.

Loading compares all names and shapes in the files with the family's table before it allocates memory for weights. No code from
a file is run: weights are safetensors, or files of torch.save, whose pickle `torch_files` interprets.
"""

import json
import os
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from uwaga._base import durable, json_files
from uwaga._base.errors import CheckpointError
from uwaga._base.terminal import printable
from uwaga.models.checkpoints import directories, mapped_weights, state_dict_check, weight_files
from uwaga.models.checkpoints.tables import Config, Family, Table
from uwaga.models.checkpoints.weight_files import Weights

# model_type of config.json -> the module with its FAMILY, imported when needed.
_MODULES = {
    "albert": "uwaga.models.bert.factorized",
    "bert": "uwaga.models.bert.checkpoint",
    "camembert": "uwaga.models.bert.checkpoint",
    "distilbert": "uwaga.models.bert.checkpoint",
    "electra": "uwaga.models.bert.factorized",
    "eurobert": "uwaga.models.rotary.llama",
    "gemma2": "uwaga.models.rotary.gemma",
    "gemma3_text": "uwaga.models.rotary.gemma",
    "gpt2": "uwaga.models.gpt2.checkpoint",
    "gte": "uwaga.models.bert.rotary",
    "jina_embeddings_v3": "uwaga.models.bert.rotary",
    "llama": "uwaga.models.rotary.llama",
    "marian": "uwaga.models.transformer.checkpoint",
    "mistral": "uwaga.models.rotary.llama",
    "modernbert": "uwaga.models.rotary.modernbert",
    "mpnet": "uwaga.models.bert.checkpoint",
    "mt5": "uwaga.models.t5.checkpoint",
    "nomic_bert": "uwaga.models.bert.rotary",
    "qwen2": "uwaga.models.rotary.llama",
    "qwen3": "uwaga.models.rotary.llama",
    "roberta": "uwaga.models.bert.checkpoint",
    "t5": "uwaga.models.t5.checkpoint",
    "uwaga-gpt3": "uwaga.models.gpt2.checkpoint",
    "uwaga-transformer": "uwaga.models.transformer.checkpoint",
    "xlm-roberta": "uwaga.models.bert.checkpoint",
}
MODEL_TYPES = tuple(sorted(_MODULES))


def has_classifiers(model_type: object) -> bool:
    """Whether it is a family of ours whose classifiers of sequences are read: BERT and its relatives."""
    return isinstance(model_type, str) and _MODULES.get(model_type, "").startswith("uwaga.models.bert.")


def load(
    path_or_hub_id: str | os.PathLike[str],
    *,
    dtype: torch.dtype | None = None,
    revision: str | None = None,
    allow_nonfinite: bool = False,
) -> nn.Module:
    """Load a model from a directory of transformers or sentence-transformers, a bundled one, or one from the hub.

    Args:
        path_or_hub_id: a directory with config.json and weights (model.safetensors, pytorch_model.bin, or either in
            shards), one with modules.json (its transformer is loaded), or, where no such directory exists, the name of a bundled
            model ("bard", "copyist", "speller", "minilm"), or the id of a repository on the hub, downloaded through huggingface_hub
            into its cache.
        dtype: a floating dtype for all weights; None: that of the files.
        revision: branch, tag or commit on the hub.
        allow_nonfinite: accept weights that are NaN or infinite, which are an error otherwise.

    Returns:
        the model of config.json's model_type, such as uwaga.models.BertModel, on the CPU, in evaluation mode. Its attribute
        `directory` is where it was read from, for its tokenizer (`uwaga.models.tokenizer`).

    Raises:
        CheckpointError: the files are invalid or describe something that is not supported; one message lists all missing
            and unexpected weights and those of a wrong shape.
    """
    folder = directories.transformer(directories.find(path_or_hub_id, revision))
    return load_folder(folder, dtype, allow_nonfinite=allow_nonfinite, keeps_float16=True)


def check_dtype(dtype: object) -> None:
    """Raises ValueError: neither None nor a floating dtype."""
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise ValueError(f"load: dtype must be a floating dtype, such as torch.bfloat16, not {dtype!r}")


def load_folder(
    folder: Path,
    dtype: torch.dtype | None,
    *,
    allow_nonfinite: bool = False,
    has_head: bool = True,
    shared: mapped_weights.SharedFile | None = None,
    keeps_float16: bool = False,
) -> nn.Module:
    """As `load`, of a directory with config.json. has_head: False leaves out weights of heads, whatever they are. shared: the file to map
    the weights from (`mapped_weights`); None: a copy in memory. keeps_float16: otherwise, without a dtype, weights that are stored in
    float16 become float32, since activations may exceed float16."""
    check_dtype(dtype)
    file = folder / "config.json"
    described = json_files.read(file)
    family = family_of(described.get("model_type"), str(file))
    weights = weight_files.find(folder)
    weights = weights if has_head else _without_heads(weights, family, described["model_type"])
    config = family.read_config(described, str(file), frozenset(weights.stored))
    table = family.table(config)
    _check_layer_count(table, weights, file)
    with torch.device("meta"), _NoInitialisation():
        model = family.build(config)
    matched = state_dict_check.match(table, weights, model.state_dict())
    if dtype is None and not keeps_float16 and state_dict_check.only_dtype(matched) is torch.float16:
        dtype = torch.float32
    read = partial(state_dict_check.read, matched, dtype, allow_nonfinite=allow_nonfinite)
    shapes = {name: x.shape for name, x in model.state_dict().items()}
    model.load_state_dict(read() if shared is None else mapped_weights.mapped(shared, read, shapes), assign=True)
    assert not any(x.is_meta for x in (*model.parameters(), *model.buffers())), (
        "buffers must be persistent, or computed"
    )
    model.__dict__["directory"] = folder  # nn.Module's annotations allow tensors and modules alone
    return model.eval()


def of_transformers(model: Any) -> nn.Module | None:
    """A model of this package that shares the weights of one of transformers, in evaluation mode; None: of another family.

    Nothing is copied: a weight that is stored transposed, or several in one, is a view.

    Raises:
        CheckpointError: a family that `uwaga.models.load` knows, with settings or weights that it does not.
    """
    where = type(model).__name__
    described = json.loads(model.config.to_json_string()) | {
        "architectures": [where]
    }  # as it is written to config.json
    if described.get("model_type") not in MODEL_TYPES:
        return None
    theirs = model.state_dict()
    family = family_of(described["model_type"], where)
    config = family.read_config(described, where, frozenset(theirs))
    table = family.table(config)
    with torch.device("meta"), _NoInitialisation():
        made = family.build(config)
    by_name = {table.canonical(name): x for name, x in theirs.items()}
    missing = [row.theirs for row in table.rows() if row.theirs not in by_name]
    if missing:
        raise CheckpointError(
            f"{where} has no weight {missing[0]}, which a {described['model_type']} model of this package has"
        )
    state: dict[str, Any] = {}
    for row in table.rows():
        state |= dict(zip(row.ours, row.layout.read(by_name[row.theirs]), strict=True))
    made.load_state_dict(state, assign=True)
    return made.eval()


def _without_heads(weights: Weights, family: Family, model_type: str) -> Weights:
    """Those of the body: of parts that a model of default sizes has, whose configuration is read without a word of unknown keys."""
    default = family.read_config({"model_type": model_type}, model_type, frozenset(weights.stored))
    table = family.table(default)
    parts = {row.theirs.partition(".")[0] for row in table.body}
    stored = {name: x for name, x in weights.stored.items() if table.canonical(name).partition(".")[0] in parts}
    return replace(weights, stored=stored)


class _NoInitialisation(TorchFunctionMode):
    """Leaves parameters as they are made. On the meta device random numbers would be nothing, and import torch._dynamo: 2 s."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        if getattr(func, "__module__", None) == "torch.nn.init":
            return args[0] if args else given["tensor"]
        return func(*args, **given)


def save(model: nn.Module, path: str | os.PathLike[str]) -> None:
    """Write config.json and model.safetensors, which transformers loads, into a directory, which is created if needed.

    Each file is replaced atomically, and may be one that the model was loaded from. Raises OSError: the directory cannot be
    written; CheckpointError: transformers has no such model, or the directory has the index of a model in several files.
    """
    from safetensors.torch import save_file

    config = cast(Config, model.config)
    family = family_of(config.model_type, "save")
    described = family.write_config(config)
    tensors = state_dict_check.write(family.table(config), model.state_dict())
    described["dtype"] = str(next(iter(tensors.values())).dtype).removeprefix("torch.")
    folder = Path(path)
    weight_files.check_no_shards(folder)
    durable.make_folder(folder)
    with (
        durable.atomic_replace(folder / weight_files.SINGLE) as weights,
        durable.atomic_replace(folder / "config.json") as file,
    ):
        weights.close()
        # transformers rejects a file without this metadata.
        save_file(tensors, weights.name, metadata={"format": "pt"})
        file.write((json.dumps(described, indent=2, sort_keys=True) + "\n").encode())


def _check_layer_count(table: Table, weights: Weights, file: Path) -> None:
    """Bound the number of layers in config.json before a model with that many is built. Raises CheckpointError."""
    most = max(table.counts.values(), default=0)
    if most > len(weights.stored):
        raise CheckpointError(f"{file} says {most} layers, and {weights.path} has {len(weights.stored)} weights in all")


def family_of(model_type: object, where: str) -> Family:
    """The family of a model type; `where` is the file that has it, for messages. Raises CheckpointError."""
    if not isinstance(model_type, str) or model_type not in _MODULES:
        known = ", ".join(MODEL_TYPES)
        raise CheckpointError(f"{where}: model_type is {printable(repr(model_type))}; supported: {known}")
    return cast(Family, import_module(_MODULES[model_type]).FAMILY)
