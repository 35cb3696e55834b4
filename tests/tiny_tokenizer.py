"""Tokenizers of few words, for random models."""

import json
from pathlib import Path
from typing import Any

WORDS = [
    "the", "a", "cat", "dog", "sat", "on", "mat", "and", "then", "it", "ran", "away", "from", "house", "un", "##believ", "##able", ".",
    ",", "é",
]  # fmt: skip
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def write_tokenizer(
    folder: Path, *, single: str = "[CLS] $A [SEP]", pair: str | None = None, **settings: object
) -> None:
    """Write a tokenizer. single, pair: the template of a text, and of two; settings: of tokenizer_config.json, where others are wanted."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    vocabulary = {word: number for number, word in enumerate(SPECIAL + WORDS)}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = [("[CLS]", vocabulary["[CLS]"]), ("[SEP]", vocabulary["[SEP]"])]
    tokenizer.post_processor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=special)
    tokenizer.add_special_tokens(SPECIAL)
    # As that of all-MiniLM-L6-v2: the settings of its last use are still in it.
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=4)
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    (folder / "tokenizer_config.json").write_text(json.dumps({**names, "model_max_length": 12, **settings}))


# The template of a pair of texts, with types of tokens as BERT has them.
PAIR = "[CLS] $A [SEP] $B:1 [SEP]:1"


def read_as_it_is(folder: Path) -> None:
    """Let the tokenizer of a directory be that of its tokenizer.json, and not what the class of its family makes of it."""
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text()) if path.is_file() else {}
    path.write_text(json.dumps(settings | {"tokenizer_class": "PreTrainedTokenizerFast"}))


def word_tokenizer(*, family: str = "gpt2", size: int = 40) -> Any:
    """A token for each word, with so many ids; the end of a text is a token where the model has an encoder and a decoder."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    named = ["[PAD]", "[UNK]", "[EOS]", *(word for word in WORDS if not word.startswith("##"))]
    words = named + [f"word{number}" for number in range(len(named), size)]
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    if family in ("bart", "m2m_100", "t5", "umt5"):
        tokenizer.post_processor = processors.TemplateProcessing(single="$A [EOS]", special_tokens=[("[EOS]", 2)])
    return tokenizer
