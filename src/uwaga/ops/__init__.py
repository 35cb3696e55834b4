"""The operation. Start with attention/reference.py, which says what attention means."""

from importlib import import_module


def __getattr__(name: str) -> object:
    if name not in ("AttendedLse", "attention_and_lse"):
        raise AttributeError(f"module 'uwaga.ops' has no attribute {name!r}")
    return getattr(import_module("uwaga.ops.attention.api"), name)
