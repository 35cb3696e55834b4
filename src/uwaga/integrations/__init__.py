"""uwaga inside other libraries: PyTorch, transformers, sentence-transformers. Each is imported when first used."""

from typing import TYPE_CHECKING

from uwaga._base.lazy import names

if TYPE_CHECKING:
    from uwaga.integrations.packed_linear import pack_linear as pack_linear
    from uwaga.integrations.packed_linear import unpack_linear as unpack_linear
    from uwaga.integrations.torch_patch import patch_torch as patch_torch
    from uwaga.integrations.transformers.register import register_with_transformers as register_with_transformers
else:
    __all__, __getattr__, __dir__ = names(__name__, "sentence_transformers")
