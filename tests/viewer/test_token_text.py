"""Token strings for display, of every kind of tokenizer."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, processors
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer, ByteLevel

from uwaga.models.tokenizers.token_text import TokenText, join_tokens, split_words, token_text, word_ranges, written
from uwaga.viewer.queries.heads import Axis, tokens_after


@pytest.mark.parametrize(
    ("tokens", "words"),
    [
        (["[CLS]", "un", "##seen", "the", "##", "cat", "[SEP]"], ["[CLS]", "unseen", "the", "##", "cat", "[SEP]"]),
        (
            ["This", "Ġis", "Ġa", "Ġcaf", "Ã©", "Ċ", "Ċ", "So", "<|endoftext|>"],
            ["This", "is", "a", "café", "\n", "\n", "So", "<|endoftext|>"],
        ),
        (["▁translate", "▁En", "glish", ":", "</s>"], ["translate", "English:", "</s>"]),
        (list("to be\nor"), ["to ", "be", "\n", "or"]),
        (["5", "6"], ["5", "6"]),
        (["<script>", "alert"], ["<script>", "alert"]),
    ],
    ids=["WordPiece", "bytes", "SentencePiece", "characters", "ids", "no special token"],
)
def test_tokens_are_grouped_into_words(tokens: list[str], words: list[str]) -> None:
    read = token_text(tokens)
    assert "".join(join_tokens(read, *word).strip(" ") for word in word_ranges(read)) == "".join(words).replace(" ", "")
    assert [join_tokens(read, *word) for word in word_ranges(read)] == [word.strip(" ") for word in words]


def test_a_character_split_over_two_tokens_is_written_as_bytes() -> None:
    assert token_text(["Ġcaf", "Ã", "©"]).labels == ["caf", "<0xC3>", "<0xA9>"]


@given(st.text())
def test_splitting_loses_nothing_but_spaces(text: str) -> None:
    words = split_words(text)
    assert all(words)
    assert "".join("".join(words).split()) == "".join(text.split())


TEXT = "The naïve Owl 🦉 didn't\n\ncross—3.14 m."


def byte_pairs() -> Tokenizer:
    """Knows single bytes alone."""
    tokenizer = Tokenizer(models.BPE(vocab={letter: n for n, letter in enumerate(ByteLevel.alphabet())}, merges=[]))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    return tokenizer


def word_pieces() -> Tokenizer:
    vocabulary = ["[UNK]", "[CLS]", "the", "naive", "o", "##wl", "didn", "'", "t", "cross", "3", ".", "14", "m", "—"]
    tokenizer = Tokenizer(models.WordPiece({piece: n for n, piece in enumerate(vocabulary)}, unk_token="[UNK]"))
    tokenizer.normalizer = BertNormalizer()
    tokenizer.pre_tokenizer = BertPreTokenizer()
    return tokenizer


def shown(tokenizer: Tokenizer) -> TokenText:
    tokens = tokenizer.encode(TEXT).tokens
    return token_text(tokens, written(TEXT, tokenizer, tokens))


def test_word_pieces_are_shown_as_they_were_written() -> None:
    read = shown(word_pieces())
    assert read.labels == ["The", "naïve", "O", "wl", "🦉", "didn", "'", "t", "cross", "—", "3", ".", "14", "m", "."]
    assert [join_tokens(read, *word) for word in word_ranges(read)] == [
        "The", "naïve", "Owl", "🦉", "didn't", "cross", "—", "3.14", "m", ".",
    ]  # fmt: skip


def test_newlines_that_no_token_stands_for_are_kept_before_the_next_item() -> None:
    read = shown(word_pieces())
    assert read.breaks == {read.labels.index("cross"): 2}
    words = Axis.of(read, merge="words", specials="show")
    assert words.breaks == {words.labels.index("cross"): 2}
    decoder = Axis.of(read, merge="tokens", specials="show", names=tokens_after(read))
    assert decoder.breaks == {decoder.labels.index("cross"): 2}
    assert shown(byte_pairs()).breaks == {}


def test_bytes_of_one_character_are_joined_in_the_first() -> None:
    read = shown(byte_pairs())
    assert not any("\ufffd" in label for label in read.labels)
    owl = read.labels.index("🦉")
    assert read.labels[owl + 1 : owl + 4] == ["<0x9F>", "<0xA6>", "<0x89>"]
    whole = [label for label in read.labels if not label.startswith("<0x")]
    assert "".join(whole).replace(" ", "") == TEXT.replace(" ", "")


@given(st.text(max_size=40))
def test_no_letter_is_lost_or_shown_twice(text: str) -> None:
    tokenizer = byte_pairs()
    tokens = tokenizer.encode(text).tokens
    read = token_text(tokens, written(text, tokenizer, tokens))
    assert len(read.labels) == len(tokens) == len(read.starts)
    shown = "".join(label for label in read.labels if label not in BYTES)
    assert shown.replace(" ", "") == "".join(text.split(" "))


BYTES = {f"<0x{byte:02X}>" for byte in range(256)}


@pytest.mark.parametrize("kept", [1, 4, 8])
def test_a_text_that_was_cut_short_is_shown_as_it_was_written(kept: int) -> None:
    tokenizer = word_pieces()
    special = [("[CLS]", 1), ("[SEP]", 15)]
    tokenizer.add_special_tokens(["[CLS]", "[SEP]"])
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=special)
    whole = tokenizer.encode(TEXT)
    source = written(TEXT, tokenizer, [*whole.tokens[: 1 + kept], "[SEP]"])
    assert source is not None
    end = whole.offsets[kept][1]
    assert (source.text, source.offsets[:-1]) == (TEXT[:end], whole.offsets[: 1 + kept])
    labels = token_text([*whole.tokens[: 1 + kept], "[SEP]"], source).labels
    assert labels[0] == "[CLS]"
    assert labels[1] == "The"
    assert labels[-1] == "[SEP]"
    assert written(TEXT, tokenizer, [*whole.tokens[: 1 + kept], "the", "[SEP]"]) is None
    assert written("a b", byte_pairs(), ["a", "x", "b", "c"]) is None
    # What a decoder reads: a start token, and the beginning of its tokens.
    read = written(TEXT, tokenizer, ["<s>", *whole.tokens[: 1 + kept]])
    assert read is not None
    assert (read.text, list(read.offsets)) == (TEXT[:end], [(0, 0), *whole.offsets[: 1 + kept]])


def test_special_tokens_are_recognised_and_kept_where_there_is_nothing_else() -> None:
    read = token_text(["[CLS]", "[UNK]", "<s>", "<b>", "[x]", "<extra_id_3>"])
    assert read.special == [True, False, True, False, False, True]
    assert len(Axis.of(token_text(["[CLS]", "[SEP]"]), merge="words", specials="hide")) == 2


def test_long_words_and_tokens_are_cut() -> None:
    assert word_ranges(token_text(["a", *["##b"] * 70, "c"])) == [(0, 32), (32, 64), (64, 71), (71, 72)]
    assert token_text(["x" * 5000]).labels == ["x" * 999 + "…"]
