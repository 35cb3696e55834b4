"""Doors into other libraries; each is imported when first used."""

from importlib import import_module

__all__ = ["patch_torch", "register_with_transformers", "sentence_transformers"]

_HOME = {
    "patch_torch": "uwaga.integrations.torch_patch",
    "register_with_transformers": "uwaga.integrations.transformers.register",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'uwaga.integrations' has no attribute {name!r}")
    if name not in _HOME:
        return import_module(f"uwaga.integrations.{name}")
    return getattr(import_module(_HOME[name]), name)
