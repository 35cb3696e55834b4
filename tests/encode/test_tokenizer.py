"""Tokens are those of the file, whatever it was last used for, and fit the model."""

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend

from uwaga import TextEncoder
from uwaga._base.errors import CheckpointError
from uwaga.models import Transformer, config, generate, load, save, tokenizer
from uwaga.models.tokenizers.loading import load_tokenizer, of_model
from uwaga.models.tokenizers.tokenizer import Tokenizer, encode_prefixes

TEXT = "the cat sat on the mat and then it ran away"


def change(path: Path, **changes: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_the_cutting_and_padding_of_the_file_are_left_out(folder: Path) -> None:
    assert len(Backend.from_file(str(folder / "tokenizer.json")).encode(TEXT).ids) == 4
    tokenizer = load_tokenizer(folder)
    for with_offsets in (False, True):
        (tokens,) = tokenizer.encode([TEXT], with_offsets=with_offsets)
        assert [tokenizer.backend.id_to_token(number) for number in tokens.ids] == TEXT.split()
    assert (tokenizer.prefix_ids, tokenizer.suffix_ids, tokenizer.num_special_tokens) == ([2], [3], 2)


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
        load_tokenizer(folder)
    assert str(caught.value).startswith(f"{path} is not a valid tokenizer: ")


@pytest.mark.parametrize("key", ["pad_token_id", "eos_token_id"])
def test_ids_of_config_json_that_an_encoder_does_not_read(folder: Path, key: str) -> None:
    """multilingual-e5-small and paraphrase-multilingual-MiniLM-L12-v2 have pad_token_id 0 and the padding token 1."""
    (right,) = TextEncoder.load(folder).encode(["the cat sat"])
    change(folder / "tokenizer_config.json", eos_token="[SEP]")
    change(folder / "config.json", **{key: 4})
    assert TextEncoder.load(folder).encode(["the cat sat"])[0].tolist() == right.tolist()


words = st.sampled_from(
    ["the", "cat", "unbelievable", "é", "\u0301", "x" * 120, "[MASK]", "\u4e2d\u6587", ".", "\u00ad"]
)
spaces = st.sampled_from([" ", "  ", "\n", " \n ", "\t", "\u00a0", "\u3000", ""])
texts = st.lists(st.tuples(words, spaces), max_size=40).map(lambda parts: "".join(map("".join, parts)))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(texts=st.lists(texts, max_size=4), max_tokens=st.integers(1, 6))
def test_prefixs_are_those_of_the_whole_text(folder: Path, texts: list[str], max_tokens: int) -> None:
    tokenizer = load_tokenizer(folder)
    assert tokenizer.splits_at_spaces
    wholes = tokenizer.encode(texts, with_offsets=True)
    for whole, prefix in zip(wholes, encode_prefixes(tokenizer, texts, max_tokens=max_tokens), strict=True):
        assert prefix.ids[: max_tokens + 1] == whole.ids[: max_tokens + 1]
        assert prefix.offsets[:max_tokens] == whole.offsets[:max_tokens]


def test_the_rest_of_a_long_text_is_tokenised_only_if_the_tokenizer_looks_across_spaces(folder: Path) -> None:
    (prefix,) = encode_prefixes(load_tokenizer(folder), ["the cat " * 10_000], max_tokens=10)
    assert len(prefix) < 100
    backend = Backend.from_file(str(folder / "tokenizer.json"))
    backend.normalizer = None
    tokenizer = Tokenizer(backend)
    assert not tokenizer.splits_at_spaces
    (tokens,) = encode_prefixes(tokenizer, ["the cat " * 1000], max_tokens=10)
    assert len(tokens) == 2000


def test_the_tokenizer_of_a_model_by_its_name_its_directory_and_itself() -> None:
    bard = load("bard")
    expected = tokenizer("bard").to_str()
    assert tokenizer(bard).to_str() == tokenizer(bard.directory).to_str() == expected
    text = "Once more unto the breach"
    ids = tokenizer(bard).encode(text).ids
    assert tokenizer(bard).decode(ids) == text
    assert generate(bard, [text], max_new_tokens=8) == [
        tokenizer(bard).decode(row) for row in generate(bard, [ids], max_new_tokens=8)
    ]
    assert tokenizer("bard", decoder=True).to_str() == expected
    assert tokenizer("speller", decoder=True).encode("K AE T").tokens == ["K", "AE", "T", "</s>"]


def test_a_model_that_was_not_loaded_has_no_tokenizer(tmp_path: Path) -> None:
    sizes = {"vocab_size": 8, "d_model": 8, "num_layers": 1, "num_heads": 1, "d_ff": 8, "max_position_embeddings": 8}
    model = Transformer(config("gpt2", **sizes)).eval()
    with pytest.raises(ValueError, match=r"was not read by uwaga\.models\.load; give the directory of its tokenizer"):
        generate(model, ["a text"])
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


def test_texts_with_unknown_characters_are_a_warning() -> None:
    with pytest.warns(UserWarning, match="no token") as result:
        generate(load("speller"), ["cat", "😀"])
    assert [str(warning.message) for warning in result] == [
        "generate: prompt 1: the model has no token for '😀': it cannot tell what is written there"
    ]
    assert result[0].filename == __file__
