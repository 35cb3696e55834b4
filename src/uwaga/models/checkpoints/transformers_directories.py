"""Directories whose models transformers computes. They are untrusted: weights are safetensors, no code of theirs is run, and nothing that they
do not hold themselves, such as the base of an adapter, is loaded."""

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from uwaga._base.errors import CheckpointError
from uwaga._base.terminal import printable
from uwaga.models.checkpoints import weight_files

_LOCK = threading.Lock()
_BEFORE: list[
    tuple[int, bool]
] = []  # the level and progress bars of transformers' logging, as each thread that reads found them


def weights_of(folder: Path, described: Mapping[str, Any]) -> weight_files.Weights:
    """described: what is in its config.json. Raises CheckpointError: there are none in safetensors, or they are not those of the model."""
    if (
        described.get("configuration_files") is not None
    ):  # transformers would read another file than the one that was checked
        raise CheckpointError(
            f"{folder / 'config.json'}: configuration_files: settings for several versions of transformers are not read; rename the file of "
            "your version to config.json"
        )
    if described.get("quantization_config") is not None:
        raise CheckpointError(f"{folder / 'config.json'}: quantization_config: quantized weights are not read")
    if os.path.lexists(folder / "adapter_config.json"):
        raise CheckpointError(f"{folder} has adapter_config.json: merge the adapter into its model, and save that")
    if not any(os.path.lexists(folder / name) for name in (weight_files.SINGLE, weight_files.SHARDED)):
        raise CheckpointError(
            f"{folder} has no {weight_files.SINGLE} or {weight_files.SHARDED}: models of transformers are read from safetensors alone"
        )
    return weight_files.find(folder)


@contextmanager
def reading(folder: Path) -> Iterator[None]:
    """Errors of transformers about a directory as CheckpointError, and none of its progress bars and reports: what is wrong is an error."""
    import transformers

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
        raise CheckpointError(f"{folder} cannot be read by transformers {version}: {reason}") from error
    finally:
        with _LOCK:
            verbosity, shows_bars = _BEFORE.pop()
            if not _BEFORE:  # the last thread puts back what the first one found
                logging.set_verbosity(verbosity)
                if shows_bars:
                    logging.enable_progress_bar()
