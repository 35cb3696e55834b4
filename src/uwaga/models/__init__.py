"""Whole Transformers, from files that Hugging Face's transformers wrote, and back.

families/ has a table for each model type: what the keys of config.json and the names of weights are in a `Transformer`. checkpoints/ loads and
saves, tokenizers/ has texts to token ids, generating continues texts.
"""

from typing import TYPE_CHECKING

from uwaga._base.lazy import names

if TYPE_CHECKING:
    from uwaga.models.checkpoints.load_save import load as load
    from uwaga.models.checkpoints.load_save import save as save
    from uwaga.models.configuration import Config as Config
    from uwaga.models.families import config as config
    from uwaga.models.generating import generate as generate
    from uwaga.models.model import Model as Model
    from uwaga.models.opening import open as open
    from uwaga.models.tokenizers.loading import tokenizer as tokenizer
    from uwaga.models.transformer import Transformer as Transformer
else:
    __all__, __getattr__, __dir__ = names(__name__)
