"""Whole Transformers, from files that Hugging Face's transformers wrote, and back.

A family of models is a folder: config.py (the settings), model.py (the module), checkpoint.py (the table of weight names, and
the `Family` that loading and saving use). checkpoints/ loads and saves models, tokenizers/ has texts to token ids.
"""

from uwaga._base.lazy import names

__all__ = [
    "BertConfig",
    "BertModel",
    "GPT2Config",
    "GPT2Model",
    "RotaryConfig",
    "RotaryModel",
    "T5Config",
    "T5Model",
    "Transformer",
    "TransformerConfig",
    "generate",
    "load",
    "save",
    "tokenizer",
]

_HOME = {
    "BertConfig": "uwaga.models.bert.config",
    "BertModel": "uwaga.models.bert.model",
    "GPT2Config": "uwaga.models.gpt2.config",
    "GPT2Model": "uwaga.models.gpt2.model",
    "RotaryConfig": "uwaga.models.rotary.config",
    "RotaryModel": "uwaga.models.rotary.model",
    "T5Config": "uwaga.models.t5.config",
    "T5Model": "uwaga.models.t5.model",
    "Transformer": "uwaga.models.transformer.model",
    "TransformerConfig": "uwaga.models.transformer.config",
    "generate": "uwaga.models.generation.generate",
    "load": "uwaga.models.checkpoints.load_save",
    "save": "uwaga.models.checkpoints.load_save",
    "tokenizer": "uwaga.models.tokenizers.loading",
}

__getattr__, __dir__ = names(__name__, _HOME)
