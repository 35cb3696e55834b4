"""uwaga inside other libraries: PyTorch, transformers, sentence-transformers. Each is imported when first used."""

from uwaga._base.lazy import names

__all__ = ["pack_linear", "patch_torch", "register_with_transformers", "sentence_transformers", "unpack_linear"]

_HOME = {
    "pack_linear": "uwaga.integrations.packed_linear",
    "patch_torch": "uwaga.integrations.torch_patch",
    "register_with_transformers": "uwaga.integrations.transformers.register",
    "unpack_linear": "uwaga.integrations.packed_linear",
}

__getattr__, __dir__ = names(__name__, _HOME, ("sentence_transformers",))
