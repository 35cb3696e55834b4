"""Whole Transformers, from files that Hugging Face's transformers wrote, and back.

A family of models is a folder: config.py (the settings), model.py (the module), checkpoint.py (the table of weight names, and
the `Family` that loading and saving use). checkpoints/ loads and saves models, tokenizers/ has texts to token ids.
"""

from typing import TYPE_CHECKING

from uwaga._base.lazy import names

if TYPE_CHECKING:
    from uwaga.models.bert.config import BertConfig as BertConfig
    from uwaga.models.bert.model import BertModel as BertModel
    from uwaga.models.checkpoints.load_save import load as load
    from uwaga.models.checkpoints.load_save import save as save
    from uwaga.models.generation.generate import generate as generate
    from uwaga.models.gpt2.config import GPT2Config as GPT2Config
    from uwaga.models.gpt2.model import GPT2Model as GPT2Model
    from uwaga.models.rotary.config import RotaryConfig as RotaryConfig
    from uwaga.models.rotary.model import RotaryModel as RotaryModel
    from uwaga.models.t5.config import T5Config as T5Config
    from uwaga.models.t5.model import T5Model as T5Model
    from uwaga.models.tokenizers.loading import tokenizer as tokenizer
    from uwaga.models.transformer.config import TransformerConfig as TransformerConfig
    from uwaga.models.transformer.model import Transformer as Transformer
else:
    __all__, __getattr__, __dir__ = names(__name__)
