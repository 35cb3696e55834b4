"""A directory of a family that is not uwaga's own: a random DeBERTa of transformers."""

from pathlib import Path

import torch
from tiny_tokenizer import read_as_it_is, write_tokenizer


def write_deberta(folder: Path, *, classifies: bool = False) -> Path:
    import transformers

    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
    ids = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}
    config = transformers.DebertaV2Config(vocab_size=32, max_position_embeddings=12, num_labels=1, **sizes, **ids)
    maker = transformers.DebertaV2ForSequenceClassification if classifies else transformers.DebertaV2Model
    maker(config).save_pretrained(folder)
    write_tokenizer(folder)
    read_as_it_is(folder)
    return folder
