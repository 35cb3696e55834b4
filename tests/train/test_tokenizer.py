"""Tokenizers: encoding and decoding, training, and that transformers reads their files the same way."""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers, trainers
from transformers import AutoTokenizer

from uwaga.data.tokenizers import (
    SPECIAL_TOKENS,
    TextTokenizer,
    as_target_tokenizer,
    count_symbols,
    divide_text,
    train_byte_pair_tokenizer,
    train_symbol_tokenizer,
)
from uwaga.models import Transformer, save
from uwaga.models.tokenizers.loading import load_tokenizer
from uwaga.train.corpus import Corpus
from uwaga.train.errors import ConfigError
from uwaga.train.model import model_config
from uwaga.train.prepare import save_tokenizers

_OBJECTIVE = "language-model"
_TEXT = "Once upon a time there were  three little pigs,\nand the tea was İstanbul's; naïve 東京 <|endoftext|> </s>"


def _characters(text: str, **options: object) -> TextTokenizer:
    symbols = count_symbols([text], "characters", lowercase=options.get("lowercase", False))
    return train_symbol_tokenizer(symbols, _OBJECTIVE, kind="characters", **options)


def _pairs(*texts: str, size: int = 300, objective: str = _OBJECTIVE) -> TextTokenizer:
    return train_byte_pair_tokenizer(texts, objective, vocab_size=size)


def _shared(letters: str, sounds: str, vocab_size: int | None = None) -> TextTokenizer:
    targets = count_symbols([sounds], "words")
    how = {"kind": "characters", "vocab_size": vocab_size, "lowercase": True, "targets": targets}
    return train_symbol_tokenizer(count_symbols([letters], "characters", lowercase=True), "encoder-decoder", **how)


@cache
def _of_one_text() -> TextTokenizer:
    return _pairs("the cat sat on the mat")


def _library_ids(tokenizer: TextTokenizer, text: str) -> list[int]:
    return tokenizer.backend.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize("lowercase", [False, True])
def test_the_lookup_table_gives_the_ids_of_the_library(lowercase: bool) -> None:
    tokenizer = _characters(_TEXT, lowercase=lowercase)
    for text in (_TEXT, "Ünknown → \r\n\t\0 ones", ""):
        assert tokenizer.encode([text])[0].tolist() == _library_ids(tokenizer, text)
    assert lowercase or tokenizer.decode(tokenizer.encode([_TEXT])[0].tolist()) == _TEXT


def test_vocab_size_keeps_the_most_common_characters() -> None:
    tokenizer = _characters("aaabbc", vocab_size=4)
    assert sorted(tokenizer.backend.get_vocab()) == ["<unk>", "<|endoftext|>", "a", "b"]
    assert tokenizer.decode(tokenizer.encode(["cab"])[0].tolist()) == "ab"


@given(text=st.text(st.characters(exclude_categories=["Cs"])))
def test_byte_pairs_encode_any_text(text: str) -> None:
    tokenizer = _of_one_text()
    assert tokenizer.decode(tokenizer.encode([text])[0].tolist()) == text


def test_names_of_special_tokens_in_a_text_are_encoded_as_text() -> None:
    for tokenizer in (_pairs(_TEXT), _characters(_TEXT)):
        ids = tokenizer.encode(["a <|endoftext|> b"])[0]
        assert tokenizer.special.eos not in ids.tolist()


def test_byte_pairs_are_learned_from_a_long_line_without_spaces() -> None:
    """The library alone takes time that grows with the square of the length."""
    text = "東" * 50_000
    tokenizer = _pairs(text, size=270)
    ids = tokenizer.encode([text])[0].tolist()
    assert len(ids) < len(text) // 64
    assert tokenizer.decode(ids) == text


def test_the_limit_of_pre_tokens_does_not_change_a_tokenizer_of_shorter_ones() -> None:
    texts = [_TEXT, "ab" * 512, "the cat sat on the mat\n" * 5]
    expected = Backend(models.BPE())
    expected.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    special = list(SPECIAL_TOKENS[_OBJECTIVE].values())[:1]
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    expected.train_from_iterator(texts, trainer)
    parsed = json.loads(_pairs(*texts, size=300).backend.to_str())
    assert parsed["model"] == json.loads(expected.to_str())["model"]
    assert parsed["pre_tokenizer"] == json.loads(expected.to_str())["pre_tokenizer"]


def test_parts_of_a_long_text_have_the_tokens_of_the_whole() -> None:
    text = "It was a dark  and stormy night;\n the rain's fall \t" * 4000
    tokenizer = _pairs(text[:500], size=330)
    for piece in (10_000, 3_000_000):
        parts = list(tokenizer.parts(text[start : start + piece] for start in range(0, len(text), piece)))
        assert len(parts) > 2
        assert np.concatenate(tokenizer.encode(parts)).tolist() == _library_ids(tokenizer, text)


def test_a_long_text_without_spaces_is_split() -> None:
    parts = list(divide_text(["x" * 3_000_000]))
    assert "".join(parts) == "x" * 3_000_000
    assert max(map(len, parts)) <= 2**20 + 2**16


def test_words_are_split_at_spaces() -> None:
    tokenizer = train_symbol_tokenizer(count_symbols(["AH B K"], "words"), _OBJECTIVE, kind="words")
    ids = tokenizer.encode(["B AH  K Z"])[0].tolist()
    assert tokenizer.backend.id_to_token(ids[-1]) == "<unk>"
    assert tokenizer.decode(ids) == "B AH K"


def test_a_vocabulary_shared_by_sources_and_targets() -> None:
    tokenizer = _shared("CAB", "K AE B")
    answers = as_target_tokenizer(tokenizer, "encoder-decoder", kind="words", lowercase=False)
    assert sorted(tokenizer.backend.get_vocab()) == ["</s>", "<pad>", "<unk>", "AE", "B", "K", "a", "b", "c"]
    assert [tokenizer.backend.id_to_token(x) for x in tokenizer.encode(["CAB"])[0]] == ["c", "a", "b"]
    assert [tokenizer.backend.id_to_token(x) for x in answers.encode(["K AE B"])[0]] == ["K", "AE", "B"]
    limited = _shared("aaabbc", "K AE B", 8)
    assert sorted(limited.backend.get_vocab()) == ["</s>", "<pad>", "<unk>", "AE", "B", "K", "a", "b"]
    # The tokenizer of the model's directory decodes what the model generates.
    assert tokenizer.decode(answers.encode(["K AE B"])[0].tolist()) == "K AE B"


@pytest.mark.parametrize(
    ("objective", "kind"),
    [("language-model", "byte-pair"), ("encoder-decoder", "characters"), ("masked-language-model", "byte-pair")],
)
def test_transformers_reads_the_tokenizer_of_a_saved_model(
    objective: str,
    kind: str,
    tmp_path: Path,
    verses: str,
    words: str,
    make_corpus: Callable[..., Corpus],
    make_config: Callable,
) -> None:
    is_pairs = objective == "encoder-decoder"
    size = ["tokenizer.vocab_size=300"] if kind == "byte-pair" else []
    more = ["data.pair_format=cmudict"] if is_pairs else ["data.document=paragraph"]
    arguments = (objective, [words if is_pairs else verses], f"tokenizer.kind={kind}", *more, *size)
    config, corpus, folder = make_config(*arguments), make_corpus(*arguments), tmp_path / "model"
    save(Transformer(model_config(config.model, objective, corpus.model_settings)), folder)
    save_tokenizers(corpus.tokenizers, folder)
    ours, theirs = load_tokenizer(folder), AutoTokenizer.from_pretrained(folder)
    for text in ("Line 3 of 7, so it goes.", "K AE1"):
        ids = [*ours.prefix_ids, *ours.encode([text], with_offsets=False)[0].ids, *ours.suffix_ids]
        assert theirs(text)["input_ids"] == ids == ours.backend.encode(text).ids
    described = json.loads((folder / "config.json").read_text())
    for name, number in (("eos_token", described.get("eos_token_id")), ("pad_token", described.get("pad_token_id"))):
        if getattr(theirs, name) is not None and number is not None:
            assert theirs.convert_tokens_to_ids(getattr(theirs, name)) == number
    expected = {"language-model": 0, "encoder-decoder": 1, "masked-language-model": 2}
    assert ours.num_special_tokens == expected[objective]


def test_errors_of_a_given_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ConfigError) as raised:
        TextTokenizer.load(tmp_path, _OBJECTIVE)
    assert str(raised.value).startswith(f"tokenizer.path: {tmp_path / 'tokenizer.json'} is not a valid tokenizer: ")
    _pairs(_TEXT).save(tmp_path)
    with pytest.raises(ConfigError) as raised:
        TextTokenizer.load(tmp_path, "masked-language-model")
    assert "the tokenizer has no pad_token" in str(raised.value)
