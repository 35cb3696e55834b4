"""Doors into other libraries; each is imported when first used."""

from importlib import import_module

__all__ = ["patch_torch"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'uwaga.integrations' has no attribute {name!r}")
    return getattr(import_module("uwaga.integrations.torch_patch"), name)
