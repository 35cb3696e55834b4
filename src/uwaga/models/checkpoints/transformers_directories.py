"""Directories whose models transformers computes. They are untrusted: weights are safetensors, no code of theirs is run, and nothing that they
do not hold themselves, such as the base of an adapter, is loaded."""

import math
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import (
    register_module_buffer_registration_hook,
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)
from torch.utils.hooks import RemovableHandle

from uwaga._base import untrusted
from uwaga._base.errors import CheckpointError
from uwaga._base.terminal import printable
from uwaga.models.checkpoints import weight_files

_LOCK = threading.Lock()
# The level and progress bars of transformers' logging, as each thread that reads found them.
_BEFORE: list[tuple[int, bool]] = []
# transformers makes lists and patterns of layers in addition to the model, and two names of each class, even for a tokenizer alone. No whole number of
# config.json may be larger than the first (vocabularies have up to 262,400 tokens), or than one for so many weights, up to the third: a published
# model has hundreds of weights for each unit of a length or a base. No published classifier has more classes.
_SURE, _NUMBERS_EACH, _LARGEST, _MOST_LABELS = 300_000, 64, 1 << 24, 1 << 16
# A model has a module, a weight or a buffer at most so many times for each weight that is stored, which may be several in one, and so
# many more. The same holds for numbers in weights and buffers: masks and tables of positions are in no file.
_MORE, _BESIDE, _MOST_NUMBERS = 8, 1 << 8, 1 << 26
_HOOKS: list[RemovableHandle] = []
# Its attribute `left`: how many parts and numbers a model that is being built in `bounded` may still have.
_building = threading.local()


def weights_of(folder: Path, described: Mapping[str, Any]) -> weight_files.Weights:
    """Return the weights in a folder. described: its config.json. Raises CheckpointError if they are not the model's, or not in safetensors."""
    for rule in _broken_rules(folder, described):
        raise CheckpointError(rule)
    return weight_files.find(folder)


def _broken_rules(folder: Path, described: Mapping[str, Any]) -> Iterator[str]:
    file = folder / "config.json"
    if described.get("configuration_files") is not None:  # transformers would read another file than this one
        what = "settings for several versions of transformers are not read"
        yield f"{file}: configuration_files: {what}; rename the file of your version to config.json"
    if described.get("quantization_config") is not None:
        yield f"{file}: quantization_config: quantized weights are not read"
    if os.path.lexists(folder / "adapter_config.json"):
        yield f"{folder} has adapter_config.json: merge the adapter into its model, and save that"
    if not any(os.path.lexists(folder / name) for name in (weight_files.SINGLE, weight_files.SHARDED)):
        names = f"{weight_files.SINGLE} or {weight_files.SHARDED}"
        yield f"{folder} has no {names}: models of transformers are read from safetensors alone"


@contextmanager
def reading(folder: Path, files: str = "") -> Iterator[None]:
    """Turn errors of transformers about a directory into CheckpointError, and switch off its progress bars and reports.

    files: names of files, for messages.

    Raises CheckpointError: a number in config.json is larger than any model has.
    """
    import transformers

    _check_folder(folder)
    logging = transformers.utils.logging
    with _LOCK:
        _BEFORE.append((logging.get_verbosity(), logging.is_progress_bar_enabled()))
        logging.set_verbosity(logging.CRITICAL)
        logging.disable_progress_bar()
    try:
        yield
    except CheckpointError:
        raise
    except Exception as error:  # whatever the code of one of hundreds of families raises of its files
        reason = printable(str(error).strip() or type(error).__name__)
        version = transformers.__version__
        raise CheckpointError(f"{folder / files} cannot be read by transformers {version}: {reason}") from error
    finally:
        with _LOCK:
            verbosity, shows_bars = _BEFORE.pop()
            if not _BEFORE:  # the last thread puts back what the first one found
                logging.set_verbosity(verbosity)
                if shows_bars:
                    logging.enable_progress_bar()


@contextmanager
def bounded(path: Path, described: object, weights: weight_files.Weights) -> Iterator[None]:
    """Give a context in which this thread cannot build a model with far more or larger weights than the files have.

    Numbers in config.json may ask for any size, but weights that are in no file would be missing. path: config.json, for messages.
    described: its content.

    Raises CheckpointError: a number is larger than any model of so many weights has, or makes more weights.
    """
    elements = [math.prod(x.shape) for x in weights.stored.values()]
    _check_numbers(path, described, sum(elements), f"{sum(elements)} numbers")
    with _LOCK:
        if not _HOOKS:  # for good: to remove them while another thread builds a model would break its loop over them
            _HOOKS.append(register_module_parameter_registration_hook(_count))
            _HOOKS.append(register_module_buffer_registration_hook(_count))
            _HOOKS.append(register_module_module_registration_hook(_count))
    _building.left = {"parts": _MORE * len(elements) + _BESIDE, "numbers": _MORE * sum(elements) + _MOST_NUMBERS}
    _building.stored = (
        f"{path}: it asks for far more than the files have, {len(elements)} weights of {sum(elements)} numbers"
    )
    try:
        yield
    finally:
        _building.left = None


def _count(_module: nn.Module, _name: str, made: object) -> None:
    left: dict[str, int] | None = getattr(_building, "left", None)
    if left is None:
        return
    left["parts"] -= 1
    left["numbers"] -= made.numel() if isinstance(made, torch.Tensor) else 0
    if min(left.values()) < 0:
        raise CheckpointError(_building.stored)


def _check_folder(folder: Path) -> None:
    """Raise CheckpointError if config.json has a number that is too large for weights of these bytes, two or more for each."""
    size = sum(file.stat().st_size for file in folder.glob("*.safetensors") if file.is_file())
    path = folder / "config.json"
    described = untrusted.read_json(path, missing_ok=True)
    _check_numbers(path, described, size // 2 if size else _LARGEST * _NUMBERS_EACH, f"{size} bytes")


def _check_numbers(path: Path, described: object, stored: int, shown: str) -> None:
    largest = min(_LARGEST, max(_SURE, stored // _NUMBERS_EACH))
    for key, number in _numbers(described):
        limit = _MOST_LABELS if key == "num_labels" else largest
        if number > limit:
            rule = f"{printable(key)} is {number}, more than the limit of {limit}"
            raise CheckpointError(f"{path}: {rule} for weights of {shown}")


def _numbers(described: object, key: str = "") -> Iterator[tuple[str, int]]:
    if isinstance(described, dict):
        for name, inner in described.items():
            yield from _numbers(inner, str(name))
    elif isinstance(described, list):
        for inner in described:
            yield from _numbers(inner, key)
    elif isinstance(described, int) and not isinstance(described, bool):
        yield key, described
