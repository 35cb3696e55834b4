"""uwaga inside other libraries: PyTorch, transformers, sentence-transformers. Each is imported when first used."""

from uwaga._base.lazy import names

__all__ = ["patch_torch", "register_with_transformers", "sentence_transformers"]

_HOME = {
    "patch_torch": "uwaga.integrations.torch_patch",
    "register_with_transformers": "uwaga.integrations.transformers.register",
}

__getattr__, __dir__ = names(__name__, _HOME, ("sentence_transformers",))
