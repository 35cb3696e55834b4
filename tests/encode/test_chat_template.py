"""Chat templates of embedding models and classifiers: vectors and scores are those of sentence-transformers."""

import json
from pathlib import Path
from typing import Any

import pytest
from commands import byte_tokenizer
from factories import factory
from sentence_models import (
    assert_scores_are_theirs,
    assert_vectors_are_theirs,
    random_pairs,
    save_model,
    save_modules,
    save_words,
)
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.modules import Pooling
from tokenizers import processors

from uwaga.encode.encoder import TextEncoder

pytestmark = pytest.mark.slow

SPECIAL = ["<pad>", "<s>", "</s>", "<|im_start|>", "<|im_end|>"]
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content | trim }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
PARTS = "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content[0].text }}{{ eos_token }}{% endfor %}"
TEXTS = ["a cat", " the dog ran away\n", "木 née", "it sat on a mat, and then it ran " * 9, "x" * 56, "x" * 57]
PAIRS = [("a cat", "the dog ran away"), ("née", " 木 "), ("a cat", "it sat on a mat, and then " * 9)]


def tokenizer() -> Any:
    """A token for each byte, and special ones around a text that has none."""
    result = byte_tokenizer(*SPECIAL)
    special = [(token, result.token_to_id(token)) for token in ("<s>", "</s>")]
    result.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> $B </s>", special_tokens=special
    )
    return result


_SIZES = {
    "vocab_size": 261,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
_IDS = {"pad_token_id": 256, "bos_token_id": 257, "eos_token_id": 258, "max_position_embeddings": 96, "num_labels": 1}
FAMILIES: dict[str, dict[str, Any]] = {
    "qwen3": _SIZES | _IDS | {"num_key_value_heads": 2, "head_dim": 16},
    "llama": _SIZES | _IDS | {"num_key_value_heads": 2},
    "bert": _SIZES | _IDS,
    "xlnet": {"vocab_size": 261, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 64, "pad_token_id": 256},
}


@factory
def write(tmp_path: Path, /, family: str = "qwen3", template: str = CHATML, maker: str = "AutoModel") -> Path:
    folder = tmp_path / "model"
    save_model(folder, family, maker, **FAMILIES[family])
    named = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>"}
    save_words(folder, tokenizer(), model_max_length=64, chat_template=template, **named)
    return folder


def with_modules(folder: Path, pooling: str = "lasttoken", options: dict | None = None, **of_model: Any) -> Path:
    """The directory as sentence-transformers saves it."""
    modules = [Transformer(str(folder), **(options or {})), Pooling(32, pooling)]
    return save_modules(folder.parent / "saved", *modules, **of_model)


@pytest.mark.parametrize(("family", "template"), [("qwen3", CHATML), ("llama", PARTS), ("xlnet", CHATML)])
def test_vectors_of_a_plain_directory(write, family: str, template: str) -> None:
    folder = write(family, template)
    for prompt in ({}, {"prompt": "Find the cat"}):
        assert_vectors_are_theirs(folder, TEXTS, overflow="truncate", **prompt)


@pytest.mark.parametrize("name", ["Qwen2Tokenizer", "GPT2Tokenizer", "PreTrainedTokenizerFast"])
def test_special_tokens_that_only_the_class_has(write, name: str) -> None:
    folder = write(template="{{ unk_token | length }}{{ bos_token | length }}{{ cls_token | length }}" + CHATML)
    path = folder / "tokenizer_config.json"
    settings = {key: value for key, value in json.loads(path.read_text()).items() if key != "bos_token"}
    path.write_text(json.dumps(settings | {"tokenizer_class": name}))
    assert_vectors_are_theirs(folder, TEXTS, overflow="truncate")


@pytest.mark.parametrize(
    "settings",
    [
        {"pooling": "mean", "prompts": {"query": "Find it"}, "default_prompt_name": "query"},
        {"options": {"processing_kwargs": {"chat_template": {"add_generation_prompt": True, "restore_suffix": False}}}},
    ],
    ids=["prompt", "arguments"],
)
def test_vectors_of_a_saved_directory(write, settings: dict[str, Any]) -> None:
    assert_vectors_are_theirs(with_modules(write(), **settings), TEXTS, overflow="truncate")


def test_modules_without_the_modality_message_read_texts_as_they_are(write) -> None:
    folder = with_modules(write())
    path = folder / "sentence_bert_config.json"
    path.write_text(json.dumps({"max_seq_length": 64}))
    assert_vectors_are_theirs(folder, TEXTS, overflow="truncate")
    assert TextEncoder.load(folder).config.chat is None


@pytest.mark.parametrize("family", ["qwen3", "bert"])
def test_scores_of_a_classifier(write, family: str) -> None:
    assert_scores_are_theirs(write(family, maker="AutoModelForSequenceClassification"), [*PAIRS, *random_pairs(40)])


def test_the_report_has_what_was_read(write) -> None:
    encoder = TextEncoder.load(write())
    encoder.encode(TEXTS, overflow="truncate")
    # 6 tokens are before a text and 2 after it; 64 are read.
    assert encoder.report.stop.tolist() == [5, 18, 5, 64 - 6 - 2, 56, 56]
    with pytest.raises(
        ValueError, match=r"document 3 has 304 tokens, .* at most 64; set the option overflow to truncate$"
    ):
        encoder.encode(TEXTS)
