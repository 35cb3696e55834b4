"""What a directory says about texts is followed, or refused by name."""

import json
from pathlib import Path

from tiny_tokenizer import read_as_it_is

from uwaga import TextEncoder
from uwaga.encode import sentence_config


def test_a_plain_directory_gets_what_sentence_transformers_gives_it(folder: Path) -> None:
    result = sentence_config.read(folder)
    assert (result.pooling, result.head, result.max_length) == (("mean",), (), 12)


def test_modules_say_pooling_norm_and_length(folder: Path, describe) -> None:
    describe(folder, pooling={"pooling_mode_cls_token": True}, sentence={"max_seq_length": 7, "do_lower_case": True})
    result = sentence_config.read(folder)
    kinds = [module.kind for module in result.head]
    assert (result.pooling, kinds, result.max_length, result.lowercase) == (("cls",), ["Normalize"], 7, True)


def test_a_length_that_is_not_said_is_the_tokenizers_and_at_most_the_models(folder: Path, describe) -> None:
    describe(folder, sentence={"transformer_task": "feature-extraction"})
    assert sentence_config.read(folder).max_length == 12
    config = json.loads((folder / "tokenizer_config.json").read_text())
    for length, max_tokens in ((8, 6), (500, 10), (int(1e30), 10)):
        (folder / "tokenizer_config.json").write_text(json.dumps({**config, "model_max_length": length}))
        assert TextEncoder.load(folder).max_tokens == max_tokens


def test_lower_case_comes_before_the_tokenizer(folder: Path, describe) -> None:
    text = (folder / "tokenizer.json").read_text().replace('"lowercase": true', '"lowercase": false')
    text = text.replace('"lowercase":true', '"lowercase":false')
    (folder / "tokenizer.json").write_text(text)
    read_as_it_is(folder)  # BERT's class lowers by itself
    shouted = TextEncoder.load(folder).tokenizer.backend.encode("THE CAT").tokens
    assert "the" not in shouted
    describe(folder, sentence={"max_seq_length": 12, "do_lower_case": True})
    assert TextEncoder.load(folder).tokenizer.backend.encode("THE CAT").tokens == ["[CLS]", "the", "cat", "[SEP]"]


def test_the_default_prompt_is_used_and_all_are_known(folder: Path, describe) -> None:
    describe(folder)
    prompts = {"query": "then ", "document": ""}
    path = folder / "config_sentence_transformers.json"
    path.write_text(json.dumps({"prompts": prompts, "default_prompt_name": "query"}))
    encoder = TextEncoder.load(folder)
    assert encoder.config.prompts == prompts
    assert (encoder.encode(["the cat"]) == encoder.encode(["then the cat"], prompt="")).all()
