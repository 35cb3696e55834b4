"""Floor 4: whole Transformers, from files that Hugging Face's transformers wrote, and back.

A family of models is a folder: config.py (plain settings), model.py (the module), checkpoint.py (the table of names and
the `Family` that ties them together). families.py lists them; checkpoints.py loads and saves any of them.
"""

from importlib import import_module

__all__ = [
    "BertConfig",
    "BertModel",
    "GPT2Config",
    "GPT2Model",
    "T5Config",
    "T5Model",
    "Transformer",
    "TransformerConfig",
    "generate",
    "load",
    "save",
]

_HOME = {
    "BertConfig": "uwaga.models.bert.config",
    "BertModel": "uwaga.models.bert.model",
    "GPT2Config": "uwaga.models.gpt2.config",
    "GPT2Model": "uwaga.models.gpt2.model",
    "T5Config": "uwaga.models.t5.config",
    "T5Model": "uwaga.models.t5.model",
    "Transformer": "uwaga.models.transformer.model",
    "TransformerConfig": "uwaga.models.transformer.config",
    "generate": "uwaga.models.generation.generate",
    "load": "uwaga.models.checkpoints",
    "save": "uwaga.models.checkpoints",
}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'uwaga.models' has no attribute {name!r}")
    globals()[name] = value = getattr(import_module(_HOME[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
