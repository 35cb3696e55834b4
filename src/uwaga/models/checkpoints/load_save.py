"""Loading models from unmodified Hugging Face directories, and saving them.

Loading compares all names and shapes in the files with the family's table before it allocates memory for weights. No code from
a file is run: weights are safetensors, or files of torch.save, whose pickle `torch_files` interprets.
"""

import json
import os
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from uwaga._base import durable, untrusted
from uwaga._base.arguments import check
from uwaga._base.errors import CheckpointError, OwnCodeError, UnsupportedModelError
from uwaga.models.checkpoints import directories, tables, weight_files
from uwaga.models.configuration import Config
from uwaga.models.families import family_of, model_types
from uwaga.models.families.family import File
from uwaga.models.transformer import NoInitialisation, Transformer


def load(
    path_or_hub_id: str | os.PathLike[str],
    *,
    dtype: torch.dtype | None = None,
    revision: str | None = None,
) -> Transformer:
    """Load a model from a directory of transformers or sentence-transformers, by a bundled name, or from the Hub.

    Args:
        path_or_hub_id: a directory with config.json and weights (model.safetensors, pytorch_model.bin, or either in
            shards), or with modules.json, whose transformer is loaded. If there is no such directory: the name of a bundled
            model ("bard", "copyist", "speller", "minilm"), or the id of a repository on the Hub, which huggingface_hub downloads
            into its cache.
        dtype: a floating dtype for all weights; None: the dtype of the files.
        revision: a branch, tag or commit on the Hub.

    Returns:
        The model, on the CPU, in evaluation mode. Its attribute `directory` is the directory that it was read from;
        `uwaga.models.tokenizer` uses it.

    Raises:
        CheckpointError: the files are invalid or describe something that is not supported; one message lists all missing
            and unexpected weights and those of a wrong shape.
    """
    folder = directories.transformer(directories.find(path_or_hub_id, revision))
    return load_folder(folder, dtype, keeps_float16=True)


def check_dtype(dtype: object) -> None:
    """Raise ValueError if this is neither None nor a floating dtype."""
    is_floating = dtype is None or (isinstance(dtype, torch.dtype) and dtype.is_floating_point)
    check(is_floating, f"load: dtype must be a floating dtype, such as torch.bfloat16, not {dtype!r}")


def load_folder(
    folder: Path,
    dtype: torch.dtype | None,
    *,
    has_head: bool = True,
    shared: bool = False,
    keeps_float16: bool = False,
) -> Transformer:
    """Load the model in a directory with config.json, with the arguments and errors of `load`.

    Args:
        has_head: False leaves out all weights of heads.
        shared: map weights from the files, as `tables.reader`.
        keeps_float16: whether weights in float16 stay so without a dtype. Otherwise they become float32, since activations may exceed float16.
    """
    check_dtype(dtype)
    file = folder / "config.json"
    described = untrusted.read_json(file)
    try:
        family = family_of(described.get("model_type"), str(file))
        weights = weight_files.find(folder)
        if not has_head:
            weights = replace(weights, stored=family.of_body(weights.stored))
        config = family.read(described["model_type"], File(described, str(file), frozenset(weights.stored)), {})
    except OwnCodeError:
        raise
    except CheckpointError as error:
        raise UnsupportedModelError(str(error)) from error
    most = max(config.num_layers, config.num_decoder_layers)
    if most > len(weights.stored):  # before a model with so many is built
        raise CheckpointError(f"{file} says {most} layers, and {weights.path} has {len(weights.stored)} weights in all")
    model = _empty(config)
    ours = model.state_dict()
    table, widens = family.table(config, ours), not keeps_float16
    read = tables.reader(table, weights, ours, dtype, widens_float16=widens, shared=shared)
    model.load_state_dict(read(), assign=True)
    assert not any(map(attrgetter("is_meta"), model.buffers())), "buffers must be persistent, or computed"
    model.directory = folder
    return model.eval()


def _empty(config: Config) -> Transformer:
    """Return a model without memory for its weights."""
    with torch.device("meta"), NoInitialisation():
        return Transformer(config)


def of_transformers(model: Any) -> Transformer | None:
    """Return a `Transformer` that shares the weights of a model of transformers, in evaluation mode; None: its family is not ours.

    Nothing is copied: a weight that is stored transposed, or several in one, is a view.

    Raises:
        CheckpointError: a family that `uwaga.models.load` knows, with settings or weights that it does not.
    """
    where = type(model).__name__
    # As it is written to config.json.
    described = json.loads(model.config.to_json_string()) | {"architectures": [where]}
    if described.get("model_type") not in model_types():
        return None
    theirs = model.state_dict()
    family = family_of(described["model_type"], where)
    config = family.read(described["model_type"], File(described, where, frozenset(theirs)), {})
    made = _empty(config)
    table = family.table(config, made.state_dict())
    by_name = {table.bare(name): x for name, x in theirs.items()}
    missing = [row.theirs for row in table.rows() if row.theirs not in by_name]
    if missing:
        raise CheckpointError(
            f"{where} has no weight {missing[0]}, which a {described['model_type']} model of this package has"
        )
    state: dict[str, Any] = {}
    for row in table.rows():
        state |= dict(zip(row.ours, row.read(by_name[row.theirs]), strict=True))
    made.load_state_dict(state, assign=True)
    return made.eval()


def save(model: nn.Module, path: str | os.PathLike[str]) -> None:
    """Write config.json and model.safetensors, which transformers loads, into a directory, which is created if needed.

    Each file is replaced atomically, and may be one that the model was loaded from. Raises OSError: the directory cannot be
    written; CheckpointError: transformers has no such model, or the directory has the index of a model in several files.
    """
    from safetensors.torch import save_file

    config, ours = cast(Config, model.config), model.state_dict()
    family = family_of(config.model_type, "save")
    described = family.written(config)
    tensors = tables.write(family.table(config, ours), ours)
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
