"""Tokens are those of the file, whatever it was last used for, and fit the model."""

import base64
import json
import struct
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers.processors import TemplateProcessing

from uwaga import TextEncoder
from uwaga._base.errors import CheckpointError
from uwaga.models import Transformer, config, generate, load, save, tokenizer
from uwaga.models.tokenizers.loading import Tokenizer, encode_prefixes, of_model
from uwaga.models.tokenizers.tokenizer_file import read

TEXT = "the cat sat on the mat and then it ran away"


def change(path: Path, **changes: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_the_cutting_and_padding_of_the_file_are_left_out(folder: Path) -> None:
    assert len(Backend.from_file(str(folder / "tokenizer.json")).encode(TEXT).ids) == 4
    tokenizer = Tokenizer.load(folder)
    for with_offsets in (False, True):
        (tokens,) = tokenizer.encode([TEXT], with_offsets=with_offsets)
        assert [tokenizer.backend.id_to_token(number) for number in tokens.ids] == TEXT.split()
    assert (tokenizer.prefix_ids, tokenizer.suffix_ids, tokenizer.num_special_tokens) == ([2], [3], 2)


def test_no_tokenizer(folder: Path) -> None:
    path = folder / "tokenizer.json"
    path.unlink()
    with pytest.raises(CheckpointError) as caught:
        TextEncoder.load(folder)
    assert str(caught.value) == (
        f"there is no {path}; transformers writes one: AutoTokenizer.from_pretrained(...).save_pretrained(...)"
    )


@pytest.mark.parametrize("content", [b"", b"[]", b'{"model": {}}', b"\xff"])
def test_a_file_that_is_no_tokenizer(folder: Path, content: bytes) -> None:
    path = folder / "tokenizer.json"
    path.write_bytes(content)
    with pytest.raises(CheckpointError) as caught:
        TextEncoder.load(folder)
    assert str(caught.value) == f"{path} is not a valid tokenizer: {caught.value.__cause__}"


@pytest.mark.parametrize(
    "changes",
    [
        {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}},
        {"pre_tokenizer": {"type": "FixedLength", "length": 0}},
        {
            "post_processor": {
                "type": "TemplateProcessing",
                "single": [{"SpecialToken": {"id": "[GONE]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
                "special_tokens": {},
            }
        },
        {"model": {"type": "WordLevel", "vocab": {"cat": 0}, "unk_token": "[GONE]"}, "added_tokens": []},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_a_file_that_makes_the_library_panic(folder: Path, changes: dict) -> None:
    path = folder / "tokenizer.json"
    # As it is: by the class of BERT other steps are made, and the names of its tokens are not in some of these.
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "TokenizersBackend"}))
    change(path, **changes)
    with pytest.raises(CheckpointError) as caught:
        Tokenizer.load(folder)
    assert str(caught.value).startswith(f"{path} is not a valid tokenizer: ")


def test_with_a_decoders_own_tokenizer_the_ids_of_the_model_are_that_ones(folder: Path) -> None:
    change(folder / "config.json", eos_token_id=4, is_encoder_decoder=True)
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "[SEP]"}))
    with pytest.raises(CheckpointError, match=r"its eos_token '\[SEP\]' is token 3, not 4"):
        Tokenizer.load(folder)
    backend = Backend.from_file(str(folder / "tokenizer.json"))
    backend.save(str(folder / "target_tokenizer.json"))
    (folder / "target_tokenizer_config.json").write_text(json.dumps({"eos_token": backend.id_to_token(4)}))
    assert Tokenizer.load(folder).backend.get_vocab_size() == Tokenizer.load_target(folder).backend.get_vocab_size()


def test_a_vocabulary_larger_than_the_models(folder: Path) -> None:
    backend = Backend.from_file(str(folder / "tokenizer.json"))
    size = backend.get_vocab_size()
    backend.add_tokens(["zebra"])
    backend.save(str(folder / "tokenizer.json"))
    with pytest.raises(CheckpointError) as caught:
        TextEncoder.load(folder)
    assert str(caught.value) == (
        f"{folder / 'tokenizer.json'} does not match config.json: the token 'zebra' has the id {size}, but vocab_size is {size}"
    )


@pytest.mark.parametrize("key", ["pad_token_id", "eos_token_id"])
def test_ids_of_config_json_that_an_encoder_does_not_read(folder: Path, key: str) -> None:
    """multilingual-e5-small and paraphrase-multilingual-MiniLM-L12-v2 have pad_token_id 0 and the padding token 1."""
    (right,) = TextEncoder.load(folder).encode(["the cat sat"])
    change(folder / "tokenizer_config.json", eos_token="[SEP]")
    change(folder / "config.json", **{key: 4})
    assert TextEncoder.load(folder).encode(["the cat sat"])[0].tolist() == right.tolist()


def test_a_special_token_that_the_tokenizer_does_not_know(folder: Path) -> None:
    change(folder / "tokenizer_config.json", mask_token={"content": "<mask>", "lstrip": True})
    with pytest.raises(CheckpointError) as caught:
        TextEncoder.load(folder)
    assert str(caught.value) == (
        f"{folder / 'tokenizer.json'} does not match config.json: "
        "the mask_token '<mask>' of tokenizer_config.json is not in its vocabulary"
    )


def test_a_tokenizer_that_gives_a_text_another_type(folder: Path) -> None:
    backend = Backend.from_file(str(folder / "tokenizer.json"))
    backend.post_processor = TemplateProcessing(single="$A:1 [SEP]:1", special_tokens=[("[SEP]", 3)])
    with pytest.raises(CheckpointError) as caught:
        Tokenizer(backend)
    assert str(caught.value) == (
        "tokenizer.json: its post-processor does more than add special tokens of type 0 before and after a text"
    )


words = st.sampled_from(
    ["the", "cat", "unbelievable", "é", "\u0301", "x" * 120, "[MASK]", "\u4e2d\u6587", ".", "\u00ad"]
)
spaces = st.sampled_from([" ", "  ", "\n", " \n ", "\t", "\u00a0", "\u3000", ""])
texts = st.lists(st.tuples(words, spaces), max_size=40).map(lambda parts: "".join(map("".join, parts)))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(texts=st.lists(texts, max_size=4), max_tokens=st.integers(1, 6))
def test_prefixs_are_those_of_the_whole_text(folder: Path, texts: list[str], max_tokens: int) -> None:
    tokenizer = Tokenizer.load(folder)
    assert tokenizer.splits_at_spaces
    wholes = tokenizer.encode(texts, with_offsets=True)
    for whole, prefix in zip(wholes, encode_prefixes(tokenizer, texts, max_tokens=max_tokens), strict=True):
        assert prefix.ids[: max_tokens + 1] == whole.ids[: max_tokens + 1]
        assert prefix.offsets[:max_tokens] == whole.offsets[:max_tokens]


def test_the_rest_of_a_long_text_is_not_tokenised(folder: Path) -> None:
    (prefix,) = encode_prefixes(Tokenizer.load(folder), ["the cat " * 10_000], max_tokens=10)
    assert len(prefix) < 100


def test_a_tokenizer_that_looks_across_spaces_reads_the_whole_text(folder: Path) -> None:
    backend = Backend.from_file(str(folder / "tokenizer.json"))
    backend.normalizer = None
    tokenizer = Tokenizer(backend)
    assert not tokenizer.splits_at_spaces
    (tokens,) = encode_prefixes(tokenizer, ["the cat " * 1000], max_tokens=10)
    assert len(tokens) == 2000


def test_a_special_token_beyond_the_vocabulary_is_refused(folder: Path) -> None:
    path = folder / "tokenizer.json"
    described = json.loads(path.read_text())
    described["post_processor"]["special_tokens"]["[SEP]"]["ids"] = [10**6]
    path.write_text(json.dumps(described))
    change(folder / "tokenizer_config.json", tokenizer_class="TokenizersBackend")
    with pytest.raises(CheckpointError) as caught:
        Tokenizer.load(folder)
    assert str(caught.value) == f"{path}: its post-processor adds token 1000000, which is not in the vocabulary"


@pytest.mark.parametrize("part", ["normalizer", "decoder"])
def test_steps_that_double_a_text_are_bounded(folder: Path, part: str) -> None:
    """Forty of them are 2 KB of file, and a million million letters; that would end the process."""
    path = folder / "tokenizer.json"
    described = json.loads(path.read_text())
    twice = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
    described[part] = {"type": "Sequence", f"{part}s": [twice] * 40}
    path.write_text(json.dumps(described))
    with pytest.raises(CheckpointError) as caught:
        Tokenizer.load(folder)
    assert str(caught.value) == f"{path}: its {part} may make a text {2**40} times as long, more than the limit of 64"
    described[part][f"{part}s"] = [twice | {"content": "b"}] * 40
    path.write_text(json.dumps(described))
    Tokenizer.load(folder)


def test_ids_are_bounded(folder: Path) -> None:
    path = folder / "tokenizer.json"
    described = json.loads(path.read_text())
    described["model"]["vocab"]["huge"] = 2**32 - 1
    path.write_text(json.dumps(described))
    (folder / "config.json").write_text("{}")
    with pytest.raises(CheckpointError) as caught:
        Tokenizer.load(folder)
    assert str(caught.value) == f"{path}: it has the token id {2**32 - 1}, beyond the limit of {2**22} ids"


def test_the_tokenizer_of_a_model_by_its_name_its_directory_and_itself() -> None:
    bard = load("bard")
    expected = tokenizer("bard").to_str()
    assert tokenizer(bard).to_str() == tokenizer(bard.directory).to_str() == expected
    text = "Once more unto the breach"
    ids = tokenizer(bard).encode(text).ids
    assert tokenizer(bard).decode(ids) == text
    assert generate(bard, [text], max_new_tokens=8) == [
        tokenizer(bard).decode(each) for each in generate(bard, [ids], max_new_tokens=8)
    ]


def test_a_decoder_may_have_a_tokenizer_of_its_own() -> None:
    assert tokenizer("speller", decoder=True).encode("K AE T").tokens == ["K", "AE", "T", "</s>"]
    assert generate(load("speller"), ["cat"], num_beams=2) == ["K AE T"]
    assert tokenizer("bard", decoder=True).to_str() == tokenizer("bard").to_str()


def test_a_model_that_was_not_loaded_has_no_tokenizer(tmp_path: Path) -> None:
    sizes = {"vocab_size": 8, "d_model": 8, "num_layers": 1, "num_heads": 1, "d_ff": 8, "max_position_embeddings": 8}
    model = Transformer(config("gpt2", **sizes)).eval()
    with pytest.raises(ValueError, match="tokenizer: ") as raised:
        generate(model, ["a text"])
    assert str(raised.value) == (
        "tokenizer: this Transformer was not read by uwaga.models.load; give the directory of its tokenizer.json"
    )
    save(model, tmp_path)
    with pytest.raises(CheckpointError, match=r"there is no .*tokenizer\.json; transformers writes one"):
        generate(load(tmp_path), ["a text"])


@pytest.mark.parametrize(
    ("model", "text", "unknown"),
    [
        ("speller", "😀a☃a😀", ["😀", "☃"]),
        ("speller", "Cat", []),
        ("bard", "thou ż", ["ż"]),
        ("copyist", "żółw 🐢\n", []),  # bytes
    ],
)
def test_characters_that_a_vocabulary_lacks(model: str, text: str, unknown: list[str]) -> None:
    assert of_model(model).unknown_characters(text) == unknown


def test_characters_that_no_token_covers_are_unknown_too(tmp_path: Path) -> None:
    """Byte-pair encoding without an unknown token leaves them out."""
    from tokenizers import models

    bare = Tokenizer(Backend(models.BPE({"a": 0, "b": 1}, [])))
    assert bare.unknown_characters("axb y\n") == ["x", "y"]


def test_texts_with_unknown_characters_are_a_warning() -> None:
    with pytest.warns(UserWarning, match="no token") as result:
        generate(load("speller"), ["cat", "😀"])
    assert [str(each.message) for each in result] == [
        "generate: prompt 1: the model has no token for '😀': it cannot tell what is written there"
    ]
    assert result[0].filename == __file__


_BARE = {
    "added_tokens": [], "normalizer": None, "pre_tokenizer": None, "post_processor": None, "decoder": None, "truncation": None, "padding": None,
    "model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1, "[UNK]": 2}, "unk_token": "[UNK]"},
}  # fmt: skip
_TEXT, _MARK = {"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "x", "type_id": 0}}
_TRIE = struct.pack("<I", 1024) + bytes(1024)


def _around(single: list, ids: list[int], tokens: list[str]) -> dict:
    pair = [_TEXT, {"Sequence": {"id": "B", "type_id": 1}}]
    special = {"x": {"id": "x", "ids": ids, "tokens": tokens}}
    return {"post_processor": {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": special}}


def _normalizers(*steps: dict) -> dict:
    return {"normalizer": {"type": "Sequence", "normalizers": list(steps)}}


# Small files that took gigabytes, or never ended, as soon as anything was encoded or a token was added.
_HOSTILE = {
    "special-tokens": (
        _around([_MARK] * 2000 + [_TEXT], [1] * 2000, ["b"] * 2000),
        "its post-processor adds 4,000,000 special tokens of 4,000,000 characters, more than the limit of 4,096",
    ),
    "long-special-tokens": (
        _around([_MARK] * 500 + [_TEXT], [1], ["b" * 5000]),
        "its post-processor adds 500 special tokens of 2,500,000 characters, more than the limit of 4,096",
    ),
    "texts": (
        _around([_TEXT] * 1000, [1], ["b"]),
        "its post-processor does more than add special tokens of type 0 before and after a text",
    ),
    "prepend": (
        {"normalizer": {"type": "Prepend", "prepend": "x" * 20_000}},
        "its normalizer may make a text 20001 times as long, more than the limit of 64",
    ),
    "prepend-to-tokens": (
        {
            "normalizer": {"type": "Prepend", "prepend": "x" * 100},
            "added_tokens": [
                {"id": 3, "content": "t", "single_word": False, "lstrip": False, "rstrip": False, "normalized": True, "special": False}
            ],
        },
        "its normalizer may make a text 101 times as long, more than the limit of 64",
    ),
    "bytes-of-bytes": (
        _normalizers(*[{"type": "ByteLevel"}] * 4),
        "its normalizer may make a text 256 times as long, more than the limit of 64",
    ),
    "bytes-before": (
        {
            "pre_tokenizer": {
                "type": "Sequence",
                "pretokenizers": [{"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": False}] * 4,
            }
        },
        "its pre_tokenizer may make a text 256 times as long, more than the limit of 64",
    ),
    "ligatures": (
        _normalizers(*[{"type": "Replace", "pattern": {"String": "\u0644"}, "content": "\ufdfa"}, {"type": "NFKD"}] * 2),
        "its normalizer may make a text 324 times as long, more than the limit of 64",
    ),
    "without-a-type": (
        _normalizers({"pattern": {"String": "a"}, "content": "a" * 65}),
        "its normalizer may make a text 65 times as long, more than the limit of 64",
    ),
    "table": (
        {"normalizer": {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(_TRIE + b"y" * 500 + b"\0").decode()}},
        "its normalizer may make a text 500 times as long, more than the limit of 64",
    ),
    "steps": (
        _normalizers(*[{"type": "NFC"}] * 65),
        "its normalizer has 65 steps, more than the limit of 64",
    ),
    "processors": (
        {"post_processor": {"type": "Sequence", "processors": [_around([_TEXT], [1], ["b"])["post_processor"]] * 65}},
        "its post_processor has 65 steps, more than the limit of 64",
    ),
    "unknown-token": (
        {"model": {"type": "WordLevel", "vocab": {"u" * 65: 0}, "unk_token": "u" * 65}},
        "its unk_token has 65 characters, more than the limit of 64",
    ),
    "token": (
        {"model": {"type": "WordLevel", "vocab": {"u" * 5000: 0, "[UNK]": 1}, "unk_token": "[UNK]"}},
        "a token has 5,000 characters, more than the limit of 4,096",
    ),
    "prefix": (
        {"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [], "continuing_subword_prefix": "p" * 65}},
        "its continuing_subword_prefix has 65 characters, more than the limit of 64",
    ),
    "word": (
        {
            "model": {
                "type": "WordPiece", "vocab": {"a": 0, "[UNK]": 1}, "unk_token": "[UNK]", "continuing_subword_prefix": "##",
                "max_input_chars_per_word": 10**6,
            }
        },
        "max_input_chars_per_word must be at most 1024, not 1000000",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", _HOSTILE)
def test_what_a_file_may_do_to_a_text_is_measured_before_anything_is_encoded(tmp_path: Path, name: str) -> None:
    changes, message = _HOSTILE[name]
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(_BARE | changes))
    with pytest.raises(CheckpointError) as caught:
        Tokenizer(read(path), path)
    assert str(caught.value) == f"{path}: {message}"


# A text that UTF-8 cannot write


def test_lone_surrogates_are_named_by_argument_and_index(folder: Path) -> None:
    bad = "a\ud800"
    encoder = TextEncoder.load(folder)
    for text, prompt, message in (
        ("cat", bad, "TextEncoder: prompt has a lone surrogate at character 1"),
        (bad, None, "TextEncoder: document 0 has a lone surrogate at character 1"),
    ):
        with pytest.raises(ValueError, match="surrogate") as caught:
            encoder.encode([text], prompt=prompt)
        assert str(caught.value) == message
    with pytest.raises(ValueError, match="surrogate") as caught:
        generate(load("bard"), ["a", bad], max_new_tokens=1)
    assert str(caught.value) == "generate: prompt 1 has a lone surrogate at character 1"
    with pytest.raises(ValueError, match="surrogate") as caught:
        Tokenizer.load(folder).encode(["a", bad], with_offsets=False)
    assert str(caught.value) == "text 1 has a lone surrogate at character 1"
