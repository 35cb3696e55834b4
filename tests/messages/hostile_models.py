"""Checkpoints made to harm, which are refused: tests/hostile_checkpoints.py makes them."""

import tracemalloc
from pathlib import Path

import hostile_checkpoints
import pytest
import safetensors

from uwaga._base import untrusted
from uwaga.models import load


def loaded(folder: Path, spoil: hostile_checkpoints.Spoil) -> None:
    """Load a spoiled model. It must not take more memory than the JSON it may read."""
    spoil(hostile_checkpoints.write_model(folder / "model"))
    tracemalloc.start()
    try:
        load(folder / "model")
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 2 * untrusted.JSON_BYTES


def replaced(folder: Path, patch: pytest.MonkeyPatch) -> None:
    """Replace the weights while they are opened: one open file has the header that is checked, and the library opens another one."""
    path = hostile_checkpoints.write_model(folder / "model") / "model.safetensors"
    other = folder / "other"
    other.write_bytes(path.read_bytes())
    theirs = safetensors.safe_open
    patch.setattr(safetensors, "safe_open", lambda *args, **named: other.replace(path) and theirs(*args, **named))
    load(folder / "model")
